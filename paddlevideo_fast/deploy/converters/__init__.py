"""Weights of other toolkits, under our names and in our order of channels."""

from paddlevideo_fast.deploy.converters.pyslowfast import convert_pyslowfast
from paddlevideo_fast.deploy.converters.tsm import convert_mit_tsm, convert_mmaction2_tsm

__all__ = ["convert_mit_tsm", "convert_mmaction2_tsm", "convert_pyslowfast"]

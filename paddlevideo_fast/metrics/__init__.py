"""Metrics of an evaluation. Importing this package registers them."""

from paddlevideo_fast.metrics.center_crop import CenterCropMetric
from paddlevideo_fast.metrics.multi_crop import MultiCropMetric

__all__ = ["CenterCropMetric", "MultiCropMetric"]

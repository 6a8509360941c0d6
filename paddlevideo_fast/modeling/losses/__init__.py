"""Losses. Importing this package registers them."""

from paddlevideo_fast.modeling.losses.cross_entropy import CrossEntropyLoss

__all__ = ["CrossEntropyLoss"]

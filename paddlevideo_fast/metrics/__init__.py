"""Metrics of an evaluation. Importing this package registers them."""

from paddlevideo_fast.metrics.center_crop import CenterCropMetric

__all__ = ["CenterCropMetric"]

"""Metrics of an evaluation. Importing this package registers them."""

from paddlevideo_fast.metrics.center_crop import CenterCropMetric
from paddlevideo_fast.metrics.multi_crop import MultiCropMetric
from paddlevideo_fast.metrics.predictions import (
    ClassResult,
    PredictionMetric,
    Predictions,
    class_results,
    confusion_matrix,
    hardest,
    mean_class_accuracy,
    precision_recall,
)

__all__ = [
    "CenterCropMetric",
    "ClassResult",
    "MultiCropMetric",
    "PredictionMetric",
    "Predictions",
    "class_results",
    "confusion_matrix",
    "hardest",
    "mean_class_accuracy",
    "precision_recall",
]

"""Metrics of an evaluation. Importing this package registers them."""

from paddlevideo_fast.metrics.accuracy import (
    CenterCropMetric,
    Metric,
    MultiCropMetric,
    VideoMetric,
    VideoScores,
    rank_of_label,
)
from paddlevideo_fast.metrics.predictions import (
    ClassResult,
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
    "Metric",
    "MultiCropMetric",
    "Predictions",
    "class_results",
    "confusion_matrix",
    "hardest",
    "mean_class_accuracy",
    "VideoMetric",
    "VideoScores",
    "precision_recall",
    "rank_of_label",
]

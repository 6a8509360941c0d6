"""Metrics of an evaluation. Importing this package registers them."""

from paddlevideo_fast.metrics.accuracy import (
    CenterCropMetric,
    MultiCropMetric,
    certainty,
    count_hits,
    interval,
    telling,
)
from paddlevideo_fast.metrics.average_precision import MeanAveragePrecision, average_precision, label_results
from paddlevideo_fast.metrics.predictions import (
    DECISION,
    Predictions,
    class_results,
    confusion_matrix,
    hardest,
    mean_class_accuracy,
    precision_recall,
)
from paddlevideo_fast.metrics.videos import VideoMetric

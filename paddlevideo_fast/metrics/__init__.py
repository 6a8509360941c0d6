"""Metrics of an evaluation. Importing this package registers them."""

from paddlevideo_fast.metrics.accuracy import CenterCropMetric, MultiCropMetric
from paddlevideo_fast.metrics.average_precision import MeanAveragePrecision
from paddlevideo_fast.metrics.videos import VideoMetric

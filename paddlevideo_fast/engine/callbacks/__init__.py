"""What happens around the steps."""

from paddlevideo_fast.engine.callbacks.base import Callback
from paddlevideo_fast.engine.callbacks.batch_norm_splits import BatchNormSplits
from paddlevideo_fast.engine.callbacks.checkpointing import Checkpointing, restore
from paddlevideo_fast.engine.callbacks.complexity import Complexity
from paddlevideo_fast.engine.callbacks.ema import ExponentialMovingAverage
from paddlevideo_fast.engine.callbacks.evaluation import Evaluation
from paddlevideo_fast.engine.callbacks.learning_rate import LearningRate
from paddlevideo_fast.engine.callbacks.precise_batch_norm import PreciseBatchNorm
from paddlevideo_fast.engine.callbacks.profiling import ProfilerOptions, Profiling, ProfilingFinished
from paddlevideo_fast.engine.callbacks.progress import ProgressBar
from paddlevideo_fast.engine.callbacks.recorder import Recorder

__all__ = [
    "BatchNormSplits",
    "Callback",
    "Checkpointing",
    "Complexity",
    "Evaluation",
    "ExponentialMovingAverage",
    "LearningRate",
    "PreciseBatchNorm",
    "ProfilerOptions",
    "Profiling",
    "ProfilingFinished",
    "ProgressBar",
    "Recorder",
    "restore",
]

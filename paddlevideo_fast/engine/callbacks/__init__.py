"""What happens around the steps."""

from paddlevideo_fast.engine.callbacks.checkpointing import Checkpointing, restore
from paddlevideo_fast.engine.callbacks.evaluation import (
    Evaluation,
    ExponentialMovingAverage,
    PreciseBatchNorm,
)
from paddlevideo_fast.engine.callbacks.profiling import ProfilerOptions, Profiling, ProfilingFinished
from paddlevideo_fast.engine.callbacks.recorder import Complexity, ProgressBar, Recorder, Tracking
from paddlevideo_fast.engine.callbacks.schedule import BatchNormSplits, LearningRate, PhaseLog, Unfreezing
from paddlevideo_fast.engine.trainer import Callback

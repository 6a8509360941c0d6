"""What happens around the steps, and the options of the core."""

from paddlevideo_fast.engine.callbacks.checkpointing import Checkpointing, restore
from paddlevideo_fast.engine.callbacks.ema import Ema, ExponentialMovingAverage
from paddlevideo_fast.engine.callbacks.evaluation import Evaluation, Selection
from paddlevideo_fast.engine.callbacks.finetune import Finetune, Unfreezing
from paddlevideo_fast.engine.callbacks.precise_bn import PreciseBatchNorm, PreciseBN
from paddlevideo_fast.engine.callbacks.recorder import Complexity, Recorder
from paddlevideo_fast.engine.callbacks.schedule import BatchNormSplits, LearningRate, PhaseLog
from paddlevideo_fast.engine.trainer import Callback

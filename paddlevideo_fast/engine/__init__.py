"""Training and evaluation."""

from paddlevideo_fast.engine.checkpoint import Snapshot, load_checkpoint
from paddlevideo_fast.engine.distribution import Distribution, FleetDistribution
from paddlevideo_fast.engine.evaluator import Evaluator
from paddlevideo_fast.engine.interrupt import TrainingInterrupted
from paddlevideo_fast.engine.output import BackgroundStore, CheckpointStore, ReadOnlyStore
from paddlevideo_fast.engine.precision import MixedPrecision, Precision, RoundedPrecision, has_dtype
from paddlevideo_fast.engine.trainer import Trainer

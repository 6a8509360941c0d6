"""The section FINETUNE: parts of the network that keep their weights, for some epochs or for all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paddlevideo_fast.config.types import PositiveInt
from paddlevideo_fast.engine.checkpoint import apply_restored_state
from paddlevideo_fast.engine.extension import Extension, Problem, Problems
from paddlevideo_fast.engine.trainer import Callback, Slot, Trainer
from paddlevideo_fast.log import counted, get_logger
from paddlevideo_fast.modeling import count_parameters
from paddlevideo_fast.modeling.freezing import Freezing
from paddlevideo_fast.modeling.stages import learned_parameters
from paddlevideo_fast.registry import EXTENSIONS

if TYPE_CHECKING:
    from paddlevideo_fast.assembly.build import TrainingSetup
    from paddlevideo_fast.assembly.plan import RunPlan

logger = get_logger(__name__)


@EXTENSIONS.register("FINETUNE")
@dataclass(frozen=True)
class Finetune(Extension):
    """Parts of the network that keep their weights.

    Args:
        freeze: names of stages (`stem`, `res2`, …; an unknown name makes an error that lists them), names of
            parameters or their starts up to a dot, or patterns such as `backbone.*.bias`. What is frozen gets
            no update and no weight decay; its batch norms use and keep their running statistics.
        unfreeze_at: how many epochs pass before all of it trains; or a mapping from items of `freeze` to
            epochs, in which an item that is missing never trains; null: nothing of it trains.
    """

    freeze: Sequence[str]
    unfreeze_at: PositiveInt | dict[str, PositiveInt] | None = None

    def problems(self, plan: "RunPlan") -> Problems:
        """What fixes the parameters that train at the first step, beside parts that begin to train later."""
        key, spec = "FINETUNE.unfreeze_at", plan.spec
        if not self.unfreeze_at:
            return
        if spec.config.get("to_static"):
            yield Problem(key, "a static graph keeps what is frozen; take to_static out")
        if (spec.optimizer or {}).get("use_multi_tensor"):
            text = "one operator for all parameters keeps those of the first step; take use_multi_tensor out"
            yield Problem(key, text)
        if spec.distributed.sharding_degree > 1:
            text = "a sharded optimizer deals its parameters out before the first step; take sharding_degree"
            yield Problem(key, f"{text} out")
        epochs = [self.unfreeze_at] if isinstance(self.unfreeze_at, int) else self.unfreeze_at.values()
        if max(epochs) >= (num_epochs := plan.phases[-1].end_epoch):
            text = f"the run ends after {counted(num_epochs, 'epoch')}, so some parts never train"
            yield Problem(key, text, is_error=False)

    def on_model(self, setup: "TrainingSetup") -> None:
        """Freezes the parts, and logs how much of the model they are."""
        model, unfreeze_at = setup.model, self.unfreeze_at
        freezing = Freezing(model, self.freeze, unfreeze_at)
        frozen = sum(learned_parameters(model)[name].size for name in freezing.frozen_in(0))
        share = f"{frozen / 1e6:.2f} M of {count_parameters(model) / 1e6:.2f} M parameters"
        until = f", until epoch {unfreeze_at} ends" if isinstance(unfreeze_at, int) else ""
        logger.info("frozen: %s, %s%s", ", ".join(self.freeze) or "nothing", share, until)
        setup.trains_later = freezing.later
        setup.callbacks.append(Unfreezing(freezing))


class Unfreezing(Callback):
    """Freezes in each epoch what is frozen in it. That follows from the epoch, so it has no state.

    Args:
        freezing: the parts of the model and their epochs.
    """

    slot = Slot.STEP

    def __init__(self, freezing: Freezing) -> None:
        self.freezing = freezing

    def epoch_begin(self, trainer: Trainer) -> None:
        freed = self.freezing.begin(trainer.state.epoch)
        if freed:
            apply_restored_state(trainer.optimizer)
            logger.info(
                "epoch %d: %d more parameter tensors train from here on", trainer.state.epoch + 1, len(freed)
            )

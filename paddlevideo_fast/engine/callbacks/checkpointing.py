"""When checkpoints are written, and how a run goes on from one."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import paddle

from paddlevideo_fast.engine.checkpoint import Snapshot, portable_state, restore_optimizer
from paddlevideo_fast.engine.output import CheckpointStore
from paddlevideo_fast.engine.trainer import Callback, Slot, Trainer
from paddlevideo_fast.errors import CheckpointError
from paddlevideo_fast.loader.class_names import NAMES_KEY
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.machine import MKL_PATH
from paddlevideo_fast.modeling.weights import restored_state, stored_state

logger = get_logger(__name__)


@dataclass(eq=False)
class Checkpointing(Callback):
    """Saves every `interval` epochs, after the last epoch, on interruption and every `every_steps` steps.

    Args:
        store: where checkpoints are written.
        interval: in epochs.
        every_steps: optimizer steps of the run, also inside an epoch; None: only at the ends of epochs.
        keep_last: how many checkpoints of the run stay; None: all.
        class_names: what the classes of the network are called, for later runs; None: not known.
    """

    slot = Slot.SAVE

    store: CheckpointStore
    interval: int = 1
    every_steps: int | None = None
    keep_last: int | None = None
    class_names: Sequence[str] | None = None

    _steps_per_epoch = 0

    def epoch_begin(self, trainer: Trainer) -> None:
        trainer.distribution.gather_from(self.store.check)
        if trainer.state.step_in_epoch and trainer.steps_per_epoch != self._steps_per_epoch:
            raise CheckpointError(
                f"the checkpoint stands at step {trainer.state.step_in_epoch} of an epoch of "
                f"{self._steps_per_epoch}, which now has {trainer.steps_per_epoch}: batch size, max_iters or "
                "the training list has changed. Restore it, or resume from a checkpoint between two epochs"
            )
        self._steps_per_epoch = trainer.steps_per_epoch

    def step_end(self, trainer: Trainer) -> None:
        if self.every_steps and trainer.state.step % self.every_steps == 0:
            self.save(trainer, f"step_{trainer.state.step:08d}")

    def epoch_end(self, trainer: Trainer) -> None:
        epoch = trainer.state.epoch
        if epoch % self.interval == 0 or trainer.is_finished:
            self.save(trainer, f"epoch_{epoch:05d}")

    def interrupted(self, trainer: Trainer) -> None:
        self.store.close()  # where an earlier save has failed, this one is still tried
        prefix = self.save(trainer, f"step_{trainer.state.step:08d}")
        trainer.distribution.gather_from(self.store.wait)
        logger.info("saved %s", prefix)

    def fit_end(self, trainer: Trainer) -> None:
        trainer.distribution.gather_from(self.store.wait)

    def close(self) -> None:
        self.store.close()

    def state_dict(self) -> dict[str, Any]:
        return {"steps_per_epoch": self._steps_per_epoch}

    def set_state_dict(self, state: dict[str, Any]) -> None:
        self._steps_per_epoch = state["steps_per_epoch"]

    def save(self, trainer: Trainer, tag: str) -> str:
        """Writes the state of the run; returns the checkpoint's prefix."""
        trainer.drain()  # a loss that is not finite must not reach the disk
        trainer.call("before_checkpoint")
        optimizer = trainer.distribution.gather_optimizer_state(
            portable_state(trainer.optimizer, trainer.model)
        )
        prefix = trainer.distribution.gather_from(lambda: self._write(trainer, tag, optimizer))[0]
        trainer.last_checkpoint = prefix
        return prefix

    def _write(self, trainer: Trainer, tag: str, optimizer: dict[str, Any]) -> str:
        snapshot = Snapshot(
            weights=stored_state(trainer.model),
            optimizer=optimizer,
            tensors={
                f"{key}/{name}": tensor
                for key, callback in _keyed(trainer).items()
                for name, tensor in callback.tensors().items()
            },
            state={
                "trainer": trainer.state.state_dict(),
                "precision": trainer.precision.state_dict(),
                "callbacks": {key: callback.state_dict() for key, callback in _keyed(trainer).items()},
                "run": run_identity(trainer, trainer.state.epoch),
                **({} if self.class_names is None else {NAMES_KEY: list(self.class_names)}),
            },
        )
        prefix = self.store.save(tag, snapshot)
        if self.keep_last is not None:
            self.store.remove_all_but(self.keep_last)
        return prefix


def restore(trainer: Trainer, checkpoint: Snapshot) -> None:
    """Puts a run where it stood when the checkpoint was written.

    Raises:
        CheckpointError: the weights do not fit the model, or a part of the state is missing.
        WeightError: see `restored_state`.
    """
    own = trainer.model.state_dict()
    weights = restored_state(trainer.model, checkpoint.weights, f"{checkpoint.prefix}.pdparams")
    wrong = [
        name
        for name, value in own.items()
        if name not in weights or tuple(weights[name].shape) != tuple(value.shape)
    ]
    if wrong:
        raise CheckpointError(
            f"'{checkpoint.prefix}.pdparams' does not fit the model: {len(wrong)} tensors are missing or of "
            f"another shape, first '{wrong[0]}'. Resume with the run's config (config.yaml beside it)"
        )
    _check_identity(trainer, checkpoint)
    trainer.model.set_state_dict(weights)
    restore_optimizer(trainer.optimizer, trainer.model, checkpoint.optimizer)
    state = checkpoint.state
    if not state:
        _restore_position_from_name(trainer, checkpoint.prefix)
        return
    trainer.last_checkpoint = checkpoint.prefix
    try:
        trainer.state.set_state_dict(state["trainer"])
        trainer.precision.set_state_dict(state["precision"])
        for key, callback in _keyed(trainer).items():
            callback.set_state_dict(state["callbacks"].get(key) or callback.state_dict())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"'{checkpoint.prefix}.json' holds a state that this version does not understand "
            f"({type(error).__name__}: {error}); choose another checkpoint with -o resume="
        ) from error
    for key, callback in _keyed(trainer).items():
        wanted = {name: f"{key}/{name}" for name in callback.tensors()}
        missing = [name for name in wanted.values() if name not in checkpoint.tensors]
        if missing:
            logger.warning("'%s' holds no %s: it starts from the loaded weights", checkpoint.prefix, key)
            continue
        callback.set_tensors({name: checkpoint.tensors[stored] for name, stored in wanted.items()})


def run_identity(trainer: Trainer, epoch: int) -> dict[str, Any]:
    """The values that must be equal for a run resumed in `epoch` to take the same steps."""
    return {
        "optimizer": type(trainer.optimizer).__name__,
        "precision": trainer.precision.name,
        "mkl_path": os.environ.get(MKL_PATH) if paddle.get_device() == "cpu" else None,
        "seed": trainer.seed,
        "world_size": trainer.distribution.world_size,
        "accumulate_steps": trainer.accumulate_steps,
        "shape": trainer.phase_of(epoch).shape,
        **trainer.data_identity,
    }


def _check_identity(trainer: Trainer, checkpoint: Snapshot) -> None:
    position = {"epoch": 0, "step_in_epoch": 0, **checkpoint.state.get("trainer", {})}
    was, now = checkpoint.state.get("run", {}), run_identity(trainer, position["epoch"])
    inside = position["step_in_epoch"] > 0
    for key, value in was.items():
        if now.get(key) == value:
            continue
        message = f"the run of '{checkpoint.prefix}' had {key} {value}, this one has {now.get(key)}"
        if key == "optimizer":
            text = f"{message}: begin a new run from its weights, -w {checkpoint.prefix}.pdparams"
            raise CheckpointError(text)
        if inside and key not in ("precision", "mkl_path"):
            raise CheckpointError(
                f"{message}: inside an epoch that would skip and repeat samples. Restore it, or resume from "
                "a checkpoint between two epochs"
            )
        logger.warning("%s: the steps to come differ from those it would have taken", message)


def _restore_position_from_name(trainer: Trainer, prefix: str) -> None:
    """Takes the number of finished epochs from the name, as PaddleVideo's checkpoints hold no position."""
    match = re.search(r"_epoch_(\d+)$", prefix)
    trainer.state.epoch = int(match.group(1)) if match else 0
    trainer.state.step = trainer.steps_before(trainer.state.epoch)
    logger.warning(
        f"'{prefix}' holds weights and optimizer only: the run goes on after epoch {trainer.state.epoch} by "
        "its name; best, averages and the moving average start anew"
    )


def _keyed(trainer: Trainer) -> dict[str, Callback]:
    """Callbacks by class name; a run has one of each."""
    names: list[str] = [type(callback).__name__ for callback in trainer.callbacks]
    return dict(zip(names, trainer.callbacks))

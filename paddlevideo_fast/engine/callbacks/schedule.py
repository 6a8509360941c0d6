"""Callbacks that follow the schedule: its log, the learning rate, and the batches of batch norms."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast import solver
from paddlevideo_fast.engine.distribution import Distribution
from paddlevideo_fast.engine.trainer import Callback, Slot, Trainer
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling.layers.batch_norm import (
    BATCH_NORMS,
    set_num_splits,
    set_split_statistics,
    set_sync_group,
    split_statistics,
)

logger = get_logger(__name__)

_OF_RANKS = ".ranks"


class LearningRate(Callback):
    """Sets the optimizer's rate before each step. The rate follows from the position, so it has no state.

    Args:
        curve: the rate at every fraction of an epoch.
    """

    slot = Slot.STEP

    def __init__(self, curve: solver.LearningRate) -> None:
        self.curve = curve

    def step_begin(self, trainer: Trainer) -> None:
        rate = self.curve.at(trainer.progress)
        if isinstance(self.curve, solver.LearningRate):  # a user's curve may have no more than `at`
            rate *= self.curve.warm_up(trainer.state.step)
        trainer.optimizer.set_lr(rate)


class PhaseLog(Callback):
    """Logs the steps of each multigrid phase when it begins.

    Args:
        global_batch_size: clips of an optimizer step without multigrid, over all processes.
    """

    slot = Slot.STEP

    def __init__(self, global_batch_size: int) -> None:
        self.global_batch_size = global_batch_size

    def phase_begin(self, trainer: Trainer) -> None:
        phase = trainer.phase
        if phase.num_frames is not None:
            steps = f"{trainer.steps_per_epoch} steps each: {phase.steps_in_words(self.global_batch_size)}"
            logger.info("epochs %d to %d, %s", phase.start_epoch + 1, phase.end_epoch, steps)


class BatchNormSplits(Callback):
    """Sets how batch norms split a device's batch, or share batches over processes, in each phase.

    Checkpoints hold the statistics of the splits. Before evaluation and checkpoint all ranks set their
    running statistics to the mean over the ranks, so all evaluate the same model, and this model is saved.
    A run that is stopped at another step also saves the statistics of each rank, with which it goes on.

    Args:
        model: its batch norms are `modeling.layers.SubBatchNorm2D` and `SubBatchNorm3D`.
    """

    slot = Slot.STEP

    def __init__(self, model: nn.Layer) -> None:
        self._model = model
        self._num_splits = 1
        self._of_ranks: dict[str, Any] = {}  # [ranks, ...], of a run that is stopped

    def fit_begin(self, trainer: Trainer) -> None:
        rank, world_size = trainer.distribution.rank, trainer.distribution.world_size
        own = {name: rows[rank] for name, rows in self._of_ranks.items() if len(rows) == world_size}
        self._of_ranks = {}
        if own:
            self._put({name.removesuffix(_OF_RANKS): value for name, value in own.items()})

    def interrupted(self, trainer: Trainer) -> None:
        if trainer.distribution.world_size > 1:
            own = {name: tensor.numpy() for name, tensor in self._statistics().items()}
            ranks = trainer.distribution.gather(own)
            self._of_ranks = {f"{name}{_OF_RANKS}": np.stack([each[name] for each in ranks]) for name in own}

    def phase_begin(self, trainer: Trainer) -> None:
        set_sync_group(self._model, None)
        self._resize(trainer.phase.bn_splits)
        set_sync_group(self._model, trainer.distribution.rank_group(trainer.phase.bn_sync_devices))

    def before_evaluation(self, trainer: Trainer) -> None:
        self._average(trainer.distribution)

    def before_checkpoint(self, trainer: Trainer) -> None:
        self._average(trainer.distribution)

    def state_dict(self) -> dict[str, Any]:
        return {"num_splits": self._num_splits, "of_ranks": list(self._of_ranks)}

    def set_state_dict(self, state: dict[str, Any]) -> None:
        self._resize(state["num_splits"])
        self._of_ranks = dict.fromkeys(state.get("of_ranks", ()))

    def tensors(self) -> dict[str, Any]:
        rows = self._of_ranks.items()
        stacked = {name: value if value is None else paddle.to_tensor(value) for name, value in rows}
        return {**split_statistics(self._model), **stacked}

    def set_tensors(self, tensors: dict[str, Any]) -> None:
        self._of_ranks = {name: tensors[name] for name in self._of_ranks}
        set_split_statistics(self._model, tensors)

    def _resize(self, num_splits: int) -> None:
        self._num_splits = num_splits
        set_num_splits(self._model, num_splits)

    def _statistics(self) -> dict[str, paddle.Tensor]:
        return {**self._whole(), **split_statistics(self._model)}

    def _whole(self) -> dict[str, paddle.Tensor]:
        return {
            f"{name}.whole{kind}": getattr(layer, kind)
            for name, layer in self._model.named_sublayers()
            if isinstance(layer, BATCH_NORMS)
            for kind in ("_mean", "_variance")
        }

    def _put(self, values: Mapping[str, Any]) -> None:
        for name, tensor in self._whole().items():
            tensor.set_value(values[name])
        set_split_statistics(self._model, dict(values))

    def _average(self, distribution: Distribution) -> None:
        if distribution.world_size > 1 and (statistics := self._statistics()):
            self._put(_mean_over_ranks(statistics, distribution))


def _mean_over_ranks(tensors: Mapping[str, Any], distribution: Distribution) -> dict[str, np.ndarray]:
    """The mean of each tensor, from one message. Equal values stay as they are, to the last bit."""
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    together = np.concatenate([array.astype(np.float64).reshape(-1) for array in arrays.values()])
    means = distribution.all_sum(together) / distribution.world_size
    ends = np.cumsum([array.size for array in arrays.values()])[:-1]
    return {
        name: part.reshape(array.shape).astype(array.dtype)
        for (name, array), part in zip(arrays.items(), np.split(means, ends))
    }

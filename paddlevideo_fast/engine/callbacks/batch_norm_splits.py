"""The clips that batch norms take their statistics from, in each phase."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping

import numpy as np
from paddle import nn

from paddlevideo_fast.engine.callbacks.base import Callback
from paddlevideo_fast.engine.distribution import Distribution
from paddlevideo_fast.modeling.layers import (
    set_num_splits,
    set_split_statistics,
    set_sync_group,
    split_statistics,
)

if TYPE_CHECKING:
    from paddlevideo_fast.engine.trainer import Trainer


class BatchNormSplits(Callback):
    """Gives the batch norms the phase's number of splits, or of processes that share their statistics.

    The statistics of the splits have a place in the checkpoint. Before evaluation and checkpoint all ranks
    take over the mean of their running statistics: they evaluate one model, and it is the one that is saved.

    Args:
        model: its batch norms are `modeling.layers.SubBatchNorm2D` and `SubBatchNorm3D`.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._num_splits = 1

    def phase_begin(self, trainer: Trainer) -> None:
        set_sync_group(self._model, None)
        self._resize(trainer.phase.bn_splits)
        set_sync_group(self._model, trainer.distribution.neighbours(trainer.phase.bn_sync_devices))

    def before_evaluation(self, trainer: Trainer) -> None:
        self._average(trainer.distribution)

    def before_checkpoint(self, trainer: Trainer) -> None:
        self._average(trainer.distribution)

    def state_dict(self) -> Dict[str, Any]:
        return {"num_splits": self._num_splits}

    def set_state_dict(self, state: Dict[str, Any]) -> None:
        self._resize(state["num_splits"])

    def tensors(self) -> Dict[str, Any]:
        return split_statistics(self._model)

    def set_tensors(self, tensors: Dict[str, Any]) -> None:
        set_split_statistics(self._model, tensors)

    def _resize(self, num_splits: int) -> None:
        self._num_splits = num_splits
        set_num_splits(self._model, num_splits)

    def _average(self, distribution: Distribution) -> None:
        whole = {
            f"{name}.whole{kind}": getattr(layer, kind)
            for name, layer in self._model.named_sublayers()
            if isinstance(layer, (nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D))
            for kind in ("_mean", "_variance")
        }
        if distribution.world_size == 1 or not whole:
            return
        means = _mean_over_ranks({**whole, **split_statistics(self._model)}, distribution)
        for name, tensor in whole.items():
            tensor.set_value(means[name])
        set_split_statistics(self._model, means)


def _mean_over_ranks(tensors: Mapping[str, Any], distribution: Distribution) -> Dict[str, np.ndarray]:
    """In one message; equal values stay as they are, to the last bit."""
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    together = np.concatenate([array.astype(np.float64).reshape(-1) for array in arrays.values()])
    means = distribution.all_sum(together) / distribution.world_size
    ends = np.cumsum([array.size for array in arrays.values()])[:-1]
    return {
        name: part.reshape(array.shape).astype(array.dtype)
        for (name, array), part in zip(arrays.items(), np.split(means, ends))
    }

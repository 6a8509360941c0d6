"""Batch-norm splits that follow the phase."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict

from paddlevideo_fast.engine.callbacks.base import Callback
from paddlevideo_fast.modeling.layers import set_num_splits, set_split_statistics, split_statistics

if TYPE_CHECKING:
    from paddlevideo_fast.engine.trainer import Trainer


class BatchNormSplits(Callback):
    """Gives the batch norms the phase's number of splits, and their statistics a place in the checkpoint.

    Args:
        model: its batch norms are `modeling.layers.SubBatchNorm2D` and `SubBatchNorm3D`.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._num_splits = 1

    def phase_begin(self, trainer: Trainer) -> None:
        self._resize(trainer.phase.bn_splits)

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

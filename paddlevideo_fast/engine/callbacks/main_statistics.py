"""Batch-norm statistics over several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paddle import nn

from paddlevideo_fast.engine.callbacks.base import Callback

if TYPE_CHECKING:
    from paddlevideo_fast.engine.trainer import Trainer


class MainStatistics(Callback):
    """Evaluates with rank 0's running statistics on all ranks: those that the weight file holds.

    Each rank's batch norms see its own share of the clips, unless they are synchronised. Training does not
    depend on what they have gathered, and rank 0's alone go into checkpoints; so a run that is resumed from
    them is the same run.
    """

    def before_evaluation(self, trainer: Trainer) -> None:
        kinds = (nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D)
        norms = [layer for layer in trainer.model.sublayers() if isinstance(layer, kinds)]
        trainer.distribution.broadcast([each for norm in norms for each in (norm._mean, norm._variance)])

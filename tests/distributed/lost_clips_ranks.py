"""What each rank of `test_lost_clips` does: `python lost_clips_ranks.py FOLDER`."""

from __future__ import annotations

import sys
from typing import Any

import paddlevideo_fast  # isort: skip  # noqa: F401  before Paddle 2.6
import numpy as np
import paddle

from paddlevideo_fast.engine import Distribution, FleetDistribution, Trainer
from paddlevideo_fast.engine.callbacks import BatchNormSplits, Callback
from paddlevideo_fast.loader import Batch, DecodeFailure
from paddlevideo_fast.modeling.layers.batch_norm import SubBatchNorm3D
from paddlevideo_fast.schedule.phases import plain_phases
from tests.support.small_runs import Batches, Classifier, batch_of

# Clips of each rank's micro-batches, two a step. Rank 0 starts without any, rank 1 lacks one and then two,
# and in the last two steps both lack one, and then all.
SIZES = [[0, 2, 2, 2, 3, 2, 0, 3, 0, 0], [2, 3, 0, 1, 0, 0, 0, 1, 0, 0]]
CLIPS = np.random.default_rng(0).normal(size=(2, 10, 3, 2, 3, 5, 5)).astype("float64")
LABELS = np.random.default_rng(1).integers(0, 4, (2, 10, 3))


def batch(ranks: list[int], number: int) -> Batch:
    """A batch of one rank, or of both together."""
    clips = np.concatenate([CLIPS[rank, number, : SIZES[rank][number]] for rank in ranks])
    labels = np.concatenate([LABELS[rank, number, : SIZES[rank][number]] for rank in ranks])
    lost = [rank for rank in ranks if SIZES[rank][number] == 0]
    incidents = [DecodeFailure(f"{rank}-{number}.mp4", "failed", "lost") for rank in lost]
    return batch_of(clips, labels, labels, incidents)


class Net(Classifier):
    """A network in float64 whose batch norm sees the clips of all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = paddle.nn.Conv3D(2, 6, 3, padding=1, bias_attr=False)
        self.norm = SubBatchNorm3D(6)
        self.fc = paddle.nn.Linear(6, 4)

    def forward(self, clips: Any) -> Any:
        return self.fc(paddle.tanh(self.norm(self.conv(clips))).mean([2, 3, 4]))


class Steps(Callback):
    """The parameters after each step."""

    def __init__(self) -> None:
        self.found: list[np.ndarray] = []

    def step_end(self, trainer: Trainer) -> None:
        values = [value.numpy().reshape(-1) for value in trainer.model.state_dict().values()]
        self.found.append(np.concatenate(values))


def train(distribution: Distribution, ranks: list[int]) -> dict:
    """Trains an epoch on the batches of these ranks."""
    paddle.set_default_dtype("float64")
    paddle.seed(7)
    model, steps = Net(), Steps()
    loader = Batches(lambda epoch: [batch(ranks, number) for number in range(10)])
    optimizer = paddle.optimizer.Momentum(0.2, 0.9, model.parameters(), weight_decay=0.01)
    bad: list[str] = []
    trainer = Trainer(
        model,
        optimizer,
        lambda phase: loader,
        paddle.to_tensor,
        plain_phases(1, bn_sync_devices=distribution.world_size),
        [BatchNormSplits(model), steps],
        distribution=distribution,
        accumulate_steps=2,
        on_incidents=lambda incidents: bad.extend(incident.path for incident in incidents),
    )
    trainer.fit()
    paddle.set_default_dtype("float32")
    loss = trainer.state.epoch_averages["loss"]
    return {"steps": np.stack(steps.found), "loss": loss.mean, "count": loss.count, "bad": sorted(bad)}


if __name__ == "__main__":
    distribution = FleetDistribution()
    np.savez(f"{sys.argv[1]}/{distribution.rank}.npz", **train(distribution, [distribution.rank]))

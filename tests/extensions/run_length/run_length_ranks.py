"""What each rank of `test_run_length_ranks` does: `python run_length_ranks.py FOLDER`."""

from __future__ import annotations

import sys

import paddlevideo_fast  # isort: skip  # noqa: F401  before Paddle 2.6
import numpy as np
import paddle

from paddlevideo_fast.config.settings import DistributedSettings
from paddlevideo_fast.engine import Distribution, FleetDistribution, Trainer
from paddlevideo_fast.engine.distribution import launched_rank
from paddlevideo_fast.loader import Batch
from paddlevideo_fast.modeling import build_model
from paddlevideo_fast.schedule.phases import plain_phases
from paddlevideo_fast.solver import build_optimizer

NUM_STEPS = 10
MODEL = {  # without anything at random in a step
    "framework": "RunLengthRecognizer",
    "threshold": 0.1,
    "learned_lengths": 2,
    "backbone": {"name": "VJEPA2", "embed_dim": 12, "depth": 2, "num_heads": 2, "patch_size": 4},
    "head": {"name": "AttentiveHead", "num_classes": 5, "in_channels": 12, "depth": 1, "num_heads": 2},
}
OPTIMIZER = {"name": "Momentum", "momentum": 0.9, "learning_rate": 0.1, "weight_decay": 0.1}


class Loader:
    """Random clips with squares that stand still, eight a step, of which each rank has its share."""

    def __init__(self, distribution: Distribution) -> None:
        rng = np.random.default_rng(0)
        clips = rng.normal(size=(8 * NUM_STEPS, 3, 4, 8, 8)).astype("float32")
        still = rng.random((len(clips), 1, 1, 2, 1, 2, 1)) < 0.5
        squares = clips.reshape(-1, 3, 4, 2, 4, 2, 4)
        self.clips = np.where(still, squares[:, :, :1], squares).reshape(clips.shape)
        self.labels = rng.integers(0, 5, len(self.clips))
        self.distribution = distribution

    def __len__(self) -> int:
        return NUM_STEPS

    def epoch(self, epoch, start_batch=0):
        for ids in np.arange(len(self.clips)).reshape(NUM_STEPS, -1)[start_batch:]:
            own = ids[self.distribution.rank :: self.distribution.world_size]
            yield Batch(self.clips[own], self.labels[own], own, np.zeros_like(own))


def main() -> None:
    rank, world_size = launched_rank()
    distribution = Distribution() if world_size == 1 else FleetDistribution(DistributedSettings())
    paddle.seed(11)
    model = build_model(MODEL)
    start = {f"start/{name}": parameter.numpy().copy() for name, parameter in model.named_parameters()}
    optimizer, _ = build_optimizer(OPTIMIZER, model)
    loader = Loader(distribution)
    num_tokens = [sum(model.packing(paddle.to_tensor(batch.clips)).lengths) for batch in loader.epoch(0)]
    trainer = Trainer(
        model, optimizer, lambda phase: loader, paddle.to_tensor, plain_phases(1), [],
        distribution=distribution,
    )  # fmt: skip
    trainer.fit()
    assert trainer.state.step == NUM_STEPS
    ends = {name: parameter.numpy() for name, parameter in model.named_parameters()}
    ends["loss"] = trainer.state.epoch_averages["loss"].mean
    np.savez(f"{sys.argv[1]}/{world_size}_{rank}", num_tokens=num_tokens, **start, **ends)


if __name__ == "__main__":
    main()

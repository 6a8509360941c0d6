"""What each rank of `test_lora_ranks` does: `python lora_ranks.py FOLDER`."""

from __future__ import annotations

import sys

import paddlevideo_fast  # isort: skip  # noqa: F401  before Paddle 2.6
import numpy as np
import paddle

from paddlevideo_fast.config.settings import DistributedSettings
from paddlevideo_fast.engine import Distribution, FleetDistribution, Trainer
from paddlevideo_fast.engine.callbacks import BatchNormSplits
from paddlevideo_fast.engine.distribution import launched_rank
from paddlevideo_fast.extensions.lora.lora import Lora
from paddlevideo_fast.modeling import build_model
from paddlevideo_fast.schedule.phases import plain_phases
from paddlevideo_fast.solver import build_optimizer
from tests.support.small_runs import Batches, batch_of

NUM_STEPS = 10
MODEL = {  # without anything at random in a step
    "framework": "Recognizer3D",
    "backbone": {
        "name": "MViT",
        "kv_stride": 2,
        "drop_path_rate": 0.0,
        "num_frames": 4,
        "crop_size": 8,
        "embed_dim": 8,
        "depths": [1, 1],
        "num_heads": 2,
    },
    "head": {"name": "TransformerHead", "num_classes": 5, "in_channels": 16, "drop_ratio": 0.0},
}
OPTIMIZER = {
    "name": "Momentum",
    "momentum": 0.9,
    "learning_rate": 0.1,
    "weight_decay": 0.1,
    "grad_clip": {"name": "ClipGradByGlobalNorm", "value": 0.5},
}


def loader_of(distribution: Distribution) -> Batches:
    """Random clips, eight a step, of which each rank has its share."""
    rng = np.random.default_rng(0)
    clips = rng.normal(size=(8 * NUM_STEPS, 3, 4, 8, 8)).astype("float32")
    labels = rng.integers(0, 5, len(clips))
    steps = np.arange(len(clips)).reshape(NUM_STEPS, -1)[:, distribution.rank :: distribution.world_size]
    return Batches(lambda epoch: [batch_of(clips[ids], labels[ids], ids) for ids in steps])


def main() -> None:
    rank, world_size = launched_rank()
    distribution = Distribution() if world_size == 1 else FleetDistribution(DistributedSettings())
    paddle.seed(11)
    model = build_model(MODEL)
    Lora(rank=2, scale=2.0).add_to(model)
    start = {f"start/{name}": parameter.numpy().copy() for name, parameter in model.named_parameters()}
    optimizer, _ = build_optimizer(OPTIMIZER, model)
    loader = loader_of(distribution)
    trainer = Trainer(
        model, optimizer, lambda phase: loader, paddle.to_tensor,
        plain_phases(1, bn_sync_devices=world_size), [BatchNormSplits(model)], distribution=distribution,
    )  # fmt: skip
    trainer.fit()
    assert trainer.state.step == NUM_STEPS
    ends = {name: parameter.numpy() for name, parameter in model.named_parameters()}
    ends["loss"] = trainer.state.epoch_averages["loss"].mean
    np.savez(f"{sys.argv[1]}/{world_size}_{rank}", **start, **ends)


if __name__ == "__main__":
    main()

"""A training of which each of several processes takes a share, and one process the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.support.launching import Job

NUM_STEPS = 10


def random_clips() -> np.ndarray:
    """float32 [80, 3, 4, 8, 8], eight a step."""
    return np.random.default_rng(0).normal(size=(8 * NUM_STEPS, 3, 4, 8, 8)).astype("float32")


def distribution_of_rank() -> Any:
    """This process among those of its job."""
    from paddlevideo_fast.config.settings import DistributedSettings
    from paddlevideo_fast.engine import Distribution, FleetDistribution
    from paddlevideo_fast.engine.distribution import launched_rank

    return Distribution() if launched_rank()[1] == 1 else FleetDistribution(DistributedSettings())


def share_of(clips: np.ndarray, distribution: Any) -> Any:
    """A loader of the clips of this process."""
    from tests.support.small_runs import Batches, batch_of

    labels = np.random.default_rng(1).integers(0, 5, len(clips))
    steps = np.arange(len(clips)).reshape(NUM_STEPS, -1)[:, distribution.rank :: distribution.world_size]
    return Batches(lambda epoch: [batch_of(clips[ids], labels[ids], ids) for ids in steps])


def train_share(
    model: Any, section: dict[str, Any], clips: np.ndarray, distribution: Any, folder: str, **facts: Any
) -> None:
    """Trains an epoch; writes the parameters before and after it, the loss and `facts` to the folder."""
    import paddle

    from paddlevideo_fast.engine import Trainer
    from paddlevideo_fast.engine.callbacks import BatchNormSplits
    from paddlevideo_fast.schedule.phases import plain_phases
    from paddlevideo_fast.solver import build_optimizer

    start = {f"start/{name}": parameter.numpy().copy() for name, parameter in model.named_parameters()}
    optimizer, _ = build_optimizer(section, model)
    loader, world_size = share_of(clips, distribution), distribution.world_size
    phases = plain_phases(1, bn_sync_devices=world_size)
    trainer = Trainer(
        model, optimizer, lambda phase: loader, paddle.to_tensor, phases, [BatchNormSplits(model)],
        distribution=distribution,
    )  # fmt: skip
    trainer.fit()
    assert trainer.state.step == NUM_STEPS
    ends = {name: parameter.numpy() for name, parameter in model.named_parameters()}
    ends["loss"] = trainer.state.epoch_averages["loss"].mean
    np.savez(f"{folder}/{world_size}_{distribution.rank}", **facts, **start, **ends)


def ends_of(script: Path, folder: Path) -> list[dict[str, np.ndarray]]:
    """What a script with `train_share` writes: of one process, and of each of two."""
    for number in (1, 2):
        with Job([script, folder], number, folder / f"job{number}") as job:
            job.succeed()
    return [dict(np.load(folder / f"{name}.npz")) for name in ("1_0", "2_0", "2_1")]


def assert_same_steps(alone: dict[str, np.ndarray], ranks: list[dict[str, np.ndarray]]) -> None:
    """Each rank has the parameters and the loss of the process that trained alone."""
    for rank in ranks:
        for name, value in alone.items():
            # a bias of all keys changes no attention, so what becomes of it is rounding
            size = max(np.abs(value).max(), 1e-3)
            assert np.abs(value - rank[name]).max() < 1e-5 * size, name

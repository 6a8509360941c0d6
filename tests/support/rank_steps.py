"""Steps of one process and of two on the same batches: what each rank does, and what a test compares.

A script of a rank calls `train`; it imports paddlevideo_fast before this module, for Paddle 2.6.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from paddlevideo_fast.config.settings import DistributedSettings
from paddlevideo_fast.engine import Distribution, FleetDistribution, Trainer
from paddlevideo_fast.engine.callbacks import BatchNormSplits
from paddlevideo_fast.engine.distribution import launched_rank
from paddlevideo_fast.modeling import build_model
from paddlevideo_fast.schedule.phases import plain_phases
from paddlevideo_fast.solver import build_optimizer
from tests.support.launching import Job
from tests.support.small_runs import Batches, batch_of

NUM_STEPS = 10
Ends = list[dict[str, np.ndarray]]


def train(
    section: Mapping[str, Any],
    optimizer: Mapping[str, Any],
    clips: np.ndarray,
    change: Callable[[Any], None] = lambda model: None,
    measure: Callable[[Any, Batches], dict[str, Any]] = lambda model, loader: {},
) -> None:
    """Trains as a rank, and writes parameters before and after, and the loss, to the folder of the command.

    Args:
        section: MODEL, without anything at random in a step.
        optimizer: OPTIMIZER.
        clips: float32 [NUM_STEPS * N, 3, T, H, W], N a step, of which each rank has its share.
        change: of the network, before it has an optimizer.
        measure: more to write.
    """
    rank, world_size = launched_rank()
    distribution = Distribution() if world_size == 1 else FleetDistribution(DistributedSettings())
    labels = np.random.default_rng(1).integers(0, 5, len(clips))
    steps = np.arange(len(clips)).reshape(NUM_STEPS, -1)[:, rank::world_size]
    loader = Batches(lambda epoch: [batch_of(clips[ids], labels[ids], ids) for ids in steps])
    paddle.seed(11)
    model = build_model(section)
    change(model)
    start = {f"start/{name}": parameter.numpy().copy() for name, parameter in model.named_parameters()}
    more = measure(model, loader)
    trainer = Trainer(
        model, build_optimizer(optimizer, model)[0], lambda phase: loader, paddle.to_tensor,
        plain_phases(1, bn_sync_devices=world_size), [BatchNormSplits(model)], distribution=distribution,
    )  # fmt: skip
    trainer.fit()
    assert trainer.state.step == NUM_STEPS
    ends = {name: parameter.numpy() for name, parameter in model.named_parameters()}
    ends["loss"] = trainer.state.epoch_averages["loss"].mean
    np.savez(f"{sys.argv[1]}/{world_size}_{rank}", **more, **start, **ends)


def ends_of(script: Path, folder: Path) -> Ends:
    """What a script has written: of one process, and of each of two."""
    for number in (1, 2):
        with Job([script, folder], number, folder / f"job{number}") as job:
            job.succeed()
    return [dict(np.load(folder / f"{name}.npz")) for name in ("1_0", "2_0", "2_1")]


def assert_same_steps(ends: Ends) -> None:
    """Both ranks have the parameters and the loss of the process that is alone."""
    alone, *ranks = ends
    for rank in ranks:
        for name, value in alone.items():
            # a bias of all keys changes no attention, so what becomes of it is rounding
            size = max(np.abs(value).max(), 1e-3)
            assert np.abs(value - rank[name]).max() < 1e-5 * size, name

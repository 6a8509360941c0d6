"""Two processes that freeze, free and recompute parts of a network take the steps of one process."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launching import fleet_runs, run_alone_and_in_pairs

SCRIPT = """
import sys

import paddlevideo_fast
import numpy as np
import paddle

from paddlevideo_fast.config.settings import DistributedSettings
from paddlevideo_fast.engine import Distribution, FleetDistribution, Trainer
from paddlevideo_fast.engine.callbacks import BatchNormSplits, ExponentialMovingAverage, Unfreezing
from paddlevideo_fast.engine.distribution import launched_rank
from paddlevideo_fast.errors import DistributionError
from paddlevideo_fast.loader import Batch
from paddlevideo_fast.modeling import build_model
from paddlevideo_fast.modeling.freezing import Freezing
from paddlevideo_fast.modeling.recompute import recompute_stages
from paddlevideo_fast.schedule.phases import plain_phases
from paddlevideo_fast.solver import build_optimizer

MODEL = {
    "framework": "Recognizer2D",
    "backbone": {"name": "ResNetTSM", "depth": 18, "num_seg": 2, "width": 4, "stage_blocks": [1, 1, 1, 1]},
    "head": {"name": "TSMHead", "num_classes": 3, "in_channels": 32, "drop_ratio": 0.0},
}
OPTIMIZER = {"name": "Momentum", "learning_rate": 0.01, "weight_decay": 0.01}


class Loader:
    def __init__(self, distribution):
        rng = np.random.default_rng(0)
        self.clips = rng.normal(size=(16, 2, 3, 24, 24)).astype("float64")
        self.labels = rng.integers(0, 3, 16)
        self.distribution = distribution

    def __len__(self):
        return 2

    def epoch(self, epoch, start_batch=0):
        order = np.random.default_rng(epoch).permutation(16).reshape(2, -1)
        for ids in order[start_batch:]:
            own = ids[self.distribution.rank :: self.distribution.world_size]
            yield Batch(self.clips[own], self.labels[own], own, np.zeros_like(own))


def train(distribution, unfreeze_at, twice=False):
    paddle.seed(11)
    paddle.set_default_dtype("float64")
    model = build_model(MODEL)
    freezing = Freezing(model, ["stem", "res2"], unfreeze_at)
    if twice:
        recompute_stages(model)
    optimizer, _ = build_optimizer(OPTIMIZER, model)
    loader = Loader(distribution)
    average = ExponentialMovingAverage(model, 0.9, freezing.later)
    start = {f"start/{name}": value.numpy().copy() for name, value in model.state_dict().items()}
    trainer = Trainer(
        model, optimizer, lambda phase: loader, paddle.to_tensor,
        plain_phases(2, bn_sync_devices=distribution.world_size),
        [BatchNormSplits(model), Unfreezing(freezing), average],
        distribution=distribution,
    )
    trainer.fit()
    for callback in trainer.callbacks:
        callback.before_evaluation(trainer)
    return {**start, **{name: value.numpy() for name, value in model.state_dict().items()}}


RUNS = {
    1: [("alone", None, None), ("alone_freed", 1, None)],
    2: [
        ("frozen", None, {}),
        ("freed", 1, {}),
        ("recomputed", 1, {}),
        ("sharded", None, {"sharding_degree": 2}),
    ],
}
folder = sys.argv[1]
rank, world_size = launched_rank()
for name, unfreeze_at, settings in RUNS[world_size]:
    try:
        distribution = Distribution() if settings is None else FleetDistribution(
            DistributedSettings(**settings)
        )
    except DistributionError as error:
        open(f"{folder}/{name}_{rank}.txt", "w").write(str(error))
        continue
    np.savez(f"{folder}/{name}_{rank}", **train(distribution, unfreeze_at, name in ("recomputed", "sharded")))
"""
FROZEN = ("backbone.conv.", "backbone.res2a.")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Function from the name of a run and a rank to what it began and ended with."""
    folder = tmp_path_factory.mktemp("ranks")
    run_alone_and_in_pairs(SCRIPT, folder)
    return lambda name, rank: dict(np.load(folder / f"{name}_{rank}.npz"))


PAIRS = {"frozen": "alone", "freed": "alone_freed", "recomputed": "alone_freed", "sharded": "alone"}


@pytest.mark.parametrize("name", PAIRS)
def test_two_processes_take_the_steps_of_one(runs, name):
    if name == "sharded" and not fleet_runs():
        pytest.skip("this Paddle's fleet does not run with the protobuf that is installed")
    for rank in (0, 1):
        found, expected = runs(name, rank), runs(PAIRS[name], 0)
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-5, atol=1e-7, err_msg=key)


@pytest.mark.parametrize("name", ["frozen", "sharded"])
def test_frozen_parts_keep_every_bit_on_each_rank(runs, name):
    if name == "sharded" and not fleet_runs():
        pytest.skip("this Paddle's fleet does not run with the protobuf that is installed")
    for rank in (0, 1):
        found = runs(name, rank)
        frozen = [key for key in found if key.startswith(FROZEN)]
        assert frozen
        for key in frozen:
            np.testing.assert_array_equal(found[key], found[f"start/{key}"], key)
        freed = runs("freed", rank)
        assert (freed["backbone.conv._conv.weight"] != freed["start/backbone.conv._conv.weight"]).any()

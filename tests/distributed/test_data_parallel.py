"""Several processes with a share of the batch each take the steps of one process with all of it."""

from __future__ import annotations

import numpy as np
import pytest
from launching import Job

SCRIPT = '''
import sys

import paddlevideo_fast
import numpy as np
import paddle

from paddlevideo_fast.engine import Distribution, FleetDistribution, Trainer
from paddlevideo_fast.engine.distribution import launched_rank
from paddlevideo_fast.loader import Batch, ClipBatchSampler
from paddlevideo_fast.schedule.phases import plain_phases

NUM_STEPS = 10


class Loader:
    """Random clips, in the order that the sampler of a real run has."""

    def __init__(self, batch_size, rank, world_size):
        rng = np.random.default_rng(0)
        num = 8 * NUM_STEPS
        self.clips = rng.normal(size=(num, 3, 4, 8, 8)).astype("float32")
        self.labels = rng.integers(0, 5, num)
        self.sampler = ClipBatchSampler(
            num, batch_size, shuffle=True, drop_last=True, seed=3, rank=rank, world_size=world_size
        )

    def __len__(self):
        return self.sampler.num_batches

    def epoch(self, epoch, start_batch=0):
        for requests in self.sampler.batches(epoch, start_batch):
            ids = np.array([request.index for request in requests])
            yield Batch(self.clips[ids], self.labels[ids], ids, np.zeros_like(ids))


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv = paddle.nn.Conv3D(3, 8, 3)
        self.fc = paddle.nn.Linear(8 * 2 * 6 * 6, 5)

    def forward(self, clips):
        return self.fc(paddle.tanh(self.conv(clips)).flatten(1))

    def loss(self, logits, labels):
        return paddle.nn.functional.cross_entropy(logits, labels)


def parameters(distribution, batch_size, accumulate_steps):
    paddle.seed(11)
    model = Net()
    optimizer = paddle.optimizer.Momentum(
        0.1, parameters=model.parameters(), grad_clip=paddle.nn.ClipGradByGlobalNorm(0.5)
    )
    loader = Loader(batch_size, distribution.rank, distribution.world_size)
    trainer = Trainer(
        model, optimizer, lambda phase: loader, paddle.to_tensor, plain_phases(1),
        distribution=distribution, accumulate_steps=accumulate_steps,
    )
    trainer.fit()
    assert trainer.state.step == NUM_STEPS
    values = {name: parameter.numpy() for name, parameter in model.named_parameters()}
    return {**values, "loss": trainer.state.epoch_averages["loss"].mean}


folder = sys.argv[1]
many = launched_rank()[1] > 1
distribution = FleetDistribution() if many else Distribution()
shares = {"plain": (4, 1), "accumulated": (2, 2)} if many else {"plain": (8, 1)}
for name, share in shares.items():
    path = f"{folder}/{name}_{distribution.world_size}_{distribution.rank}"
    np.savez(path, **parameters(distribution, *share))
'''


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Function from the name of a run, its processes and a rank to the parameters it ended with."""
    folder = tmp_path_factory.mktemp("parallel")
    script = folder / "train.py"
    script.write_text(SCRIPT)
    with Job([script, folder], 1, folder / "one") as one, Job([script, folder], 2, folder / "two") as two:
        one.succeed()
        two.succeed()
    return lambda name, world_size, rank: dict(np.load(folder / f"{name}_{world_size}_{rank}.npz"))


@pytest.mark.parametrize("name", ["plain", "accumulated"])
def test_two_processes_take_the_steps_of_one(runs, name):
    alone = runs("plain", 1, 0)
    for rank in (0, 1):
        together = runs(name, 2, rank)
        for key, value in alone.items():
            np.testing.assert_allclose(together[key], value, rtol=1e-5, atol=1e-6, err_msg=key)

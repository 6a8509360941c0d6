"""Mixed precision over two processes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.support.launching import run_alone_and_in_pairs

SCRIPT = '''
import json
import sys

import paddlevideo_fast
import numpy as np
import paddle

from paddlevideo_fast.engine import Distribution, FleetDistribution, RoundedPrecision, Trainer
from paddlevideo_fast.engine.distribution import launched_rank
from paddlevideo_fast.loader import Batch
from paddlevideo_fast.schedule.phases import plain_phases


class Loader:
    """Eight clips a step over all ranks; those of the last rank are large."""

    def __init__(self, rank, world_size):
        rng = np.random.default_rng(0)
        self.own = slice(rank * 8 // world_size, (rank + 1) * 8 // world_size)
        self.clips = rng.normal(size=(6, 8, 3, 4, 8, 8)).astype("float32")
        self.clips[:, 4:] *= 8
        self.labels = rng.integers(0, 5, (6, 8))

    def __len__(self):
        return 6

    def epoch(self, epoch, start_batch=0):
        for clips, labels in zip(self.clips, self.labels):
            clips, labels = clips[self.own], labels[self.own]
            yield Batch(clips, labels, np.arange(len(labels)), np.zeros_like(labels))


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv = paddle.nn.Conv3D(3, 8, 3)
        self.fc = paddle.nn.Linear(8 * 2 * 6 * 6, 5)

    def forward(self, clips):
        return self.fc(paddle.tanh(self.conv(clips)).flatten(1))

    def loss(self, logits, labels):
        return paddle.nn.functional.cross_entropy(logits, labels)


class Gpu:  # what Paddle's GradScaler looks for
    _expected_place = type("Place", (), {"is_gpu_place": staticmethod(lambda: True)})


scaler_module = sys.modules["paddle.amp.grad_scaler"]
scaler_module._dygraph_tracer = lambda: Gpu
scaler_module.amp_global_state().amp_dtype = "float16"

folder = sys.argv[1]
many = launched_rank()[1] > 1
distribution = FleetDistribution() if many else Distribution()
for dtype, scale in (("bfloat16", None), ("float16", 2.0**20)):
    precision = RoundedPrecision("O2", dtype)
    precision.set_state_dict({**precision.state_dict(), "scale": [scale]} if scale else {})
    paddle.seed(11)
    model, loader = Net(), Loader(distribution.rank, distribution.world_size)
    optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters())
    trainer = Trainer(
        model, optimizer, lambda phase: loader, paddle.to_tensor, plain_phases(1),
        distribution=distribution, precision=precision,
    )
    trainer.fit()
    path = f"{folder}/{dtype}_{distribution.world_size}_{distribution.rank}"
    np.savez(path, **{name: parameter.numpy() for name, parameter in model.named_parameters()})
    with open(path + ".json", "w") as file:
        json.dump([trainer.state.num_skipped, precision.state_dict().get("scale")], file)
'''


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Function from a format, the number of processes and a rank to the parameters and [skipped, scale]."""
    folder = tmp_path_factory.mktemp("precision")
    run_alone_and_in_pairs(SCRIPT, folder)

    def result(dtype, world_size, rank):
        path = folder / f"{dtype}_{world_size}_{rank}"
        return dict(np.load(f"{path}.npz")), json.loads((folder / f"{path.name}.json").read_text())

    return result


def test_two_processes_take_the_steps_of_one_in_bfloat16(runs):
    alone, _ = runs("bfloat16", 1, 0)
    first, second = (runs("bfloat16", 2, rank)[0] for rank in (0, 1))
    for name, value in alone.items():
        np.testing.assert_array_equal(first[name], second[name])
        # where a sum in another order falls on the other side of a tie, the next number is 2⁻⁸ away
        np.testing.assert_allclose(first[name], value, atol=1e-3, err_msg=name)


def test_the_ranks_leave_the_same_steps_out(runs):
    (first, told), (second, told_second) = runs("float16", 2, 0), runs("float16", 2, 1)
    assert told == told_second
    num_skipped, scale = told
    assert 1 <= num_skipped < 6
    assert scale == [2.0 ** (20 - num_skipped)]
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value)
        assert np.isfinite(value).all()

"""What the ranks of a run do alike when one of them meets something that the others do not."""

import json

import pytest

from paddlevideo_fast.engine import load_checkpoint
from tests.support.launching import Job, fleet_runs

pytestmark = pytest.mark.annex  # one of the runs has a sharded optimizer

SCRIPT = '''
import json
import sys

import paddlevideo_fast
import numpy as np
import paddle

from paddlevideo_fast.config.settings import DistributedSettings
from paddlevideo_fast.engine import (
    CheckpointStore, ReadOnlyStore, Trainer, TrainingInterrupted,
    load_checkpoint, MixedPrecision,
)
from paddlevideo_fast.engine.distribution import make_distribution
from paddlevideo_fast.engine.callbacks import Callback, Checkpointing, restore
from paddlevideo_fast.errors import DistributionError, PaddleVideoFastError
from paddlevideo_fast.loader import Batch, DecodeFailure
from paddlevideo_fast.schedule.phases import plain_phases
from tests.support.gpu_amp import gpu_amp

folder, sharding_degree = sys.argv[1], int(sys.argv[2])
distribution = make_distribution(DistributedSettings(sharding_degree=sharding_degree))
rank = distribution.rank
SIZES = [[3, 4, 0, 2, 4, 4], [4, 1, 3, 2, 4, 4]]  # clips of each rank's batches
CLIPS = np.random.default_rng(0).normal(size=(8 * 6, 6)).astype("float32")
LABELS = np.random.default_rng(1).integers(0, 3, len(CLIPS))


def ids_of(step, of_rank):
    return 8 * step + 4 * of_rank + np.arange(SIZES[of_rank][step])


class Loader:
    def __len__(self):
        return 6

    def epoch(self, epoch, start_batch=0):
        for step in range(start_batch, 6):
            ids = ids_of(step, rank)
            bad = [DecodeFailure("lost.mp4", "failed", "no such file")] if (rank, step) == (1, 3) else []
            yield Batch(CLIPS[ids], LABELS[ids], ids, np.zeros_like(ids), incidents=bad)


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.fc = paddle.nn.Linear(6, 3)

    def forward(self, clips):
        return self.fc(clips)

    def loss(self, logits, labels):
        return paddle.nn.functional.cross_entropy(logits, labels)


class Signal(Callback):
    """One rank is told to stop during the second step; all hear of it LAG steps later."""

    def step_end(self, trainer):
        if (rank, trainer.state.step) == (1, 2):
            trainer.interrupt.requested = 15


def make(name, *callbacks):
    paddle.seed(3)
    model = Net()
    clip = paddle.nn.ClipGradByGlobalNorm(0.3)
    optimizer = paddle.optimizer.Momentum(0.5, 0.9, model.parameters(), grad_clip=clip)
    store = (CheckpointStore if rank == 0 else ReadOnlyStore)(f"{folder}/{name}", "m")
    store.prepare()
    loader, seen = Loader(), []
    trainer = Trainer(
        model, optimizer, lambda phase: loader, paddle.to_tensor, plain_phases(1),
        [*callbacks, Checkpointing(store)], distribution=distribution,
        on_incidents=lambda all_: seen.extend((one.path, one.cause) for one in all_ if one.kind == "failed"),
    )
    return trainer, seen


report = {}
whole, seen = make("whole")
whole.fit()
report["failures"] = seen
report["fc"] = whole.model.fc.weight.numpy().tolist()

stopped, _ = make("stopped", Signal())
try:
    stopped.fit()
except TrainingInterrupted as exc:
    report["signal"], report["stopped_at"] = exc.signal_number, stopped.state.step
distribution.barrier()
again, _ = make("stopped")
restore(again, load_checkpoint(f"{folder}/stopped/m_step_00000004"))
again.fit()
report["resumed"] = again.model.fc.weight.numpy().tolist()


paddle.seed(3)
model = Net()
optimizer = paddle.optimizer.SGD(0.5, model.parameters())
with gpu_amp():
    precision = MixedPrecision("O1", "float16")
precision.set_state_dict({**precision.state_dict(), "scale": [1024.0]})
step_model, step_optimizer = distribution.wrap(model, optimizer, precision.scaler)
for name, factor in (("overflow", 1e38 if rank == 1 else 1.0), ("ordinary", 1.0)):
    before = model.fc.weight.numpy().copy()
    logits = precision.forward(step_model, paddle.to_tensor(CLIPS[:4]))
    precision.backward(model.loss(logits, paddle.to_tensor(LABELS[:4])) * factor)
    is_taken = precision.optimizer_step(step_optimizer, model)
    report[name] = [is_taken, bool((model.fc.weight.numpy() != before).any())]


def fail():
    if rank == 1:
        raise problem


for name, problem in (("known", PaddleVideoFastError("the disk is full")), ("bug", KeyError("frame"))):
    try:
        distribution.gather_from(fail)
    except Exception as exc:
        report[name] = f"{type(exc).__name__}: {exc}"
        report[f"{name} is shared"] = distribution.is_shared(exc)
report["another is shared"] = distribution.is_shared(KeyError("frame"))
report["values"] = distribution.gather_from(lambda: rank + 1)
report["sum"] = distribution.all_sum([rank, 2.5]).tolist()
json.dump(report, open(f"{folder}/report_{rank}.json", "w"))
'''


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder and the two ranks' reports of a run that meets all of it, with a sharded optimizer."""
    folder = tmp_path_factory.mktemp("step_sync")
    script = folder / "run.py"
    script.write_text(SCRIPT)
    command = [script, folder, 2 if fleet_runs() else 1]
    with Job(command, 2, folder / "job") as job:
        job.succeed()
    return folder, [json.loads((folder / f"report_{rank}.json").read_text()) for rank in (0, 1)]


def test_a_signal_at_one_rank_stops_all_after_the_same_step_and_the_resumed_run_is_the_same(run):
    folder, reports = run
    checkpoint = load_checkpoint(str(folder / "stopped" / "m_step_00000004"))
    assert set(checkpoint.optimizer) == {"fc.weight.velocity_0", "fc.bias.velocity_0"}
    assert not list(folder.glob("*/.saving*"))
    for report in reports:
        assert (report["signal"], report["stopped_at"]) == (15, 4)
        assert report["resumed"] == report["fc"]


def test_what_one_rank_meets_is_known_to_all(run):
    first, second = run[1]
    assert first["known"] == second["known"] == "PaddleVideoFastError: the disk is full"
    assert first["bug"] == "DistributionError: rank 1 failed: KeyError: 'frame'"
    assert second["bug"] == "KeyError: 'frame'"
    for report in run[1]:
        assert report["known is shared"]
        assert report["bug is shared"]
        assert not report["another is shared"]
        assert report["failures"] == [["lost.mp4", "no such file"]]
        assert (report["overflow"], report["ordinary"]) == ([False, False], [True, True])
        assert (report["values"], report["sum"]) == ([1, 2], [1, 5])

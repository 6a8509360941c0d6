"""Checkpoints that a thread writes: the same files, while training goes on."""

import contextlib
import threading

import numpy as np
import paddle
import pytest

from paddlevideo_fast.engine import (
    BackgroundStore,
    CheckpointStore,
    Snapshot,
    TrainingInterrupted,
    load_checkpoint,
)
from paddlevideo_fast.engine import checkpoint as checkpoints
from paddlevideo_fast.engine.callbacks import Callback, Checkpointing, ExponentialMovingAverage, restore
from paddlevideo_fast.errors import CheckpointError, UnsavedError
from tests.support.small_runs import StopAt, assert_same, save, snapshot


class SlowDisk:
    """Writes nothing before it may."""

    def __init__(self, monkeypatch):
        self.open, self.error = threading.Event(), None
        dump = checkpoints._dump

        def write(payload, path):
            assert self.open.wait(60)
            if self.error is not None:
                raise self.error
            dump(payload, path)

        monkeypatch.setattr(checkpoints, "_dump", write)


@pytest.fixture
def disk(monkeypatch):
    disk = SlowDisk(monkeypatch)
    yield disk
    disk.open.set()


@pytest.fixture
def store(tmp_path):
    store = BackgroundStore(tmp_path / "out", "m")
    store.prepare()
    return store


def test_a_run_writes_the_same_files(make_trainer, tmp_path):
    files = []
    for kind in (CheckpointStore, BackgroundStore):
        store = kind(tmp_path / kind.__name__, "m")
        trainer = make_trainer(optimizer="Adam", epochs=3)
        trainer.callbacks = [ExponentialMovingAverage(trainer.model, 0.9), Checkpointing(store, keep_last=2)]
        trainer.fit()
        assert trainer.last_checkpoint == store.latest()
        loaded = [load_checkpoint(prefix) for *_, prefix in store.complete()]
        files.append([sorted(path.name for path in store.folder.iterdir()), *loaded])
    assert files[0][0] == files[1][0]
    for plain, other in zip(files[0][1:], files[1][1:]):
        assert plain.state == other.state
        for part in ("weights", "optimizer", "tensors"):
            assert_same(getattr(plain, part), getattr(other, part))


def test_a_file_is_that_of_paddle_save(store, tmp_path):
    model = paddle.nn.Sequential(paddle.nn.Linear(3, 4), paddle.nn.BatchNorm1D(4))
    store.save_weights("best", model.state_dict())
    store.wait()
    paddle.save(model.state_dict(), str(tmp_path / "paddle.pdparams"))
    assert (tmp_path / "paddle.pdparams").read_bytes() == (store.folder / "m_best.pdparams").read_bytes()


def test_training_goes_on_while_the_disk_writes_what_was(store, disk):
    weight, state = paddle.full([2, 2], 1.0), {**snapshot().state, "callbacks": {"Own": {"seen": [1]}}}
    prefix = store.save(
        "epoch_00001", Snapshot({"w": weight}, {"w.velocity": weight * 2}, {"a/w": weight}, state)
    )
    store.save_weights("best", {"w": weight})  # has memory of its own, and so does not wait
    paddle.assign(paddle.full([2, 2], 7.0), weight)
    state["callbacks"]["Own"]["seen"].append(2)
    store.check()
    assert store.complete() == []
    disk.open.set()
    store.wait()
    loaded = load_checkpoint(prefix)
    assert loaded.weights["w"].max() == 1
    assert loaded.optimizer["w.velocity"].max() == 2
    assert loaded.tensors["a/w"].max() == 1
    assert loaded.state["callbacks"] == {"Own": {"seen": [1]}}
    assert paddle.load(str(store.folder / "m_best.pdparams"))["w"].max() == 1


def test_a_save_waits_for_the_last_one(store, disk):
    save(store, "epoch_00001", 1.0)
    second = threading.Thread(target=save, args=(store, "epoch_00002", 2.0))
    second.start()
    second.join(0.1)
    assert second.is_alive()
    disk.open.set()
    second.join(60)
    store.wait()
    assert [load_checkpoint(prefix).weights["fc.weight"][0, 0] for *_, prefix in store.complete()] == [1, 2]


@pytest.mark.parametrize("seen_by", ["check", "wait", "save", "close"])
def test_of_two_saves_that_failed_the_next_call_raises_one_and_logs_the_other(store, disk, caplog, seen_by):
    """A save raises what is of its own kind, and `close` nothing."""
    store.save_weights("best", {"w": paddle.ones([2])})
    store.save("epoch_00001", snapshot())
    disk.error = OSError(28, "No space left on device")
    disk.open.set()
    for under_way in list(store._last.values()):
        under_way.exception()
    first, best = "m_epoch_00001' cannot be written: No space left on", "m_best.pdparams' cannot be written"
    with contextlib.nullcontext() if seen_by == "close" else pytest.raises(UnsavedError, match=first):
        getattr(store, seen_by)(*(["epoch_00002", snapshot()] if seen_by == "save" else []))
    assert not list(store.folder.iterdir())
    if seen_by == "save":
        with pytest.raises(CheckpointError, match=best):
            store.wait()
    assert (best in caplog.text) == (seen_by != "save")
    assert (first in caplog.text) == (seen_by == "close")  # else it is raised
    store.close()


def test_a_run_that_fails_ends_when_its_checkpoint_is_written(make_trainer, store, disk, caplog):
    class Failing(Callback):
        def epoch_begin(self, trainer):
            if trainer.state.epoch == 1:
                threading.Timer(0.1, disk.open.set).start()
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make_trainer([Failing(), Checkpointing(store)]).fit()
    resumed = make_trainer([Checkpointing(store)])
    restore(resumed, load_checkpoint(store.latest()))
    assert resumed.state.step == 6


def test_an_interrupted_run_is_saved_also_where_an_earlier_save_failed(
    make_trainer, store, disk, monkeypatch, caplog
):
    disk.error = OSError(28, "No space left on device")
    disk.open.set()

    class Mend(Callback):
        def interrupted(self, trainer):
            store._last["checkpoint"].exception()
            disk.error = None

    class Late(Checkpointing):
        def epoch_begin(self, trainer):
            """The failure is not seen at the start of the epoch, as where the disk is slow."""

    with pytest.raises(TrainingInterrupted):
        make_trainer([StopAt(9), Mend(), Late(store)]).fit()
    assert "m_epoch_00001' cannot be written" in caplog.text
    assert load_checkpoint(store.latest()).state["trainer"]["step"] == 9


def test_memory_is_used_again_where_it_fits(store):
    """A network that grows, or shrinks, is copied into memory that fits."""
    for size in (2, 5, 3):
        tensors = {"w": paddle.full([size], float(size)), "n": paddle.full([1], size, "int64")}
        prefix = store.save(f"epoch_{size:05d}", Snapshot(tensors, {}, {}, snapshot().state))
        store.wait()
        loaded = load_checkpoint(prefix).weights
        np.testing.assert_array_equal(loaded["w"], np.full(size, size, "float32"))
        assert loaded["n"].dtype == np.int64

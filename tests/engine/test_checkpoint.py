"""Files of a run: whole or absent, never half."""

import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import paddle
import pytest

from paddlevideo_fast.engine import CheckpointStore, load_checkpoint
from paddlevideo_fast.engine.callbacks import Checkpointing, restore
from paddlevideo_fast.engine.output import newest_run, weights_of_run
from paddlevideo_fast.engine.state import TrainerState
from paddlevideo_fast.errors import CheckpointError, WeightError
from tests.support.small_runs import save
from tests.support.torch_writer import Runs


@pytest.fixture
def store(tmp_path):
    store = CheckpointStore(tmp_path / "out", "m")
    store.prepare()
    return store


@pytest.mark.parametrize("ending", ["", ".json", ".pdopt"])
def test_a_checkpoint_is_read_by_any_of_its_files_and_its_weights_by_paddle(store, ending):
    prefix = save(store, value=3.0)
    loaded = load_checkpoint(prefix + ending)
    assert (loaded.prefix, loaded.state["trainer"]["step"]) == (prefix, 6)
    assert loaded.weights["fc.weight"].tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert paddle.load(prefix + ".pdparams")["fc.weight"].tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_weights_alone_are_no_checkpoint_but_a_start(store):
    prefix = save(store)
    for ending in (".json", ".pdopt"):
        os.remove(prefix + ending)
    with pytest.raises(CheckpointError, match=rf"weights alone, .* -w {prefix}\.pdparams"):
        load_checkpoint(prefix)


def test_a_failed_write_leaves_the_earlier_checkpoint(store, monkeypatch):
    save(store)
    before = {path.name: path.read_bytes() for path in store.folder.iterdir()}

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"epoch_00002' cannot be written: No space left on device"):
        save(store, "epoch_00002", value=2.0, step=12)
    assert {path.name: path.read_bytes() for path in store.folder.iterdir()} == before


def test_a_stop_at_any_point_of_a_save_leaves_only_whole_checkpoints(store, monkeypatch):
    """Dies before the n-th file operation, for every n, while a checkpoint is written over an older one."""

    class Died(BaseException):
        pass

    save(store, "epoch_00001", value=1.0, step=1)
    save(store, "epoch_00002", value=2.0, step=2)
    calls = 0
    for deadline in range(20):
        left = deadline

        def counted(operation):
            def run(*arguments, **options):
                nonlocal left
                if left == 0:
                    raise Died
                left -= 1
                return operation(*arguments, **options)

            return run

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", counted(os.replace))
            patch.setattr(os, "fsync", counted(os.fsync))
            try:
                save(store, "epoch_00002", value=2.5, step=2)
                calls = deadline
                break
            except Died:
                for *_, prefix in CheckpointStore(store.folder, "m").complete():
                    load_checkpoint(prefix)
                assert load_checkpoint(str(store.prefix("epoch_00001"))).weights["fc.weight"][0, 0] == 1.0
    assert calls >= 6  # three files synced and renamed, and the folder


def test_latest_is_by_step_and_skips_what_has_no_mark(store):
    save(store, "epoch_00009", step=90)
    save(store, "step_00000095", step=95)
    (store.folder / "m_epoch_00010.pdparams").write_bytes(b"half")
    (store.folder / "m_epoch_00011.json").write_text("{")
    assert store.latest() == str(store.prefix("step_00000095"))
    save(store, "epoch_00010", step=95, epoch=10)
    save(store, "step_00000095", step=95, epoch=9)
    assert store.latest() == str(store.prefix("epoch_00010"))


def test_the_newest_run_and_its_weights(tmp_path):
    base = tmp_path / "my_set"
    assert newest_run(base) is None
    with pytest.raises(WeightError, match="my_set: holds neither best weights nor a checkpoint"):
        weights_of_run(base)
    saves = [("my_set", "epoch_00001"), ("my_set_3", "epoch_00010"), ("my_set_2", "step_00000020")]
    for time, (run, tag) in enumerate(saves, 1):
        store = CheckpointStore(tmp_path / run, "m")
        store.prepare()
        os.utime(save(store, tag, step=10 * time) + ".pdparams", (time, time))
    for other in ("my_set_4", "my_set_other"):
        (tmp_path / other).mkdir()
    assert newest_run(f"{base}/") == tmp_path / "my_set_2"
    assert weights_of_run(tmp_path / "my_set_2").name == "m_step_00000020.pdparams"
    store.save_weights("best", {})
    assert weights_of_run(store.folder).name == "m_best.pdparams"


@pytest.mark.parametrize(
    ("step", "epoch", "complete"), [(0, 0, 1), (1, 0, 1), (-1, 0, 0), (0, -1, 0), ("?", 0, 0)]
)
def test_a_mark_says_where_the_run_stood(store, step, epoch, complete):
    """A run may stop before its first step; a position below 0 is no position."""
    save(store, step=step, epoch=epoch)
    assert store.complete() == [(step, epoch, str(store.prefix("epoch_00001")))] * complete


@pytest.mark.parametrize("num_kept", [1, 2, 3, 4])
def test_the_newest_are_kept(store, num_kept):
    prefixes = [save(store, f"epoch_{epoch:05d}", step=epoch, epoch=epoch) for epoch in (3, 1, 2)]
    store.remove_all_but(num_kept)
    newest = [prefixes[1], prefixes[2], prefixes[0]]
    assert [prefix for *_, prefix in store.complete()] == newest[-num_kept:]


def test_an_altered_file_is_named(store):
    prefix = save(store)
    with open(prefix + ".pdparams", "r+b") as file:
        file.seek(200)
        file.write(b"\x00\x01")
    with pytest.raises(CheckpointError, match=r"m_epoch_00001\.pdparams' is missing or altered"):
        load_checkpoint(prefix)


def test_a_malicious_checkpoint_runs_nothing(store, tmp_path):
    prefix = str(store.prefix("epoch_00001"))
    for ending in (".pdparams", ".pdopt"):
        with open(prefix + ending, "wb") as file:
            pickle.dump({"fc.weight": Runs(os.system, f"touch {tmp_path}/ran")}, file)
    with pytest.raises(CheckpointError):
        load_checkpoint(prefix)
    assert not (tmp_path / "ran").exists()


def test_stale_halves_are_swept(store):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (store.folder / f".saving-{ended.pid}-m_epoch_00001.pdparams").write_bytes(b"half")
    another = store.folder / f".saving-{os.getppid()}-m_epoch_00001.pdparams"
    another.write_bytes(b"being written by another process")
    store.prepare()
    assert list(store.folder.iterdir()) == [another]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"file/out' cannot be written.*output_dir"):
        CheckpointStore(tmp_path / "file" / "out", "m").prepare()


@pytest.mark.parametrize(
    ("arguments", "tags"),
    [
        ((1,), ["epoch_00001", "epoch_00002", "epoch_00003"]),
        ((2,), ["epoch_00002", "epoch_00003"]),
        ((5,), ["epoch_00003"]),
        ((5, 6), ["step_00000006", "step_00000012", "step_00000018", "epoch_00003"]),
        ((1, None, 2), ["epoch_00002", "epoch_00003"]),
    ],
)
def test_when_checkpoints_are_written_and_which_stay(make_trainer, store, arguments, tags):
    make_trainer([Checkpointing(store, *arguments)], epochs=3).fit()
    assert [prefix.rpartition("m_")[2] for *_, prefix in store.complete()] == tags
    assert {path.stem for path in store.folder.iterdir()} == {f"m_{tag}" for tag in tags}


def test_another_models_checkpoint_is_refused(make_trainer, store):
    with pytest.raises(CheckpointError, match=r"does not fit the model: 2 tensors.*'fc\.weight'"):
        restore(make_trainer(), load_checkpoint(save(store)))


def test_optimizer_state_is_by_structured_names(make_trainer, store):
    trainer = make_trainer([Checkpointing(store)], epochs=1)
    trainer.fit()
    state = load_checkpoint(store.latest()).optimizer
    assert set(state) == {"fc.weight.velocity_0", "fc.bias.velocity_0"}
    assert np.abs(state["fc.weight.velocity_0"]).max() > 0


def test_an_earlier_run_is_moved_aside_and_nothing_else(store):
    save(store)
    (store.folder / "metrics.jsonl").write_text(json.dumps({"step": 1}))
    (store.folder / "notes.txt").write_text("mine")
    averages = [f"m_average_last5{end}" for end in (".pdparams", "_report.json")]
    for name in averages:
        (store.folder / name).write_text("")
    store.archive_earlier_run(TrainerState(), None)
    store.archive_earlier_run(TrainerState(), None)  # nothing is left to move
    assert sorted(path.name for path in store.folder.iterdir()) == ["earlier-1", "notes.txt"]
    load_checkpoint(str(store.folder / "earlier-1" / "m_epoch_00001"))
    assert all((store.folder / "earlier-1" / name).exists() for name in averages)


def test_an_earlier_board_is_packed_so_that_visualdl_shows_the_runs_of_today(store):
    for folder in (store.folder / "vdl", store.folder / "test" / "vdl"):
        folder.mkdir(parents=True)
        (folder / "vdlrecords.1.log").write_text("curve")
    store.archive_earlier_run(TrainerState(), None)
    assert not list(store.folder.rglob("*vdlrecords*"))
    for packed in ("earlier-1/vdl.zip", "earlier-1/test/vdl.zip"):
        with zipfile.ZipFile(store.folder / packed) as file:
            assert file.read("vdlrecords.1.log") == b"curve"


def test_a_name_that_is_too_long_for_files_is_found_at_the_start(tmp_path):
    with pytest.raises(CheckpointError, match="model_name is 234 bytes long.* at most 232"):
        CheckpointStore(tmp_path, "é" * 117)
    store = CheckpointStore(tmp_path, "x" * 232)
    assert load_checkpoint(save(store, "step_00000012")).state["trainer"]["step"] == 6


def _leaves(value, path=()):
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))


def test_any_value_of_a_mark_may_be_wrong(make_trainer, store):
    """What `restore` does not understand is an error of the project, never a traceback."""
    trainer = make_trainer([Checkpointing(store)], epochs=1)
    trainer.fit()
    prefix = store.latest()
    good = json.loads(Path(prefix + ".json").read_text())
    outcomes = set()
    for path in _leaves(good):
        for value in (None, -1, 2**70, float("nan"), "x", [], {"x": []}):
            changed = json.loads(json.dumps(good))
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            Path(prefix + ".json").write_text(json.dumps(changed))
            store.complete()
            try:
                restore(make_trainer([Checkpointing(store)], epochs=1), load_checkpoint(prefix))
            except CheckpointError:
                outcomes.add("refused")
            else:
                outcomes.add("restored")
    assert outcomes == {"restored", "refused"}


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "1" * 100_000, "[]", "null", '{"format": 1}', ""], ids=range(6)
)
def test_a_mark_that_is_none(store, text):
    prefix = save(store)
    Path(prefix + ".json").write_text(text)
    assert store.complete() == []
    with pytest.raises(CheckpointError, match="cannot be read or lacks a part"):
        load_checkpoint(prefix)

"""The output folder is removed, moved, replaced or full while a run writes to it."""

import json
import logging
import resource
import shutil

import numpy as np
import pytest

from paddlevideo_fast.engine import BackgroundStore, CheckpointStore, load_checkpoint
from paddlevideo_fast.engine.callbacks import Callback, Checkpointing, Evaluation, Recorder, restore
from paddlevideo_fast.engine.sinks import JsonLinesSink
from paddlevideo_fast.errors import CheckpointError, UnsavedError
from paddlevideo_fast.extensions.trackers.trackers import TrackedRun, VisualDL
from paddlevideo_fast.log import log_file


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "out"
    path.mkdir()
    return path


@pytest.fixture(params=[CheckpointStore, BackgroundStore])
def run(make_trainer, folder, caplog, request):
    """Trains two epochs of six steps and calls `harm` after a step; returns the trainer."""

    def train(harm, step):
        class Harm(Callback):
            def step_end(self, trainer):
                if trainer.state.step == step:
                    store.wait()
                    harm()

        logging.getLogger("paddlevideo_fast").setLevel("INFO")
        store = request.param(folder, "m")
        sinks = [JsonLinesSink(folder / "metrics.jsonl"), VisualDL(TrackedRun("m", folder, {}))]
        trainer = make_trainer([Harm(), Recorder(sinks, interval=1), Checkpointing(store)], epochs=2)
        with log_file(folder / "train.log"):
            trainer.fit()
        return trainer

    return train


def steps_in(path):
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [record["step"] for record in records if record["kind"] == "train"]


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_a_folder_that_is_gone_is_made_anew(run, folder, tmp_path, caplog, how):
    harm = shutil.rmtree if how == "removed" else lambda path: path.rename(tmp_path / "elsewhere")
    trainer = run(lambda: harm(folder), step=9)
    assert steps_in(folder / "metrics.jsonl") == list(range(1, 13))
    last = load_checkpoint(str(folder / "m_epoch_00002"))
    np.testing.assert_array_equal(last.weights["fc.weight"], trainer.model.fc.weight.numpy())
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    line = f"'{folder}/metrics.jsonl' was removed or moved: it is written anew, with all its lines"
    assert warnings == [line]
    assert line in (folder / "train.log").read_text()
    assert list((folder / "vdl").glob("vdlrecords.*"))
    assert how == "removed" or (tmp_path / "elsewhere" / "m_epoch_00001.json").exists()


def test_a_file_in_place_of_the_folder_ends_the_run_saved_beside_it(run, make_trainer, folder, caplog):
    def harm():
        shutil.rmtree(folder)
        folder.write_text("")

    with pytest.raises(UnsavedError, match=r"File exists; it is '(.*/out-saved-.*/m_epoch_00001)'") as error:
        run(harm, step=3)
    prefix = str(error.value).split("resume=")[1]
    resumed = make_trainer([Checkpointing(CheckpointStore(folder.parent / "new", "m"))], epochs=2)
    restore(resumed, load_checkpoint(prefix))
    assert resumed.state.step == 6
    assert resumed.fit().step == 12
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    # one for each of metrics.jsonl (and its end), VisualDL and train.log
    assert len(warnings) == 4
    assert any("metrics.jsonl' cannot be written, its lines wait" in warning for warning in warnings)


def test_best_weights_that_cannot_be_written_leave_the_epoch_saved(make_trainer, folder, monkeypatch):
    class Best(Evaluation):
        def epoch_end(self, trainer):
            self._compare(trainer, {"top1": 1.0, "loss": 0.5})

    store = CheckpointStore(folder, "m")

    def full(*arguments):
        raise CheckpointError("no room")

    monkeypatch.setattr(store, "save_weights", full)
    with pytest.raises(CheckpointError, match="no room"):
        make_trainer([Best(None, None, 1, store), Checkpointing(store)]).fit()
    assert load_checkpoint(store.latest()).state["trainer"]["step"] == 6


def test_where_nothing_can_be_written_the_earlier_checkpoints_are_named(run, folder, monkeypatch):
    def harm():
        monkeypatch.setattr("paddlevideo_fast.engine.checkpoint._dump", full)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    with pytest.raises(UnsavedError, match="No space left on device; earlier checkpoints in .* are whole"):
        run(harm, step=9)
    assert load_checkpoint(str(folder / "m_epoch_00001")).state["trainer"]["step"] == 6
    assert [path.name for path in folder.parent.iterdir()] == ["out"]


def test_records_wait_for_room_on_the_disk(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    sink = JsonLinesSink(path)
    sink.open(0, 0)
    records = [{"kind": "train", "step": step, "loss": 0.5} for step in range(1, 60)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for record in records:
        if record["step"] == 10:  # in the middle of a line
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 50, limits[1]))
        try:
            sink.write(record)
        finally:
            if record["step"] == 40:
                half = path.read_text()
            if record["step"] >= 40:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    sink.close()
    assert not half.endswith("\n")
    assert [json.loads(line) for line in path.read_text().splitlines()] == records
    assert caplog.text.count("cannot be written, its lines wait for better times: File too large") == 1


def test_records_that_are_lost_are_counted(tmp_path, caplog):
    path = tmp_path / "folder" / "metrics.jsonl"
    path.parent.mkdir()
    sink = JsonLinesSink(path)
    sink.open(0, 0)
    shutil.rmtree(path.parent)
    path.parent.write_text("")
    for step in (1, 2):
        sink.write({"kind": "train", "step": step})
    sink.close()
    assert f"'{path}' still cannot be written: 2 lines are lost" in caplog.text

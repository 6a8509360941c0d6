"""Trackers and callbacks that a config chooses; which of them a run has, and what may go wrong."""

import json
import sys
import time
import types
from pathlib import Path
from unittest import mock

import pytest

from paddlevideo_fast.config import Config, RunSpec, load_config
from paddlevideo_fast.engine.callbacks import Recorder
from paddlevideo_fast.engine.sinks import JsonLinesSink
from paddlevideo_fast.errors import ConfigError, MissingExtraError
from paddlevideo_fast.extensions.trackers.trackers import TRACKERS, Results, TrackedRun, Trackers, flattened
from tests.support import tracked

QUICKSTART = str(Path(__file__).resolve().parents[3] / "configs/quickstart/tsm_motion.yaml")


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ({}, ["visualdl"]),
        ({"use_visualdl": True}, ["visualdl"]),
        ({"use_visualdl": False}, []),
        ({"TRACKERS": None}, ["visualdl"]),
        ({"TRACKERS": []}, []),
        ({"TRACKERS": ["tensorboard"]}, ["tensorboard"]),
        ({"TRACKERS": ["tensorboard"], "use_visualdl": True}, ["visualdl", "tensorboard"]),
        ({"TRACKERS": ["visualdl", {"wandb": None}], "use_visualdl": False}, [{"wandb": None}]),
    ],
)
def test_use_visualdl_decides_where_it_is_written(written, names):
    spec = RunSpec.of(Config({"MODEL": {}, "model_name": "x", "epochs": 1, **written}))
    assert names == spec.extension(Trackers).TRACKERS


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("TRACKERS=[tensorbord]", "TRACKERS.0: unknown tracker 'tensorbord'; did you mean 'tensorboard'?"),
        ("TRACKERS=tensorboard", "TRACKERS='tensorboard': expected a list of names and one-key mappings"),
        ("TRACKERS=[wandb: {mode: away}]", "TRACKERS.0.wandb.mode='away': expected 'online' or 'offline'"),
        ("TRACKERS=[mlflow: {run: 3}]", "TRACKERS.0.mlflow.run: unknown key for MLflow"),
        ("CALLBACKS=[Stop]", "CALLBACKS.0: unknown callback 'Stop'"),
    ],
)
def test_wrong_lists_are_told(override, problem):
    with pytest.raises(ConfigError) as caught:
        load_config(QUICKSTART, [override])
    assert problem in str(caught.value)


def records(folder, kinds=("train",), steps=range(1, 4)):
    """A run in a folder that has these records."""
    sink = JsonLinesSink(folder / "metrics.jsonl")
    sink.open(0, 0)
    for step in steps:
        for kind in kinds:
            sink.write({"kind": kind, "step": step, "epoch": 1, "loss": float(step)})
    sink.close()
    return TrackedRun("name", folder, {"MODEL": {"depth": 50}}, {"MODEL.depth": 50})


@pytest.mark.parametrize("cut", [0, 5])
def test_a_tracker_takes_what_it_lost_and_nothing_twice(tmp_path, cut):
    pytest.importorskip("tensorboard", reason="needs tensorboard: make test-trackers")
    run = records(tmp_path)
    first = TRACKERS.get("tensorboard")(run)
    first.open(0, 0)
    first.write({"kind": "train", "step": 4, "epoch": 1, "loss": 4.0})  # its line is lost, or repeated
    (path,) = (tmp_path / "tensorboard").iterdir()
    path.write_bytes(path.read_bytes()[: path.stat().st_size - cut])  # killed while it wrote
    second = TRACKERS.get("tensorboard")(records(tmp_path, steps=range(1, 6)))
    second.open(5, 0)
    second.write({"kind": "train", "step": 6, "epoch": 1, "loss": 6.0})
    second.close()
    (found,) = tracked.runs_of("tensorboard", tmp_path, "")
    assert found.steps == {"train/loss": [1, 2, 3, 4, 5, 6], "train/epoch": [1, 2, 3, 4, 5, 6]}
    assert "depth: 50" in found.settings


@pytest.mark.parametrize("seconds", [-3600, 0], ids=["clock_went_back", "same_second"])
def test_tensorboard_reads_a_resumed_run_in_order(tmp_path, monkeypatch, seconds):
    pytest.importorskip("tensorboard", reason="needs tensorboard: make test-trackers")
    now = time.time()
    for steps, clock, pid in (range(1, 3), now, 9999), (range(1, 5), now + seconds, 10000):
        monkeypatch.setattr("time.time", lambda clock=clock: clock)
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)  # as text, 10000 is before 9999
        tracker = TRACKERS.get("tensorboard")(records(tmp_path, steps=steps))
        tracker.open(len(steps), 0)
        tracker.close()
    (found,) = tracked.runs_of("tensorboard", tmp_path, "")
    assert found.steps["train/loss"] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_library_that_is_missing_is_told_before_the_first_step(make_trainer, tmp_path, monkeypatch, name):
    for known in [known for known in sys.modules if known.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setitem(sys.modules, name, None)
    trainer = make_trainer([Recorder([TRACKERS.get(name)(records(tmp_path))])])
    with pytest.raises(MissingExtraError, match=rf"TRACKERS: {name} needs .* pip install .*\[{name}\]"):
        trainer.fit()
    assert trainer.state.step == 0


class FakeWandb(types.ModuleType):
    """W&B with a server that has some rows of the run already."""

    def __init__(self, num_rows):
        super().__init__("wandb")
        self.Settings = self.Artifact = lambda *args, **options: mock.MagicMock()
        self.run = mock.MagicMock(offline=False, starting_step=num_rows, summary={})
        self.init = mock.Mock(return_value=self.run)


@pytest.mark.parametrize("num_rows", [0, 4, 7])
def test_wandb_online_gets_the_rows_that_its_server_lacks(tmp_path, monkeypatch, num_rows):
    fake = FakeWandb(num_rows)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    run = records(tmp_path, kinds=("train", "valid"))  # six rows
    run.remember("wandb", "known")
    tracker = TRACKERS.get("wandb")(run, project="p", mode="online")
    tracker.open(3, 1)
    for step in (4, 5):
        tracker.write({"kind": "train", "step": step, "epoch": 2, "loss": float(step)})
    tracker.finish(Results({"top1": 0.5}, [tmp_path / "report.html"], [], []))
    tracker.close()
    assert {name: fake.init.call_args[1][name] for name in ("id", "mode", "resume")} == {
        "id": "known",
        "mode": "online",
        "resume": "allow",
    }
    rows = [call[0][0] for call in fake.run.log.call_args_list]
    steps = [row.get("train/step", row.get("valid/step")) for row in rows]
    assert steps == [1, 1, 2, 2, 3, 3, 4, 5][num_rows:]
    assert fake.run.summary == {"best/top1": 0.5}
    assert fake.run.log_artifact.call_count == 1
    fake.run.finish.assert_called_once_with(exit_code=0)


@pytest.mark.parametrize("tracker", tracked.TRACKERS)
def test_a_tracker_that_fails_warns_once(make_trainer, tmp_path, monkeypatch, caplog, tracker):
    places = {"wandb": {"mode": "offline"}, "mlflow": {"uri": "nowhere://host"}}.get(tracker, {})
    (tmp_path / "tensorboard").write_text("no folder")
    (tmp_path / "wandb").write_text("no folder")
    monkeypatch.setenv("WANDB_DIR", "/dev/null")
    shown = TRACKERS.get(tracker)(TrackedRun("name", tmp_path, {}), **places)
    if tracker == "wandb":
        monkeypatch.setattr("wandb.init", lambda **options: 1 / 0)
    trainer = make_trainer([Recorder([shown, JsonLinesSink(tmp_path / "own.jsonl")], interval=1)])
    assert trainer.fit().step == 12
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert sum("fails and is left out, the run goes on" in text for text in warnings) == 1
    assert len((tmp_path / "own.jsonl").read_text().splitlines()) == 14


def test_names_of_a_run_are_kept_and_a_broken_file_is_no_error(tmp_path):
    run = TrackedRun("name", tmp_path, {})
    assert run.recall("wandb") is None
    run.remember("wandb", "a")
    run.remember("mlflow", "b")
    assert (run.recall("wandb"), run.recall("mlflow")) == ("a", "b")
    (tmp_path / "trackers.json").write_text("{")
    assert run.recall("wandb") is None
    run.remember("wandb", "c")
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"wandb": "c"}


def test_what_is_kept_of_the_weights(tmp_path):
    best, newest = tmp_path / "best.pdparams", [tmp_path / "a.json", tmp_path / "a.pdparams"]
    results = Results({"top1": 1.0}, [], [best], newest)
    assert results.kept("best") == [best]
    assert results.kept("all") == [best, *newest]
    assert results.kept("none") == []
    assert Results({}, [], newest[1:], newest).kept("all") == [newest[1], newest[0]]


def test_settings_become_flat():
    values = {"a": {"b": 1, "c": {"d": "x"}}, "e": True, "f": [1], "g": None}
    assert flattened(values) == {"a.b": 1, "a.c.d": "x", "e": 1}

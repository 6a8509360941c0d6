"""A run that was killed and resumed, as each tracker's own reader shows it."""

import json
import signal

import pytest

from tests.support.tracked import TRACKERS, runs_of

ARGUMENTS = {"tensorboard": "", "wandb": "mode: offline, checkpoints: all", "mlflow": "uri: '{store}'"}


@pytest.fixture
def store(tmp_path):
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.fixture
def tracked_config(tiny_config, tmp_path, store):
    """`tracked_config("wandb")`: the tiny config with this tracker alone."""

    def write(tracker):
        if tracker == "mlflow":
            from mlflow import MlflowClient

            MlflowClient(tracking_uri=store).create_experiment(
                "paddlevideo_fast", str(tmp_path / "artifacts")
            )
        arguments = ARGUMENTS[tracker].format(store=store)
        with tiny_config.open("a") as file:
            file.write(f"TRACKERS: [{{{tracker}: {{{arguments}}}}}]\nsave_every_steps: 3\n")
        return tiny_config

    return write


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_killed_and_resumed_run_is_there_once(
    tracked_config, tmp_path, start, run_main, wait_for_step, store, tracker
):
    config, out = tracked_config(tracker), tmp_path / "out"
    process = start(config)
    wait_for_step(out, 8, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    resumed = run_main(config, "-o", "resume=auto", "-o", "report=true")
    assert "fails" not in resumed.stderr
    (found,) = runs_of(tracker, out, store)
    assert found.steps["train/loss"] == list(range(1, 13))
    assert found.steps["train_epoch/loss"] == found.steps["valid/top1"] == [6, 12]
    assert "TSMHead" in found.settings
    assert not (out / "vdl").exists()
    if tracker == "tensorboard":
        return
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert found.best == max(record["top1"] for record in records if record["kind"] == "valid")
    names = ["report/report.html", "checkpoints/tiny_best.pdparams", "config.yaml"]
    if tracker == "wandb":
        newest = [f"tiny_epoch_00002.{ending}" for ending in ("json", "pdopt", "pdparams")]
        names = ["report.html", "tiny_best.pdparams", *newest]
    assert sorted(found.files) == sorted(names)
    # a branch that is left stays, and the new one begins with the records up to there
    run_main(config, "-o", "resume_epoch=1")
    runs = runs_of(tracker, out, store)
    if tracker == "wandb":
        runs += runs_of(tracker, out / "earlier-1", store)
    assert [run.steps["train/loss"] for run in runs] == [list(range(1, 13))] * 2

"""The doctor's parts: the stopwatch, the model of a step, the words, the files and the command line."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest

from paddlevideo_fast.assembly import training_parts
from paddlevideo_fast.bench import doctor
from paddlevideo_fast.bench.doctor import diagnosis, remedy, substitutes
from paddlevideo_fast.bench.doctor.reading import ReadingCost, time_reading, time_transport
from paddlevideo_fast.bench.doctor.step_model import StepCost
from paddlevideo_fast.bench.stopwatch import Stopwatch
from paddlevideo_fast.bench.training import SyntheticLoader, require_own_loader
from paddlevideo_fast.config import load_config
from paddlevideo_fast.errors import BadSampleShareError, PaddleVideoFastError
from paddlevideo_fast.loader import ClipRequest

COST = StepCost(train_sec=0.1, train_cpu_sec=0.1, read_sec=0.4, transport_sec=0.0, num_workers=0, num_cores=8)


class Thing:
    def outer(self):
        time.sleep(0.01)
        return self.inner()

    def inner(self):
        time.sleep(0.03)
        return "done"


def test_a_stage_inside_another_counts_for_itself():
    thing = Thing()
    with Stopwatch() as watch:
        watch.wrap(thing, "outer", "outer")
        watch.wrap(Thing, "inner", "inner")
        assert thing.outer() == "done"
        assert thing.outer() == "done"
    assert watch.seconds["inner"] >= 0.06
    assert watch.seconds["outer"] >= 0.02
    assert not vars(thing)
    total = sum(watch.seconds.values())
    thing.outer()
    assert sum(watch.seconds.values()) == total


def test_a_stage_that_fails_is_counted_and_unwrapped():
    with pytest.raises(ZeroDivisionError), Stopwatch() as watch, watch.stage("division"):
        1 / 0  # noqa: B018
    assert watch.seconds["division"] > 0
    with watch.stage("after"):
        pass
    assert set(watch.seconds) == {"division", "after"}


@pytest.mark.parametrize(
    ("changes", "step_sec"),
    [
        ({}, 0.5),  # one after the other
        ({"num_workers": 1}, 0.4),
        ({"num_workers": 2}, 0.2),
        ({"num_workers": 8}, 0.1),  # training is what is left
        ({"num_workers": 2, "transport_sec": 0.1}, 0.25),
        ({"num_workers": 2, "num_cores": 2}, 0.25),  # the cores share 0.5 s of work
        ({"num_workers": 2, "num_cores": 2, "train_cpu_sec": 0.3}, 0.35),
    ],
)
def test_the_model_of_a_step(changes, step_sec):
    assert dataclasses.replace(COST, **changes).step_sec == pytest.approx(step_sec)
    assert COST.gain(**changes) == pytest.approx(0.5 / step_sec)


def test_no_more_workers_than_cores_or_than_are_of_use():
    assert COST.best_num_workers() == 4
    assert dataclasses.replace(COST, num_cores=2).best_num_workers() == 2
    assert dataclasses.replace(COST, read_sec=1e-4).best_num_workers() == 0
    busy = dataclasses.replace(COST, num_cores=1)
    assert busy.best_num_workers() == 0  # a worker would take the core from the training


def test_reading_alone_finds_every_stage(config, motion_dataset):
    path = config(transforms="{RandomCrop: {target_size: 28}}, {ColorJitter: {hue: 0.5, p: 1.0}}")
    dataset = training_parts(load_config(str(path))).split.loader.dataset
    opened = dataset.pipeline.decode.open
    cost = time_reading(dataset, [ClipRequest(index, epoch=0) for index in range(12)])
    assert cost.clip_shape == (4, 28, 28, 3)
    assert set(cost.augment_steps) == {"ColorJitter"}
    assert min(cost.stages.values()) > 0
    assert cost.stages["augment"] == pytest.approx(cost.augment_steps["ColorJitter"])
    assert cost.total_sec == pytest.approx(sum(cost.stages.values()))
    assert dataset.pipeline.decode.open == opened
    assert "load" not in vars(dataset)


def test_a_worker_sends_batches(motion_dataset):
    assert time_transport((4, 28, 28, 3), batch_size=2, num_batches=3) >= 0


@pytest.fixture(scope="module")
def result():
    """Findings of a run that waits for its clips, with numbers that are easy to recognise."""
    found = {
        "config": "run.yaml",
        "device": "cpu",
        "paddle": "3",
        "num_cores": 2,
        "num_threads": 1,
        "num_workers": 2,
        "batch_size": 4,
        "clip_shape": [8, 56, 56, 3],
        "real": {"num_steps": 5, "step_sec": 0.3, "wait_share": 0.7, "clips_per_sec": 13.3},
        "synthetic": {"num_steps": 5, "step_sec": 0.09, "wait_share": 0.0, "clips_per_sec": 44.4},
        "stages_sec": {
            "reading": {"open": 0.05, "decode": 0.45, "transport": 0.01},
            "training": {"forward": 0.03, "backward": 0.06},
        },
        "augment_sec": {"RandomHue": 0.01},
        "model": {**dataclasses.asdict(COST), "num_workers": 2, "read_sec": 0.5, "step_sec": 0.25},
        "remedies": [
            {"name": "prepared videos", "gain": 2.5, "basis": "measured", "how": "type this", "helps": True},
            {"name": "more workers", "gain": 1.04, "basis": "model", "how": "-o", "helps": False},
            {"name": "DALI", "gain": None, "basis": "unknown: no", "how": "-o", "helps": False},
        ],
    }
    found["limit"] = diagnosis.limit(found)
    found["summary"] = diagnosis.summary(found)
    return found


def test_the_paragraph_says_what_limits_and_what_helps(result):
    assert result["limit"]["part"] == "reading"
    assert result["limit"]["stage"] == "decode"
    text = result["summary"]
    assert "Reading limits this run: a step takes 300 ms and waits 70% of its time" in text
    assert "on made-up batches it takes 90 ms" in text
    assert "500 ms to make the clips of a step, 88% of it for decoding; 2 workers share that" in text
    assert "prepared videos (2.5×)" in text
    assert "more workers" not in text
    assert "May help, gain unknown: DALI" in text
    assert "\n" not in text
    report = diagnosis.report(result)
    assert text in " ".join(report.split())
    assert max(map(len, report.splitlines())) <= 110


def test_a_run_that_does_not_wait_is_limited_by_training(result):
    calm = {**result, "real": {**result["real"], "step_sec": 0.095, "wait_share": 0.02}, "remedies": []}
    calm["limit"] = diagnosis.limit(calm)
    assert calm["limit"] == {"part": "training", "stage": "backward", "share": pytest.approx(2 / 3)}
    text = diagnosis.summary(calm)
    assert "Training limits this run" in text
    assert "the backward pass takes 60 ms" in text
    assert "Nothing that was tried would gain a tenth" in text
    for workers, words in (
        (0, "there are no workers."),
        (1, "there is 1 worker."),
        (2, "there are 2 workers."),
    ):
        assert words in diagnosis.summary({**calm, "num_workers": workers})


def test_time_that_nothing_explains_is_told(result):
    slow = {**result, "real": {**result["real"], "step_sec": 1.0}}
    assert "75% of a step is explained by none of this" in diagnosis.summary(slow)


def test_the_chart_is_a_picture(result, tmp_path):
    doctor.draw(result, tmp_path / "new" / "doctor.png")
    assert (tmp_path / "new" / "doctor.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["doctor.png"]


def test_a_trial_that_fails_is_told(config, monkeypatch, tmp_path):
    parts = training_parts(load_config(str(config())))
    stages = {"open": 0.02, "decode": 0.07, "resample": 0.01, "augment": 0.0}
    reading = ReadingCost(stages, {}, (4, 28, 28, 3))

    def out_of_memory(*args):
        raise MemoryError("too much\nof a backtrace")

    monkeypatch.setattr(remedy, "time_steps", out_of_memory)
    run = remedy.Run(parts, dataclasses.replace(COST, train_sec=1.0), reading, 4, tmp_path)
    found = {each.name: each for each in remedy.remedies(run, print)}
    assert found["larger batch"].gain is None
    assert found["larger batch"].basis == "unknown: it fails here: too much"
    assert not found["larger batch"].helps
    assert "pack_frames.py is not there" in found["packed frames"].basis
    assert "prepare_videos.py is not there" in found["prepared videos"].basis


def test_clips_too_long_to_convert_are_told(config, monkeypatch, tmp_path):
    dataset = training_parts(load_config(str(config()))).split.loader.dataset
    monkeypatch.setattr(substitutes, "_MAX_PIXELS", 1)
    (prepared, packed) = substitutes.of(dataset, tmp_path)
    for source in (prepared, packed):
        with pytest.raises(substitutes.TrialError, match="too long"):
            substitutes.share_of_cost(dataset, source)


def test_another_decoder_is_tried_where_it_is_not_ours(config):
    path = config(decoder="VideoDecoder, backend: cv2")
    dataset = training_parts(load_config(str(path))).split.loader.dataset
    source = substitutes.of(dataset, Path("data"))[0]
    assert source.name == "another decoder"
    assert substitutes.share_of_cost(dataset, source) > 0
    assert dataset.pipeline.decode.backend == "cv2"


def test_the_command_writes_what_it_prints(config, command, capsys, tmp_path):
    arguments = ["-c", str(config()), "--steps", "2", "--output", str(tmp_path / "out")]
    assert command("doctor").main([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads((tmp_path / "out" / "doctor.json").read_text())
    assert (tmp_path / "out" / "doctor.png").read_bytes().startswith(b"\x89PNG")
    assert "training 2 steps on the real loader" in printed.err


def test_wrong_input_is_one_message(config, command, capsys, tmp_path):
    def told(path, *arguments):
        assert command("doctor").main(["-c", str(path), *arguments]) == 2
        return capsys.readouterr().err

    assert "nowhere.yaml" in told("nowhere.yaml")
    assert "DATASET.btach_size" in told(config(), "-o", "DATASET.btach_size=2")
    assert "nowhere.list" in told(config(), "-o", "DATASET.train.file_path=nowhere.list")
    assert "DATASET.train: training needs this section" in told(config(), "-o", "DATASET.train=null")
    output = tmp_path / "file"
    output.write_text("")
    assert command("doctor").main(["-c", str(config()), "--steps", "2", "--output", str(output)]) == 2
    printed = capsys.readouterr()
    assert f"{output}/doctor.json: cannot be written" in printed.err
    assert "limits this run" in printed.out  # what was measured is not lost
    with pytest.raises(SystemExit):
        command("doctor").main(["-c", "x.yaml", "--steps", "none"])
    assert "'none' is no whole number from 2 on" in capsys.readouterr().err


def test_another_loader_is_refused(config):
    with pytest.raises(PaddleVideoFastError, match="train_dali=false"):
        require_own_loader(SyntheticLoader(1, (4, 28, 28, 3), 8))
    require_own_loader(training_parts(load_config(str(config()))).split.loader)


def test_a_set_without_a_clip_that_decodes_is_an_error(config, tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.mp4").write_bytes(b"no video")
    (tmp_path / "train.list").write_text("".join(f"{number}.mp4 0\n" for number in range(4)))
    path = config(data=tmp_path, list=tmp_path / "train.list")
    with pytest.raises(BadSampleShareError, match=r"\d\.mp4|no clip of epoch 1 decodes"):
        doctor.examine(load_config(str(path)), steps=2, progress=print)

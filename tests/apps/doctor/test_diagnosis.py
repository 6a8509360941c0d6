"""What the doctor makes of its measurements. The measurements are given: no test depends on the machine."""

import dataclasses

import pytest

from paddlevideo_fast.apps.doctor import diagnosis
from paddlevideo_fast.apps.doctor.diagnosis import Run, StepCost
from paddlevideo_fast.apps.doctor.reading import ReadingCost, TrialError
from paddlevideo_fast.apps.doctor.report import report as text_of
from paddlevideo_fast.apps.doctor.report import summary
from paddlevideo_fast.apps.doctor.timing import STAGES, StepTimes
from paddlevideo_fast.assembly import plan_run, training_setup
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.errors import BadSampleShareError

READING = ReadingCost({"open": 0.1, "decode": 0, "resample": 0, "augment": 0}, {}, (4, 28, 28, 3))
COST = StepCost(train_sec=0.1, train_cpu_sec=0.1, read_sec=0.4, num_workers=0, num_cores=8)


@pytest.mark.parametrize(
    ("changes", "step_sec"),
    [
        ({}, 0.5),  # one after the other
        ({"num_workers": 1}, 0.4),
        ({"num_workers": 2}, 0.2),
        ({"num_workers": 8}, 0.1),  # training is what is left
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


@pytest.fixture
def examined(config, monkeypatch):
    """`examined(…)`: what the doctor says of a run that takes so many seconds, on two cores."""

    def examine(train_sec=0.1, decode_sec=0.0, augment_sec=0.0, shares=None, fails=None, **values):
        clip_sec = decode_sec + augment_sec + 0.001
        stages = {"open": 0.001, "decode": decode_sec, "resample": 0.0, "augment": augment_sec}
        cost = ReadingCost(stages, {"ColorJitter": augment_sec} if augment_sec else {}, (4, 28, 28, 3))

        def time_steps(parts, loader, num_steps, num_warmup=2, budget_sec=15.0, precision=None):
            step_sec, wait_sec = train_sec, 0.0
            if loader is parts.split.loader:
                wait_sec = 4 * clip_sec / max(loader.num_workers, 1)
                step_sec = train_sec + wait_sec if not loader.num_workers else max(train_sec, wait_sec)
                wait_sec = step_sec - train_sec
            elif num_warmup == 1:  # a trial, which takes as long as it has pixels
                step_sec *= loader.batch.clips.size / (4 * 4 * 28 * 28 * 3)
            return StepTimes(num_steps, 4 * num_steps, num_steps * step_sec, num_steps * wait_sec,
                             num_steps * train_sec, step_sec)  # fmt: skip

        def share_of_cost(dataset, form):
            if fails:
                raise TrialError(fails)
            return (shares or {})[form.name]

        monkeypatch.setattr(diagnosis, "time_steps", time_steps)
        monkeypatch.setattr(diagnosis, "time_reading", lambda dataset, requests: cost)
        training = dict.fromkeys(STAGES, 0.0)
        training.update(forward=0.4 * train_sec, backward=0.6 * train_sec)
        monkeypatch.setattr(diagnosis, "time_training_stages", lambda *args: training)
        monkeypatch.setattr(diagnosis, "share_of_cost", share_of_cost)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.setattr(diagnosis, "num_cores", lambda: 2)
        told = []
        result = diagnosis.examine(load_config(str(config(**values))), steps=4, progress=told.append)
        assert told[0].startswith("training list: ")
        assert told[0].endswith("; no balancing")
        assert told[1:4] == [
            "training 4 steps on the real loader",
            "reading alone, stage by stage",
            "training 4 steps on made-up batches",
        ]
        gains = {suggestion["name"]: suggestion for suggestion in result["remedies"]}
        return result, gains

    return examine


def test_slow_decoding_is_named(examined):
    shares = {"4 clips from one decode": 0.3, "prepared videos": 0.2, "packed frames": 0.1}
    result, gains = examined(decode_sec=0.1, shares=shares)
    assert (result["limit"]["part"], result["limit"]["stage"]) == ("reading", "decode")
    assert result["real"]["wait_share"] == pytest.approx(0.404 / 0.504)
    assert "Reading limits this run" in result["summary"]
    assert "for 'decode'" in result["summary"]
    for form, share in shares.items():
        assert gains[form]["basis"] == "measured"
        assert gains[form]["gain"] == pytest.approx(0.504 / (0.1 + 0.404 * share))
        assert f"{form} ({gains[form]['gain']:.1f}×)" in result["summary"]
    assert list(gains)[:2] == ["packed frames", "prepared videos"]  # the largest gain first
    assert gains["more workers"]["how"] == "-o DATASET.num_workers=2"
    assert gains["more workers"]["gain"] == pytest.approx(2)  # the cores share 0.504 s


def test_heavy_augmentation_is_named(examined):
    result, gains = examined(augment_sec=0.1, shares={})
    assert (result["limit"]["part"], result["limit"]["stage"]) == ("reading", "augment")
    assert gains["fewer transforms"]["gain"] == pytest.approx(0.504 / 0.104)
    assert gains["fewer transforms"]["basis"] == "model"
    assert "ColorJitter first" in gains["fewer transforms"]["how"]
    assert "packed frames" not in gains  # reading the files is no tenth of a step


@pytest.mark.parametrize("workers", [0, 1])
def test_a_heavy_model_is_named(examined, workers):
    result, gains = examined(train_sec=1.0, decode_sec=0.004, workers=workers)
    assert (result["limit"]["part"], result["limit"]["stage"]) == ("training", "backward")
    assert gains["smaller input"]["gain"] == pytest.approx((1.02 if workers == 0 else 1.0) / (
        9 / 16 + (0.02 if workers == 0 else 0.0)
    ), rel=0.02)  # fmt: skip
    assert gains["larger batch"]["gain"] == pytest.approx(1.0)
    assert gains["smaller network"]["gain"] is None
    assert "prepared videos" not in gains


def test_multigrid_is_named_for_a_3d_network(motion_dataset):
    cfg = load_config(
        "configs/quickstart/slowfast_motion_56_multigrid.yaml",
        [
            "multigrid=false",
            "MODEL.head.num_classes=8",
            f"DATASET.train.data_prefix={motion_dataset.root}",
            f"DATASET.train.file_path={motion_dataset.train_list}",
            "DATASET.batch_size=2",
            "DATASET.num_workers=0",
        ],
    )
    parts = training_setup(plan_run(RunSpec.for_training(cfg)))
    run = Run(parts, dataclasses.replace(COST, train_sec=1.0), READING, 2)
    (found,) = [each for each in diagnosis.suggestions(run, print) if each.name == "multigrid"]
    assert found.gain is None
    assert found.how.startswith("paddlevideo-fast plan CONFIG  predicts")


def test_a_trial_that_fails_is_told(examined, config, monkeypatch):
    _, gains = examined(decode_sec=0.1, fails="the clips are too long")
    for form in ("prepared videos", "packed frames"):
        assert (gains[form]["gain"], gains[form]["basis"]) == (None, "unknown: the clips are too long")

    def out_of_memory(*args):
        raise MemoryError("too much\nof a backtrace")

    monkeypatch.setattr(diagnosis, "time_steps", out_of_memory)
    parts = training_setup(plan_run(RunSpec.for_training(load_config(str(config())))))
    run = Run(parts, dataclasses.replace(COST, train_sec=1.0), READING, 4)
    found = {each.name: each for each in diagnosis.suggestions(run, print)}
    assert found["larger batch"].gain is None
    assert found["larger batch"].basis == "unknown: too much"
    assert not found["larger batch"].helps


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
            "reading": {"open": 0.05, "decode": 0.45, "collate": 0.01},
            "training": {"forward": 0.03, "backward": 0.06},
        },
        "augment_sec": {"RandomHue": 0.01},
        "model": {**dataclasses.asdict(COST), "num_workers": 2, "read_sec": 0.5, "step_sec": 0.25},
        "remedies": [
            {"name": "prepared videos", "gain": 2.5, "basis": "measured", "how": "type this", "helps": True},
            {"name": "more workers", "gain": 1.04, "basis": "model", "how": "-o", "helps": False},
            {"name": "smaller network", "gain": None, "basis": "unknown: no", "how": "-o", "helps": False},
        ],
    }
    found["limit"] = diagnosis.limit(found)
    found["summary"] = summary(found)
    return found


def test_the_paragraph_says_what_limits_and_what_helps(result):
    assert result["limit"]["part"] == "reading"
    assert result["limit"]["stage"] == "decode"
    text = result["summary"]
    assert "Reading limits this run: a step takes 300 ms and waits 70% of its time" in text
    assert "on made-up batches it takes 90 ms" in text
    assert "500 ms to make the clips of a step, 88% of it for 'decode'; 2 workers share that" in text
    assert "prepared videos (2.5×)" in text
    assert "more workers" not in text
    assert "May help, gain unknown: smaller network" in text
    assert "\n" not in text
    report = text_of(result)
    assert text in " ".join(report.split())
    assert max(map(len, report.splitlines())) <= 110


def test_a_run_that_does_not_wait_is_limited_by_training(result):
    calm = {**result, "real": {**result["real"], "step_sec": 0.095, "wait_share": 0.02}, "remedies": []}
    calm["limit"] = diagnosis.limit(calm)
    assert calm["limit"] == {"part": "training", "stage": "backward", "share": pytest.approx(2 / 3)}
    text = summary(calm)
    assert "Training limits this run" in text
    assert "'backward' takes 60 ms" in text
    assert "Nothing that was tried would gain a tenth" in text
    for workers, words in enumerate(("there are no workers.", "there is 1 worker.", "there are 2 workers.")):
        assert words in summary({**calm, "num_workers": workers})


def test_time_that_nothing_explains_is_told(result):
    slow = {**result, "real": {**result["real"], "step_sec": 1.0}}
    assert "75% of a step is explained by none of this" in summary(slow)


def test_a_set_without_a_clip_that_decodes_is_an_error(config, tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.mp4").write_bytes(b"no video")
    (tmp_path / "train.list").write_text("".join(f"{number}.mp4 0\n" for number in range(4)))
    path = config(data=tmp_path, list=tmp_path / "train.list")
    with pytest.raises(BadSampleShareError, match=r"\d\.mp4|no clip of epoch 1 decodes"):
        diagnosis.examine(load_config(str(path)), steps=2, progress=print)

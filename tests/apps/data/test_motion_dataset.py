"""The motion data set: complete or absent, the same each time, and no single frame tells the class."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from paddlevideo_fast.apps.data.motion import CLASSES, draw_states, render_clip
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.jobs.run import read_provenance
from tests.support.content import run_and_kill
from tests.support.json_lines import entries_of

REPO = Path(__file__).resolve().parents[3]
SCRIPT = "data/make_motion_dataset.py"


def read_list(file: Path):
    return [(path, int(label)) for path, label in (line.split() for line in file.read_text().splitlines())]


@pytest.mark.smoke
def test_contents(motion_dataset):
    train, valid = read_list(motion_dataset.train_list), read_list(motion_dataset.valid_list)
    assert (len(train), len(valid)) == (32, 16)
    assert [label for _, label in train] == [number % 8 for number in range(32)]
    assert len(motion_dataset.classes) == 8
    for path, _ in train + valid:
        with open_video(motion_dataset.root / path) as reader:
            assert reader.read(range(reader.num_frames)).shape == (16, 32, 32, 3)


def test_two_motions_at_once_are_two_labels(run_script, tmp_path):
    options = ["--train=24", "--valid=5", "--size=16", "--frames=8", "--motions=2", "--workers=1"]
    run_script(SCRIPT, "--output", tmp_path / "set", *options)
    entries = [json.loads(line) for line in (tmp_path / "set" / "train.jsonl").read_text().splitlines()]
    names = list(CLASSES)
    pairs = {tuple(entry["label"]) for entry in entries}
    assert len(pairs) == len(entries) == 24
    assert all(CLASSES[names[one]][0] != CLASSES[names[other]][0] for one, other in pairs)
    assert all((tmp_path / "set" / entry["path"]).is_file() for entry in entries)
    (result,) = entries_of(run_script(SCRIPT, "--output", tmp_path / "set", *options, "--json").stdout)
    assert (result["is_new"], result["num_train"], result["num_valid"]) == (False, 24, 5)
    refused = run_script(SCRIPT, "--output", tmp_path / "set", *options[:4], "--workers=1", check=False)
    assert "made with another motions" in refused.stderr


def test_a_clip_of_two_motions_moves_both_parts_and_no_other():
    states = draw_states("left+grow", 24, np.random.default_rng(3))
    assert [np.ptp(states[:, part]) > 0 for part in range(4)] == [True, False, True, False]
    assert (np.diff(states[:, 0]) < 0).all()
    assert (np.diff(states[:, 2]) > 0).all()
    alone = draw_states("left", 24, np.random.default_rng(3))
    np.testing.assert_array_equal(states[:, 0], alone[:, 0])


def test_same_arguments_same_bytes(motion_dataset, run_script, tmp_path):
    options = ["--train=32", "--valid=16", "--size=32", "--frames=16", "--workers=2"]
    run_script(SCRIPT, "--output", tmp_path / "again", *options)
    files = sorted(p.relative_to(tmp_path / "again") for p in (tmp_path / "again").rglob("*") if p.is_file())
    assert files == sorted(
        p.relative_to(motion_dataset.root) for p in motion_dataset.root.rglob("*") if p.is_file()
    )
    for file in files:
        assert (tmp_path / "again" / file).read_bytes() == (motion_dataset.root / file).read_bytes(), file


def test_other_seed_other_clips(run_script, tmp_path):
    for seed in (0, 1):
        run_script(
            SCRIPT, "--output", tmp_path / str(seed), "--train=2", "--valid=0", "--size=16", f"--seed={seed}"
        )
    clips = [(tmp_path / str(seed) / "train/000000.mp4").read_bytes() for seed in (0, 1)]
    assert clips[0] != clips[1]


def test_complete_set_is_reused_and_another_is_refused(motion_dataset, run_script):
    same = ["--output", motion_dataset.root, "--valid=16", "--size=32", "--frames=16"]
    before = motion_dataset.train_list.stat().st_mtime_ns
    assert "nothing to do" in run_script(SCRIPT, *same, "--train=32").stdout
    assert motion_dataset.train_list.stat().st_mtime_ns == before
    refused = run_script(SCRIPT, *same, "--train=33", check=False)
    assert refused.returncode == 2
    assert "made with another train" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_killed_run_is_continued(run_script, tmp_path):
    output = tmp_path / "set"
    options = ["--output", str(output), "--train=120", "--valid=8", "--size=64", "--workers=1"]
    run_and_kill([sys.executable, REPO / SCRIPT, *options], output, "train/0*.mp4", 20)
    done = {path: path.stat().st_mtime_ns for path in output.glob("train/0*.mp4")}
    assert 20 <= len(done) < 120
    assert not (output / "train.list").exists()
    assert not read_provenance(output)[0].complete
    run_script(SCRIPT, *options)
    assert sorted(path.name for path in (output / "train").iterdir()) == [f"{n:06d}.mp4" for n in range(120)]
    assert all(path.stat().st_mtime_ns == changed for path, changed in done.items())
    assert read_provenance(output)[0].complete


def test_states_at_a_random_time_do_not_depend_on_the_class():
    """Each part of the state has the same distribution for all classes (two-sample Kolmogorov–Smirnov)."""
    rng = np.random.default_rng(7)
    num_clips = 1500
    drawn = {
        name: np.stack([draw_states(name, 24, rng)[rng.integers(24)] for _ in range(num_clips)])
        for name in CLASSES
    }
    for part in range(4):
        whole = np.sort(np.concatenate([states[:, part] for states in drawn.values()]))
        for name, states in drawn.items():
            ranks = np.searchsorted(whole, np.sort(states[:, part]), side="right") / len(whole)
            distance = np.abs(ranks - np.arange(1, num_clips + 1) / num_clips).max()
            assert distance < 1.95 / np.sqrt(num_clips), (name, part)  # the 0.1 % level


def test_opposites_are_each_other_backwards():
    for name, opposite in (
        ("left", "right"),
        ("up", "down"),
        ("grow", "shrink"),
        ("turn_left", "turn_right"),
    ):
        forwards = draw_states(name, 24, np.random.default_rng(3))
        backwards = draw_states(opposite, 24, np.random.default_rng(3))[::-1]
        assert np.allclose(forwards, backwards)


def test_mean_pictures_do_not_tell_the_class():
    """A linear classifier on single frames stays at chance."""
    names = list(CLASSES)
    frames, labels = [], []
    for number in range(1200):
        rng = np.random.default_rng([5, number])
        clip = render_clip(names[number % 8], 16, 16, rng)
        frames.append(clip[rng.integers(16)].astype(np.float64).ravel() / 255)
        labels.append(number % 8)
    x, y = np.stack(frames), np.array(labels)
    x = np.concatenate([x - x.mean(0), np.ones((len(x), 1))], 1)
    weights = np.linalg.solve(x[:800].T @ x[:800] + 10 * np.eye(x.shape[1]), x[:800].T @ np.eye(8)[y[:800]])
    accuracy = ((x[800:] @ weights).argmax(1) == y[800:]).mean()
    assert abs(accuracy - 1 / 8) < 0.06


def test_motion_is_there():
    """The sprite's centre moves several pixels the way the class says, and stays in the picture."""
    for name, (part, direction) in CLASSES.items():
        states = np.stack([draw_states(name, 24, np.random.default_rng([1, n])) for n in range(50)])
        steps = np.diff(states, axis=1)
        assert (steps[:, :, part] * direction > 0).all()
        others = [other for other in range(4) if other != part]
        assert np.allclose(steps[:, :, others], 0)
        assert (np.abs(states[:, :, :2]) < 0.5).all()
        if part < 2:
            assert (np.abs(steps[:, :, part]) * 3 * 56 > 2).all()  # 8 of 24 frames, input of 56²

"""`paddlevideo-fast plot`: the curves of runs against steps, epochs and time."""

from __future__ import annotations

import json

import pytest

from paddlevideo_fast.cli import plot


@pytest.fixture
def run(tmp_path):
    """Two epochs of 4 and 2 steps, which take 60 s and 120 s, and the first step of a third one."""
    records = [{"kind": "train", "step": step, "loss": 1 / step} for step in range(1, 8)]
    for epoch, (step, sec) in enumerate([(4, 60.0), (6, 120.0)], 1):
        records += [{"kind": "train_epoch", "epoch": epoch, "step": step, "sec": sec, "loss": 0.1}]
        records += [{"kind": "valid", "epoch": epoch, "step": step, "top1": 0.5}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return plot.read_run(tmp_path)


def test_the_places_of_the_points(run):
    assert run.curve("train", "loss")[0] == [1, 2, 3, 4, 5, 6, 7]
    assert run.curve("valid", "top1", "epoch") == ([1.0, 2.0], [0.5, 0.5])
    assert run.curve("valid", "top1", "time")[0] == [1.0, 3.0]
    assert run.curve("train", "loss", "epoch")[0] == [0.25, 0.5, 0.75, 1.0, 1.5, 2.0]
    assert run.curve("train", "loss", "time")[0] == pytest.approx([0.25, 0.5, 0.75, 1.0, 2.0, 3.0])
    assert run.curve("train", "top1", "time") == ([], [])


def test_a_run_of_less_than_an_epoch_has_no_times(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": 2.0}\n')
    assert plot.read_run(tmp_path).curve("train", "loss", "time") == ([], [])


@pytest.mark.parametrize("against", ["step", "epoch", "time"])
def test_the_picture(run, tmp_path, against):
    plot.draw([run], tmp_path / "run.png", 0.1, 2, against)
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_runs_of_one_name_are_their_mean_in_a_band():
    axes = plot_axes()
    plot._plot_band(axes, [([1, 2, 3], [0, 2, 4]), ([1, 3], [2, 2]), ([], [])], color="C0", label="a")
    (line,), (band,) = axes.lines, axes.collections
    assert line.get_xydata().tolist() == [[1, 1], [2, 2], [3, 3]]
    assert {(1, 0), (1, 2), (2, 2), (3, 2), (3, 4)} == {(x, y) for x, y in band.get_paths()[0].vertices}


def plot_axes():
    from paddlevideo_fast.report.drawings import pyplot

    return pyplot().figure().add_subplot()

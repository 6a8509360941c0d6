"""The benchmark of exactness counts what readers get wrong, and outlives a reader that dies."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time

import pytest

from paddlevideo_fast.bench import exactness
from paddlevideo_fast.bench.isolated import Lost, map_isolated


@pytest.mark.smoke
def test_it_counts_wrong_frames(capfd):
    parser = argparse.ArgumentParser()
    exactness.add_arguments(parser)
    names = ("h264.mp4", "h264_b_frames.avi", "h264_turned_90.mov")
    arguments = [part for name in names for part in ("--clip", name)]
    assert exactness.main(parser.parse_args([*arguments, "--json"])) == 0
    output, noise = capfd.readouterr()
    assert noise == ""
    rows = json.loads(output)["rows"]
    assert [(row["clip"], row["frames"]) for row in rows] == [(name, 60) for name in names]
    for row in rows:
        assert row["readers"]["ours"] == {"announced": 60, "wrong": 0, "errors": 0, "failure": None}
        assert row["readers"]["cv2 sequence"]["wrong"] == 0
    by_decord = [row["readers"]["decord"] for row in rows]
    assert by_decord[0]["wrong"] == 0 < by_decord[1]["wrong"] < 60


def test_the_table_tells_wrong_frames_from_missing_ones():
    def readers(decord):
        return {
            name: {"announced": 60, "wrong": 0, "errors": 0, "failure": None} for name in ("ours", *others)
        } | {"decord": decord}

    others = ("cv2 sequence", "cv2 seek")
    rows = [
        {"clip": "a.mp4", "frames": 60, "readers": readers({"wrong": 7, "errors": 2})},
        {"clip": "b.mp4", "frames": 40, "readers": readers({"wrong": 1, "errors": 0})},
    ]
    text = exactness.table({"versions": {"av": "1"}, "seed": 0, "rows": rows}).splitlines()
    assert text[2].split() == ["a.mp4", "60", "0", "7", "+", "2", "0", "0"]
    assert text[4].split() == ["all", "100", "0", "8", "+", "2", "0", "0"]


def test_a_call_that_dies_or_hangs_is_lost_alone():
    assert list(map_isolated(_misbehave, range(4), limit_sec=1)) == [
        0,
        Lost("the process dies with -9"),
        Lost("hangs for 1 s"),
        3,
    ]


def _misbehave(task):
    if task == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if task == 2:
        time.sleep(60)
    return task

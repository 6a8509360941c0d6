"""Draws the chart of the README from benchmarks/results: CPU time beside PaddleVideo and decord."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring import ROOT, load
from paddlevideo_fast.report import picture

CHART = ROOT / "docs" / "images" / "speed.png"
RECIPES = {"tsm": "TSM", "slowfast": "SlowFast"}


def draw_speed(path: Path) -> None:
    """Draws how many times less CPU time clips and frames take than with PaddleVideo and with decord.

    Raises:
        PaddleVideoFastError: the file cannot be written.
    """
    with picture(path, 1, 2, figsize=(10, 3.7), width_ratios=(3, 2)) as (figure, (left, right)):
        clips: dict[str, dict[str, float]] = {}
        for row in load("paddlevideo")["rows"]:
            clips.setdefault(row["recipe"], {})[row["clip"]] = row["cpu_ratio"]
        names = ["mma_demo\n340×256", "pancake\n426×240", "nasa*\n320×180"]
        series = {RECIPES[recipe]: list(ratios.values()) for recipe, ratios in clips.items()}
        _draw_bars(left, names, series, ("C0", "C1"), "PaddleVideo")
        left.set_title("From a video file to a training clip, against PaddleVideo", fontsize=11)
        means = load("reader")["means"]
        patterns = {"sparse-8": "8 frames over\nthe video", "32x2": "32 frames,\ntwo apart"}
        series = {
            name: [1 / means[pattern]["one_stream"][reader] for pattern in patterns]
            for reader, name in (("ours", "the videos as they are"), ("ours, prepared", "prepared videos"))
        }
        _draw_bars(right, list(patterns.values()), series, ("0.6", "C2"), "decord")
        right.set_title("Reading frames, against decord", fontsize=11)
        left.set_ylabel("how many times less CPU time", fontsize=10)
        note = "* nasa.mp4 holds two video streams; PaddleVideo, with decord, reads the larger one (480×270)."
        figure.supxlabel(note, fontsize=8, x=0.01, ha="left", color="0.3")


def _draw_bars(
    axis: Any,
    names: Sequence[str],
    series: Mapping[str, Sequence[float]],
    colors: Sequence[str],
    baseline: str,
) -> None:
    """Draws groups of bars with their values, and a line at 1 for the baseline."""
    width = 0.8 / len(series)
    for number, (label, values) in enumerate(series.items()):
        positions = [position + (number - (len(series) - 1) / 2) * width for position in range(len(names))]
        bars = axis.bar(positions, values, 0.95 * width, label=label, color=colors[number])
        axis.bar_label(bars, [f"{value:.1f}×" for value in values], padding=2, fontsize=10)
    axis.axhline(1, color="0.3", linestyle="--", linewidth=1, label=f"{baseline} = 1")
    axis.set_xticks(range(len(names)), names, fontsize=10)
    axis.margins(y=0.15)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=9, frameon=False)

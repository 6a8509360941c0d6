"""Draws the charts of README and quick start from benchmarks/results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring import load
from paddlevideo_fast.extensions.report import picture

RECIPES = {"tsm": "TSM", "slowfast": "SlowFast"}
_CLIPS = {"mma_demo": "mma_demo\n340×256", "pancake": "pancake\n426×240", "nasa": "nasa*\n320×180"}
_FILES = {"mma_demo.mp4": "mma_demo", "pancake.mkv": "pancake", "nasa (stream 1).mp4": "nasa"}


def draw_speed(path: Path) -> None:
    """Draws the CPU time of training clips and of reading frames, with PaddleVideo, decord and this toolkit.

    Raises:
        PaddleVideoFastError: the file cannot be written.
    """
    with picture(path, 1, 3, figsize=(11, 3.7)) as (figure, axes):
        for axis, (recipe, name) in zip(axes, RECIPES.items()):
            rows = {row["clip"]: row for row in load("paddlevideo")["rows"] if row["recipe"] == recipe}
            series = {
                "PaddleVideo": [rows[clip]["paddlevideo_ms"] for clip in _CLIPS],
                "paddlevideo_fast": [rows[clip]["ms"] for clip in _CLIPS],
            }
            _draw_bars(axis, series)
            axis.set_title(f"A {name} training clip", fontsize=11)
        reading: dict[str, dict[str, float]] = {"decord": {}, "paddlevideo_fast": {}}
        for row in load("reader")["rows"]:
            if row["pattern"] == "sparse-8" and row["clip"] in _FILES:
                reader = "decord" if row["reader"] == "decord" else "paddlevideo_fast"
                reading[reader][_FILES[row["clip"]]] = row["ms"]
        _draw_bars(axes[2], {name: [ms[clip] for clip in _CLIPS] for name, ms in reading.items()})
        axes[2].set_title("Reading 8 frames of a video", fontsize=11)
        axes[0].set_ylabel("CPU time in ms, less is better", fontsize=10)
        note = "* nasa.mp4 holds two video streams; its first one is measured, in a file of its own."
        figure.supxlabel(note, fontsize=8, x=0.01, ha="left", color="0.3")


def draw_learning(path: Path) -> None:
    """Draws the validation top-1 of the quick start's two configs after each epoch, of three seeds each.

    Raises:
        PaddleVideoFastError: the file cannot be written.
    """
    with picture(path, figsize=(6, 3.4)) as (_, axis):
        for name, row in load("quickstart")["rows"].items():
            epochs = range(1, row["epochs"] + 1)
            top1 = [[value for _, value in epoch] for epoch in zip(*row["curves"])]
            (line,) = axis.plot(epochs, [sum(values) / len(values) for values in top1], "o-", label=name)
            axis.fill_between(
                epochs, list(map(min, top1)), list(map(max, top1)), color=line.get_color(), alpha=0.2
            )
        axis.axhline(1 / 8, color="0.5", linestyle="--", linewidth=1, label="chance")
        axis.set(xlabel="epoch", ylabel="validation top-1", xticks=epochs, ylim=(0, 1))
        axis.grid(alpha=0.3)
        axis.legend()


def _draw_bars(axis: Any, series: Mapping[str, Sequence[float]]) -> None:
    """Draws a group of bars with their values for each clip."""
    width = 0.8 / len(series)
    for number, (label, values) in enumerate(series.items()):
        positions = [position + (number - (len(series) - 1) / 2) * width for position in range(len(_CLIPS))]
        color = "C2" if label == "paddlevideo_fast" else "0.6"
        bars = axis.bar(positions, values, 0.95 * width, label=label, color=color)
        axis.bar_label(bars, [f"{value:.0f}" for value in values], padding=2, fontsize=10)
    axis.set_xticks(range(len(_CLIPS)), list(_CLIPS.values()), fontsize=10)
    axis.margins(y=0.15)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=9, frameon=False)

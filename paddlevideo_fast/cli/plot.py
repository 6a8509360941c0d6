"""Draws runs from their metrics.jsonl: training loss and validation top-1 against steps, epochs or time.

Example:
    paddlevideo-fast plot output/tsm_motion output/tsn_motion --output docs/images/quickstart.png
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paddlevideo_fast.cli.command import quiet_import
from paddlevideo_fast.command_line import CommandParser, count
from paddlevideo_fast.errors import PaddleVideoFastError

_AXES = {"step": "step", "epoch": "epoch", "time": "minutes of training"}


class Run(NamedTuple):
    """The records of one run, by kind ("train", "train_epoch", "valid")."""

    label: str
    records: dict[str, list[dict[str, Any]]]

    @property
    def measured(self) -> str:
        """The name of what its validations are compared by: "mAP" of several labels, else "top1"."""
        return "mAP" if any("mAP" in record for record in self.records.get("valid", [])) else "top1"

    def curve(self, kind: str, name: str, against: str = "step") -> Sequence[Sequence[float]]:
        """[places, values] of a number.

        Args:
            kind: of the records.
            name: of the number.
            against: what the places are: "step", "epoch" (with fractions), or "time" (minutes of training,
                without validation).
        """
        records = [record for record in self.records.get(kind, []) if record.get(name) is not None]
        ends = self.records.get("train_epoch", [])
        if against != "step":  # how long an epoch was is known at its end
            records = [record for record in records if ends and record["step"] <= ends[-1]["step"]]
        steps = [record["step"] for record in records]
        if records and against != "step":
            unit = {"epoch": 1.0, "time": 1 / 60}[against]
            lengths = [unit * (end["sec"] if against == "time" else 1.0) for end in ends]
            steps = np.interp(steps, [0, *(end["step"] for end in ends)], np.cumsum([0.0, *lengths])).tolist()
        return steps, [record[name] for record in records]


def build_parser() -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast plot`."""
    parser = CommandParser("plot", __doc__, _rules)
    parser.add_argument("runs", nargs="+", type=Path, help="output folders, each with a metrics.jsonl")
    parser.add_argument(
        "--labels",
        nargs="+",
        help="names of the runs (default: the folders' names); runs with one name, such as several seeds, "
        "become one curve: the mean, with a band from the lowest to the highest",
    )
    parser.add_argument(
        "--against", choices=list(_AXES), default="step", help="the horizontal axis (default step)"
    )
    parser.add_argument(
        "--chance", type=float, help="top-1 of random guessing, drawn as a line, such as 0.125"
    )
    parser.add_argument(
        "--smooth", type=count(1), default=10, help="log lines to average a loss over (default 10)"
    )
    parser.add_argument("--output", type=Path, default=Path("run.png"), help="picture (default run.png)")
    return parser


def _rules(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if args.labels and len(args.labels) != len(args.runs):
        parser.error(f"--labels: {len(args.labels)} names for {len(args.runs)} runs")


def read_run(folder: Path, label: str | None = None) -> Run:
    """Reads a run's metrics.jsonl.

    Raises:
        PaddleVideoFastError: it is missing, or a line of it is no record.
    """
    path = folder / "metrics.jsonl"
    if not path.is_file():
        raise PaddleVideoFastError(f"{path}: there is no such file; give the output folders of runs")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PaddleVideoFastError(f"{path}: cannot be read: {error}") from error
    records: dict[str, list[dict[str, Any]]] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            records.setdefault(record["kind"], []).append(record)
        except (ValueError, KeyError, TypeError) as error:
            raise PaddleVideoFastError(f"{path}:{number}: is no record of a run") from error
    return Run(label or folder.resolve().name, records)


def running_mean(values: Sequence[float], width: int) -> list[float]:
    """The mean of each value and up to `width` − 1 before it."""
    return [sum(values[max(0, i + 1 - width) : i + 1]) / min(i + 1, width) for i in range(len(values))]


def draw(runs: Sequence[Run], output: Path, chance: float | None, smooth: int, against: str = "step") -> None:
    """Writes the picture; its ending chooses the format.

    Raises:
        PaddleVideoFastError: the ending is unknown, or the file cannot be written.
    """
    with quiet_import():
        from paddlevideo_fast.report import label_text, picture
    measured = "mAP" if any(run.measured == "mAP" for run in runs) else "top1"
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    with picture(output, 1, 2, figsize=(9, 3.4)) as (_, (left, right)):
        for number, (name, group) in enumerate(groups.items()):
            style = {"color": f"C{number % 10}", "label": label_text(name)}
            smoothed = []
            for run in group:
                steps, losses = run.curve("train", "loss", against)
                left.plot(steps, losses, color=style["color"], alpha=0.25 / len(group), linewidth=1)
                smoothed.append((steps, running_mean(losses, smooth)))
            _plot_band(left, smoothed, **style)
            _plot_band(right, [run.curve("valid", measured, against) for run in group], marker="o", **style)
        if chance is not None:
            right.axhline(chance, color="0.5", linestyle="--", linewidth=1, label="chance")
        left.set(title="training loss", xlabel=_AXES[against])
        right.set(
            title="validation mAP" if measured == "mAP" else "validation top-1",
            xlabel=_AXES[against],
            ylim=(0, 1),
        )
        for axes in (left, right):
            axes.set_xlim(left=0)
            axes.grid(alpha=0.3)
            axes.legend()


def _plot_band(axes: Any, curves: Sequence[Sequence[Sequence[float]]], **style: Any) -> None:
    """Plots the mean of some curves, and from the lowest to the highest a band; of one curve, that one."""
    places = max((curve[0] for curve in curves), key=len)
    known = [curve for curve in curves if len(curve[0])]
    if len(known) < 2:
        axes.plot(*(known or curves)[0], **style)
        return
    values = np.array([np.interp(places, curve[0], curve[1]) for curve in known])
    axes.plot(places, values.mean(0), **style)
    axes.fill_between(places, values.min(0), values.max(0), color=style["color"], alpha=0.2, linewidth=0)


def run(args: argparse.Namespace) -> None:
    """Draws; 2: wrong input, told in one message."""
    labels = args.labels or [None] * len(args.runs)
    runs = [read_run(folder, label) for folder, label in zip(args.runs, labels)]
    draw(runs, args.output, args.chance, args.smooth, args.against)
    print(f"{args.output}: {len(runs)} runs")

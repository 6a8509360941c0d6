"""Curves and confusion matrices, drawn by matplotlib."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Sequence, Tuple

import numpy as np

from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.report.files import whole

Record = Mapping[str, Any]

_LABELLED_CLASSES = 40  # more names than this cannot be read
_COUNTED_CLASSES = 16
_CURVES: Dict[str, Sequence[Tuple[str, str]]] = {
    "Loss": (("train", "loss"), ("train_epoch", "loss"), ("valid", "loss")),
    "Top-1": (("train_epoch", "top1"), ("valid", "top1")),
    "Top-5": (("train_epoch", "top5"), ("valid", "top5")),
    "Learning rate": (("train", "lr"),),
    "Clips a second": (("train", "ips"),),
}
_NAMES = {"train": "step", "train_epoch": "training, epoch", "valid": "validation"}


def pyplot() -> Any:
    """Pyplot of matplotlib, drawing into files."""
    import matplotlib  # it takes half a second to import, which a run that draws nothing must not pay

    matplotlib.use("Agg")
    from matplotlib import pyplot as plot

    return plot


@contextlib.contextmanager
def picture(path: Path, *grid: int, **options: Any) -> Iterator[Tuple[Any, Any]]:
    """A figure and its axes, drawn by the body and written to `path`; its ending chooses the format.

    Args:
        path: the file.
        grid: rows and columns of axes.
        options: of pyplot's `subplots`.

    Raises:
        PaddleVideoFastError: the format is unknown, or the file cannot be written.
    """
    plot = pyplot()
    figure, axes = plot.subplots(*grid, layout="constrained", **options)
    try:
        ending = path.suffix[1:].lower()
        known = figure.canvas.get_supported_filetypes()
        if ending not in known:
            raise PaddleVideoFastError(f"{path}: the name of a picture ends in one of .{', .'.join(known)}")
        yield figure, axes
        with whole(path) as partial:
            figure.savefig(partial, dpi=110, format=ending)
    finally:
        plot.close(figure)


def curve_figures(records: Sequence[Record]) -> Dict[str, str]:
    """The curves of a run, each an SVG.

    Args:
        records: lines of metrics.jsonl, in order.

    Returns:
        Title → SVG element. A line's group has the id `curve-<kind>-<number>`. A figure without any point is
        left out.
    """
    figures = {}
    for title, curves in _CURVES.items():
        lines = {}
        for kind, name in curves:
            points = [(r["step"], r[name]) for r in records if r["kind"] == kind and name in r]
            if points:
                lines[kind, name] = points
        if lines:
            figures[title] = _svg(title, lines)
    return figures


def _svg(title: str, lines: Mapping[Tuple[str, str], Sequence[Tuple[float, float]]]) -> str:
    plot = pyplot()
    with plot.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure, axis = plot.subplots(figsize=(4.6, 2.8), layout="constrained")
        for (kind, name), points in lines.items():
            faint = {"linewidth": 0.8, "alpha": 0.5} if kind == "train" and len(lines) > 1 else {}
            marker = "" if kind == "train" else "."
            (line,) = axis.plot(*zip(*points), marker=marker, label=_NAMES[kind], **faint)
            line.set_gid(f"curve-{kind}-{name}")
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        plot.close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]


def confusion_picture(confusion: np.ndarray, names: Sequence[str]) -> bytes:
    """A PNG of a confusion matrix; a colour is the share of the row, of the videos of a class.

    Args:
        confusion: int [C, C], rows are the right classes.
        names: of the classes; shown where they can be read.
    """
    plot = pyplot()
    num_classes = len(names)
    shares = confusion / confusion.sum(axis=1, keepdims=True).clip(1)
    side = min(max(4.0, 0.32 * num_classes + 2), 12.0)
    figure, axis = plot.subplots(figsize=(side, side), layout="constrained")
    shown = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    axis.set(xlabel="predicted", ylabel="class")
    if num_classes <= _LABELLED_CLASSES:
        axis.set_xticks(range(num_classes), names, rotation=90)
        axis.set_yticks(range(num_classes), names)
    if num_classes <= _COUNTED_CLASSES:
        for (row, column), count in np.ndenumerate(confusion):
            color = "white" if shares[row, column] > 0.5 else "black"
            axis.text(column, row, str(count), ha="center", va="center", color=color, fontsize=8)
    figure.colorbar(shown, shrink=0.7, label="share of the class")
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=100)
    plot.close(figure)
    return data.getvalue()

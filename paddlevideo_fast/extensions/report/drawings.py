"""Pictures drawn by matplotlib: curves, confusion matrices, the timeline of a long video; and their fonts."""

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paddlevideo_fast.extensions.report.output import atomic_write
from paddlevideo_fast.extensions.report.thresholds import precision_recall
from paddlevideo_fast.log import get_logger, printable
from paddlevideo_fast.metrics.predictions import Predictions

Record = Mapping[str, Any]

_LABELLED_CLASSES = 40  # more names than this cannot be read
_COUNTED_CLASSES = 16
_THRESHOLD_CLASSES = 8  # have a figure of their own
_CURVES: dict[str, Sequence[tuple[str, str]]] = {
    "Loss": (("train", "loss"), ("train_epoch", "loss"), ("valid", "loss")),
    "Top-1": (("train_epoch", "top1"), ("valid", "top1")),
    "Top-5": (("train_epoch", "top5"), ("valid", "top5")),
    "mAP": (("valid", "mAP"),),
    "Hit@1": (("train_epoch", "hit1"), ("valid", "hit1")),
    "Learning rate": (("train", "lr"),),
    "Clips a second": (("train", "ips"),),
}
_PNG = {"format": "png", "dpi": 110}
_NAMES = {"train": "step", "train_epoch": "training, epoch", "valid": "validation"}
_KIND_COLORS = {"train": "C0", "train_epoch": "C0", "valid": "C1"}  # the same in all figures


def pyplot() -> Any:
    """Matplotlib's pyplot, set up to draw into files."""
    import matplotlib  # it takes half a second to import, which a run that draws nothing must not pay

    matplotlib.use("Agg")
    # the first picture on a machine would print that a font cache is built
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    from matplotlib import pyplot as plot

    return plot


@contextlib.contextmanager
def picture(
    target: Any, *grid: int, save: Mapping[str, Any] = _PNG, **options: Any
) -> Iterator[tuple[Any, Any]]:
    """Gives a figure and its axes to draw on, and writes the figure to `target` at the end of the block.

    Args:
        target: a path or a buffer.
        grid: rows and columns of axes.
        save: options of pyplot's `savefig`.
        options: options of pyplot's `subplots`.

    Raises:
        PaddleVideoFastError: the file cannot be written.
    """
    plot = pyplot()
    figure, axes = plot.subplots(*grid, layout="constrained", **options)
    try:
        yield figure, axes
        with atomic_write(target) if isinstance(target, Path) else contextlib.nullcontext(target) as file:
            figure.savefig(file, **save)
    finally:
        plot.close(figure)


def curve_figures(records: Sequence[Record]) -> dict[str, str]:
    """Draws the curves of a run as SVG. A line marks the epoch with the best validation.

    Args:
        records: lines of metrics.jsonl, in order.

    Returns:
        Title → SVG element. The group of a line has the id `curve-<kind>-<number>`. A figure without points
        is left out.
    """
    figures: dict[str, str] = {}
    validated = [record for record in records if record["kind"] == "valid"]
    best_epoch = validated[-1].get("best_epoch", 0) if validated else 0
    best = next((record for record in validated if record.get("epoch") == best_epoch), None)
    for title, curves in _CURVES.items():
        lines = {}
        for kind, name in curves:
            points = [(r["step"], r[name]) for r in records if r["kind"] == kind and r.get(name) is not None]
            if points:
                lines[kind, name] = points
        if not lines:
            continue
        with _svg(figures, title, "step") as axis:
            for (kind, name), points in lines.items():
                faint = {"linewidth": 0.8, "alpha": 0.5} if kind == "train" and len(lines) > 1 else {}
                marker, color = "" if kind == "train" else ".", _KIND_COLORS[kind]
                (line,) = axis.plot(*zip(*points), marker=marker, color=color, label=_NAMES[kind], **faint)
                line.set_gid(f"curve-{kind}-{name}")
            if best is not None and any(kind == "valid" for kind, _ in lines):
                label = f"best: epoch {best['epoch']}"
                axis.axvline(best["step"], color="0.4", linestyle=":", label=label).set_gid("best-epoch")
    return figures


def threshold_figures(predictions: Predictions, names: Sequence[str]) -> dict[str, str]:
    """Draws precision, recall and F1 by the threshold as SVG: of all classes together and of the largest.

    Args:
        predictions: of videos of any number of classes.
        names: names of the classes.

    Returns:
        Title → SVG element.
    """
    letters = lettering(names)
    there, scores = predictions.there, predictions.scores
    curves = {"Thresholds, all classes": precision_recall(there.reshape(-1), scores.reshape(-1))}
    counts = there.sum(axis=0)
    for label in np.argsort(-counts, kind="stable")[:_THRESHOLD_CLASSES]:
        if counts[label]:
            title = f"Thresholds, {label_text(letters.names[label])} ({counts[label]} videos)"
            curves[title] = precision_recall(there[:, label], scores[:, label])
    figures: dict[str, str] = {}
    for title, curve in curves.items():
        with _svg(figures, title, "threshold", letters.font("medium")) as axis:
            for name, values in (("precision", curve.precision), ("recall", curve.recall), ("F1", curve.f1)):
                axis.plot(curve.thresholds, values, label=name)
            axis.set(xlim=(0, 1), ylim=(0, 1.02))
    return figures


@contextlib.contextmanager
def _svg(figures: dict[str, str], title: str, xlabel: str, font: Any = None) -> Iterator[Any]:
    """Gives axes to draw on, and adds the figure as an SVG element to `figures` at the end of the block."""
    data, save = io.BytesIO(), {"format": "svg", "metadata": {"Date": None}}
    with (
        pyplot().rc_context({"svg.fonttype": "none", "svg.hashsalt": title}),
        picture(data, save=save, figsize=(4.6, 2.8)) as (_, axis),
    ):
        yield axis
        axis.set_title(title, fontproperties=font)
        axis.set_xlabel(xlabel)
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    text = data.getvalue().decode()
    figures[title] = text[text.index("<svg") :]


def confusion_picture(confusion: np.ndarray, names: Sequence[str]) -> bytes:
    """Draws a confusion matrix as PNG; colours show shares of the videos of a class, which are a row.

    Args:
        confusion: int [C, C]; rows are the right classes.
        names: names of the classes; shown where there is room to read them.
    """
    num_classes = len(names)
    shares = confusion / confusion.sum(axis=1, keepdims=True).clip(1)
    side = min(max(4.0, 0.32 * num_classes + 2), 12.0)
    data, save = io.BytesIO(), {"format": "png", "dpi": 100, "bbox_inches": "tight"}
    with picture(data, save=save, figsize=(side, side)) as (figure, axis):
        shown = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        axis.set(xlabel="predicted", ylabel="class")
        if num_classes <= _LABELLED_CLASSES:
            letters = lettering(names)
            labels, font = list(map(label_text, letters.names)), letters.font("medium")
            axis.set_xticks(range(num_classes), labels, rotation=90, fontproperties=font)
            axis.set_yticks(range(num_classes), labels, fontproperties=font)
        if num_classes <= _COUNTED_CLASSES:
            for (row, column), count in np.ndenumerate(confusion):
                color = "white" if shares[row, column] > 0.5 else "black"
                axis.text(column, row, str(count), ha="center", va="center", color=color, fontsize=8)
        figure.colorbar(shown, shrink=0.7, label="share of the class")
    return data.getvalue()


logger = get_logger(__name__)

_LATIN = frozenset(range(ord("!"), ord("~") + 1))
_PLAIN = {("normal", "normal"), ("normal", "400")}
_PLACEHOLDERS = "LastResort"  # a font of boxes that stand for characters


class Lettering(NamedTuple):
    """How names of classes are written into pictures.

    Attributes:
        font_file: a font.
        names: names of the classes by number; a name that the font cannot write is "class 17" or the like.
    """

    font_file: Path
    names: list[str]

    def font(self, size: str) -> Any:
        """Matplotlib's properties of the font, at a size such as "small"."""
        from matplotlib.font_manager import FontProperties  # see `pyplot`

        return FontProperties(fname=str(self.font_file), size=size)


def lettering(names: Sequence[str]) -> Lettering:
    """A font for names: matplotlib's own, else a font of the system that has all characters.

    Names are written as by `names.printable`.
    Where no font has all characters, names that cannot be written are replaced, with a warning.
    """
    from matplotlib import font_manager  # see figures.pyplot

    names = [printable(name) for name in names]
    default = Path(font_manager.findfont("DejaVu Sans"))
    needed = {ord(letter) for letter in "".join("".join(names).split())} | _LATIN
    for font_file in (default, *_system_fonts()):
        if needed <= _characters(font_file):
            return Lettering(font_file, list(names))
    known = _characters(default)
    drawn = [
        name if {ord(letter) for letter in "".join(name.split())} <= known else f"class {number}"
        for number, name in enumerate(names)
    ]
    logger.warning(
        "no font of this system has all characters of the class names: %d of them are shown as numbers in "
        "pictures; install a font such as Noto Sans CJK",
        sum(one != other for one, other in zip(drawn, names)),
    )
    return Lettering(default, drawn)


def _system_fonts() -> Iterator[Path]:
    """The fonts of matplotlib's list, upright and normal ones first, then those installed since."""
    from matplotlib import font_manager

    listed = [entry for entry in font_manager.fontManager.ttflist if _PLACEHOLDERS not in entry.fname]
    plain = {entry.fname: (entry.style, str(entry.weight)) in _PLAIN for entry in listed}
    yield from (Path(name) for name in sorted(plain, key=lambda name: (not plain[name], name)))
    newer = set(font_manager.findSystemFonts()).difference(plain)
    yield from (Path(name) for name in sorted(newer, key=lambda name: ("Regular" not in name, name)))


def _characters(font_file: Path) -> set[int]:
    """Code points of a font; none where the font is damaged."""
    from matplotlib.ft2font import FT2Font

    try:
        return set(FT2Font(str(font_file)).get_charmap())
    except (OSError, RuntimeError):  # the system's affair: another one is taken
        return set()


_NUM_CURVES = 8
_LEAST_CURVES = 3
_COLORS = [f"C{number}" for number in (0, 1, 2, 3, 4, 5, 6, 8)]  # C7 is grey
_OTHER_COLOR = "0.75"
_NAME_LENGTH = 28
_STEPS_SEC = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)
_NUM_TICKS = 12
_NUM_STEPS = 400
_LONGEST_IN_SEC = 120


def draw_timeline(path: Path, edges_sec: Sequence[float], scores: np.ndarray, letters: Lettering) -> None:
    """Draws the probabilities of the most important classes over time, and below them the best class.

    Up to eight classes have a curve: the classes that are the best for the longest time, and where these are
    fewer than three, the classes with the highest mean. A best class without a curve is one of the "others".
    More than 400 windows are averaged in groups, so that a long video can be read.

    Args:
        path: the picture; its ending chooses the format.
        edges_sec: [N + 1], the beginnings of the windows and the end of the last window.
        scores: [N, num_classes], probabilities.
        letters: font and names of the classes.

    Raises:
        PaddleVideoFastError: the format is unknown, or the file cannot be written.
    """
    group = -(-len(scores) // _NUM_STEPS)
    edges = np.asarray([*edges_sec[:-1:group], edges_sec[-1]], np.float64)
    scores = np.stack([scores[place : place + group].mean(axis=0) for place in range(0, len(scores), group)])
    best = scores.argmax(axis=1)
    shown = shown_classes(edges, scores)
    colors = dict(zip(shown, _COLORS))
    heights = {"height_ratios": [6, 1]}
    with picture(path, 2, 1, figsize=(10, 4), sharex=True, gridspec_kw=heights) as (_, (curves, strip)):
        for number in shown:
            curves.stairs(
                scores[:, number],
                edges,
                baseline=None,
                color=colors[number],
                label=label_text(letters.names[number]),
            )
        for start, stop in _runs(best):
            color = colors.get(int(best[start]), _OTHER_COLOR)
            strip.axvspan(edges[start], edges[stop], color=color, linewidth=0)
        if not set(best.tolist()) <= set(shown):
            curves.plot([], [], color=_OTHER_COLOR, linewidth=6, label="others (below)")
        unit = "probability" if group == 1 else f"probability (mean of {group} windows)"
        curves.set(ylabel=unit, ylim=(0, 1.02), xlim=(edges[0], edges[-1]))
        curves.grid(alpha=0.3)
        curves.legend(
            loc="upper left", bbox_to_anchor=(1.005, 1.02), borderaxespad=0, prop=letters.font("small")
        )
        strip.set(ylabel="best", yticks=[])
        _set_time_axis(strip, float(edges[-1]))


def shown_classes(edges: np.ndarray, scores: np.ndarray) -> list[int]:
    """Numbers of the classes that have a curve; first the class that is the best for the longest time."""
    lengths = np.diff(edges)
    num_classes = scores.shape[1]
    best_sec = np.bincount(scores.argmax(axis=1), weights=lengths, minlength=num_classes)
    order = np.lexsort((-lengths @ scores, -best_sec))
    count = min(max(int((best_sec > 0).sum()), _LEAST_CURVES), _NUM_CURVES)
    return order[:count].tolist()


def _runs(values: np.ndarray) -> list[tuple[int, int]]:
    """The runs [start, stop) of equal values."""
    changes = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return list(zip(changes, changes[1:]))


def label_text(name: str) -> str:
    """A name as matplotlib writes it: no formula, no hidden label, and not too long."""
    name = printable(name)
    name = name if len(name) <= _NAME_LENGTH else name[: _NAME_LENGTH - 1] + "…"
    name = name.replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name  # matplotlib leaves out labels that begin so


def _set_time_axis(axes: Any, length_sec: float) -> None:
    """Seconds, and for more than two minutes also minutes and hours."""
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    step_sec = next((step for step in _STEPS_SEC if length_sec / step <= _NUM_TICKS), length_sec / _NUM_TICKS)
    axes.xaxis.set_major_locator(MultipleLocator(step_sec))
    with_hours, unit = length_sec >= 3600, "s"
    if length_sec > _LONGEST_IN_SEC:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: clock(value, with_hours)))
        unit = "h:min:s" if with_hours else "min:s"
    axes.set_xlabel(f"time ({unit})")


def clock(time_sec: float, with_hours: bool = False) -> str:
    """A time as on a clock, such as 3:07 or 0:03:07."""
    minutes, seconds = divmod(round(time_sec), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}" if with_hours else f"{minutes}:{seconds:02}"

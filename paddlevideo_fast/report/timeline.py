"""What a long video shows over time, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Sequence, Tuple

import numpy as np

from paddlevideo_fast.report.figures import picture
from paddlevideo_fast.report.fonts import Lettering

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
    """Draws the probabilities of the classes that matter most, and below them the best class, over time.

    Up to eight classes have a curve: those that are the best for the longest time, and where these are less
    than three, those with the highest mean. The best class is "others" where it has none. More than 400
    windows are averaged in groups, so that a long video can be read.

    Args:
        path: the picture; its ending chooses the format.
        edges_sec: [N + 1], where windows begin and the last one ends.
        scores: [N, num_classes], probabilities.
        letters: of the classes.

    Raises:
        PaddleVideoFastError: the format is unknown, or the file cannot be written.
    """
    from matplotlib.font_manager import FontProperties  # see figures.pyplot

    group = -(-len(scores) // _NUM_STEPS)
    edges = np.asarray([*edges_sec[:-1:group], edges_sec[-1]], np.float64)
    scores = np.stack([scores[place : place + group].mean(axis=0) for place in range(0, len(scores), group)])
    best = scores.argmax(axis=1)
    shown = shown_classes(edges, scores)
    colors = dict(zip(shown, _COLORS))
    font = FontProperties(fname=str(letters.font_file), size="small")
    options = {"figsize": (10, 4), "sharex": True, "gridspec_kw": {"height_ratios": [6, 1]}}
    with picture(path, 2, 1, **options) as (_, (curves, strip)):
        for number in shown:
            curves.stairs(
                scores[:, number],
                edges,
                baseline=None,
                color=colors[number],
                label=_short(letters.names[number]),
            )
        for start, stop in _runs(best):
            color = colors.get(int(best[start]), _OTHER_COLOR)
            strip.axvspan(edges[start], edges[stop], color=color, linewidth=0)
        if not set(best.tolist()) <= set(shown):
            curves.plot([], [], color=_OTHER_COLOR, linewidth=6, label="others (below)")
        unit = "probability" if group == 1 else f"probability (mean of {group} windows)"
        curves.set(ylabel=unit, ylim=(0, 1.02), xlim=(edges[0], edges[-1]))
        curves.grid(alpha=0.3)
        legend = curves.legend(loc="upper left", bbox_to_anchor=(1.005, 1.02), borderaxespad=0, prop=font)
        for text in legend.get_texts():
            text.set_parse_math(False)  # a name may have a dollar sign
        strip.set(ylabel="best", yticks=[])
        _set_time_axis(strip, float(edges[-1]))


def shown_classes(edges: np.ndarray, scores: np.ndarray) -> List[int]:
    """Numbers of the classes that have a curve, the one that is the best for the longest time first."""
    lengths = np.diff(edges)
    num_classes = scores.shape[1]
    best_sec = np.bincount(scores.argmax(axis=1), weights=lengths, minlength=num_classes)
    order = np.lexsort((-lengths @ scores, -best_sec))
    count = min(max(int((best_sec > 0).sum()), _LEAST_CURVES), _NUM_CURVES)
    return order[:count].tolist()


def _runs(values: np.ndarray) -> List[Tuple[int, int]]:
    """Places [start, stop) of equal values one after the other."""
    changes = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return list(zip(changes, changes[1:]))


def _short(name: str) -> str:
    name = name if len(name) <= _NAME_LENGTH else name[: _NAME_LENGTH - 1] + "…"
    return f" {name}" if name.startswith("_") else name  # matplotlib leaves out labels that begin so


def _set_time_axis(axes: Any, length_sec: float) -> None:
    """Seconds, and for more than two minutes also minutes and hours."""
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    step_sec = next((step for step in _STEPS_SEC if length_sec / step <= _NUM_TICKS), length_sec / _NUM_TICKS)
    axes.xaxis.set_major_locator(MultipleLocator(step_sec))
    axes.set_xlabel("time (s)")
    if length_sec > _LONGEST_IN_SEC:
        with_hours = length_sec >= 3600
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: clock(value, with_hours)))
        axes.set_xlabel("time (h:min:s)" if with_hours else "time (min:s)")


def clock(time_sec: float, with_hours: bool = False) -> str:
    """A time as on a clock, such as 3:07 or 0:03:07."""
    minutes, seconds = divmod(round(time_sec), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}" if with_hours else f"{minutes}:{seconds:02}"

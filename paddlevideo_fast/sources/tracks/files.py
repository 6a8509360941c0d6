"""Track files: where each person or thing of a video is, as trackers write it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paddlevideo_fast.errors import AnnotationError, cause_of, shown
from paddlevideo_fast.io.files import read_names

_COLUMNS = ("frame", "id", "x1", "y1", "x2", "y2")
_LARGEST = 10**9


class TrackRows(NamedTuple):
    """The rows of one id.

    Attributes:
        frames: int64 [N], numbers of frames from 0, ascending.
        boxes: float64 [N, 4], x1, y1, x2, y2 in pixels.
        lines: int64 [N], lines of the file, from 1.
    """

    frames: np.ndarray
    boxes: np.ndarray
    lines: np.ndarray


def read_tracks(path: str) -> dict[int, TrackRows]:
    """The rows of each id of a track file, by ascending id.

    The first line says which form the file has:

        a header    frame,time,id,x1,y1,x2,y2    columns in any order; frames from 0; others are passed over
        a number    1,3,794.2,47.5,71.2,174.8,1  MOTChallenge: frame from 1, id, left, top, width, height, …

    Raises:
        AnnotationError: the file is missing, empty or malformed; it names the line.
    """
    try:
        lines = read_names(path)
    except FileNotFoundError:
        raise AnnotationError(f"{path}: there is no such track file") from None
    except (OSError, ValueError) as error:
        raise AnnotationError(f"{path}: the track file cannot be read: {cause_of(error)}") from None
    rows = [(number, line.split(",")) for number, line in enumerate(lines, start=1) if line.strip()]
    is_mot = bool(rows) and _number_of(rows[0][1][0]) is not None
    columns: Sequence[int] = range(len(_COLUMNS))
    if rows and not is_mot:
        columns, rows = _columns_of(path, *rows[0]), rows[1:]
    if not rows:
        raise AnnotationError(f"{path}: the track file has no boxes")
    of_id: dict[int, list[tuple[int, list[float]]]] = defaultdict(list)
    for line, cells in rows:
        try:
            values = _values_of(cells, columns, is_mot)
            before = of_id[int(values[1])]
            if before and before[-1][1][0] >= values[0]:
                text = f"frame {cells[columns[0]].strip()} of id {values[1]:.0f} is not after the frame"
                raise AnnotationError(f"{text} of line {before[-1][0]}; sort the rows of an id by frame")
        except AnnotationError as error:
            raise AnnotationError(f"{path}:{line}: {error}") from None
        before.append((line, values))
    tracks = {}
    for track_id in sorted(of_id):
        numbers, table = zip(*of_id[track_id])
        values_of_id = np.array(table)
        tracks[track_id] = TrackRows(
            values_of_id[:, 0].astype(np.int64), values_of_id[:, 2:], np.array(numbers)
        )
    return tracks


def _columns_of(path: str, line: int, cells: Sequence[str]) -> list[int]:
    names = [cell.strip().strip('"').lower() for cell in cells]
    if missing := [name for name in _COLUMNS if name not in names]:
        raise AnnotationError(
            f"{path}:{line}: the header has no {', '.join(missing)}; expected the columns "
            f"{', '.join(_COLUMNS)}, or lines of MOT without a header"
        )
    return [names.index(name) for name in _COLUMNS]


def _values_of(cells: Sequence[str], columns: Sequence[int], is_mot: bool) -> list[float]:
    """Frame, from 0, id, x1, y1, x2 and y2 of a row."""
    if len(cells) <= max(columns):
        raise AnnotationError(f"has {len(cells)} cells, expected at least {max(columns) + 1}")
    values = []
    for name, column in zip(("frame", "id", "x", "y", "w", "h") if is_mot else _COLUMNS, columns):
        value = _number_of(cells[column])
        if value is None or abs(value) > _LARGEST or (name in ("frame", "id") and value != int(value)):
            what = "an integer" if name in ("frame", "id") else "a number"
            raise AnnotationError(f"{name} is {shown(cells[column].strip())}, expected {what}")
        values.append(value)
    if is_mot:
        values[0] -= 1
        values[4:] = [values[2] + values[4], values[3] + values[5]]
    if values[0] < 0:
        text = f"frame is {cells[columns[0]].strip()}, and frames count from {int(is_mot)}"
        raise AnnotationError(text)
    check_box(values[2:])
    return values


def check_box(box: Sequence[float]) -> None:
    """Raises `AnnotationError` where a box x1, y1, x2, y2 is empty."""
    for axis, low, high in (("x", box[0], box[2]), ("y", box[1], box[3])):
        if not high > low:
            text = f"{axis}2 {high:.10g} is not above {axis}1 {low:.10g}"
            raise AnnotationError(f"the box is empty: {text}")


def _number_of(text: str) -> float | None:
    try:
        value = float(text.strip().strip('"'))
    except ValueError:
        return None
    return value if math.isfinite(value) else None

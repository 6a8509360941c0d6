"""Lists with named fields: `.jsonl`, an object a line, and `.csv`, a table with a header.

    {"path": "a.mp4", "label": "walk", "start_sec": 12.5, "end_sec": 14}

    path,label,start_sec,end_sec
    a.mp4,walk,12.5,14

`FIELDS` has all names. A field that is not there, or an empty cell, says nothing.
"""

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paddlevideo_fast.decode import Span
from paddlevideo_fast.errors import AnnotationError, shown
from paddlevideo_fast.registry import did_you_mean

FIELDS = (
    "path",
    "label",
    "start_sec",
    "end_sec",
    "start_frame",
    "end_frame",
    "num_frames",
    "weight",
    "group",
)
TABLES = (".jsonl", ".csv")
LARGEST = 10**9 - 1
_BETWEEN_LABELS = ";"  # in a cell
_NUM_PROBLEMS = 20  # of a list in one message


class Row(NamedTuple):
    """An entry of a list; see `annotations.VideoRecord` for what the fields mean.

    Attributes:
        line: its line, from 1; of an entry over several lines the first.
        labels: numbers and names of classes.
    """

    line: int
    path: str
    labels: tuple[int | str, ...]
    num_frames: int | None = None
    span: Span | None = None
    weight: float = 1.0
    group: str = ""


def is_table(file_path: str | Path) -> bool:
    """Whether a list has named fields, by the ending of its name."""
    return str(file_path).lower().endswith(TABLES)


def read_rows(file_path: str, lines: Sequence[str], labelled: bool = True) -> Iterator[Row]:
    """The rows of a list.

    Args:
        file_path: its name, whose ending says the format.
        lines: of the file.
        labelled: False: entries need no label, and the rows have none.

    Raises:
        AnnotationError: names file and line of all that is wrong.
    """
    objects = _csv_objects if file_path.lower().endswith(".csv") else _json_objects
    problems: list[str] = []
    for line, fields in objects(file_path, lines, ("path", "label") if labelled else ("path",), problems):
        try:
            yield _Fields(f"{file_path}:{line}", fields).row(line, labelled)
        except AnnotationError as error:
            problems.append(str(error))
    raise_all(problems)


def raise_all(problems: Sequence[str]) -> None:
    """Raises an `AnnotationError` with the problems of a list, the first of them where they are many."""
    if problems:
        rest = len(problems) - _NUM_PROBLEMS
        more = [f"... and {rest} more lines"] if rest > 0 else []
        raise AnnotationError("\n  ".join([*problems[:_NUM_PROBLEMS], *more]))


def json_line(row: Row) -> str:
    """A row as a line of a .jsonl list; fields that say nothing are left out."""
    labels = list(row.labels)
    fields: dict[str, Any] = {"path": row.path, "label": labels[0] if len(labels) == 1 else labels}
    if row.span is not None:
        unit = "sec" if row.span.unit == "sec" else "frame"
        if row.span.start:
            fields[f"start_{unit}"] = row.span.start
        if row.span.end is not None:
            fields[f"end_{unit}"] = row.span.end
    if row.num_frames is not None:
        fields["num_frames"] = row.num_frames
    if row.weight != 1.0:
        fields["weight"] = row.weight
    if row.group:
        fields["group"] = row.group
    return json.dumps(fields, ensure_ascii=not _is_unicode(row.path + row.group))


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # a name of bytes that are not UTF-8: JSON keeps them as escapes
        return False
    return True


# --- from text to fields


def _json_objects(
    file_path: str, lines: Sequence[str], required: Sequence[str], problems: list[str]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Number and object of each line that is one; `problems` gets what is wrong with the others."""
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            fields = _json_object(f"{file_path}:{line}", text, required)
        except AnnotationError as error:
            problems.append(str(error))
        else:
            yield line, fields


def _json_object(where: str, text: str, required: Sequence[str]) -> dict[str, Any]:
    try:
        fields = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_short_integer
        )
    except (ValueError, RecursionError) as error:
        cause = getattr(error, "msg", None) or str(error)
        raise AnnotationError(f"{where}: is no JSON object: {cause}") from None
    if not isinstance(fields, dict):
        raise AnnotationError(
            f'{where}: expected an object such as {{"path": "a.mp4", "label": 0}}, found {shown(fields)}'
        )
    _check_names(where, fields, "key", required)
    return {name: value for name, value in fields.items() if value is not None}


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"it has the key {shown(name)} twice")
        fields[name] = value
    return fields


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _short_integer(text: str) -> int:
    if len(text) > 18:
        raise ValueError("it has a number of more than 18 digits")
    return int(text)


def _csv_objects(
    file_path: str, lines: Sequence[str], required: Sequence[str], problems: list[str]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    rows = csv.reader((f"{line}\n" for line in lines), strict=True)
    names: list[str] = []
    while True:
        line = rows.line_num + 1
        where = f"{file_path}:{line}"
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise AnnotationError(f"{where}: is no row of a CSV file: {error}") from None
        cells = [cell.strip() for cell in cells]
        if not any(cells):
            continue
        if not names:
            names = [cell.lower() for cell in cells]
            _check_names(where, names, "column", required)
            if len(set(names)) < len(names):
                raise AnnotationError(f"{where}: has a column twice: {', '.join(names)}")
            continue
        if len(cells) != len(names):
            problems.append(
                f"{where}: has {len(cells)} cells, the header {len(names)} columns: put a text with commas "
                'into "quotation marks"'
            )
            continue
        yield line, {name: _from_cell(name, cell) for name, cell in zip(names, cells) if cell}


def _from_cell(name: str, cell: str) -> Any:
    """The value that JSON would have; what is no number stays a text."""
    if name == "label":
        labels = [label.strip() for label in cell.split(_BETWEEN_LABELS)]
        return [int(one) if one.isdecimal() and len(one) <= 18 else one for one in labels]
    if name in ("path", "group"):
        return cell
    try:
        return int(cell) if cell.lstrip("+-").isdecimal() and len(cell) <= 18 else float(cell)
    except ValueError:
        return cell


def _check_names(where: str, names: Iterable[str], what: str, required: Sequence[str]) -> None:
    for name in names:
        if name not in FIELDS:
            raise AnnotationError(f"{where}: unknown {what} {shown(name)}{did_you_mean(name, FIELDS)}")
    for name in required:
        if name not in names:
            raise AnnotationError(f"{where}: the {what} '{name}' is missing")


# --- from fields to a row


class _Fields:
    """The fields of one entry, each checked when it is asked for."""

    def __init__(self, where: str, fields: Mapping[str, Any]) -> None:
        self._where = where
        self._fields = fields

    def row(self, line: int, labelled: bool) -> Row:
        """All of them."""
        weight = self._number("weight", 0)
        num_frames = self._integer("num_frames", 1)
        span = self._span()
        if span and num_frames is not None and span.unit == "frames":
            last = span.start + 1 if span.end is None else span.end
            if last > num_frames:
                raise self._error(f"the span {span} is not inside the video, which has {num_frames} frames")
        return Row(
            line,
            self._text("path"),
            self._labels() if labelled else (),
            num_frames,
            span,
            1.0 if weight is None else weight,
            self._text("group") if "group" in self._fields else "",
        )

    def _error(self, text: str) -> AnnotationError:
        return AnnotationError(f"{self._where}: {text}")

    def _text(self, name: str) -> str:
        text = self._fields.get(name)
        if not isinstance(text, str) or not text or "\0" in text:
            raise self._error(f"{name} is {'missing' if text is None else shown(text)}, expected a text")
        return text

    def _labels(self) -> tuple[int | str, ...]:
        value = self._fields.get("label")
        return tuple(map(self._label, value if isinstance(value, list) else [value]))

    def _label(self, label: Any) -> int | str:
        if isinstance(label, str) and label.strip():
            return label.strip()
        if isinstance(label, int) and not isinstance(label, bool) and 0 <= label <= LARGEST:
            return label
        found = "missing" if label is None else shown(label)
        raise self._error(
            f"label is {found}, expected the number of a class from 0 on, its name, or a list of them "
            "([] in .jsonl: no class)"
        )

    def _number(self, name: str, least: float) -> float | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self._error(f"{name} is {shown(value)}, expected a number")
        if value < least:
            raise self._error(f"{name} is {value:g}, expected {least:g} or more")
        return value

    def _integer(self, name: str, least: int) -> int | None:
        value = self._number(name, least)
        if value is None:
            return None
        if not isinstance(value, int) or value > LARGEST:
            raise self._error(
                f"{name} is {value!r}, expected an integer of at most {len(str(LARGEST))} digits"
            )
        return value

    def _span(self) -> Span | None:
        sec = self._number("start_sec", 0), self._number("end_sec", 0)
        frame = self._integer("start_frame", 0), self._integer("end_frame", 0)
        if sec != (None, None) and frame != (None, None):
            raise self._error("has a span in seconds and one in frames; keep one of them")
        if sec == frame:  # nothing is given
            return None
        unit, (start, end) = ("sec", sec) if sec != (None, None) else ("frame", frame)
        if end is not None and end <= (start or 0):
            what = "is empty" if end == (start or 0) else "ends before it starts"
            raise self._error(f"the span {what}: start_{unit} {start or 0:.10g}, end_{unit} {end:.10g}")
        return Span(start or 0, end, "sec" if unit == "sec" else "frames")

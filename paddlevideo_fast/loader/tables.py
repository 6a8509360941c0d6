"""The entries of annotation lists of all formats, as they stand there.

Lines of fields, separated by white space and read from the right, so that paths may contain spaces:

    video list:  path label
    frame list:  folder num_frames label

Lists with named fields: `.jsonl`, an object a line, and `.csv`, a table with a header:

    {"path": "a.mp4", "label": "walk", "start_sec": 12.5, "end_sec": 14}

    path,label,start_sec,end_sec
    a.mp4,walk,12.5,14

`FIELDS` has all names. A field that is not there, or an empty cell, says nothing. Blank lines are skipped.
Annexes have more, such as `track`; a section of the data set reads them.
`NOTES` are for people: `data report` writes such columns, and reading passes over them.

Folders of Hugging Face's `datasets` have a metadata.csv or metadata.jsonl: `file_name` in place of `path`,
`labels` or `label`, and other fields, which are passed over. Their paths start from its folder:

    file_name,label,caption
    a.mp4,walk,"a street, at night"
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from paddlevideo_fast import annexes
from paddlevideo_fast.decode import Span
from paddlevideo_fast.errors import AnnotationError, cause_of, shown
from paddlevideo_fast.io.files import as_path, hint_at_working_folder, read_names
from paddlevideo_fast.registry import did_you_mean

_SPAN_SEC, _SPAN_FRAMES = ("start_sec", "end_sec"), ("start_frame", "end_frame")
_OWN_FIELDS = ("path", "label", *_SPAN_SEC, *_SPAN_FRAMES, "num_frames", "weight", "group")
FIELDS = (*_OWN_FIELDS, *annexes.modules_of("record field"))
NOTES = ("finding", "suggestion")
_FILE_NAME = "file_name"
_ALIASES = {_FILE_NAME: "path", "labels": "label"}
TABLES = (".jsonl", ".csv")
EXPECTED = {2: "path label", 3: "folder num_frames label"}  # of a line without names
_MAX_DIGITS = 9
_LARGEST = 10**_MAX_DIGITS - 1
_BETWEEN_LABELS = ";"  # in a cell
_NUM_PROBLEMS = 20  # of a list in one message


class Row(NamedTuple):
    """An entry of a list; see `annotations.VideoRecord` for what the fields mean.

    Attributes:
        line: its line, from 1; of an entry over several lines the first.
        labels: numbers and names of classes.
        folder: that a relative path starts from, unless the reader of the list gives another; "": any.
        more: name and value of each field of an annex, as it stands there.
    """

    line: int
    path: str
    labels: tuple[int | str, ...]
    num_frames: int | None = None
    span: Span | None = None
    weight: float = 1.0
    group: str = ""
    folder: str = ""
    more: tuple[tuple[str, Any], ...] = ()


_Entry = tuple[int, Callable[[], Row]]  # its line, and what reads it


def is_table(file_path: str | Path) -> bool:
    """Whether a list has named fields, by the ending of its name."""
    return str(file_path).lower().endswith(TABLES)


def list_rows(file_path: str, num_fields: int = 2, labelled: bool = True) -> Iterator[Row]:
    """The entries of a list of any format, with paths and labels as they stand there.

    Args:
        file_path: the list; the ending of its name says the format.
        num_fields: of a line that has no named fields; see `EXPECTED`.
        labelled: False: entries need no label, and the rows have none. In a line without named fields, what
            follows the path is its label only where it is a number.

    Raises:
        AnnotationError: the list is missing, or lines are malformed; it names the line of each.
    """
    lines, read_line = _lines(file_path), partial(_plain_row, num_fields, labelled)
    folder = str(as_path(file_path).parent)
    if is_table(file_path):
        read_line = partial(_json_row, labelled, folder)
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    entries: Iterator[_Entry] = ((number, partial(read_line, number, line)) for number, line in numbered)
    if file_path.lower().endswith(".csv"):
        entries = _csv_entries(lines, labelled, folder)
    problems: list[str] = []
    for line, read in entries:
        try:
            yield read()
        except AnnotationError as error:
            problems.append(f"{file_path}:{line}: {error}")
    if problems:
        rest = len(problems) - _NUM_PROBLEMS
        more = [f"... and {rest} more lines"] if rest > 0 else []
        raise AnnotationError("\n  ".join([*problems[:_NUM_PROBLEMS], *more]))


def _lines(file_path: str) -> list[str]:
    try:
        return read_names(file_path)
    except FileNotFoundError:
        zoo = annexes.load("advice", "list")
        maker = zoo and zoo.maker_of_list(file_path)
        advice = f"type  {maker}  or check" if maker else "check"
        text = f"there is no such list; {advice} file_path in DATASET{hint_at_working_folder(file_path)}"
        raise AnnotationError(f"{file_path}: {text}") from None
    except (OSError, ValueError) as error:
        raise AnnotationError(f"{file_path}: the list cannot be read: {cause_of(error)}") from None


# --- lines without names


def split_line(line: str, num_fields: int) -> list[str]:
    """The fields of a line; the first one may contain blanks."""
    return line.strip().rsplit(None, num_fields - 1)


def _plain_row(num_fields: int, labelled: bool, number: int, line: str) -> Row:
    fields, expected = split_line(line, num_fields), EXPECTED[num_fields]
    if not labelled:
        numbers = fields[1:] if all(text.lstrip("-").isdecimal() for text in fields[1:]) else []
        if len(numbers) < num_fields - 1:  # the label is missing
            expected = expected.replace(" label", " [label]")
            fields = [*split_line(line, num_fields - 1), "0"]
    if len(fields) != num_fields:
        raise AnnotationError(f"expected '{expected}', found {shown(line.strip())}")
    count = _integer("num_frames", _number_of(fields[1]), 1) if num_fields == 3 else None
    label = _integer("label", _number_of(fields[-1]), 0)
    return Row(number, fields[0], (label,) if labelled else (), count)


def _number_of(text: str) -> int | str:
    """The integer that a text writes; what is none, or is very long, stays a text."""
    try:
        return int(text) if len(text) <= 2 * _MAX_DIGITS else text
    except ValueError:
        return text


# --- .jsonl and .csv


def _json_row(labelled: bool, folder: str, number: int, line: str) -> Row:
    try:
        fields = json.loads(line, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        cause = getattr(error, "msg", None) or str(error)
        raise AnnotationError(f"is no JSON object: {cause}") from None
    if not isinstance(fields, dict):
        value = shown(fields)
        raise AnnotationError(f'expected an object such as {{"path": "a.mp4", "label": 0}}, found {value}')
    names = _by_field(fields)
    _check_names(names, "key", labelled)
    values = zip(names, fields.values())
    said = {name: value for name, value in values if name is not None and value is not None}
    return _row(number, said, labelled, folder if _FILE_NAME in fields else "")


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"it has the key {shown(name)} twice")
        fields[name] = value
    return fields


def _csv_entries(lines: Sequence[str], labelled: bool, folder: str) -> Iterator[_Entry]:
    header = next(filter(str.strip, lines), "")
    # as spreadsheets write it where the comma is for decimals; there, several labels are in quotation marks
    between = ";" if ";" in header and "," not in header else ","
    rows = csv.reader((f"{line}\n" for line in lines), strict=True, delimiter=between)
    names: list[str | None] = []
    while True:
        line = rows.line_num + 1
        try:
            cells = [cell.strip() for cell in next(rows)]
            if any(cells) and names:
                yield line, partial(_csv_row, line, names, cells, labelled, folder)
            elif any(cells):
                cells = [cell.lower() for cell in cells]
                names, folder = _by_field(cells), folder if _FILE_NAME in cells else ""
                _check_names(names, "column", labelled)
        except StopIteration:
            return
        except (csv.Error, AnnotationError) as error:  # nothing after it can be read
            text = f"is no row of a CSV file: {error}" if isinstance(error, csv.Error) else str(error)
            yield line, partial(_fail, text)
            return


def _fail(text: str) -> Row:
    raise AnnotationError(text)


def _csv_row(
    line: int, names: Sequence[str | None], cells: Sequence[str], labelled: bool, folder: str
) -> Row:
    if len(cells) != len(names):
        raise AnnotationError(
            f"has {len(cells)} cells, the header {len(names)} columns: put a text with commas, or with other "
            'separators of cells, into "quotation marks"'
        )
    fields = {name: _from_cell(name, cell) for name, cell in zip(names, cells) if name is not None and cell}
    return _row(line, fields, labelled, folder)


def _from_cell(name: str, cell: str) -> Any:
    """The value that JSON would have; what is no number stays a text, and so does a field of an annex."""
    if name == "label":
        labels = [label.strip() for label in cell.split(_BETWEEN_LABELS)]
        numbers = [_number_of(one) if one.isdecimal() else one for one in labels]
        return [
            number if str(number) == one else one for number, one in zip(numbers, labels)
        ]  # 001 is a name
    if name in ("path", "group") or name not in _OWN_FIELDS:
        return cell
    try:
        return _number_of(cell) if cell.lstrip("+-").isdecimal() else float(cell)
    except ValueError:
        return cell


def _by_field(names: Iterable[str]) -> list[str | None]:
    """Names as `FIELDS` has them; None for `NOTES`, and with `file_name` among them for all others."""
    given = list(names)
    if _FILE_NAME not in given:
        return [None if name in NOTES else name for name in given]
    return [field if (field := _ALIASES.get(name, name)) in _OWN_FIELDS else None for name in given]


def _check_names(given: Sequence[str | None], what: str, labelled: bool) -> None:
    names = [name for name in given if name is not None]
    for name in names:
        if name not in FIELDS:
            raise AnnotationError(f"unknown {what} {shown(name)}{did_you_mean(name, FIELDS)}")
    for name in ("path", "label") if labelled else ("path",):
        if name not in names:
            raise AnnotationError(f"the {what} '{name}' is missing")
    if len(set(names)) < len(names):
        raise AnnotationError(f"has a {what} twice: {', '.join(names)}")


# --- from fields to a row


def _row(line: int, fields: Mapping[str, Any], labelled: bool, folder: str) -> Row:
    weight = _number("weight", fields.get("weight", 1.0), 0)
    num_frames = _integer("num_frames", fields["num_frames"], 1) if "num_frames" in fields else None
    span = _span(fields)
    last = (span.end or span.start + 1) if span and span.unit == "frames" else 0
    if num_frames is not None and last > num_frames:
        raise AnnotationError(f"the span {span} is not inside the video, which has {num_frames} frames")
    labels: tuple[int | str, ...] = ()
    if labelled:
        value = fields.get("label")
        labels = tuple(map(_label, value if isinstance(value, list) else [value]))
    group = _text("group", fields["group"]) if "group" in fields else ""
    path = _text("path", fields.get("path"))
    more = tuple((name, fields[name]) for name in fields if name not in _OWN_FIELDS)
    return Row(line, path, labels, num_frames, span, weight, group, folder, more)


def _text(name: str, text: Any) -> str:
    if not isinstance(text, str) or not text or "\0" in text:
        raise AnnotationError(f"{name} is {'missing' if text is None else shown(text)}, expected a text")
    return text


def _label(label: Any) -> int | str:
    if isinstance(label, str) and label.strip():
        return label.strip()
    if isinstance(label, int) and not isinstance(label, bool) and 0 <= label <= _LARGEST:
        return label
    raise AnnotationError(
        f"label is {'missing' if label is None else shown(label)}, expected the number of a class from 0 on, "
        "its name, or a list of them ([] in .jsonl: no class)"
    )


def _number(name: str, value: Any, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 1e18:
        raise AnnotationError(f"{name} is {shown(value)}, expected a number")
    if value < least:
        raise AnnotationError(f"{name} is {value:g}, expected {least:g} or more")
    return value


def _integer(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value > _LARGEST:
        text = f"expected an integer of at most {_MAX_DIGITS} digits"
        raise AnnotationError(f"{name} is {shown(value)}, {text}")
    return int(_number(name, value, least))


def _span(fields: Mapping[str, Any]) -> Span | None:
    sec = {name: _number(name, fields[name], 0) for name in _SPAN_SEC if name in fields}
    frame = {name: _integer(name, fields[name], 0) for name in _SPAN_FRAMES if name in fields}
    if sec and frame:
        raise AnnotationError("has a span in seconds and one in frames; keep one of them")
    if not sec and not frame:
        return None
    unit, given = ("sec", sec) if sec else ("frame", frame)
    start, end = given.get(f"start_{unit}", 0), given.get(f"end_{unit}")
    if end is not None and end <= start:
        what = "is empty" if end == start else "ends before it starts"
        raise AnnotationError(f"the span {what}: start_{unit} {start:.10g}, end_{unit} {end:.10g}")
    return Span(start, end, "sec" if sec else "frames")

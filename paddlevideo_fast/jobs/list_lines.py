"""Entries of annotation lists as lines, as `loader.tables` reads them."""

import json
from typing import Any

from paddlevideo_fast.decode import Span
from paddlevideo_fast.loader.annotations import VideoRecord
from paddlevideo_fast.loader.tables import Row, split_line

UNLISTABLE = "no list can hold a name with a line break, or with a blank at an end of the path; rename it"


def row_of(record: VideoRecord, path: str, span: Span | None, num_frames: int | None = None) -> Row:
    """A record as an entry of a list with named fields, with another path and span."""
    return Row(record.line, path, record.labels, num_frames, span, record.weight, record.group)


def list_line(path: str, *numbers: int) -> str | None:
    """A line of a list; None where a reader of the line would find another path. See `UNLISTABLE`."""
    fields = [path, *map(str, numbers)]
    line = " ".join(fields)
    is_read = "\n" not in path and not path.startswith("\ufeff") and split_line(line, len(fields)) == fields
    return line if is_read else None


def json_line(row: Row) -> str:
    """A row as a line of a .jsonl list; fields that say nothing are left out."""
    labels = list(row.labels)
    unit = "sec" if row.span is not None and row.span.unit == "sec" else "frame"
    fields: dict[str, Any] = {
        "path": row.path,
        "label": labels[0] if len(labels) == 1 else labels,
        f"start_{unit}": row.span.start or None if row.span else None,
        f"end_{unit}": row.span.end if row.span else None,
        "num_frames": row.num_frames,
        "weight": None if row.weight == 1.0 else row.weight,
        "group": row.group or None,
        **dict(row.more),
    }
    text = row.path + row.group + str(dict(row.more).get("track", ""))
    is_unicode = text == text.encode("utf-8", "ignore").decode()  # JSON keeps other bytes as escapes
    said = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(said, ensure_ascii=not is_unicode)

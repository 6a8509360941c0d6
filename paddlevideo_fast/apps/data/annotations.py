"""Annotations of other projects, as a list with named fields: `paddlevideo-fast data convert`."""

import argparse
import csv
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from paddlevideo_fast.apps.data.public_datasets import read_json, read_text
from paddlevideo_fast.cli.command import print_result
from paddlevideo_fast.command_line import CommandParser
from paddlevideo_fast.decode import Span
from paddlevideo_fast.errors import shown
from paddlevideo_fast.io.files import as_path
from paddlevideo_fast.jobs.flags import share, tool_parser
from paddlevideo_fast.jobs.list_lines import json_line
from paddlevideo_fast.jobs.run import Provenance, ToolError, classes_text, crc32_of, list_text, write_lines
from paddlevideo_fast.loader.tables import Row

_PATHS = {"activitynet": "v_{id}.mp4", "epic": "{id}.MP4"}
_EPIC_LABELS = ("verb_class", "noun_class", "verb", "noun")


class _Converted(NamedTuple):
    """What annotations say.

    Attributes:
        rows: entries of the list, with the path still to be made of the video's name.
        classes: names in the order of their labels; none where labels are numbers.
        left_out: spans that are empty or reversed.
    """

    rows: list[Row]
    classes: Sequence[str] = ()
    left_out: int = 0


def convert(argv: Sequence[str] | None = None) -> int:
    r"""Writes a .jsonl list from the annotations of another project.

    --from names the project:
        activitynet  JSON with `database`, as of ActivityNet, HACS and THUMOS: spans, names of classes
        epic         CSV of EPIC-KITCHENS: spans, classes of verbs or nouns (--label), people as groups

    Where classes have names, they are written to `classes.txt` beside the list, for DATASET.class_names.
    Spans that are empty or end before they start are left out and counted.

    Example:
        paddlevideo-fast data convert activitynet.json --from activitynet --output_file train.jsonl
        paddlevideo-fast data convert EPIC_100_train.csv --from epic --output_file verbs.jsonl
    """
    args = _parse(argv)
    converted = _READERS[args.origin](args)
    if not converted.rows:
        raise ToolError(f"{args.list}: nothing to convert in it")
    template = args.path or _PATHS[args.origin]
    rows = [row._replace(path=template.replace("{id}", row.path)) for row in converted.rows]
    options = {"from": args.origin, "subset": args.subset, "label": args.label, "path": template}
    with Provenance("convert", options, crc32_of(args.list)).kept_in(args.output_file.parent):
        write_lines(args.output_file, map(json_line, rows))
        if converted.classes:
            write_lines(args.output_file.parent / "classes.txt", converted.classes)
            file = args.output_file.parent / "classes.txt"
            print_result({"file": file, "num_classes": len(converted.classes)}, args.json, classes_text)
    result = {"file": args.output_file, "num_lines": len(rows), "num_left_out": converted.left_out}
    print_result(result, args.json, _as_text)
    return 0


def _as_text(result: Mapping[str, Any]) -> str:
    num_empty = result["num_left_out"]
    return list_text(result) + (f"; {num_empty} empty or reversed spans are left out" if num_empty else "")


def convert_parser() -> CommandParser:
    """The parser of `paddlevideo-fast data convert`."""
    parser = tool_parser("data convert", convert.__doc__)
    parser.add_argument("--list", required=True, help="file of the annotations")
    parser.add_argument("--from", required=True, choices=tuple(_READERS), help="project of the annotations")
    parser.add_argument(
        "--output_file",
        type=as_path,
        required=True,
        metavar="FILE",
        was="--output",
        help="the new list, a .jsonl",
    )
    parser.add_argument(
        "--path", help="path of a video, with {id} for its name (default: as it is downloaded)"
    )
    parser.add_argument("--subset", help="with activitynet: part to take, such as training (default: all)")
    text = "with epic: column of the labels (default verb_class)"
    parser.add_argument("--label", choices=_EPIC_LABELS, default="verb_class", help=text)
    share(parser, "--json")
    return parser


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    args = convert_parser().parse_args(argv)
    args.origin = getattr(args, "from")
    if args.output_file.suffix != ".jsonl":
        raise ToolError(f"--output_file {args.output_file}: name it .jsonl")
    if args.path and "{id}" not in args.path:
        raise ToolError(f"--path {args.path}: has no {{id}}, where the name of a video goes")
    if args.subset and args.origin != "activitynet":
        raise ToolError(f"--subset has no effect with --from {args.origin}; leave it out")
    return args


# --- each project


def _activitynet(args: argparse.Namespace) -> _Converted:
    content = read_json(args.list)
    database = content.get("database") if isinstance(content, dict) else None
    if not isinstance(database, dict):
        raise ToolError(f"{args.list}: expected an object with the key 'database'")
    rows: list[Row] = []
    names: set[str] = set()
    subsets: set[str] = set()
    left_out = 0
    for video, entry in database.items():
        where = f"{args.list}: {shown(video)}"
        try:
            subset, annotations = entry.get("subset"), entry.get("annotations") or ()
            subsets.add(str(subset))
            spans = [(str(one["label"]), [float(time) for time in one["segment"]]) for one in annotations]
            if any(len(times) != 2 for _, times in spans):
                raise ValueError("a segment has a start and an end")
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            raise ToolError(f"{where}: expected annotations with 'label' and 'segment': {error!r}") from None
        length = entry.get("duration")
        for name, (start, end) in spans:
            names.add(name)
            if args.subset in (None, subset):
                is_known = isinstance(length, (int, float)) and length > 0
                row = _with_span(video, (name,), start, min(end, length) if is_known else end)
                left_out += row is None
                rows += [row] if row else []
    if args.subset and args.subset not in subsets:
        there = ", ".join(sorted(subsets))
        raise ToolError(f"--subset {args.subset}: is not in {args.list}, which has {there}")
    return _Converted(rows, sorted(names), left_out)


def _epic(args: argparse.Namespace) -> _Converted:
    table = csv.DictReader(read_text(args.list).splitlines())
    needed = ("video_id", "start_timestamp", "stop_timestamp", args.label)
    missing = [name for name in needed if name not in (table.fieldnames or ())]
    if missing:
        raise ToolError(f"{args.list}:1: lacks the column '{missing[0]}'")
    rows, left_out, is_number = [], 0, args.label.endswith("_class")
    for cells in table:
        where = f"{args.list}:{table.line_num}"
        text = (cells[args.label] or "").strip()
        if not text or (is_number and not text.isdecimal()):
            raise ToolError(f"{where}: {args.label} is {shown(text)}")
        start, end = (_clock(where, cells[name]) for name in needed[1:3])
        row = _with_span(cells["video_id"], (int(text) if is_number else text,), start, end)
        left_out += row is None
        if row:
            rows.append(row._replace(group=(cells.get("participant_id") or "").strip()))
    names = sorted({str(row.labels[0]) for row in rows}) if not is_number else []
    return _Converted(rows, names, left_out)


def _clock(where: str, text: str | None) -> float:
    """Seconds of `00:01:02.50`."""
    match = re.fullmatch(r"(\d+):(\d{1,2}):(\d{1,2}(?:\.\d+)?)", (text or "").strip())
    if match is None:
        raise ToolError(f"{where}: {shown(text)} is no time such as 00:01:02.50")
    hours, minutes, seconds = match.groups()
    return round(3600 * int(hours) + 60 * int(minutes) + float(seconds), 6)


def _with_span(video: str, labels: tuple[Any, ...], start: float, end: float) -> Row | None:
    """An entry; None where its span is empty or reversed."""
    return Row(0, video, labels, span=Span(max(start, 0.0), end, "sec")) if max(start, 0.0) < end else None


_READERS: dict[str, Callable[[argparse.Namespace], _Converted]] = {
    "activitynet": _activitynet,
    "epic": _epic,
}

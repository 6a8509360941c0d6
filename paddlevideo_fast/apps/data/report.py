"""One page about a set of videos: `paddlevideo-fast data report`."""

import argparse
import base64
import csv
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paddlevideo_fast.apps.data.duplicates import fault_text
from paddlevideo_fast.apps.data.facts import NUM_FRAMES, Facts, Video
from paddlevideo_fast.apps.data.lists import read_records
from paddlevideo_fast.apps.data.sets import of_sets
from paddlevideo_fast.cli.command import print_result
from paddlevideo_fast.command_line import CommandParser
from paddlevideo_fast.errors import EXIT_FAILURES
from paddlevideo_fast.extensions.report.page import Page, Section
from paddlevideo_fast.extensions.report.results import write_page
from paddlevideo_fast.extensions.report.tables import cell
from paddlevideo_fast.io.urls import absolute, shown_url
from paddlevideo_fast.jobs.executor import located
from paddlevideo_fast.jobs.flags import add_work, share, tool_parser
from paddlevideo_fast.jobs.list_lines import json_line
from paddlevideo_fast.jobs.run import (
    ToolError,
    class_names,
    json_lines,
    spread,
    write_entries,
    write_lines,
)
from paddlevideo_fast.jobs.work import Work
from paddlevideo_fast.loader.annotations import VideoRecord
from paddlevideo_fast.loader.tables import FIELDS, NOTES, Row, list_rows
from paddlevideo_fast.log import counted

PAGE, FINDINGS, FACTS = "report.html", "findings.jsonl", "facts.jsonl"
PREDICTIONS = "predictions.jsonl"
CONTRADICTED = "label contradicted"
UNREADABLE = "cannot be read"
LEAVE_OUT = "leave out"
_SHEETS_OF_CLASS = 4
_MAX_SHEETS = 400
_MIN_FRAMES = 16
_SHORT = 0.1  # of the median length
_MOST = 0.5  # of the frames looked at
_OUTLIER = 4.0  # deviations from the median
_MIN_VIDEOS = 20  # to know what is usual
_FEW = 10  # videos of a class
_MAX_ROWS = 1000  # of a table on the page
_QUANTILES = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)


class Entry(NamedTuple):
    """An entry of the list with what was found of it."""

    record: VideoRecord
    facts: Facts


class Finding(NamedTuple):
    """Something to look at.

    Attributes:
        line: of the list.
        path: of the video.
        classes: its classes.
        finding: what kind.
        detail: more, for a reader.
        weight: orders the findings of a kind; the most remarkable one has the largest.
        suggestion: another class for the video, `LEAVE_OUT`, or nothing.
    """

    line: int
    path: str
    classes: str
    finding: str
    detail: str
    weight: float
    suggestion: str = ""


def report_parser() -> CommandParser:
    """The parser of `paddlevideo-fast data report`."""
    parser = tool_parser("data report", report.__doc__)
    parser.add_argument("--list", required=True)
    share(parser, "--kind", "--data_prefix", "--suffix", "--class_names")
    parser.add_argument(
        "--run",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="output folder of a training: also name the videos whose label the network contradicts. Of one "
        "with --folds, a network that has not seen the video. May be given more than once",
    )
    parser.add_argument("--output", help="folder to write to (default: LIST without its ending, and _report)")
    add_work(parser)
    return parser


def report(argv: Sequence[str] | None = None) -> int:
    """Describes a set of videos on one page: classes, lengths, sizes, codecs, and what to look at.

    Named are videos that cannot be read, are black, frozen or very short, or have a bit rate unlike the
    others; small classes; and with --run the videos whose label a network contradicts, the surest first. Each
    video is opened, and 8 of its frames are read, not all of it: `data check` decodes everything.

    Writes to --output: report.html; findings.jsonl, with line and path of each finding; a CSV with the name
    of the list, which is the list itself with findings and suggestions beside each entry, so that a
    spreadsheet can correct it and training can read it; and facts.jsonl, from which a second run takes the
    files that have not changed.

    Example:
        paddlevideo-fast data report my_set
        paddlevideo-fast data report my_set/train.list --run output/my_set_folds
    """
    return max(map(_report, of_sets(report_parser().parse_args(argv), "output", "run")))


def _report(args: argparse.Namespace) -> int:
    source: Path = args.list
    output: Path = args.output or source.with_name(f"{source.stem}_report")
    records = read_records(source, args.kind, args.data_prefix, args.suffix, args.class_names)
    videos = _videos(records, args.kind)
    predictions = _predictions_of(records, args.run)
    job = Work.of(args)
    with job.writing(output, f"report {source.name}"):
        facts = job.remembered(videos, "videos", output / FACTS)
        if facts is None:
            return 0
        names = class_names(args.class_names) if args.class_names else None
        summary = Summary([Entry(*each) for each in zip(records, map(facts.__getitem__, videos))], names)
        findings = [*summary.findings(), *contradicted(summary, predictions)]
        write_lines(output / FINDINGS, (json.dumps(one._asdict()) for one in findings))
        rows = list_rows(str(source), 3 if args.kind == "frames" else 2)
        header, *lines = table_lines(rows, findings, bool(args.data_prefix))
        write_entries(output / f"{source.stem}.csv", [header], lines)
        judged = {"labels judged": f"{len(predictions):,} of {len(records):,}"} if args.run else {}
        write_page(output, summary.page(str(source), findings, judged))
    counts = Counter(one.finding for one in findings)
    failed = [{"path": one.path, "cause": one.detail} for one in findings if one.finding == UNREADABLE]
    result = {
        "file": output / PAGE,
        "num_videos": len(records),
        "findings": dict(counts.most_common()),
        "num_judged": len(predictions) if args.run else None,
        "failed": failed,
    }
    print_result(result, args.json, _as_text)
    return EXIT_FAILURES if failed else 0


def _as_text(result: Mapping[str, Any]) -> str:
    judged, total = result["num_judged"], result["num_videos"]
    counts = {"labels judged": f"{judged:,} of {total:,}"} if judged is not None else {}
    lines = (f"  {what}: {number}" for what, number in {**counts, **result["findings"]}.items())
    failed = (fault_text({"kind": "bad", "file": one["path"], **one}) for one in result["failed"])
    return "\n".join([*failed, f"{result['file']}: {counted(total, 'video')}", *lines])


def _videos(records: Sequence[VideoRecord], kind: str) -> list[Video]:
    """What to look at for each record; a few of each class give a sheet of their frames."""
    of_class: dict[tuple[int, ...], list[int]] = {}
    for number, record in enumerate(records):
        of_class.setdefault(record.labels, []).append(number)
    most = max(1, min(_SHEETS_OF_CLASS, _MAX_SHEETS // max(len(of_class), 1)))
    shown = {number for numbers in of_class.values() for number in spread(numbers, most)}
    return [
        Video(
            located(record.path),
            record.num_frames if kind == "frames" else None,
            record.frames_suffix or "",
            span=record.span,
            with_sheet=number in shown,
        )
        for number, record in enumerate(records)
    ]


def table_lines(rows: Iterable[Row], findings: Sequence[Finding], has_prefix: bool) -> Iterator[str]:
    """The lines of a list as a CSV with its findings and suggestions; entries with findings come first.

    Args:
        rows: of the list.
        findings: of the list.
        has_prefix: relative paths start from --data_prefix; else they may start from the list's folder.
    """
    notes: dict[int, list[Finding]] = {}
    for one in findings:
        notes.setdefault(one.line, []).append(one)
    of_line = {row.line: row for row in rows}
    entries = [json.loads(json_line(of_line[line])) for line in dict.fromkeys([*notes, *of_line])]
    names = [name for name in FIELDS if any(name in entry for entry in entries)]
    yield ",".join([*names, *NOTES])
    for line, entry in zip(dict.fromkeys([*notes, *of_line]), entries):
        entry["path"] = os.path.join("" if has_prefix else of_line[line].folder, entry["path"])
        if cell(entry["path"]) != entry["path"]:  # a spreadsheet would run it as a formula
            entry["path"] = os.path.join(os.curdir, entry["path"])
        if isinstance(entry["label"], list):
            entry["label"] = ";".join(map(str, entry["label"]))
        mine = notes.get(line, [])
        entry["finding"] = "; ".join(f"{one.finding}: {one.detail}" for one in mine)
        entry["suggestion"] = next((one.suggestion for one in mine if one.suggestion), "")
        written = io.StringIO()
        csv.writer(written, lineterminator="").writerow(cell(entry.get(name)) for name in [*names, *NOTES])
        yield written.getvalue()


Predictions = Mapping[str, Sequence[Mapping[str, Any]]]
"""The rows of predictions.jsonl for each path."""


def _predictions_of(records: Sequence[VideoRecord], runs: Sequence[Path]) -> Predictions:
    """The predictions of those videos whose label can be judged.

    These have one label, and their file has one entry in the list: predictions do not say which span they are
    of.

    Raises:
        ToolError: there are none.
    """
    listed = [_key(record.path) for record in records]
    of_file = Counter(listed)
    rows_of_paths: dict[str, list[Mapping[str, Any]]] = {
        path: [] for path, record in zip(listed, records) if of_file[path] == 1 and len(record.labels) == 1
    }
    given = ", ".join(map(str, runs))
    if runs and not rows_of_paths:
        raise ToolError(
            "--run can judge no label of this list: each entry shares its file with another entry, or has "
            "not exactly one label"
        )
    rows = [row for folder in runs for row in _predictions(folder)]
    of_one_label = [row for row in rows if not isinstance(row["label"], list)]
    if rows and not of_one_label:
        raise ToolError(f"--run {given}: was trained with several labels for a video, which cannot be judged")
    for row in of_one_label:
        if _key(row["path"]) in rows_of_paths:
            rows_of_paths[_key(row["path"])].append(row)
    predicted = {path: several for path, several in rows_of_paths.items() if several}
    if runs and not predicted:
        hint = "a training predicts its validation list, and with --folds its training list: report that one"
        ends = {*map(_end, rows_of_paths)}
        if any(_end(row["path"]) in ends for row in of_one_label):
            hint = "if the videos are the same, give the --data_prefix of the training"
        such = f", such as {of_one_label[0]['path']}" if of_one_label else ""
        raise ToolError(f"--run {given}: its predictions are of other videos than this list{such}; {hint}")
    return predicted


def _key(path: str) -> str:
    """What tells whether a path of a list and one of predictions are of one video."""
    return shown_url(absolute(path))


def _end(path: str) -> str:
    """File and folder of a path, which stay when a set is moved."""
    return "/".join(path.split("/")[-2:])


def _predictions(folder: Path) -> Iterator[dict[str, Any]]:
    """The predictions of a run: of the folds of a cross-validation, else of its validation and its test.

    Raises:
        ToolError: there are none.
    """
    files = sorted(folder.glob(f"fold_*/{PREDICTIONS}")) or [
        file for file in (folder / PREDICTIONS, folder / "test" / PREDICTIONS) if file.is_file()
    ]
    if not files:
        raise ToolError(
            f"--run {folder}: holds no {PREDICTIONS}; a training with validation writes it, and a test"
        )
    for file in files:
        yield from json_lines(file)


@dataclass(frozen=True)
class Summary:
    """A set of videos.

    Attributes:
        entries: of the list, in order.
        names: of the classes by number; None: they are numbers.
    """

    entries: Sequence[Entry]
    names: Sequence[str] | None = None

    @property
    def readable(self) -> list[Entry]:
        """The entries that can be read."""
        return [entry for entry in self.entries if not entry.facts.cause]

    def classes_of(self, record: VideoRecord) -> str:
        """The names of a record's classes."""
        return ", ".join(self.names[label] if self.names else str(label) for label in record.labels)

    def finding(
        self, record: VideoRecord, what: str, detail: str, weight: float = 0.0, suggestion: str = ""
    ) -> Finding:
        """A finding of a record."""
        path, classes = shown_url(record.path), self.classes_of(record)
        return Finding(record.line, path, classes, what, detail, round(weight, 6), suggestion)

    def findings(self) -> list[Finding]:
        """What to look at, by kind."""
        of_kinds: dict[str, list[Finding]] = {}
        usual_sec = float(np.median([entry.facts.length_sec for entry in self.readable] or [0.0]))
        for entry in self.entries:
            for what, detail, weight in _remarks(entry.facts, usual_sec):
                suggestion = "" if what == "short" else LEAVE_OUT
                one = self.finding(entry.record, what, detail, weight, suggestion)
                of_kinds.setdefault(what, []).append(one)
        of_kinds["bit rate"] = self._unusual_rates()
        return [one for several in of_kinds.values() for one in _sorted(several)]

    def _unusual_rates(self) -> list[Finding]:
        rated = [entry for entry in self.readable if entry.facts.num_bytes and entry.record.span is None]
        if len(rated) < _MIN_VIDEOS:
            return []
        rates = np.log([_bits_of_pixel(entry.facts) for entry in rated])
        deviation = 1.4826 * np.median(np.abs(rates - np.median(rates)))
        unusual = []
        for entry, rate in zip(rated, (rates - np.median(rates)).tolist()):
            if abs(rate) > _OUTLIER * max(deviation, 0.1):
                what = (
                    f"{np.exp(abs(rate)):.1f} times {'more' if rate > 0 else 'less'} bits a pixel than usual"
                )
                unusual.append(self.finding(entry.record, "bit rate", what, abs(rate)))
        return unusual

    def page(self, title: str, findings: Sequence[Finding], more: Mapping[str, str]) -> Page:
        """The page of the set, with more numbers at its top."""
        facts = [entry.facts for entry in self.readable]
        sizes = Counter(entry.record.labels for entry in self.entries).values()
        told = {
            "videos": f"{len(self.entries):,}",
            "cannot be read": f"{len(self.entries) - len(facts):,}",
            "classes": f"{len(sizes):,}",
            "largest class": counted(max(sizes, default=0), "video"),
            "smallest class": counted(min(sizes, default=0), "video"),
            "length": f"{sum(one.length_sec for one in facts) / 3600:.2f} hours",
            "size": f"{sum(one.num_bytes for one in facts) / 1e9:.3f} GB",
            **more,
        }
        rows = [
            {"line": one.line, "path": one.path, "classes": one.classes, "finding": one.finding}
            | {"detail": one.detail}
            for one in findings[:_MAX_ROWS]
        ]
        left = len(findings) - len(rows)
        more_text = f"and {left:,} more in {FINDINGS}" if left else "" if rows else "Nothing stands out."
        sections = [
            Section("findings", "What to look at", more_text, rows),
            Section("classes", "Classes", "", self._class_rows(findings)),
            Section(
                "measures", "Lengths, rates and reading", _READING if facts else "", _quantile_rows(facts)
            ),
            Section("formats", "Formats", "", _format_rows(facts)),
            Section("frames", "Frames", "", (), self._sheets()),
        ]
        return Page(f"Videos of {title}", told, sections=sections)

    def _class_rows(self, findings: Sequence[Finding]) -> list[dict[str, Any]]:
        of_class: dict[tuple[int, ...], list[Entry]] = {}
        for entry in self.entries:
            of_class.setdefault(entry.record.labels, []).append(entry)
        remarks = Counter(one.classes for one in findings)
        rows = []
        for labels, entries in sorted(of_class.items()):
            lengths = [entry.facts.length_sec for entry in entries if not entry.facts.cause]
            classes = self.classes_of(entries[0].record)
            rows.append(
                {
                    "labels": ", ".join(map(str, labels)),
                    "name": classes,
                    "videos": len(entries),
                    "share": f"{len(entries) / len(self.entries):.1%}",
                    "hours": round(sum(lengths) / 3600, 2),
                    "median_seconds": round(float(np.median(lengths or [0.0])), 2),
                    "findings": remarks[classes],
                    "remark": "few videos" if len(entries) < _FEW else "",
                }
            )
        return rows

    def _sheets(self) -> Mapping[str, bytes]:
        return {
            f"{self.classes_of(record)}: {shown_url(record.path)}": base64.b64decode(facts.sheet)
            for record, facts in sorted(self.entries, key=lambda entry: entry.record.labels)
            if facts.sheet
        }


_READING = (
    f"Decoded frames: how many a reader decodes to have {NUM_FRAMES} frames from all over a video. With a "
    "keyframe at each of them it would be as many; data prepare makes videos with more keyframes."
)


def _remarks(facts: Facts, usual_sec: float) -> Iterator[tuple[str, str, float]]:
    """Kind, detail and weight of what is remarkable of a video."""
    if facts.cause:
        yield UNREADABLE, facts.cause, 0.0
        return
    if facts.black >= _MOST:
        yield "black", f"{facts.black:.0%} of the frames looked at", facts.black
    elif facts.still >= _MOST:
        yield "frozen", f"{facts.still:.0%} of neighbouring frames looked at are equal", facts.still
    if facts.num_frames < _MIN_FRAMES or facts.length_sec < _SHORT * usual_sec:
        yield "short", f"{counted(facts.num_frames, 'frame')}, {facts.length_sec:.2f} s", -facts.length_sec


def _bits_of_pixel(facts: Facts) -> float:
    return 8 * facts.num_bytes / max(facts.num_frames * facts.width * facts.height, 1)


def _quantile_rows(facts: Sequence[Facts]) -> list[dict[str, Any]]:
    timed = [one for one in facts if one.length_sec]
    measures: dict[str, list[float]] = {
        "length, seconds": [one.length_sec for one in timed],
        "frames a second": [one.fps for one in timed],
        "short side, pixels": [min(one.width, one.height) for one in facts],
        "kbit a second": [8e-3 * one.num_bytes / one.length_sec for one in timed if one.num_bytes],
        "frames between keyframes": [one.keyframe_gap for one in facts if one.keyframe_gap],
        "decoded frames": [one.num_decoded for one in facts if one.num_decoded],
    }
    return [
        {"measure": name}
        | {
            f"{share:.0%}": float(f"{value:.4g}")
            for share, value in zip(_QUANTILES, np.quantile(values, _QUANTILES))
        }
        for name, values in measures.items()
        if values
    ]


def _format_rows(facts: Sequence[Facts]) -> list[dict[str, Any]]:
    kinds = Counter((one.codec or "images", one.width, one.height, round(one.fps, 2)) for one in facts)
    return [
        {"codec": codec, "width": width, "height": height, "frames_a_second": fps, "videos": number}
        for (codec, width, height, fps), number in kinds.most_common(50)
    ]


def contradicted(summary: Summary, predictions: Predictions) -> list[Finding]:
    """The videos whose label a network contradicts, the surest first.

    A video counts if another class has a higher score than its own. The difference of the two scores says how
    sure the network is; of several predictions of a video their mean counts.

    Args:
        summary: the set.
        predictions: of its videos.

    Reference: Northcutt, Jiang, Chuang, "Confident Learning: Estimating Uncertainty in Dataset Labels", arXiv
    1911.00068, section 3: off-diagonal counts; here each video is ranked by its margin.
    """
    records = {_key(entry.record.path): entry.record for entry in summary.entries}
    findings = []
    for path, rows in predictions.items():
        margins, names = zip(*(_margin(row, records[path].labels[0]) for row in rows))
        margin = float(np.mean(margins))
        if margin > 0:
            name = Counter(names).most_common(1)[0][0]
            detail = f"a network sees {name}, by {margin:.3f} of the score"
            findings.append(summary.finding(records[path], CONTRADICTED, detail, margin, name))
    return _sorted(findings)


def _margin(row: Mapping[str, Any], label: int) -> tuple[float, str]:
    """The best score of another class, less the score of the label; and the name of the other class."""
    own = sum(each["score"] for each in row["top"] if each["label"] == label)
    best = max(row["top"], key=lambda each: -1.0 if each["label"] == label else each["score"])
    return best["score"] - own, best["name"]


def _sorted(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda one: (-one.weight, one.line))

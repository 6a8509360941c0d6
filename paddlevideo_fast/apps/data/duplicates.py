"""Copies of one video in a list and between lists: `paddlevideo-fast data check --duplicates`."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paddlevideo_fast.apps.data.confirming import Part, confirm, confirmed, groups_of
from paddlevideo_fast.apps.data.fingerprints import RATE, Fingerprint, Prints, Video
from paddlevideo_fast.apps.data.matching import Match, Pairs, groups, matches
from paddlevideo_fast.cli.command import print_result
from paddlevideo_fast.errors import EXIT_FAILURES
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.io.urls import masked, shown_url
from paddlevideo_fast.jobs.executor import common_folder, located
from paddlevideo_fast.jobs.list_lines import UNLISTABLE
from paddlevideo_fast.jobs.run import (
    ToolError,
    require_file,
    write_entries,
    write_failures,
    write_lines,
)
from paddlevideo_fast.jobs.work import Work
from paddlevideo_fast.loader.annotations import VideoRecord
from paddlevideo_fast.log import counted, printable


class Listed(NamedTuple):
    """A list that was read, or a folder.

    Attributes:
        file: the list.
        records: of it.
        header: lines before the entries.
        texts: number of a line → text of the entry that begins there; "": no list can hold it.
    """

    file: Path
    records: Sequence[VideoRecord]
    header: Sequence[str]
    texts: Mapping[int, str]


class _Entry(NamedTuple):
    """A record of a list, with what its video looks like."""

    file: Path
    line: str  # list and number; "" for a folder
    is_own: bool
    record: VideoRecord
    size: Sequence[int]
    prints: Prints

    @property
    def rank(self) -> tuple[int, int]:
        """Pixels of a picture, and length: the best of a group of copies has the largest."""
        return self.size[0] * self.size[1], len(self.prints.frame_hashes)

    def described(self) -> dict[str, Any]:
        """What the file of pairs says of it; a folder has no lines."""
        record, line = self.record, self.record.line if self.line else None
        about = {"list": str(self.file), "line": line, "path": shown_url(record.path)}
        return {**about, "labels": record.labels, **({"span": str(record.span)} if record.span else {})}


def report_duplicates(args: argparse.Namespace, own: Listed, others: Sequence[Listed]) -> int:
    """Reports the copies in a list and in other lists, and writes what the flags of `data check` say.

    Returns:
        The exit code.

    Raises:
        ToolError: an output would replace a list, or a list is compared with itself.
    """
    _check_files(args, own, others)
    job, base = Work.of(args), args.output_file or args.write_clean
    videos = {
        (record.path, record.num_frames): Video(
            located(record.path), record.num_frames, record.frames_suffix or "", args.decoder
        )
        for listed in (own, *others)
        for record in listed.records
    }
    with contextlib.ExitStack() as outputs:
        outputs.enter_context(job.writing_file(base, "duplicates", "the pairs of copies"))
        if args.write_clean and args.output_file:
            folder, name = args.write_clean.parent, args.write_clean.name
            outputs.enter_context(only_writer(folder, name, "--write_clean"))
        store = base.with_suffix(".fingerprints.jsonl") if base else None
        results = job.remembered([*videos.values()], "videos", store)
        if results is None:
            return 0
        of_path = {key: results[video] for key, video in videos.items()}
        entries, failures = _entries(own, others, of_path, bool(args.write_clean))
        print(f"comparing {counted(len(entries), 'video')}", file=sys.stderr, flush=True)
        alike = matches([entry.prints for entry in entries], _is_wanted(entries))
        parts = [
            Part(videos[key], of_path[key].ends(one.record.span)[0] / RATE, one.prints.length_sec)
            for one in entries
            for key in [(one.record.path, one.record.num_frames)]
        ]
        pairs = _confirmed(job, parts, alike)
        for where, cause in failures:
            print_result({"kind": "bad", "file": masked(where), "cause": cause}, args.json, fault_text)
        for finding in _findings(entries, pairs):
            print_result(finding, args.json, _as_text)
        if args.output_file:
            write_lines(args.output_file, (json.dumps(_pair(entries, *one)) for one in pairs.items()))
        if args.write_clean:
            kept = [entries[number].record.line for number in _kept(entries, pairs)]
            write_entries(args.write_clean, own.header, [own.texts[line] for line in kept])
            counts = {"num_lines": len(kept), "num_left_out": len(own.records) - len(kept)}
            print_result({"kind": "list", "file": args.write_clean, **counts}, args.json, _as_text)
        if base:
            write_failures(base.with_suffix(".failures.txt"), failures)
    return EXIT_FAILURES if pairs or failures else 0


def _confirmed(job: Work, parts: Sequence[Part], alike: Pairs) -> Pairs:
    """The pairs of videos that look alike in which the same moves."""
    members, tasks = groups_of(parts, alike)
    files = common_folder([part.video.path for part in parts])
    answers = job.run(confirm, tasks, "groups that look alike", files) if tasks else ()
    pairs = confirmed(members, tasks, answers)
    if len(pairs) < len(alike):
        text = "look alike, and what moves in them differs: they are not taken for copies"
        print(f"{len(alike) - len(pairs)} pairs {text}", file=sys.stderr)
    return pairs


def _check_files(args: argparse.Namespace, own: Listed, others: Sequence[Listed]) -> None:
    real = [os.path.realpath(listed.file) for listed in (own, *others)]
    if real[0] in real[1:]:
        raise ToolError(f"--against {own.file}: is the list itself; copies inside it are found without")
    for flag in ("output_file", "write_clean"):
        file = getattr(args, flag)
        require_file(file, flag)
        if file and os.path.realpath(file) in real:
            raise ToolError(f"--{flag} {file}: would replace a list that is read; choose another file")
    if args.output_file and args.output_file == args.write_clean:
        raise ToolError(
            f"--output_file {args.output_file}: is the file of --write_clean, too; choose another one"
        )


def _entries(
    own: Listed, others: Sequence[Listed], of_path: Mapping[Any, Fingerprint], is_listed: bool
) -> tuple[list[_Entry], list[tuple[str, str]]]:
    """The records that can be compared, the own ones first, and where and cause of the others.

    Args:
        own: the list.
        others: of --against.
        of_path: path and number of frames → fingerprint.
        is_listed: an own record that no list can hold is a failure.
    """
    entries, failures, num_empty = [], [], 0
    for listed in (own, *others):
        is_list = not listed.file.is_dir()
        for record in listed.records:
            line = f"{listed.file}:{record.line}: " if is_list else ""
            result = of_path[record.path, record.num_frames]
            prints = None if result.cause else result.prints(record.span)
            cause = result.cause or ("" if prints else f"the span {record.span} is not inside the video")
            if is_listed and listed is own and not own.texts[record.line]:
                cause = cause or UNLISTABLE
            if prints is None or cause:
                failures.append((line + shown_url(record.path), cause))
            else:
                entries.append(_Entry(listed.file, line, listed is own, record, result.size, prints))
                num_empty += not prints.frame_hashes.any()
    if num_empty:
        print(f"warning: {num_empty} show nothing but black or flat pictures: not compared", file=sys.stderr)
    return entries, failures


def _is_wanted(entries: Sequence[_Entry]) -> Callable[[int, int], bool]:
    """Pairs with an own video; of the spans of one file in a list, only equal ones are copies."""

    def is_wanted(one: int, other: int) -> bool:
        first, second = entries[one], entries[other]
        if first.file == second.file and first.record.path == second.record.path:
            parts = [(one.record.span, one.record.more) for one in (first, second)]
            return first.is_own and parts[0] == parts[1]
        return first.is_own or second.is_own

    return is_wanted


def fault_text(fault: Mapping[str, Any]) -> str:
    """What is printed of a file that is bad, or has something to note."""
    return f"{fault['kind']}: {printable(fault['file'])}: {printable(fault['cause'])}"


def _findings(entries: Sequence[_Entry], pairs: Pairs) -> Iterator[dict[str, Any]]:
    """Leaks, then conflicting labels, then groups of copies, and the numbers of each."""
    leaks = {pair: match for pair, match in pairs.items() if not entries[pair[1]].is_own}
    inside = {pair: match for pair, match in pairs.items() if entries[pair[1]].is_own}
    conflicts = {pair: match for pair, match in inside.items() if _differ(entries, pair)}
    for pair, match in {**leaks, **conflicts}.items():
        yield _pair(entries, pair, match)
    copies = groups(inside)
    for number, group in enumerate(copies, 1):
        best, *rest = sorted(group, key=lambda at: entries[at].rank, reverse=True)
        videos = []
        for at in rest:
            direct = inside.get((min(best, at), max(best, at)))
            fit = (direct if best < at else direct.reversed())._asdict() if direct else {}
            videos.append({**entries[at].described(), **fit})
        numbers = {"number": number, "num_groups": len(copies)}
        yield {"kind": "group", **numbers, "best": entries[best].described(), "copies": videos}
    yield {
        "kind": "summary",
        "num_videos": sum(entry.is_own for entry in entries),
        "num_leaks": len({one for one, _ in leaks}),
        "num_conflicts": len(conflicts),
        "num_groups": len(copies),
        "num_copies": sum(len(group) - 1 for group in copies),
    }


def _differ(entries: Sequence[_Entry], pair: tuple[int, int]) -> bool:
    one, other = (entries[number].record.labels for number in pair)
    return one != other


def _as_text(finding: Mapping[str, Any]) -> str:
    """A finding as it is printed for people."""
    kind = finding["kind"]
    if kind == "leak":
        one, other = map(_where, finding["videos"])
        return f"leak: {one} is in {other}, too ({_fit(finding)})"
    if kind == "conflict":
        sides = (f"{_where(video)} with {_labels(video)}" for video in finding["videos"])
        return f"conflicting labels: {' and '.join(sides)} ({_fit(finding)})"
    if kind == "group":
        first = "group {number} of {num_groups}: ".format_map(finding) + _where(finding["best"])
        fits = (f" ({_fit(copy)})" if "length_sec" in copy else "" for copy in finding["copies"])
        return "\n".join(
            [first, *(f"  copy: {_where(copy)}{fit}" for copy, fit in zip(finding["copies"], fits))]
        )
    if kind == "list":
        total = finding["num_lines"] + finding["num_left_out"]
        return f"{finding['file']}: {finding['num_lines']} of {total} are kept"
    return (
        "videos compared: {num_videos}, leaks: {num_leaks}, pairs with conflicting labels: {num_conflicts}, "
        "groups: {num_groups}, copies in them: {num_copies}"
    ).format_map(finding)


def _where(video: Mapping[str, Any]) -> str:
    """List, line, path and span of a video, as messages have them."""
    line = f"{video['list']}:{video['line']}: " if video["line"] else ""
    span = f", {video['span']}" if "span" in video else ""
    return f"{line}{printable(video['path'])}{span}"


def _labels(video: Mapping[str, Any]) -> str:
    return f"label {', '.join(map(str, video['labels'])) or 'none'}"


def _fit(match: Mapping[str, Any]) -> str:
    mirrored = ", mirrored" * match["is_mirrored"]
    return f"{match['length_sec']:.4g} s alike, offset {match['offset_sec']:+.4g} s{mirrored}"


def _pair(entries: Sequence[_Entry], pair: tuple[int, int], match: Match) -> dict[str, Any]:
    """A line of the file of pairs."""
    one, other = (entries[number] for number in pair)
    kind = "conflict" if _differ(entries, pair) else "duplicate"
    return {
        "kind": kind if other.is_own else "leak",
        "videos": [one.described(), other.described()],
        **match._asdict(),
    }


def _kept(entries: Sequence[_Entry], pairs: Pairs) -> list[int]:
    """The own entries without copies: of each two the one of higher rank, and none with a copy elsewhere."""
    copies: dict[int, list[int]] = {}
    for one, other in pairs:
        copies.setdefault(one, []).append(other)
        copies.setdefault(other, []).append(one)
    own = [number for number, entry in enumerate(entries) if entry.is_own]
    kept = {number for number, entry in enumerate(entries) if not entry.is_own}
    for number in sorted(own, key=lambda number: entries[number].rank, reverse=True):
        if kept.isdisjoint(copies.get(number, ())):
            kept.add(number)
    return [number for number in own if number in kept]

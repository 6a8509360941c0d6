"""What tools store of the videos of a list: all or spans, their names, and the list of what is stored.

A list with named fields (.jsonl, .csv) gives a .jsonl list. The spans in it are frames of what was stored.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from paddlevideo_fast.apps.data.lists import read_records
from paddlevideo_fast.decode import Span, VideoReader
from paddlevideo_fast.decode.reader import VideoPart
from paddlevideo_fast.io.files import as_path
from paddlevideo_fast.io.urls import absolute, scheme_of
from paddlevideo_fast.jobs.list_lines import UNLISTABLE, list_line, row_of
from paddlevideo_fast.jobs.run import ToolError, lines_of, report_failures, write_lines
from paddlevideo_fast.loader.annotations import VideoRecord
from paddlevideo_fast.loader.tables import is_table
from paddlevideo_fast.log import printable


class Part(NamedTuple):
    """What to store of a video.

    Attributes:
        span: of the video.
        margin: frames to store on both sides of it, where the video has them.
    """

    span: Span
    margin: int

    @classmethod
    def of(cls, record: VideoRecord, margin: int) -> "Part | None":
        """What to store of a record's video; None: all of it."""
        return None if record.span is None else cls(record.span, margin)


def open_part(reader: VideoReader, part: Part | None) -> tuple[VideoPart, tuple[int, int]]:
    """What to store of an open video, and the frames [first, stop) of the span among what is stored.

    Raises:
        VideoDecodeError: the span is not inside the video.
    """
    if part is None:
        return VideoPart(reader, 0, reader.num_frames), (0, reader.num_frames)
    first, stop = reader.frames_of(part.span)
    stored = reader.part(*part)
    return stored, (first - stored.first, stop - stored.first)


def middle_of(reader: VideoReader, part: Part | None, most_frames: int) -> tuple[Part, int, int]:
    """Of an open video: the middle of what to store, its number of frames, and that of all that is to store.

    Raises:
        VideoDecodeError: the span is not inside the video.
    """
    whole, _ = open_part(reader, part)
    num_frames = min(whole.num_frames, most_frames)
    first = whole.first + (whole.num_frames - num_frames) // 2
    return Part(Span(first, first + num_frames), 0), num_frames, whole.num_frames


class Stored(NamedTuple):
    """What came of storing a video, or a part of one.

    Attributes:
        num_frames: stored frames.
        cause: why nothing is stored; "" where something is.
        inner: the frames [first, stop) of the span among the stored ones.
    """

    num_frames: int
    cause: str = ""
    inner: tuple[int, int] = (0, 0)


class OutputList:
    """The list of what a tool stores of the videos of a list.

    Args:
        source: the list that was read.
        records: of it.
        names: of what is stored of each record.
        output: folder of the new list.

    Attributes:
        file: the new list.
        entries: name and record of those that it can hold.
        left_out: path and cause of the others, which are reported at once.
    """

    def __init__(
        self, source: Path, records: Sequence[VideoRecord], names: Sequence[str], output: Path
    ) -> None:
        self._source = source
        self.file = stored_list(source, output)
        self.entries: list[tuple[str, VideoRecord]] = []
        self.left_out: list[tuple[str, str]] = []
        for name, record in zip(names, records):
            if is_listable(source, name):
                self.entries.append((name, record))
            else:
                self.left_out.append((record.path, UNLISTABLE))
                print(f"left out: {printable(record.path)}: {UNLISTABLE}", file=sys.stderr)

    @classmethod
    def read(cls, args: argparse.Namespace, ending: str) -> "OutputList":
        """Reads --list of a tool whose results have names that end in `ending`; see `stored_names`.

        Raises:
            AnnotationError: the list is missing or malformed.
            ToolError: the new list would replace it, it has boxes or tracks, or see `stored_names`.
        """
        if os.path.realpath(args.list) == os.path.realpath(stored_list(args.list, args.output)):
            raise ToolError(
                f"--output {args.output}: the new list would replace {args.list}; choose another folder"
            )
        records = read_records(args.list, "video", args.data_prefix, args.suffix, args.class_names)
        refuse_boxes(records, args.list)
        names = stored_names(records, args.list, args.data_prefix, args.output, ending)
        return cls(args.list, records, names, args.output)

    def write(self, stored: Mapping[str, Stored], is_folder: bool = False) -> int:
        """Writes the lines of what is stored, in the order of the list that was read; returns their number.

        Args:
            stored: name → what came of it; a name that is not there is left out.
            is_folder: folders of frames are stored, which lists give the number of frames.
        """
        rows = []
        for name, record in self.entries:
            if name in stored and not stored[name].cause:
                num_frames, _, inner = stored[name]
                span = None if inner == (0, num_frames) else Span(*inner)
                rows.append((name, row_of(record, name, span, num_frames if is_folder else None)))
        lines, _ = lines_of(rows, is_table(self._source))
        write_lines(self.file, lines)
        return len(lines)

    def report(self, stored: Mapping[str, Stored], file: Path) -> int:
        """Reports what failed, on stderr and in `file`, and returns the exit code."""
        paths = {name: record.path for name, record in self.entries}
        failed = [(paths[name], one.cause) for name, one in stored.items() if one.cause]
        return report_failures([*self.left_out, *failed], len(self.left_out) + len(stored), file)


def refuse_boxes(records: Sequence[VideoRecord], source: Path) -> None:
    """Raises `ToolError` where a record of the list `source` has a box or a track."""
    for record in records:
        if record.more:
            raise ToolError(
                f"{source}:{record.line}: a box or a track is about the pictures and frames of its video: "
                "store the videos by a list without them, and add the fields to the new list, with the size "
                "of the earlier pictures as picture"
            )


def part_name(name: str, span: Span | None, ending: str | None = None, keeps_ending: bool = False) -> str:
    """The name of what is stored of a video: `a.mp4` and 12.5 to 14 seconds give `a_12.5-14s.mp4`.

    Args:
        name: of the video.
        span: what is stored; None: all.
        ending: of the result; None: that of the video.
        keeps_ending: the name keeps the video's ending in front of its own: `a.avi.mp4`.
    """
    folder, slash, last = name.rstrip("/").rpartition("/")
    path = PurePosixPath(last)
    ending = path.suffix if ending is None else ending
    stem = path.name if keeps_ending else path.stem
    if span is None:
        return folder + slash + stem + ending
    end = "end" if span.end is None else f"{span.end:.10g}"
    tag = f"_{span.start:.10g}-{end}{'s' if span.unit == 'sec' else 'f'}"
    return folder + slash + stem + tag + ending


def stored_names(
    records: Sequence[VideoRecord], source: Path, data_prefix: Path | None, output: Path, ending: str
) -> list[str]:
    """Where below `output` what is stored of each record goes. Videos with one stem keep their endings.

    Args:
        records: of the list.
        source: the list.
        data_prefix: folder that its paths start from.
        output: folder of the results.
        ending: of their names.

    Raises:
        ToolError: a video lies outside `data_prefix`, two would go to one place, or `output` lies among the
            videos.
    """
    root = os.path.abspath(data_prefix or "")
    target_root = os.path.realpath(output)
    folders = {os.path.dirname(os.path.realpath(record.path)) for record in records}
    common = os.path.commonpath(folders)
    if os.path.commonpath([common, target_root]) == common:
        raise ToolError(f"--output {output} lies in {common}, among the videos; choose a folder outside")
    taken: dict[str, str] = {os.path.realpath(record.path): "" for record in records}
    paths = [absolute(record.path) for record in records]
    below = [_below(path, data_prefix, root) for path in paths]
    with_stem = Counter(part_name(name, None, "") for name in {*below})  # `a.avi` beside `a.mp4`
    names = []
    for record, path, place in zip(records, paths, below):
        if scheme_of(record.path) and not scheme_of(str(data_prefix)):
            raise ToolError(
                f"{source}:{record.line}: {record.path} is a URL; give the URL above all videos "
                "as --data_prefix"
            )
        name = part_name(place, record.span, ending, with_stem[part_name(place, None, "")] > 1)
        if name.startswith("../"):
            raise ToolError(
                f"{source}:{record.line}: {record.path} lies outside {root}; give the folder above all "
                "videos as --data_prefix"
            )
        stored = f"{path}, {record.span}" if record.span else path
        target = os.path.join(target_root, name)
        if taken.setdefault(target, stored) != stored:
            other = taken[target] or "itself a video of the list"
            raise ToolError(
                f"{source}:{record.line}: {record.path} would be written to {name}, as would {other}; rename "
                "one, or choose another --output"
            )
        names.append(name)
    return names


def _below(path: str, data_prefix: Path | None, root: str) -> str:
    """Where a video lies below the folder above all videos; "../…" where it lies elsewhere."""
    if not scheme_of(path):
        return Path(os.path.relpath(path, root)).as_posix()
    try:
        return as_path(path).relative_to(str(data_prefix)).as_posix()
    except ValueError:
        return f"../{as_path(path).name}"


def stored_list(source: Path, output: Path) -> Path:
    """Where the list of what was stored goes, for the list `source`."""
    return output / (f"{source.stem}.jsonl" if is_table(source) else source.name)


def is_listable(source: Path, name: str) -> bool:
    """Whether a list of the format of `source`'s can hold a name."""
    return is_table(source) or list_line(name, 0) is not None

"""Parts of videos: how tools that store only the spans of a list name them, and the list of what they stored.

A list with named fields (.jsonl, .csv) gives a .jsonl list. The spans in it are frames of what was stored.
"""

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from paddlevideo_fast.decode import Span
from paddlevideo_fast.io.files import UrlPath
from paddlevideo_fast.io.urls import is_url
from paddlevideo_fast.loader.annotations import VideoRecord, list_line, row_of
from paddlevideo_fast.loader.tables import is_table, json_line
from paddlevideo_fast.preparation.run import ToolError


def part_name(name: str, span: Span | None, ending: str | None = None) -> str:
    """The name of what is stored of a video: `a.mp4` and 12.5 to 14 seconds give `a_12.5-14s.mp4`.

    Args:
        name: of the video.
        span: what is stored; None: all.
        ending: of the result; None: that of the video.
    """
    folder, slash, last = name.rstrip("/").rpartition("/")
    path = PurePosixPath(last)
    ending = path.suffix if ending is None else ending
    if span is None:
        return folder + slash + path.with_suffix(ending).name
    end = "end" if span.end is None else f"{span.end:.10g}"
    tag = f"_{span.start:.10g}-{end}{'s' if span.unit == 'sec' else 'f'}"
    return folder + slash + path.with_name(path.stem + tag + ending).name


def stored_names(
    records: Sequence[VideoRecord], source: Path, data_prefix: Path | None, output: Path, ending: str
) -> list[str]:
    """Where below `output` what is stored of each record goes.

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
    names = []
    for record in records:
        if is_url(record.path) and not is_url(str(data_prefix)):
            raise ToolError(
                f"{source}:{record.line}: {record.path} is a URL; give the URL above all videos "
                "as --data_prefix"
            )
        path = record.path if is_url(record.path) else os.path.abspath(record.path)
        name = part_name(_below(path, data_prefix, root), record.span, ending)
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
    if not is_url(path):
        return Path(os.path.relpath(path, root)).as_posix()
    try:
        return UrlPath(path).relative_to(str(data_prefix)).as_posix()
    except ValueError:
        return f"../{UrlPath(path).name}"


def stored_list(source: Path, output: Path) -> Path:
    """Where the list of what was stored goes, for the list `source`."""
    return output / (f"{source.stem}.jsonl" if is_table(source) else source.name)


def stored_line(
    source: Path,
    record: VideoRecord,
    name: str,
    num_frames: int,
    inner: tuple[int, int],
    is_folder: bool = False,
) -> str | None:
    """A line of that list; None where no list can hold the name.

    Args:
        source: the list that was read.
        record: of it.
        name: of what was stored.
        num_frames: stored frames.
        inner: the frames [first, stop) of the record's span among them.
        is_folder: it is a folder of frames, which lists give the number of frames.
    """
    if not is_table(source):
        return list_line(name, *([num_frames] if is_folder else []), record.label)
    span = None if inner == (0, num_frames) else Span(*inner)
    return json_line(row_of(record, name, span, num_frames if is_folder else None))


def is_listable(source: Path, name: str) -> bool:
    """Whether a list of the format of `source`'s can hold a name."""
    return is_table(source) or list_line(name, 0) is not None

"""Decodes every video of a list or a folder and names those that do not decode, with the cause.

The exit code is 0 where all are intact and 1 where some are not. --output writes the list without them; the
lines that stay are unchanged.

Example:
    python data/check_videos.py data/k400/train.list --data-prefix data/k400 --workers 8 --output clean.list
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence

from _common import ScriptError, progress, run_main, run_parallel, write_lines

from paddlevideo_fast.decode import VIDEO_EXTENSIONS, VideoReader, open_frames, open_video
from paddlevideo_fast.errors import AnnotationError, VideoDecodeError
from paddlevideo_fast.loader.annotations import read_frame_list, read_video_list
from paddlevideo_fast.machine import num_cores


class Entry(NamedTuple):
    """Something to check, and the line of the list it is from."""

    line: str
    path: str
    num_frames: Optional[int]  # of a folder of frames
    suffix: str
    backend: str


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """The command line; see --help."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("source", type=Path, help="an annotation list, or a folder (searched with its sub-folders)")
    add(
        "--data-prefix", type=Path, help="folder that relative paths start from (default: the working folder)"
    )
    add("--format", choices=("videos", "rawframes"), default="videos", help="videos: lines `path label`; "
        "rawframes: lines `folder num_frames label`")  # fmt: skip
    add("--suffix", default="", help="videos: ending to add to paths; rawframes: default img_{:05}.jpg")
    add("--backend", choices=("pyav", "cv2", "decord"), default="pyav", help="decoder (default pyav)")
    add("--workers", type=int, default=num_cores(), help="processes (default: all CPUs)")
    add("--output", type=Path, help="where to write the list of the intact ones")
    return parser.parse_args(argv)


def read_entries(args: argparse.Namespace) -> List[Entry]:
    """What to check.

    Raises:
        ScriptError: nothing is found, or a line is malformed.
    """
    source: Path = args.source
    if source.is_dir():
        found = sorted(path for path in source.rglob("*") if path.suffix.lower() in VIDEO_EXTENSIONS)
        entries = [Entry(str(path), str(path), None, "", args.backend) for path in found]
    elif source.is_file():
        entries = list_entries(args)
    else:
        raise ScriptError(f"{source}: no such file or folder")
    if not entries:
        raise ScriptError(f"{source}: nothing to check in it")
    return entries


def list_entries(args: argparse.Namespace) -> List[Entry]:
    """The items of a list, read as training reads it."""
    source, prefix = str(args.source), str(args.data_prefix or "")
    try:
        if args.format == "rawframes":
            records = read_frame_list(source, prefix, args.suffix or "img_{:05}.jpg")
        else:
            records = read_video_list(source, prefix, args.suffix)
    except AnnotationError as error:
        raise ScriptError(str(error)) from error
    lines = args.source.read_text(encoding="utf-8-sig").split("\n")
    return [
        Entry(
            lines[record.line - 1], record.path, record.num_frames, record.frames_suffix or "", args.backend
        )
        for record in records
    ]


def _open(entry: Entry) -> VideoReader:
    if entry.num_frames is not None:
        return open_frames(entry.path, entry.suffix, entry.num_frames)
    return open_video(entry.path, entry.backend)


def fault(entry: Entry) -> Optional[str]:
    """Why an entry does not decode; None where it does."""
    try:
        with _open(entry) as reader:
            deque(reader, maxlen=0)
    except VideoDecodeError as error:
        same = error.path == entry.path
        return error.cause if same else f"{error.path}: {error.cause}"
    return None


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the script; returns the exit code."""
    args = parse_args(argv)
    entries = read_entries(args)
    causes = list(progress(run_parallel(fault, entries, args.workers, chunk=4), len(entries), "checked"))
    bad = [(entry.path, cause) for entry, cause in zip(entries, causes) if cause]
    for path, cause in bad:
        print(f"bad: {path}: {cause}")
    if args.output:
        write_lines(args.output, [entry.line for entry, cause in zip(entries, causes) if not cause])
    print(f"{len(entries) - len(bad)} of {len(entries)} are intact", file=sys.stderr if bad else sys.stdout)
    return 1 if bad else 0


if __name__ == "__main__":
    run_main(main)

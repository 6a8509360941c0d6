"""Writes the lists of Kinetics-400 from its CSV files and the videos that are there.

Reads train.csv and val.csv (or validate.csv), with the columns label, youtube_id, time_start and time_end.
A video is `<youtube_id>_<start>_<end>.mp4`, with six digits each, or `<youtube_id>.mp4`, in any folder of
--videos up to three deep; one below a folder whose name begins with "replacement" takes the place of its
damaged namesake.

Writes, to --output:
    train.list, val.list                 lines `path label`, or
    train_frames.list, val_frames.list   lines `folder num_frames label`; both relative to the folder of clips
    <list>_missing.txt                   what is not on the disk
    class_names.txt                      the classes in alphabetical order, which is that of their labels

Example:
    python data/k400/build_lists.py --videos data/k400/videos --annotations data/k400/annotations
"""

from __future__ import annotations

import csv
import io
import re
import sys
from pathlib import Path
from typing import List, Optional, Sequence

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from _annotated import Find, Row, find_all, label, make_parser, one_of, read_text, write_lists
from _common import ScriptError, run_main
from _lists import Clip, by_name

_COLUMNS = ("label", "youtube_id", "time_start", "time_end")
_TIMES = re.compile(r"_\d{6}_\d{6}$")
_NUM_CLASSES = 400


def read_rows(file: Path, split: str) -> List[Row]:
    """The clips of a CSV file.

    Args:
        file: the CSV file.
        split: how the column `split` has to begin, where there is one.

    Raises:
        ScriptError: a column is missing, or a row is malformed.
    """
    reader = csv.DictReader(io.StringIO(read_text(file), newline=""), strict=True)
    missing = set(_COLUMNS) - set(reader.fieldnames or ())
    if missing:
        raise ScriptError(f"{file}:1: lacks the columns {', '.join(sorted(missing))}")
    rows = []
    try:
        for row in reader:
            where = f"{file}:{reader.line_num}"
            if None in row or None in row.values():
                raise ScriptError(f"{where}: expected the columns {','.join(reader.fieldnames or ())}")
            name, youtube_id = row["label"].strip(), row["youtube_id"].strip()
            if not name or not youtube_id:
                raise ScriptError(f"{where}: label or youtube_id is empty")
            if not row.get("split", split).strip().startswith(split):
                raise ScriptError(f"{where}: is of the split '{row['split']}', expected '{split}'")
            rows.append(Row(where, _clip_name(youtube_id, row["time_start"], row["time_end"], where), name))
    except csv.Error as error:
        raise ScriptError(f"{file}:{reader.reader.line_num}: {error}") from error
    return rows


def _clip_name(youtube_id: str, start_sec: str, end_sec: str, where: str) -> str:
    try:
        return f"{youtube_id}_{int(float(start_sec)):06d}_{int(float(end_sec)):06d}"
    except (ValueError, OverflowError):
        raise ScriptError(f"{where}: time_start or time_end is no number: {start_sec}, {end_sec}") from None


def finder(clips: Sequence[Clip], root: Path) -> Find:
    """Function from `<youtube_id>_<start>_<end>` to the clip on the disk, if there is one."""

    def replaces(clip: Clip) -> bool:
        folders = clip.path.relative_to(root).parts[:-1]
        return any(folder.startswith("replacement") for folder in folders)

    # Names of replacements are matched without times, as in the script that comes with them.
    better = by_name(filter(replaces, clips), lambda clip: _TIMES.sub("", clip.name))
    usual = by_name((clip for clip in clips if not replaces(clip)), lambda clip: clip.name)

    def find(name: str) -> Optional[Clip]:
        youtube_id = _TIMES.sub("", name)
        return better.get(youtube_id) or usual.get(name) or usual.get(youtube_id)

    return find


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the script; returns the exit code."""
    args = make_parser(__doc__, "data/k400").parse_args(argv)
    train = one_of(args.annotations, "train.csv")
    val = one_of(args.annotations, "val.csv", "validate.csv")
    rows = {train: read_rows(train, "train"), val: read_rows(val, "val")}
    names = sorted({row.class_name for row in rows[train]})
    labels = label(rows, names, train)
    if len(names) != _NUM_CLASSES:
        print(
            f"warning: {train}: {len(names)} classes, not the {_NUM_CLASSES} of Kinetics-400: "
            "published weights number them in another way",
            file=sys.stderr,
        )
    clips = find_all(args)
    kind = "_frames" if args.frames else ""
    lists = {f"train{kind}.list": labels[0], f"val{kind}.list": labels[1]}
    write_lists(args, names, lists, clips, finder(clips, args.frames or args.videos), relative=True)
    return 0


if __name__ == "__main__":
    run_main(main)

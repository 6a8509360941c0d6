"""Writes the lists of UCF101 from its split files and the videos that are there.

Reads classInd.txt and, for each split, trainlist0N.txt and testlist0N.txt. Videos and folders of frames are
found by their names, such as v_Archery_g01_c01, in any folder of --videos or --frames up to three deep.

Writes, to --output, with absolute paths, for N = 1, 2, 3:
    ucf101_{train,val}_split_N_videos.txt      lines `path label`, or
    ucf101_{train,val}_split_N_rawframes.txt   lines `folder num_frames label`
    <list>_missing.txt                         what is not on the disk
    class_names.txt                            the classes in the order of classInd.txt

Example:
    python data/ucf101/build_lists.py --videos data/ucf101/videos --annotations data/ucf101/annotations
"""

from __future__ import annotations

import sys
from pathlib import Path, PurePosixPath
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from _annotated import Labels, Row, find_all, label, make_parser, read_text, write_lists
from _common import ScriptError, run_main
from _lists import by_name


def _lines(file: Path) -> Iterator[Tuple[str, List[str]]]:
    """Place and fields of the lines that are not blank."""
    for number, line in enumerate(read_text(file).splitlines(), 1):
        if line.strip():
            yield f"{file}:{number}", line.split()


def read_classes(file: Path) -> List[str]:
    """The class names of classInd.txt, in the order of their numbers.

    Raises:
        ScriptError: a line is malformed, or the numbers are not 1 to the number of classes.
    """
    names: Dict[int, str] = {}
    for where, fields in _lines(file):
        if len(fields) != 2 or not fields[0].isdecimal():
            raise ScriptError(f"{where}: expected 'number class', found '{' '.join(fields)}'")
        if int(fields[0]) in names or fields[1] in names.values():
            raise ScriptError(f"{where}: number or class is there twice")
        names[int(fields[0])] = fields[1]
    if not names or sorted(names) != list(range(1, len(names) + 1)):
        raise ScriptError(f"{file}: expected the numbers 1 to {max(len(names), 1)}")
    return [names[number] for number in sorted(names)]


def read_rows(file: Path, names: Sequence[str]) -> List[Row]:
    """The clips of a split file, lines `class/video.avi` with or without the number of the class.

    Raises:
        ScriptError: a line is malformed, or its number is not that of its class.
    """
    rows = []
    for where, fields in _lines(file):
        path = PurePosixPath(fields[0])
        if len(fields) > 2 or len(path.parts) != 2:
            raise ScriptError(f"{where}: expected 'class/video' or 'class/video number'")
        class_name = path.parts[0]
        if len(fields) == 2 and class_name in names and fields[1] != str(names.index(class_name) + 1):
            raise ScriptError(
                f"{where}: '{class_name}' has number {names.index(class_name) + 1} in classInd.txt"
            )
        rows.append(Row(where, path.stem, class_name))
    return rows


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the script; returns the exit code."""
    parser = make_parser(__doc__, "data/ucf101")
    parser.add_argument(
        "--split",
        type=int,
        nargs="+",
        choices=(1, 2, 3),
        default=[1, 2, 3],
        help="which splits (default all)",
    )
    args = parser.parse_args(argv)
    index = args.annotations / "classInd.txt"
    names = read_classes(index)
    kind = "rawframes" if args.frames else "videos"
    lists: Dict[str, Labels] = {}
    for split in args.split:
        files = [args.annotations / f"{part}list{split:02d}.txt" for part in ("train", "test")]
        labels = label({file: read_rows(file, names) for file in files}, names, index)
        lists.update(zip((f"ucf101_{part}_split_{split}_{kind}.txt" for part in ("train", "val")), labels))
    clips = find_all(args)
    found = by_name(clips, lambda clip: clip.name)
    write_lists(args, names, lists, clips, found.get, relative=False)
    return 0


if __name__ == "__main__":
    run_main(main)

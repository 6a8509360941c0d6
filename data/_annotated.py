"""What the scripts of the data sets share: from annotations and what is on the disk to lists."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

from _common import ScriptError, write_lines
from _lists import Clip, find_clips, write_list

_MAX_DEPTH = 3  # such as train/<class>/<video>
_MANY_MISSING = 0.1


class Row(NamedTuple):
    """What an annotation file says of a clip."""

    where: str
    clip: str
    class_name: str


Labels = Dict[str, int]  # clip -> number of its class
Find = Callable[[str], Optional[Clip]]


def make_parser(description: Optional[str], data: str) -> argparse.ArgumentParser:
    """The flags of all sets; the defaults lie in the folder `data`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--videos", type=Path, default=Path(data, "videos"), help=f"folder of videos (default {data}/videos)"
    )
    source.add_argument(
        "--frames",
        type=Path,
        nargs="?",
        const=Path(data, "rawframes"),
        help=f"list folders of frames in place of videos, those below this one (default {data}/rawframes)",
    )
    parser.add_argument(
        "--annotations",
        type=Path,
        default=Path(data, "annotations"),
        help=f"folder of the annotation files (default {data}/annotations)",
    )
    parser.add_argument(
        "--output", type=Path, default=Path(data), help=f"folder for the lists (default {data})"
    )
    parser.add_argument(
        "--shuffle", action="store_true", help="shuffle the lines, in the same way in each run"
    )
    return parser


def find_all(args: argparse.Namespace) -> List[Clip]:
    """All videos or folders of frames that the arguments point at."""
    return find_clips(args.frames or args.videos, args.frames is not None, _MAX_DEPTH)


def one_of(folder: Path, *names: str) -> Path:
    """The file of a folder that has one of these names.

    Raises:
        ScriptError: none is there, or several.
    """
    found = [name for name in names if (folder / name).is_file()]
    if len(found) > 1:
        raise ScriptError(f"{folder}: has {' and '.join(found)}; keep one")
    if not found:
        raise ScriptError(f"{folder}: has no {' or '.join(names)}")
    return folder / found[0]


def read_text(file: Path) -> str:
    """The text of an annotation file.

    Raises:
        ScriptError: it is not there, or not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ScriptError(f"{file}: no such file") from None
    except UnicodeDecodeError as error:
        raise ScriptError(f"{file}: is not text in UTF-8: {error}") from None


def label(files: Dict[Path, List[Row]], names: Sequence[str], names_file: Path) -> List[Labels]:
    """Numbers the classes of annotation files that have no clip in common.

    Raises:
        ScriptError: a file is empty, a class has no number, or a clip is listed twice.
    """
    numbers = {name: number for number, name in enumerate(names)}
    seen: Dict[str, str] = {}
    for file, rows in files.items():
        if not rows:
            raise ScriptError(f"{file}: lists no clip")
        for row in rows:
            if row.class_name not in numbers:
                raise ScriptError(f"{row.where}: class '{row.class_name}' is not in {names_file}")
            first = seen.setdefault(row.clip, row.where)
            if first != row.where:
                raise ScriptError(f"{row.where}: '{row.clip}' is listed at {first} already; keep one")
    return [{row.clip: numbers[row.class_name] for row in rows} for rows in files.values()]


def write_lists(
    args: argparse.Namespace,
    names: Sequence[str],
    lists: Dict[str, Labels],
    clips: List[Clip],
    find: Find,
    relative: bool,
) -> None:
    """Writes the lists of what is there, the names of what is not, and the class names.

    Args:
        args: see `make_parser`.
        names: of the classes, in the order of their labels.
        lists: file name of a list -> what the annotations have for it.
        clips: all that is on the disk.
        find: the clip of that name.
        relative: write paths relative to the folder of the clips.

    Raises:
        ScriptError: nothing of it is there.
    """
    root: Path = args.frames or args.videos
    found = {name: find(name) for labels in lists.values() for name in labels}
    if not any(found.values()):
        expected = next(iter(found)) + ("/img_00001.jpg" if args.frames else ".*")
        there = f"{len(clips)} others, such as {clips[0].path}" if clips else "nothing"
        raise ScriptError(
            f"{root}: has none of the clips in {args.annotations}: expected {expected}, found {there}"
        )
    for file, labels in lists.items():
        present = [(clip, number) for name, number in labels.items() if (clip := found[name])]
        if args.shuffle:
            random.Random(0).shuffle(present)
        _report_missing(args.output / file, [name for name in labels if not found[name]], len(labels), root)
        if present:
            write_list(args.output / file, present, root if relative else None)
            print(f"{args.output / file}: {len(present)} of {len(labels)} clips")
    write_lines(args.output / "class_names.txt", names)
    print(f"{args.output / 'class_names.txt'}: {len(names)} classes")


def _report_missing(file: Path, missing: Sequence[str], total: int, root: Path) -> None:
    report = file.with_name(f"{file.stem}_missing.txt")
    if not missing:
        report.unlink(missing_ok=True)
        return
    write_lines(report, missing)
    if len(missing) == total:
        text = f"none of the {total} clips is in {root}; the list is not written"
    else:
        text = f"{len(missing)} of {total} clips are not in {root}, such as {missing[0]}; all are in {report}"
        if len(missing) > _MANY_MISSING * total:
            text += ". These are many: see whether all archives are unpacked"
    print(f"warning: {file}: {text}", file=sys.stderr)

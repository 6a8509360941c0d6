"""Lists of public data sets from their annotations and what is on the disk: data/*/build_lists.py."""

import argparse
import csv
import io
import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from paddlevideo_fast.apps.data.clips import Clip, by_name, find_clips
from paddlevideo_fast.apps.data.lists import write_list
from paddlevideo_fast.cli.command import print_result
from paddlevideo_fast.command_line import CommandParser
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.jobs.flags import share, tool_parser
from paddlevideo_fast.jobs.run import (
    Provenance,
    ToolError,
    classes_text,
    crc32_of,
    report_failures,
    write_lines,
)

_MAX_DEPTH = 3  # such as train/<class>/<video>
_MANY_MISSING = 0.1


class _Row(NamedTuple):
    """A clip in an annotation file."""

    where: str
    clip: str
    class_name: str


_Labels = dict[str, int]  # clip → number of its class
_Find = Callable[[str], Clip | None]


# --- Kinetics-400

_K400_COLUMNS = ("label", "youtube_id", "time_start", "time_end")
_K400_TIMES = re.compile(r"_\d{6}_\d{6}$")
_K400_NUM_CLASSES = 400


def k400(argv: Sequence[str] | None = None) -> int:
    """Writes the lists of Kinetics-400 from its CSV files and the videos that are there.

    Reads train.csv and val.csv (or validate.csv), with the columns label, youtube_id, time_start and
    time_end. A video is `<youtube_id>_<start>_<end>.mp4`, with six digits each, or `<youtube_id>.mp4`, in any
    folder of ROOT up to three deep; one below a folder whose name begins with "replacement" takes the place
    of its damaged namesake.

    Writes, to --output:
        train.list, val.list                 lines `path label`, or
        train_frames.list, val_frames.list   lines `folder num_frames label`; both relative to ROOT
        <list>_missing.txt                   what is not on the disk
        class_names.txt                      the classes, numbered in alphabetical order

    Example:
        paddlevideo-fast data k400 data/k400/videos
        paddlevideo-fast data k400 --kind frames
    """
    args = _parse(k400, argv)
    train = _one_of(args.annotations, "train.csv")
    val = _one_of(args.annotations, "val.csv", "validate.csv")
    rows = {train: _k400_rows(train, "train"), val: _k400_rows(val, "val")}
    names = sorted({row.class_name for row in rows[train]})
    labels = _label(rows, names, train)
    if len(names) != _K400_NUM_CLASSES:
        print(
            f"warning: {train}: {len(names)} classes, not the {_K400_NUM_CLASSES} of Kinetics-400: "
            "published weights number them in another way",
            file=sys.stderr,
        )
    return _write(args, names, _train_and_val(labels, args.kind), (train, val), finder=_k400_finder)


def _k400_rows(file: Path, split: str) -> list[_Row]:
    """The clips of a CSV file.

    Args:
        file: the CSV file.
        split: how the column `split` has to begin, where there is one.

    Raises:
        ToolError: a column is missing, or a row is malformed.
    """
    reader = csv.DictReader(io.StringIO(read_text(file), newline=""), strict=True)
    missing = set(_K400_COLUMNS) - set(reader.fieldnames or ())
    if missing:
        raise ToolError(f"{file}:1: lacks the columns {', '.join(sorted(missing))}")
    rows = []
    try:
        for row in reader:
            where = f"{file}:{reader.line_num}"
            if None in row or None in row.values():
                raise ToolError(f"{where}: expected the columns {','.join(reader.fieldnames or ())}")
            name, youtube_id = row["label"].strip(), row["youtube_id"].strip()
            if not name or not youtube_id:
                raise ToolError(f"{where}: label or youtube_id is empty")
            if not row.get("split", split).strip().startswith(split):
                raise ToolError(f"{where}: is of the split '{row['split']}', expected '{split}'")
            given = row["time_start"], row["time_end"]
            try:
                times = [int(float(text)) for text in given]
            except (ValueError, OverflowError):
                text = "time_start or time_end is no number"
                raise ToolError(f"{where}: {text}: {', '.join(given)}") from None
            rows.append(_Row(where, "_".join([youtube_id, *(f"{sec:06d}" for sec in times)]), name))
    except csv.Error as error:
        raise ToolError(f"{file}:{reader.reader.line_num}: {error}") from error
    return rows


def _k400_finder(clips: Sequence[Clip], root: Path) -> _Find:
    """Function from `<youtube_id>_<start>_<end>` to the clip on the disk, if there is one."""

    def replaces(clip: Clip) -> bool:
        return any(part.startswith("replacement") for part in clip.path.parent.relative_to(root).parts)

    # Names of replacements are matched without times, as in the script that comes with them.
    better = by_name(filter(replaces, clips), lambda clip: _K400_TIMES.sub("", clip.name))
    usual = by_name((clip for clip in clips if not replaces(clip)), lambda clip: clip.name)

    def find(name: str) -> Clip | None:
        youtube_id = _K400_TIMES.sub("", name)
        return better.get(youtube_id) or usual.get(name) or usual.get(youtube_id)

    return find


# --- UCF101


def ucf101(argv: Sequence[str] | None = None) -> int:
    """Writes the lists of UCF101 from its split files and the videos that are there.

    Reads classInd.txt and, for each split, trainlist0N.txt and testlist0N.txt. Videos and folders of frames
    are found by their names, such as v_Archery_g01_c01, in any folder of ROOT up to three deep.

    Writes, to --output, with absolute paths, for N = 1, 2, 3:
        ucf101_{train,val}_split_N_videos.txt      lines `path label`, or
        ucf101_{train,val}_split_N_rawframes.txt   lines `folder num_frames label`
        <list>_missing.txt                         what is not on the disk
        class_names.txt                            the classes in the order of classInd.txt

    Example:
        paddlevideo-fast data ucf101 data/ucf101/videos
        paddlevideo-fast data ucf101 --kind frames --splits 1
    """
    args = _parse(ucf101, argv)
    index = args.annotations / "classInd.txt"
    names = _ucf101_classes(index)
    kind = "rawframes" if args.kind == "frames" else "videos"
    lists: dict[str, _Labels] = {}
    files = [index]
    for split in args.splits:
        parts = [args.annotations / f"{part}list{split:02d}.txt" for part in ("train", "test")]
        labels = _label({file: _ucf101_rows(file, names) for file in parts}, names, index)
        lists.update(zip((f"ucf101_{part}_split_{split}_{kind}.txt" for part in ("train", "val")), labels))
        files += parts
    return _write(args, names, lists, files, relative=False)


def _ucf101_lines(file: Path) -> Iterator[tuple[str, list[str]]]:
    """Place and fields of the lines that are not blank."""
    for number, line in enumerate(read_text(file).splitlines(), 1):
        if line.strip():
            yield f"{file}:{number}", line.split()


def _ucf101_classes(file: Path) -> list[str]:
    """The class names of classInd.txt, in the order of their numbers.

    Raises:
        ToolError: a line is malformed, or the numbers are not 1 to the number of classes.
    """
    names: dict[int, str] = {}
    for where, fields in _ucf101_lines(file):
        if len(fields) != 2 or not fields[0].isdecimal():
            raise ToolError(f"{where}: expected 'number class', found '{' '.join(fields)}'")
        if int(fields[0]) in names or fields[1] in names.values():
            raise ToolError(f"{where}: number or class is there twice")
        names[int(fields[0])] = fields[1]
    if not names or sorted(names) != list(range(1, len(names) + 1)):
        raise ToolError(f"{file}: expected the numbers 1 to {max(len(names), 1)}")
    return [names[number] for number in sorted(names)]


def _ucf101_rows(file: Path, names: Sequence[str]) -> list[_Row]:
    """The clips of a split file, lines `class/video.avi` with or without the number of the class.

    Raises:
        ToolError: a line is malformed, or has the number of another class.
    """
    rows = []
    for where, fields in _ucf101_lines(file):
        path = PurePosixPath(fields[0])
        if len(fields) > 2 or len(path.parts) != 2:
            raise ToolError(f"{where}: expected 'class/video' or 'class/video number'")
        class_name = path.parts[0]
        if len(fields) == 2 and class_name in names and fields[1] != str(names.index(class_name) + 1):
            raise ToolError(
                f"{where}: '{class_name}' has number {names.index(class_name) + 1} in classInd.txt"
            )
        rows.append(_Row(where, path.stem, class_name))
    return rows


# --- Something-Something V2


def ssv2(argv: Sequence[str] | None = None) -> int:
    """Writes the lists of Something-Something V2 from its JSON files and the videos that are there.

    Reads labels.json, train.json and validation.json, or something-something-v2-labels.json and so on. The
    test split has no labels and is left out. Videos are `<id>.webm`, in any folder of ROOT up to three
    deep.

    Writes, to --output:
        train.list, val.list                 lines `path label`, or
        train_frames.list, val_frames.list   lines `folder num_frames label`; both relative to ROOT
        <list>_missing.txt                   what is not on the disk
        class_names.txt                      the classes in the order of the numbers in labels.json

    Example:
        paddlevideo-fast data ssv2 data/ssv2/videos
        paddlevideo-fast data ssv2 --kind frames
    """
    args = _parse(ssv2, argv)
    index, train, val = (
        _one_of(args.annotations, f"something-something-v2-{name}.json", f"{name}.json")
        for name in ("labels", "train", "validation")
    )
    names = ssv2_classes(index)
    labels = _label({file: ssv2_rows(file) for file in (train, val)}, names, index)
    return _write(args, names, _train_and_val(labels, args.kind), (index, train, val))


def read_json(file: Path) -> Any:
    """What a JSON file holds.

    Raises:
        ToolError: it is not there, or no JSON.
    """
    try:
        return json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise ToolError(f"{file}:{error.lineno}: is no valid JSON: {error.msg}") from None


def ssv2_classes(file: Path) -> list[str]:
    """The class names, in the order of their numbers.

    Raises:
        ToolError: the file does not number its classes from 0.
    """
    numbers = read_json(file)
    try:
        names = sorted(numbers, key=lambda name: int(numbers[name]))
        well_numbered = [int(numbers[name]) for name in names] == list(range(len(names)))
    except (TypeError, ValueError, LookupError):
        well_numbered = False
    if not well_numbered or not names:
        raise ToolError(f"{file}: expected an object of class names with the numbers 0, 1, 2 …")
    return names


def ssv2_rows(file: Path) -> list[_Row]:
    """The clips of a split; the class is the template without its brackets.

    Raises:
        ToolError: an entry lacks id or template.
    """
    entries = read_json(file)
    if not isinstance(entries, list):
        raise ToolError(f"{file}: expected a list of objects with 'id' and 'template'")
    rows = []
    for number, entry in enumerate(entries, 1):
        where = f"{file}: entry {number}"
        try:
            class_name = entry["template"].replace("[", "").replace("]", "")
            rows.append(_Row(where, str(entry["id"]), class_name))
        except (TypeError, KeyError, AttributeError):
            raise ToolError(f"{where}: expected an object with 'id' and 'template'") from None
    return rows


# --- what the sets share


def _parser(tool: Callable[..., int]) -> CommandParser:
    """The parser of the set that `tool` writes the lists of; its files lie in data/NAME by default."""
    data = f"data/{tool.__name__}"
    parser = tool_parser(f"data {tool.__name__}", tool.__doc__)
    parser.add_argument(
        "--root", help=f"folder of the clips (default {data}/videos, or {data}/rawframes for frames)"
    )
    parser.add_argument("--kind", help="video: list videos (default); frames: list folders of frames")
    text = f"folder of their files (default {data}/annotations)"
    parser.add_argument(
        "--annotations", help=text, type=Path, default=Path(data, "annotations"), metavar="FOLDER"
    )
    parser.add_argument("--output", default=Path(data), help=f"folder for the lists (default {data})")
    parser.add_argument("--shuffle")
    if tool is ucf101:
        some = (1, 2, 3)
        parser.add_argument(
            "--splits",
            type=int,
            nargs="+",
            choices=some,
            default=some,
            was="--split",
            help="which splits (default all)",
        )
    share(parser, "--json")
    return parser


k400_parser, ucf101_parser, ssv2_parser = (partial(_parser, tool) for tool in (k400, ucf101, ssv2))


def _parse(tool: Callable[..., int], argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of a set."""
    args = _parser(tool).parse_args(argv)
    args.tool = tool.__name__
    args.root = args.root or Path("data", args.tool, "rawframes" if args.kind == "frames" else "videos")
    return args


def _train_and_val(labels: Sequence[_Labels], kind: str) -> dict[str, _Labels]:
    ending = "_frames" if kind == "frames" else ""
    return {f"train{ending}.list": labels[0], f"val{ending}.list": labels[1]}


def _one_of(folder: Path, *names: str) -> Path:
    """The file of a folder that has one of these names.

    Raises:
        ToolError: none is there, or several.
    """
    present = [name for name in names if (folder / name).is_file()]
    if len(present) > 1:
        raise ToolError(f"{folder}: has {' and '.join(present)}; keep one")
    if not present:
        raise ToolError(f"{folder}: has no {' or '.join(names)}")
    return folder / present[0]


def read_text(file: Path) -> str:
    """The text of an annotation file.

    Raises:
        ToolError: it is not there, or not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ToolError(f"{file}: no such file") from None
    except UnicodeDecodeError as error:
        raise ToolError(f"{file}: is not text in UTF-8: {error}") from None


def _label(files: dict[Path, list[_Row]], names: Sequence[str], names_file: Path) -> list[_Labels]:
    """Numbers the classes of annotation files that have no clip in common.

    Raises:
        ToolError: a file is empty, a class has no number, or a clip is listed twice.
    """
    numbers = {name: number for number, name in enumerate(names)}
    seen: dict[str, str] = {}
    for file, rows in files.items():
        if not rows:
            raise ToolError(f"{file}: lists no clip")
        for where, clip, class_name in rows:
            if class_name not in numbers:
                raise ToolError(f"{where}: class '{class_name}' is not in {names_file}")
            first = seen.setdefault(clip, where)
            if first != where:
                raise ToolError(f"{where}: '{clip}' is listed at {first} already; keep one")
    return [{row.clip: numbers[row.class_name] for row in rows} for rows in files.values()]


def _write(
    args: argparse.Namespace,
    names: Sequence[str],
    lists: Mapping[str, _Labels],
    files: Sequence[Path],
    relative: bool = True,
    finder: Callable[[Sequence[Clip], Path], _Find] | None = None,
) -> int:
    """Writes the lists of what is there, the names of what is missing, and the class names.

    Args:
        args: see `_parse`.
        names: class names in the order of their labels.
        lists: file name of a list → its clips with their labels.
        files: the annotation files that were read.
        relative: write paths relative to the folder of the clips.
        finder: makes a function from names to clips, out of all clips on the disk and their folder; None: the
            names are equal.

    Raises:
        ToolError: none of the clips is on the disk.
    """
    clips = find_clips(args.root, args.kind, _MAX_DEPTH)
    find = finder(clips, args.root) if finder else by_name(clips, lambda clip: clip.name).get
    clip_of = {name: find(name) for labels in lists.values() for name in labels}
    if not any(clip_of.values()):
        expected = next(iter(clip_of)) + ("/img_00001.jpg" if args.kind == "frames" else ".*")
        there = f"{len(clips)} others, such as {clips[0].path}" if clips else "nothing"
        raise ToolError(
            f"{args.root}: has none of the clips in {args.annotations}: expected {expected}, found {there}"
        )
    options = {"kind": args.kind, "shuffle": args.shuffle, "lists": list(lists)}
    made = Provenance(f"{args.tool}/build_lists", options, crc32_of(*files), str(args.root))
    with only_writer(args.output), made.kept_in(args.output):
        left_out = []
        for file, labels in lists.items():
            present = [(clip, number) for name, number in labels.items() if (clip := clip_of[name])]
            if args.shuffle:
                random.Random(0).shuffle(present)
            absent = [name for name in labels if not clip_of[name]]
            _report_missing(args.output / file, absent, len(labels), args.root)
            if present:
                unlisted = write_list(args.output / file, present, args.root if relative else None)
                counts = {"num_lines": len(present) - len(unlisted), "num_clips": len(labels)}
                text = "{file}: {num_lines} of {num_clips} clips"
                print_result({"file": args.output / file, **counts}, args.json, text.format_map)
                left_out += unlisted
        write_lines(args.output / "class_names.txt", names)
        result = {"file": args.output / "class_names.txt", "num_classes": len(names)}
        print_result(result, args.json, classes_text)
    return report_failures(left_out, len(clip_of))


def _report_missing(file: Path, missing: Sequence[str], total: int, root: Path) -> None:
    report = file.with_name(f"{file.stem}_missing.txt")
    if not missing:
        report.unlink(missing_ok=True)
        return
    write_lines(report, missing)
    text = f"{len(missing)} of {total} clips are not in {root}, such as {missing[0]}; all are in {report}"
    if len(missing) == total:
        text = f"none of the {total} clips is in {root}; the list is not written"
    elif len(missing) > _MANY_MISSING * total:
        text += ". These are many: see whether all archives are unpacked"
    print(f"warning: {file}: {text}", file=sys.stderr)

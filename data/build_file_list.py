"""Writes annotation lists for training and validation.

Without --annotations: each folder in `root` is a class, numbered in alphabetical order, and --valid-share of
each class goes to validation. Writes train.list, valid.list and classes.txt.

With --annotations: the official splits. Either UCF101's folder (classInd.txt, trainlist01.txt,
testlist01.txt, ...), which gives ucf101_train_split_1_videos.txt, ucf101_val_split_1_videos.txt and so on, or
CSV files of Kinetics (columns label, youtube_id, time_start, time_end, split), which give one list a split,
such as train.list and validate.list. What is listed there but is not on the disk is left out and counted.

Lines are `path label` for videos and `folder num_frames label` for rawframes.

Example:
    python data/build_file_list.py videos --level 2 --format videos --valid-share 0.2 --shuffle
    python data/build_file_list.py rawframes --format rawframes --annotations annotations
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from _common import ScriptError, run_main, write_lines

from paddlevideo_fast.decode import VIDEO_EXTENSIONS

# What annotations call a clip: UCF101 `class/name`, Kinetics `youtube_id` with its times.
Named = Tuple[str, str]  # name, class
Lists = Dict[str, List[Tuple[str, int]]]  # file name -> (name, label)


class Clip(NamedTuple):
    """A video, or a folder of frames, on the disk."""

    path: Path
    num_frames: Optional[int]


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """The command line; see --help."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("root", type=Path, help="folder with the videos or the folders of frames")
    add("--annotations", type=Path, nargs="+", help="UCF101's annotation folder, or CSV files of Kinetics")
    add(
        "--format",
        choices=("videos", "rawframes"),
        default="rawframes",
        help="what is listed (default rawframes)",
    )
    add("--level", type=int, choices=(1, 2), default=2, help="1: root/clip; 2: root/class/clip (default)")
    add("--rgb_prefix", "--rgb-prefix", default="img_", help="how frame files begin (default img_)")
    add("--num_split", "--num-split", type=int, default=3, help="UCF101: number of splits (default 3)")
    add(
        "--out_list_path",
        "--out-list-path",
        "--output",
        type=Path,
        default=Path(),
        help="folder for the lists",
    )
    add("--classes", type=Path, help="file with the class names in the order of their labels")
    add(
        "--valid-share",
        type=float,
        default=0.2,
        help="without --annotations: share for validation (default 0.2)",
    )
    add(
        "--relative",
        action="store_true",
        help="paths relative to root (data_prefix) instead of absolute ones",
    )
    add("--shuffle", action="store_true", help="shuffle the lines")
    add("--seed", type=int, default=0, help="of the split and the shuffling (default 0)")
    return parser.parse_args(argv)


def find_clips(args: argparse.Namespace) -> Dict[str, Clip]:
    """Name below root, without ending -> clip.

    Raises:
        ScriptError: there is none.
    """
    if not args.root.is_dir():
        raise ScriptError(f"{args.root}: no such folder")
    found: Dict[str, Clip] = {}
    for path in sorted(args.root.glob("*" if args.level == 1 else "*/*")):
        relative = path.relative_to(args.root)
        if path.name.startswith("."):
            continue
        if args.format == "videos" and path.suffix.lower() in VIDEO_EXTENSIONS and path.is_file():
            found[relative.with_suffix("").as_posix()] = Clip(path, None)
        elif args.format == "rawframes" and path.is_dir():
            num_frames = sum(entry.name.startswith(args.rgb_prefix) for entry in path.iterdir())
            if num_frames:
                found[relative.as_posix()] = Clip(path, num_frames)
            else:
                print(f"warning: {path}: no frame '{args.rgb_prefix}*', left out", file=sys.stderr)
    if not found:
        raise ScriptError(
            f"{args.root}: no {args.format} at --level {args.level}; check --format and --level"
        )
    return found


def from_folders(clips: Dict[str, Clip], args: argparse.Namespace) -> Tuple[Lists, List[str]]:
    """Lists by class folder, split at random within each class; and the class names."""
    if args.level != 2:
        raise ScriptError("--level 1 has no class folders; give --annotations or use --level 2")
    if not 0 <= args.valid_share < 1:
        raise ScriptError(f"--valid-share: {args.valid_share}; must be from 0 to below 1")
    names = read_classes(args.classes) or sorted({name.split("/")[0] for name in clips})
    rng = random.Random(args.seed)
    lists: Lists = {"train.list": [], "valid.list": []}
    for label, class_name in enumerate(names):
        members = [name for name in clips if name.split("/")[0] == class_name]
        chosen = set(rng.sample(members, round(len(members) * args.valid_share)))
        for name in members:
            lists["valid.list" if name in chosen else "train.list"].append((name, label))
    unknown = sorted({name.split("/")[0] for name in clips} - set(names))
    if unknown:
        raise ScriptError(f"{args.classes}: lacks the class folders {', '.join(unknown)}")
    return {file: lines for file, lines in lists.items() if lines}, names


def from_ucf101(folder: Path, clips: Dict[str, Clip], args: argparse.Namespace) -> Tuple[Lists, List[str]]:
    """Lists by UCF101's official splits, under PaddleVideo's names; and the class names."""
    index = folder / "classInd.txt"
    try:
        names = [name for _, name in sorted((int(n), name) for n, name in map(str.split, _lines(index)))]
    except ValueError as error:
        raise ScriptError(f"{index}: expected lines of 'number class'") from error
    labels = {name: label for label, name in enumerate(names)}
    lists: Lists = {}
    for split in range(1, args.num_split + 1):
        for source, target in (("train", "train"), ("test", "val")):
            file = folder / f"{source}list{split:02d}.txt"
            entries = []
            for number, line in enumerate(_lines(file), 1):
                name = line.split()[0]
                class_name = name.split("/")[0]
                if class_name not in labels:
                    raise ScriptError(f"{file}:{number}: class '{class_name}' is not in classInd.txt")
                entries.append(
                    ("/".join(Path(name).with_suffix("").parts[-args.level :]), labels[class_name])
                )
            lists[f"ucf101_{target}_split_{split}_{args.format}.txt"] = _present(entries, clips, file)
    return lists, names


def from_kinetics(
    files: Iterable[Path], clips: Dict[str, Clip], args: argparse.Namespace
) -> Tuple[Lists, List[str]]:
    """Lists by the splits that the CSV files name; and the class names."""
    splits: Dict[str, List[Named]] = {}
    by_stem = {Path(name).name: name for name in clips}
    for file in files:
        for number, row in enumerate(csv.DictReader(_lines(file)), 2):
            try:
                times = int(float(row["time_start"])), int(float(row["time_end"]))
                stem, split = f"{row['youtube_id']}_{times[0]:06d}_{times[1]:06d}", row["split"]
                name = by_stem.get(stem, by_stem.get(row["youtube_id"], stem))
                splits.setdefault(split.strip(), []).append((name, row["label"]))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                expected = "label,youtube_id,time_start,time_end,split"
                raise ScriptError(f"{file}:{number}: expected the columns {expected}") from error
    names = read_classes(args.classes) or sorted({label for rows in splits.values() for _, label in rows})
    labels = {name: label for label, name in enumerate(names)}
    lists: Lists = {}
    for split, rows in splits.items():
        unknown = sorted({label for _, label in rows} - set(labels))
        if unknown:
            raise ScriptError(f"{args.classes}: lacks the class '{unknown[0]}'")
        entries = [(name, labels[label]) for name, label in rows]
        lists[f"{split}.list"] = _present(entries, clips, Path(split))
    return lists, names


def _present(entries: List[Tuple[str, int]], clips: Dict[str, Clip], source: Path) -> List[Tuple[str, int]]:
    present = [entry for entry in entries if entry[0] in clips]
    if len(present) < len(entries):
        missing = next(name for name, _ in entries if name not in clips)
        count = f"{len(entries) - len(present)} of {len(entries)}"
        print(f"warning: {source}: {count} are not on the disk, such as {missing}", file=sys.stderr)
    return present


def _lines(file: Path) -> List[str]:
    if not file.is_file():
        raise ScriptError(f"{file}: no such file")
    return [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]


def read_classes(file: Optional[Path]) -> List[str]:
    """The class names of a file, one a line; none without a file."""
    return [line.strip() for line in _lines(file)] if file else []


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the script; returns the exit code."""
    args = parse_args(argv)
    clips = find_clips(args)
    if args.annotations is None:
        lists, names = from_folders(clips, args)
    elif args.annotations[0].is_dir():
        lists, names = from_ucf101(args.annotations[0], clips, args)
    else:
        lists, names = from_kinetics(args.annotations, clips, args)
    if not any(lists.values()):
        raise ScriptError(
            "nothing that the annotations list is on the disk; check root, --level and --format"
        )
    output: Path = args.out_list_path
    for file, entries in lists.items():
        if args.shuffle:
            random.Random(args.seed).shuffle(entries)
        lines = []
        for name, label in entries:
            clip = clips[name]
            path = clip.path.relative_to(args.root) if args.relative else clip.path.absolute()
            count = "" if clip.num_frames is None else f" {clip.num_frames}"
            lines.append(f"{path.as_posix()}{count} {label}")
        write_lines(output / file, lines)
        print(f"{output / file}: {len(lines)} lines")
    write_lines(output / "classes.txt", names)
    return 0


if __name__ == "__main__":
    run_main(main)

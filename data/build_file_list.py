"""Writes the lists for training and validation of a data set of your own.

Each folder in `root` is a class, numbered in alphabetical order, and --valid-share of each class goes to
validation. Writes train.list, valid.list and classes.txt. Lines are `path label` for videos and
`folder num_frames label` for rawframes.

Data sets with annotations have scripts of their own, such as data/ucf101/build_lists.py.

Example:
    python data/build_file_list.py videos --format videos --valid-share 0.2 --shuffle
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from _common import ScriptError, run_main, write_lines
from _lists import Clip, find_clips, write_list

Lists = Dict[str, List[Tuple[Clip, int]]]  # file name -> clips with their labels


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """The command line; see --help."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("root", type=Path, help="folder with a folder for each class")
    add(
        "--format",
        choices=("videos", "rawframes"),
        default="rawframes",
        help="what is listed (default rawframes)",
    )
    add("--rgb_prefix", "--rgb-prefix", default="img_", help="how frame files begin (default img_)")
    add(
        "--out_list_path",
        "--out-list-path",
        "--output",
        type=Path,
        default=Path(),
        help="folder for the lists",
    )
    add("--classes", type=Path, help="file with the class names in the order of their labels")
    add("--valid-share", type=float, default=0.2, help="share for validation (default 0.2)")
    add(
        "--relative",
        action="store_true",
        help="paths relative to root (data_prefix) instead of absolute ones",
    )
    add("--shuffle", action="store_true", help="shuffle the lines")
    add("--seed", type=int, default=0, help="of the split and the shuffling (default 0)")
    return parser.parse_args(argv)


def clips_by_class(args: argparse.Namespace) -> Dict[str, List[Clip]]:
    """Class folder -> its videos or folders of frames.

    Raises:
        ScriptError: there is none.
    """
    found: Dict[str, List[Clip]] = {}
    for clip in find_clips(args.root, args.format == "rawframes", 2, args.rgb_prefix):
        if clip.path.parent != args.root:
            found.setdefault(clip.path.parent.name, []).append(clip)
    if not found:
        raise ScriptError(f"{args.root}: no {args.format} in the folders in it; check --format")
    return found


def split(classes: Dict[str, List[Clip]], names: Sequence[str], args: argparse.Namespace) -> Lists:
    """The lists, divided at random within each class."""
    if not 0 <= args.valid_share < 1:
        raise ScriptError(f"--valid-share: {args.valid_share}; must be from 0 to below 1")
    unknown = sorted(set(classes) - set(names))
    if unknown:
        raise ScriptError(f"{args.classes}: lacks the class folders {', '.join(unknown)}")
    rng = random.Random(args.seed)
    lists: Lists = {"train.list": [], "valid.list": []}
    for label, class_name in enumerate(names):
        clips = classes.get(class_name, [])
        chosen = set(rng.sample(clips, round(len(clips) * args.valid_share)))
        for clip in clips:
            lists["valid.list" if clip in chosen else "train.list"].append((clip, label))
    return {file: entries for file, entries in lists.items() if entries}


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
    classes = clips_by_class(args)
    names = read_classes(args.classes) or sorted(classes)
    output: Path = args.out_list_path
    for file, entries in split(classes, names, args).items():
        if args.shuffle:
            random.Random(args.seed).shuffle(entries)
        write_list(output / file, entries, args.root if args.relative else None)
        print(f"{output / file}: {len(entries)} lines")
    write_lines(output / "classes.txt", names)
    return 0


if __name__ == "__main__":
    run_main(main)

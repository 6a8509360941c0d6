"""Makes a small video data set in which only the motion tells the class.

Textured sprites move over textured backgrounds: left, right, up, down, grow, shrink, turn_left, turn_right.
A single frame does not tell the class, so a model that looks at frames one by one stays near chance and one
that relates frames does not. The same arguments give the same files. A run that was stopped goes on where it
was.

Writes to --output: train/ and valid/ with H.264 clips, train.list and valid.list (lines `path label`, paths
relative to --output: the config's data_prefix), classes.txt (one class name a line) and dataset.json (the
arguments).

Example:
    python data/make_motion_dataset.py --output data/motion --train 10000 --valid 400
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from _common import (
    ScriptError,
    progress,
    run_main,
    run_parallel,
    write_lines,
    write_whole,
)
from _motion import CLASSES, make_clip

from paddlevideo_fast.machine import num_cores

_VERSION = 1  # raised when the same arguments give other clips
_SPLITS = ("train", "valid")
Task = Tuple[str, str, int, int, Tuple[int, int, int]]


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """The command line; see --help."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("data/motion"), help="folder to write to")
    parser.add_argument("--train", type=int, default=10000, help="number of training clips (default 10000)")
    parser.add_argument("--valid", type=int, default=400, help="number of validation clips (default 400)")
    parser.add_argument("--size", type=int, default=64, help="width and height in pixels, even (default 64)")
    parser.add_argument("--frames", type=int, default=24, help="frames a clip (default 24)")
    parser.add_argument(
        "--classes",
        default=",".join(CLASSES),
        help="class names joined by commas; the order is that of the labels",
    )
    parser.add_argument("--seed", type=int, default=0, help="what all randomness comes from (default 0)")
    parser.add_argument("--workers", type=int, default=num_cores(), help="processes (default: all CPUs)")
    return parser.parse_args(argv)


def check_args(args: argparse.Namespace) -> Dict[str, Any]:
    """The arguments that decide the content, checked, as dataset.json keeps them."""
    classes = [name.strip() for name in args.classes.split(",") if name.strip()]
    unknown = sorted(set(classes) - set(CLASSES))
    if unknown:
        raise ScriptError(f"--classes: unknown {', '.join(unknown)}; known: {', '.join(CLASSES)}")
    if len(classes) < 2 or len(set(classes)) != len(classes):
        raise ScriptError("--classes: give two or more different names")
    for name, least in (("train", 1), ("valid", 0), ("frames", 2), ("size", 16), ("seed", 0)):
        if getattr(args, name) < least:
            raise ScriptError(f"--{name}: {getattr(args, name)}; must be {least} or more")
    if args.size % 2:
        raise ScriptError(f"--size: {args.size}; must be even")
    keys = ("train", "valid", "size", "frames", "seed")
    return {"version": _VERSION, "classes": classes, **{key: getattr(args, key) for key in keys}}


def adopt_folder(output: Path, wanted: Dict[str, Any]) -> bool:
    """Takes the output folder for this data set; returns whether the set is complete already.

    Raises:
        ScriptError: something else is there.
    """
    meta = output / "dataset.json"
    if meta.is_file():
        try:
            found = json.loads(meta.read_text())
            complete = bool(found.pop("complete"))
        except (ValueError, KeyError, AttributeError) as error:
            raise ScriptError(f"{meta}: damaged; remove the folder or choose another --output") from error
        if found != wanted:
            differing = sorted(key for key in {*found, *wanted} if found.get(key) != wanted.get(key))
            raise ScriptError(
                f"{output} holds a data set made with another {', '.join(differing)} "
                f"({', '.join(f'{key}: {found.get(key)}' for key in differing)}); "
                "remove the folder or choose another --output"
            )
        return complete and all((output / path).is_file() for path in expected_files(wanted))
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ScriptError(f"{output} exists and is not a motion data set; choose another --output")
    write_meta(output, wanted, complete=False)
    return False


def expected_files(wanted: Dict[str, Any]) -> List[str]:
    """Everything a complete data set has, apart from dataset.json."""
    clips = [clip_path(split, number) for split in _SPLITS for number in range(wanted[split])]
    return ["classes.txt", *(f"{split}.list" for split in _SPLITS), *clips]


def clip_path(split: str, number: int) -> str:
    """A clip's path below the output folder; it does not tell the class."""
    return f"{split}/{number:06d}.mp4"


def write_meta(output: Path, wanted: Dict[str, Any], complete: bool) -> None:
    """Writes dataset.json."""
    text = json.dumps({**wanted, "complete": complete}, indent=2)
    write_whole(output / "dataset.json", f"{text}\n".encode())


def write_clip(task: Task) -> None:
    """Renders and writes one clip."""
    path, name, num_frames, size, key = task
    write_whole(Path(path), make_clip(name, num_frames, size, key))


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the script; returns the exit code."""
    args = parse_args(argv)
    wanted = check_args(args)
    output: Path = args.output
    if adopt_folder(output, wanted):
        print(f"{output}: complete already, nothing to do")
        return 0
    classes = wanted["classes"]
    tasks: List[Task] = []
    for split_number, split in enumerate(_SPLITS):
        for number in range(wanted[split]):
            path = output / clip_path(split, number)
            if not path.is_file():
                key = (args.seed, split_number, number)
                tasks.append((str(path), classes[number % len(classes)], args.frames, args.size, key))
    for _ in progress(run_parallel(write_clip, tasks, args.workers, chunk=16), len(tasks), "clips"):
        continue
    for split in _SPLITS:
        lines = [f"{clip_path(split, number)} {number % len(classes)}" for number in range(wanted[split])]
        write_lines(output / f"{split}.list", lines)
    write_lines(output / "classes.txt", classes)
    write_meta(output, wanted, complete=True)
    print(f"{output}: {args.train} training and {args.valid} validation clips of {len(classes)} classes")
    return 0


if __name__ == "__main__":
    run_main(main)

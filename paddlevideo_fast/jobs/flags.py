"""The flags of the data tools: one vocabulary."""

import argparse
from pathlib import Path
from typing import Any

from paddlevideo_fast.command_line import DRY_RUN, JSON, CommandParser, count, option
from paddlevideo_fast.decode.image_folder import DEFAULT_SUFFIX
from paddlevideo_fast.errors import EXIT_CODES
from paddlevideo_fast.io.files import as_path
from paddlevideo_fast.jobs.executor import LOCAL
from paddlevideo_fast.jobs.work import Shard
from paddlevideo_fast.machine import num_cores

_KINDS = {
    "video": "video",
    "frames": "frames",
    "videos": "video",
    "rawframes": "frames",
}  # PaddleVideo's, too


def _folder(text: str) -> Any:
    path = as_path(text)
    if isinstance(path, Path) and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: no such folder")
    return path


def _scheduler(text: str) -> str:
    if text != LOCAL and "://" not in text:
        raise argparse.ArgumentTypeError(f"{text}; must be local or tcp://HOST:PORT")
    return text


def _job(text: str) -> Shard:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"{text}; must be I/N with I from 0 to N - 1, such as 0/3")
    return Shard(int(index), int(count))


_SHARED: dict[str, dict[str, Any]] = {
    "--list": option(
        "annotation list to read, or folder of a set with a config.yaml",
        type=as_path,
        metavar="FILE",
        positional="LIST",
    ),
    "--root": option(type=as_path, metavar="FOLDER", positional="ROOT"),
    "--kind": option(
        "video: lines `path label` (default); frames: lines `folder num_frames label`",
        type=lambda text: _KINDS.get(text, text),
        choices=tuple(_KINDS),
        metavar="{video,frames}",
        default="video",
    ),
    "--data_prefix": option(
        "folder that relative paths of the list start from (default: the working folder)",
        type=_folder,
        metavar="FOLDER",
    ),
    "--suffix": option(
        "ending to add to paths of videos that lack it, such as .avi; "
        f"with --kind frames, format of the names of images (default {DEFAULT_SUFFIX})",
        default="",
    ),
    "--output": option(type=as_path, metavar="FOLDER"),
    "--quality": option("JPEG quality, 1 to 100 (default %(default)s)", type=count(1, 100)),
    "--decoder": option(
        "library that decodes (default %(default)s)",
        choices=("pyav", "cv2", "decord"),
        default="pyav",
        was="--backend",
        rare=True,
    ),
    "--workers": option(
        "processes (default: all CPUs); 0 and 1 do all work in this process",
        type=count(0),
        default=num_cores(),
    ),
    "--scheduler": option(
        "where to do the work: local (default), or on the workers of the Dask scheduler at an address",
        type=_scheduler,
        default=LOCAL,
        metavar="{local,tcp://HOST:PORT}",
        rare=True,
    ),
    "--job": option(
        "do job I of N, with I from 0 to N - 1, as one of an array of jobs; then use --merge",
        type=_job,
        metavar="I/N",
        was="--shard",
        rare=True,
    ),
    "--merge": option(
        "combine the results of all jobs of --job, and do nothing else", action="store_true", rare=True
    ),
    "--margin": option(
        "frames to store on both sides of a span, for clips that reach over it (default 0)",
        type=count(0),
        default=0,
    ),
    "--class_names": option(
        "names of the classes, one a line, in the order of their labels",
        type=as_path,
        metavar="FILE",
        was="--classes",
    ),
    "--overwrite": option(action="store_true"),
    "--dry_run": DRY_RUN,
    "--shuffle": option("shuffle the lines, in the same way in each run", action="store_true"),
    "--seed": option(type=count(0), default=0),
    "--json": JSON,
}


def tool_parser(name: str, description: str | None) -> CommandParser:
    """The parser of a data tool, which knows the flags above by their names.

    Args:
        name: of the command, such as "data list".
        description: what it does.
    """
    return CommandParser(name, description, vocabulary=_SHARED, epilog=EXIT_CODES)


def share(parser: CommandParser, *names: str) -> None:
    """Adds flags as the vocabulary has them."""
    for name in names:
        parser.add_argument(name, **_SHARED[name])


def add_work(parser: CommandParser, *aliases: str) -> None:
    """Adds --json and the flags that `Work.of` reads; `aliases` are other names of --workers."""
    parser.add_argument("--workers", *aliases, default=None)
    share(parser, "--scheduler", "--job", "--merge", "--json")

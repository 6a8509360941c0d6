"""The flags of the data tools: one vocabulary, in which older names still work.

    --list FILE           annotation list to read
    --root FOLDER         folder that is searched for videos, or for folders of frames
    --kind video|frames   what the list names, or the folder holds
    --data_prefix FOLDER  folder that relative paths of the list start from
    --suffix TEXT         ending of videos, or format of the names of frames
    --output PATH         where the results go
    --short_side PX       size of stored frames
    --margin FRAMES       what is stored around the spans of a list
    --classes FILE        class names in the order of their labels
    --workers N           processes
    --scheduler PLACE     this machine, or a Dask cluster
    --shard I/N, --merge  one job's share of the work, and the end of it

Every flag may be written with - in place of _.
"""

import argparse
import copy
import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from paddlevideo_fast.decode.image_folder import DEFAULT_SUFFIX
from paddlevideo_fast.errors import EXIT_CODES
from paddlevideo_fast.io.files import UrlPath, as_path
from paddlevideo_fast.machine import num_cores
from paddlevideo_fast.preparation.executor import LOCAL
from paddlevideo_fast.preparation.run import ToolError
from paddlevideo_fast.preparation.work import Share

_OLDER_KINDS = {"videos": "video", "rawframes": "frames"}


def number(least: int, most: int | None = None, even: bool = False) -> Callable[[str], int]:
    """An argparse type: a whole number from `least` to `most`."""
    wanted = f"{least} or more" if most is None else f"{least} to {most}"
    wanted = f"an even number, {wanted}" if even else wanted

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text}; must be a whole number") from None
        if value < least or (most is not None and value > most) or (even and value % 2):
            raise argparse.ArgumentTypeError(f"{text}; must be {wanted}")
        return value

    return convert


def _scheduler(text: str) -> str:
    if text != LOCAL and "://" not in text and not text.endswith((".yaml", ".yml")):
        raise argparse.ArgumentTypeError(f"{text}; must be local, tcp://HOST:PORT, or a YAML file")
    return text


def _share(text: str) -> Share:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"{text}; must be I/N with I from 0 to N - 1, such as 0/3")
    return Share(int(index), int(count))


def _kind(text: str) -> str:
    return _OLDER_KINDS.get(text, text)


_SHARED: dict[str, dict[str, Any]] = {
    "--list": {"type": as_path, "metavar": "FILE", "help": "annotation list to read"},
    "--root": {"type": as_path, "metavar": "FOLDER"},
    "--kind": {
        "type": _kind,
        "choices": ("video", "frames", *_OLDER_KINDS),
        "metavar": "{video,frames}",
        "default": "video",
        "help": "video: lines `path label` (default); frames: lines `folder num_frames label`",
    },
    "--data_prefix": {
        "type": as_path,
        "metavar": "FOLDER",
        "help": "folder that relative paths of the list start from (default: the working folder)",
    },
    "--suffix": {
        "default": "",
        "help": "ending to add to paths of videos that lack it, such as .avi; "
        f"with --kind frames, format of the names of images (default {DEFAULT_SUFFIX})",
    },
    "--output": {"type": as_path, "metavar": "FOLDER"},
    "--quality": {"type": number(1, 100), "help": "JPEG quality, 1 to 100 (default %(default)s)"},
    "--backend": {
        "choices": ("pyav", "cv2", "decord"),
        "default": "pyav",
        "help": "decoder (default %(default)s)",
    },
    "--workers": {
        "type": number(0),
        "default": num_cores(),
        "help": "processes (default: all CPUs); 0 and 1 do all work in this process",
    },
    "--scheduler": {
        "type": _scheduler,
        "default": LOCAL,
        "metavar": "{local,tcp://HOST:PORT,FILE.yaml}",
        "help": "where the work is done. local: on this machine (default); the address of a Dask scheduler: "
        "on its workers; a YAML file: by jobs of Slurm or another job scheduler, which this command submits",
    },
    "--shard": {
        "type": _share,
        "metavar": "I/N",
        "help": "do every N-th task from number I on, 0 to N - 1, for an array of N jobs; then use --merge",
    },
    "--merge": {
        "action": "store_true",
        "help": "do no task: put together what all --shard jobs have done",
    },
    "--margin": {
        "type": number(0),
        "default": 0,
        "help": "frames to store on both sides of a span, for clips that reach over it (default 0)",
    },
    "--classes": {
        "type": as_path,
        "metavar": "FILE",
        "help": "class names in the order of their labels, for a list that has names",
    },
    "--overwrite": {"action": "store_true"},
    "--shuffle": {"action": "store_true", "help": "shuffle the lines, in the same way in each run"},
    "--seed": {"type": number(0), "default": 0},
}


def add_place(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say where, and which share of, the work of a command is done."""
    for name in ("--scheduler", "--shard", "--merge"):
        parser.add_argument(name, **_SHARED[name])


class _Help(argparse.RawDescriptionHelpFormatter):
    """Shows each flag by its first name alone."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = copy.copy(action)
        if "--help" not in action.option_strings:
            shown.option_strings = action.option_strings[:1]
        return super()._format_action_invocation(shown)


class ToolParser(argparse.ArgumentParser):
    """Parses the command line of a data tool; what is wrong with it is a `ToolError`.

    Args:
        name: of the command, such as "data list".
        description: what it does.
    """

    def __init__(self, name: str, description: str | None) -> None:
        super().__init__(
            prog=f"paddlevideo-fast {name}",
            description=inspect.cleandoc(description or ""),
            formatter_class=_Help,
            epilog=EXIT_CODES,
        )
        self._older: list[str] = []
        self._places: dict[str, str] = {}  # older name of a place on the command line → attribute of the flag

    def add(self, name: str, *older: str, **options: Any) -> None:
        """Adds a flag.

        Args:
            name: its name; a flag of the shared vocabulary needs no options.
            older: other names that work; a name without -- is a place on the command line.
            options: as of `add_argument`.
        """
        options = {**_SHARED.get(name, {}), **options}
        names = [name, *(alias for alias in older if alias.startswith("--"))]
        hyphened = [f"--{alias[2:].replace('_', '-')}" for alias in names if "_" in alias]
        self.add_argument(*names, *hyphened, dest=name[2:], **options)
        for place in set(older).difference(names):
            self.add_argument(place, nargs="?", type=options["type"], help=argparse.SUPPRESS)
            self._places[place] = name[2:]
        self.say_older(**dict.fromkeys(older, name))

    def add_work(self, *older: str) -> None:
        """Adds the flags that `Work.of` reads; `older` are other names of --workers."""
        self.add("--workers", *older, default=None)
        add_place(self)

    def say_older(self, **names: str) -> None:
        """Lists older names in the help, each with what to write today."""
        self._older += [f"{older} ({name})" for older, name in names.items()]
        if self._older:
            text = textwrap.fill(f"Older names that still work: {', '.join(self._older)}.", 100)
            self.epilog = f"{EXIT_CODES}\n\n{text}"

    def parse(self, argv: Sequence[str] | None, **required: str) -> argparse.Namespace:
        """The command line.

        Args:
            argv: its words; None: those of this process.
            required: flags that must be given, and what they are.

        Raises:
            ToolError: a flag is unknown, missing or has a wrong value.
        """
        args = self.parse_intermixed_args(argv)
        for place, name in self._places.items():
            if getattr(args, place) is not None:
                setattr(args, name, getattr(args, place))
        self.require(args, **required)
        prefix = getattr(args, "data_prefix", None)
        if prefix and not isinstance(prefix, UrlPath) and not prefix.is_dir():
            raise ToolError(f"--data_prefix {prefix}: no such folder")
        return args

    def require(self, args: argparse.Namespace, **required: str) -> None:
        """Raises `ToolError` where one of these flags is missing; the value says what it is."""
        for name, what in required.items():
            if getattr(args, name) is None:
                raise ToolError(f"--{name} is missing: {what}")

    def error(self, message: str) -> NoReturn:
        raise ToolError(re.sub(r"^argument (--\w+)[^:]*", r"\1", message))  # the flag's first name alone

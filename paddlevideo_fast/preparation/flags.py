"""The flags of the data tools: one vocabulary. Each flag may be written with - in place of _."""

import argparse
import copy
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from paddlevideo_fast.decode.image_folder import DEFAULT_SUFFIX
from paddlevideo_fast.errors import EXIT_CODES
from paddlevideo_fast.io.files import UrlPath, as_path
from paddlevideo_fast.machine import num_cores
from paddlevideo_fast.preparation.executor import LOCAL
from paddlevideo_fast.preparation.run import ToolError
from paddlevideo_fast.preparation.work import Share

_KINDS = {
    "video": "video",
    "frames": "frames",
    "videos": "video",
    "rawframes": "frames",
}  # PaddleVideo's, too


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


_SHARED: dict[str, dict[str, Any]] = {
    "--list": {"type": as_path, "metavar": "FILE", "help": "annotation list to read"},
    "--root": {"type": as_path, "metavar": "FOLDER"},
    "--kind": {
        "type": lambda text: _KINDS.get(text, text),
        "choices": tuple(_KINDS),
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
    "--estimate": {"type": number(1), "nargs": "?", "metavar": "VIDEOS"},
    "--overwrite": {"action": "store_true"},
    "--shuffle": {"action": "store_true", "help": "shuffle the lines, in the same way in each run"},
    "--seed": {"type": number(0), "default": 0},
}


def add_place(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say where, and which share of, the work of a command is done."""
    for name in ("--scheduler", "--shard", "--merge"):
        parser.add_argument(name, **_SHARED[name])


class _Help(argparse.RawDescriptionHelpFormatter):
    """Shows each flag with _ alone."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = copy.copy(action)
        shown.option_strings = [name for name in action.option_strings if "-" not in name[2:]]
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
        self._unflagged: dict[str, str] = {}  # name of a positional argument → name of its flag

    def add(self, *names: str, positional: Any = "", **options: Any) -> None:
        """Adds a flag.

        Args:
            names: its name, and names that PaddleVideo's scripts have for it; a flag of the shared vocabulary
                needs no options.
            positional: the name of the argument without a flag that PaddleVideo's script has for it.
            options: as of `add_argument`.
        """
        options = {**_SHARED.get(names[0], {}), **options}
        hyphened = [f"--{name[2:].replace('_', '-')}" for name in names if "_" in name]
        self.add_argument(*names, *hyphened, dest=names[0][2:], **options)
        if positional:
            self._unflagged[positional] = names[0][2:]
            self.add_argument(positional, nargs="?", type=options["type"], help=f"the same as {names[0]}")

    def share(self, *names: str) -> None:
        """Adds flags as the shared vocabulary has them."""
        for name in names:
            self.add(name)

    def add_work(self, *aliases: str) -> None:
        """Adds the flags that `Work.of` reads; `aliases` are other names of --workers."""
        self.add("--workers", *aliases, default=None)
        add_place(self)

    def parse(self, argv: Sequence[str] | None, **required: str) -> argparse.Namespace:
        """The command line.

        Args:
            argv: its words; None: those of this process.
            required: flags that must be given, and what they are.

        Raises:
            ToolError: a flag is unknown, missing or has a wrong value.
        """
        args = self.parse_intermixed_args(argv)
        for positional, name in self._unflagged.items():
            if getattr(args, positional) is not None:
                setattr(args, name, getattr(args, positional))
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

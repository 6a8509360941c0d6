"""The command `paddlevideo-fast`: its subcommands, each imported when it is asked for.

To add one, write a module with `build_parser()` and `run(args)`, and name it in the table of `annexes`.
"""

import argparse
import importlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import paddlevideo_fast
from paddlevideo_fast import annexes
from paddlevideo_fast.cli.command import TYPED, run_command, say_error
from paddlevideo_fast.command_line import PROGRAM, CommandParser
from paddlevideo_fast.errors import EXIT_CODES, EXIT_USER_ERROR, PaddleVideoFastError, UsageError
from paddlevideo_fast.registry import did_you_mean


class Command(annexes.CommandRow):
    """A subcommand, which imports its module when it is used."""

    def load(self, function: str) -> Callable[..., Any]:
        """A function of the module, by name. Once this is imported, Ctrl-C raises `KeyboardInterrupt`."""
        loaded = getattr(importlib.import_module(self.module), function)
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # see `__main__`
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return loaded

    def start(self, words: Sequence[str] | None = None) -> int:
        """Runs a command line and returns the exit code; without words, the command line of the process."""
        return run_command(self.run, sys.argv[1:] if words is None else words, self._to_go_on)

    def run(self, words: Sequence[str]) -> int | None:
        """See `start`; errors are raised."""
        args = self.make_parser().parse_args(words)
        args.typed = self.typed(words)
        return self.load(self.function)(args)

    def typed(self, words: Sequence[str]) -> str:
        """A command line as the user types it, who may have typed it after `launch`."""
        return os.environ.get(TYPED) or shlex.join([*self.make_parser().prog.split(), *words])

    def _to_go_on(self, words: Sequence[str]) -> str:
        """The command that goes on after Ctrl-C; "" where nothing is there that it could go on with."""
        given = vars(self.make_parser().parse_args(words))
        writes = any(given[flag] for flag in self.goes_on.split()) and not given.get("dry_run")
        return self.typed(words) if writes else ""

    def make_parser(self) -> argparse.ArgumentParser:
        """Its parser."""
        return self.load(self.parser)()


class Group(Command):
    """A subcommand that is a group of commands."""

    def start(self, words: Sequence[str] | None = None) -> int:
        return getattr(importlib.import_module(self.module), self.parser)().start(words or [])


COMMANDS: dict[str, Command] = {
    name: (Group if row.is_group else Command)(*row) for name, row in annexes.commands().items()
}


class GroupParser(CommandParser):
    """The parser of a command that is a group of commands.

    Args:
        name: of the group; "" for `paddlevideo-fast`.
        commands: of the group, by name.
        description: what the group is for.
    """

    def __init__(self, name: str, commands: dict[str, Command], description: str) -> None:
        width = max(map(len, commands)) + 2
        listing = "\n".join(f"  {word:<{width}}{command.text}" for word, command in commands.items())
        super().__init__(name, description)
        more = f"{self.prog} COMMAND --help  shows the flags of a command.\n{EXIT_CODES}"
        self.epilog = f"commands:\n{listing}\n\n{more}"
        self.commands = commands
        self.add_argument("command", nargs="?", help=argparse.SUPPRESS)

    def start(self, words: Sequence[str]) -> int:
        """Runs the command that `words` begin with and returns its exit code."""
        if words and words[0] in self.commands:
            return self.commands[words[0]].start(words[1:])
        wanted = self.parse_known_args(words[:1])[0].command  # --help and --version end here
        if wanted is not None:
            hint = did_you_mean(wanted, self.commands)
            return say_error(UsageError(f"there is no command '{self.prog} {wanted}'{hint}"))
        self.print_help()
        return EXIT_USER_ERROR


def build_parser() -> GroupParser:
    """Trains video action recognition models fast on PaddlePaddle, from a YAML file.

    Examples:
        paddlevideo-fast init videos --output my_set     # videos/ has a folder for each class
        paddlevideo-fast train my_set
        paddlevideo-fast predict output/my_set -i video.mp4
    """
    parser = GroupParser("", COMMANDS, build_parser.__doc__ or "")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {paddlevideo_fast.__version__}")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code."""
    words: list[str] = list(sys.argv[1:] if argv is None else argv)
    if words and words[0].startswith("-") and words[0] not in ("-h", "--help", "--version"):
        words = ["train", *words]  # what the command was before it had subcommands
    try:
        return build_parser().start(words)
    except PaddleVideoFastError as error:  # of an import: the commands handle those of their work
        return say_error(error)

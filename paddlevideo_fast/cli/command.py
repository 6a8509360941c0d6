"""What the commands share: arguments, exit codes, progress, and an import of Paddle that keeps quiet."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.config.startup import prepare_process
from paddlevideo_fast.errors import EXIT_INTERRUPTED, EXIT_USER_ERROR, MissingExtraError, PaddleVideoFastError
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.log import setup_logging, tolerate_names

if TYPE_CHECKING:
    from paddlevideo_fast.config import Config

PROGRAM = "paddlevideo-fast"
Args = TypeVar("Args")
Rules = Callable[[argparse.ArgumentParser, argparse.Namespace], None]


def say(text: str) -> None:
    """Prints a line on stderr."""
    print(text, file=sys.stderr, flush=True)


class CommandParser(argparse.ArgumentParser):
    """The parser of a command.

    Args:
        name: of the command, such as "export".
        description: the text of its help, lines as they are.
        rules: gets the parser and each command line; reports flags that do not fit each other by `error`.
        options: as of `ArgumentParser`.
    """

    def __init__(
        self, name: str, description: str | None, rules: Rules = lambda parser, args: None, **options: Any
    ) -> None:
        super().__init__(
            prog=f"{PROGRAM} {name}",
            description=description or "",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **options,
        )
        self._rules = rules

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The command line, after its rules."""
        found = super().parse_args(args, namespace)
        self._rules(self, found)
        return found


def run_command(
    work: Callable[[Args], int | None], args: Args, tell: Callable[[str], None] | None = None
) -> int:
    """Runs a command and returns its exit code.

    Args:
        work: does the command's work; it may return an exit code.
        args: the command line, parsed or as words, which `work` gets.
        tell: called with the message of wrong input, by a command that has set up the log. None: the log and
            the message go to stderr, and stdout has results alone.

    Returns:
        What `work` returned, or 0. 2: wrong input, told in one message. 130: interrupted by Ctrl-C. 141: its
        output has no reader any more.
    """
    tolerate_names()
    if tell is None:
        setup_logging(stream=sys.stderr)
        tell = say
    try:
        code = work(args) or 0
        sys.stdout.flush()
        return code
    except PaddleVideoFastError as error:
        tell(f"{type(error).__name__}: {error}")
        return EXIT_USER_ERROR
    except KeyboardInterrupt as error:
        tell("; ".join(["interrupted", *map(str, error.args)]))
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # as of `paddlevideo-fast predict ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end of Python
        return 128 + signal.SIGPIPE


def load_for_run(
    args: argparse.Namespace, overrides: Sequence[str] | None = None, logs: bool = False
) -> Config:
    """Prepares the process for a config, imports Paddle quietly, and loads the config.

    Args:
        args: a command line with -c and -o.
        overrides: of the config; None: those of -o.
        logs: set up the log of a run, as the config says.

    Raises:
        ConfigError: the config is wrong.
        MissingExtraError: Paddle is not installed.
    """
    overrides = args.override if overrides is None else overrides
    prepare_process(args.config, overrides)
    with quiet_import():
        import paddlevideo_fast.assembly  # noqa: F401  # and Paddle with it
    cfg = load_config(args.config, overrides)
    if logs:
        setup_logging(cfg.get("log_level", "INFO"), rank())
    return cfg


def rank() -> int:
    """The rank of this process among those that a launcher has started."""
    return int(os.environ.get("PADDLE_TRAINER_ID", "0"))


def add_options(parser: argparse._ActionsContainer, options: Mapping[str, Mapping[str, Any]]) -> None:
    """Adds a table of options: from their names, such as `-b --batch_size`, to what `add_argument` takes."""
    for names, option in options.items():
        parser.add_argument(*names.split(), **option)


def add_config_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Adds -c and -o, which mean the same in every command that reads a config."""
    parser.add_argument("-c", "--config", required=required, help="YAML file, or name of a built-in config")
    parser.add_argument(
        "-o",
        "--override",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="sets a key of the config; may be given more than once",
    )
    add_import_argument(parser)


class _Import(argparse._AppendAction):
    """Collects names, and adds each to the overrides."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        super().__call__(parser, namespace, values, option_string)
        namespace.override = [*namespace.override, f"imports={json.dumps([values])}"]


def add_import_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --import to a command with --override: it names plug-ins as the key `imports` of a config does."""
    parser.add_argument(
        "--import",
        dest="imports",
        action=_Import,
        default=[],
        metavar="MODULE_OR_FILE",
        help="imports components of your own, such as ./my_parts.py; may be given more than once",
    )


def count(lowest: int) -> Callable[[str], int]:
    """An argparse type: a whole number from `lowest` on."""

    def convert(text: str) -> int:
        if not text.isdigit() or int(text) < lowest:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {lowest} on")
        return int(text)

    return convert


def show_result(
    result: Mapping[str, Any],
    args: argparse.Namespace,
    as_text: Callable[[Mapping[str, Any]], str],
    name: str,
    draw: Callable[[Mapping[str, Any], Path], None] | None = None,
) -> None:
    """Prints what a measurement found, as text or JSON, and writes it with a picture to the output folder.

    Args:
        result: JSON values.
        args: a command line with `json` and `output`, a folder or None.
        as_text: gives the text.
        name: of the files in the folder, NAME.json and NAME.png.
        draw: draws the picture; None: there is none.

    Raises:
        PaddleVideoFastError: a file cannot be written, or another process writes it.
    """
    print(json.dumps(result, indent=1) if args.json else as_text(result))
    if args.output:
        from paddlevideo_fast.report import save_json

        with only_writer(args.output, name):
            save_json(result, args.output / f"{name}.json")
            if draw is not None:
                draw(result, args.output / f"{name}.png")


def timed_progress() -> Callable[[str], None]:
    """A function that prints the progress of a measurement on stderr, with the seconds since this call."""
    began = time.monotonic()

    def progress(text: str) -> None:
        print(f"[{time.monotonic() - began:3.0f} s] {text}", file=sys.stderr, flush=True)

    return progress


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Keeps what Paddle prints while it is imported off the console, and shows it if the import fails.

    C++ code writes part of it straight to file descriptor 2, so it is caught there.

    Raises:
        MissingExtraError: Paddle is not installed.
    """
    warnings.filterwarnings("ignore", module=r"paddle\..*")
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            yield
        except ModuleNotFoundError as exc:
            if exc.name == "paddle":
                raise MissingExtraError("paddlepaddle", "cpu", "paddlevideo_fast") from exc
            raise
        except BaseException:
            caught.seek(0)
            os.write(kept, caught.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)

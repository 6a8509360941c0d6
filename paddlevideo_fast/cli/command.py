"""What the commands share: arguments, weights, exit codes, progress, and a quiet import of Paddle."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import json
import os
import shlex
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from paddlevideo_fast.command_line import PROGRAM, CommandParser
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.config.startup import prepare_process
from paddlevideo_fast.errors import (
    EXIT_USER_ERROR,
    MissingExtraError,
    OutOfMemoryError,
    PaddleVideoFastError,
    WeightError,
)
from paddlevideo_fast.extras import check_versions
from paddlevideo_fast.io.files import as_json, as_path
from paddlevideo_fast.log import get_logger, setup_logging, tolerate_names, value_text
from paddlevideo_fast.machine import answering_ctrl_c, tune_process

if TYPE_CHECKING:
    from paddlevideo_fast.config import Config

Args = TypeVar("Args")
TYPED = "PADDLEVIDEO_FAST_TYPED"  # in the processes of `launch`, the command line that started them


def say(text: str) -> None:
    """Prints a line on stderr, in one piece."""
    print(f"{text}\n", end="", file=sys.stderr, flush=True)


def say_error(error: PaddleVideoFastError) -> int:
    """Prints an error on stderr and returns the exit code."""
    who = f"rank {rank()}: " if rank() else ""
    say(f"{who}{type(error).__name__}: {error}")
    return EXIT_USER_ERROR


def say_interrupted(signal_number: int = signal.SIGINT, to_go_on: str = "") -> int:
    """Prints that a signal ended the command, with the command to go on, and returns the exit code."""
    if rank() == 0:
        say(f"interrupted; to go on:  {to_go_on}" if to_go_on else "interrupted")
    return 128 + signal_number


def as_lines(result: Mapping[str, Any]) -> str:
    """A result as lines `name: value`, without what is empty."""
    given = {name: value for name, value in result.items() if value not in (None, {}, [])}
    return "\n".join(f"{name}: {value_text(value)}" for name, value in given.items())


def print_result(result: Mapping[str, Any], json: bool, as_text: Callable[[Any], str] = as_lines) -> None:
    """Prints a result on stdout; of several processes of a run, rank 0 does.

    Args:
        result: JSON values and paths.
        json: as a line of JSON, as `--json` asks for; else as text.
        as_text: gives the text.
    """
    if rank() == 0:
        is_utf8 = codecs.lookup(sys.stdout.encoding or "ascii").name == "utf-8"
        print(as_json(result, not is_utf8) if json else as_text(result), flush=True)


def run_command(
    work: Callable[[Args], int | None], args: Args, to_go_on: Callable[[Args], str] = lambda args: ""
) -> int:
    """Runs a command and returns its exit code. Its log goes to stderr: stdout is for results alone.

    Args:
        work: does the command's work; it may return an exit code.
        args: the command line, parsed or as words, which `work` gets.
        to_go_on: gives the command that goes on with the work after Ctrl-C; "": none does.

    Returns:
        What `work` returned, or 0. 2: wrong input, told in one message on stderr. 130: interrupted by Ctrl-C.
        141: its output has no reader any more.
    """
    os.environ.setdefault("GLOG_minloglevel", "2")  # Paddle's own lines, unless they are errors
    tune_process()
    tolerate_names()
    setup_logging(rank=rank())
    try:
        check_versions("", PROGRAM)
        code = work(args) or 0
        sys.stdout.flush()
        return code
    except PaddleVideoFastError as error:
        return say_error(error)
    except KeyboardInterrupt:
        return say_interrupted(to_go_on=to_go_on(args))
    except BrokenPipeError:  # as of `paddlevideo-fast predict ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end of Python
        return 128 + signal.SIGPIPE
    except Exception as error:
        if not OutOfMemoryError.is_told_by(error):
            raise
        return say_error(OutOfMemoryError(error))


def prepare_run(config: str, overrides: Sequence[str]) -> None:
    """Prepares the process for a config, and imports Paddle quietly.

    Raises:
        MissingExtraError: Paddle is not installed.
    """
    prepare_process(config, overrides)
    with quiet_import():
        import paddlevideo_fast.assembly  # noqa: F401  # and Paddle with it


def load_for_run(
    args: argparse.Namespace, overrides: Sequence[str] | None = None, ready: bool = False
) -> Config:
    """Prepares the process for a config, imports Paddle quietly, loads the config, and sets its `log_level`.

    Args:
        args: a command line with CONFIG and -o.
        overrides: of the config; None: those of -o.
        ready: `prepare_run` has been called.

    Raises:
        ConfigError: the config is wrong.
        WeightError: its key `weights` is a folder without weights.
        MissingExtraError: Paddle is not installed.
    """
    overrides = args.override if overrides is None else overrides
    if not ready:
        prepare_run(args.config, overrides)
    cfg = load_config(args.config, overrides)
    setup_logging(cfg.get("log_level", "INFO"), rank())
    if cfg.get("weights"):
        cfg["weights"] = find_weights(cfg["weights"])
    return cfg


def find_weights(given: str | None, cfg: Config | None = None, named: str | None = None) -> str:
    """The weight file that -w names, or without -w the one of a config's newest run; the log says which.

    Args:
        given: a file or URL, which is returned as it is; the output folder of a run; a name of the zoo; or
            None.
        cfg: the config that a run was started with, or that it saved.
        named: what the user has typed for it.

    Raises:
        WeightError: there are none, or they cannot be downloaded; the message says what to type.
    """
    from paddlevideo_fast.engine.output import epochs_of_run, weights_of_config, weights_of_run
    from paddlevideo_fast.modeling.weights import fetch_weights, is_weights_name

    if given is not None and (given.endswith(".pdparams") or not as_path(given).is_dir()):
        return fetch_weights(given) if is_weights_name(given) else given
    try:
        file = weights_of_config(cfg) if given is None and cfg is not None else weights_of_run(given or "")
    except WeightError as error:
        if given is not None or cfg is None:
            raise
        config = shlex.quote(named or cfg.path or "")
        text = f"{error}: train with  {PROGRAM} train {config}  or give weights with -w FILE"
        raise WeightError(text) from None
    get_logger(__name__).info("weights: %s", file)
    done, epochs = epochs_of_run(file.parent)
    if done < epochs:
        get_logger(__name__).warning("this run has done %d of its %d epochs", done, epochs)
    return str(file)


def rank() -> int:
    """The rank of this process among those that a launcher has started."""
    return int(os.environ.get("PADDLE_TRAINER_ID", "0"))


_CONFIG = "YAML file, name of a built-in config, or folder of `init` or of a run, with a config.yaml"


def add_config_arguments(
    parser: CommandParser, required: bool = True, names: Sequence[str] = ("-o", "--override")
) -> None:
    """Adds CONFIG, -c and -o, which mean the same in every command that reads a config.

    Args:
        parser: of the command.
        required: the config must be given.
        names: of the flag for overrides.
    """
    parser.reads_config = True
    parser.add_argument("-c", "--config", positional="CONFIG", required=required, help=_CONFIG)
    parser.add_argument(
        *names,
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


def add_import_argument(parser: CommandParser) -> None:
    """Adds --import to a command with --override: it names plug-ins as the key `imports` of a config does."""
    parser.add_argument(
        "--import",
        dest="imports",
        action=_Import,
        default=[],
        metavar="MODULE_OR_FILE",
        rare=True,
        help="imports components of your own, such as ./my_parts.py; may be given more than once",
    )


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Keeps what Paddle prints while it is imported off the console, and shows it if the import fails.

    C++ code writes part of it straight to file descriptor 2, so it is caught there. Ctrl-C ends the process
    at once: Paddle would make a failed import of it, with a traceback.

    Raises:
        MissingExtraError: Paddle is not installed.
    """
    warnings.filterwarnings("ignore", module=r"paddle\..*")
    sys.stderr.flush()
    console = os.dup(2)
    with answering_ctrl_c(signal.SIG_DFL), tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            yield
        except BaseException as exc:
            if isinstance(exc, ModuleNotFoundError) and exc.name == "paddle":
                raise MissingExtraError("paddlepaddle", "cpu", "paddlevideo_fast") from exc
            caught.seek(0)
            os.write(console, caught.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(console, 2)
            os.close(console)
            with contextlib.suppress(TypeError, ValueError):  # a handler in C; another thread
                signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))  # Paddle's prints a C++ stack

"""Errors that a user can act on.

The command line prints these as one message without a traceback and exits with a code that is not 0. Anything
else that escapes is a bug of the toolkit and keeps its traceback.
"""

import re
import reprlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from paddlevideo_fast.io.urls import masked, shown_url
from paddlevideo_fast.log import counted

EXIT_FAILURES = 1
EXIT_USER_ERROR = 2

EXIT_CODES = (
    "Exit code: 0, done; 1, some files failed and are named; 2, wrong input; 128 + n, ended by signal n "
    "(130: Ctrl-C)."
)
MAX_PROBLEMS = 100  # of a config that are told
_MAX_LINE = 4000  # characters; a path has up to 4096 bytes
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60


def shown(value: Any) -> str:
    """A value of a user's file as messages quote it: its repr, the middle left out where it is long."""
    return _REPR.repr(value)


def cause_of(error: Exception) -> str:
    """Why a file cannot be read: what an `OSError` says besides the file's name, which the message has."""
    return getattr(error, "strerror", None) or str(error)


def shortened(line: str) -> str:
    """A line of a message; the middle is left out where it is long."""
    if len(line) <= _MAX_LINE:
        return line
    half = _MAX_LINE // 2 - 20
    return f"{line[:half]} … {len(line) - 2 * half:,} characters … {line[-half:]}"


def _line(text: str) -> str:
    return shortened(masked(text))


class Problem(NamedTuple):
    """What is wrong with a key of a config, or may be.

    Attributes:
        key: dotted; behind it may stand `=` and the value.
        text: what is wrong, and what to do.
        is_error: it ends the run; else it is a warning.
    """

    key: str
    text: str
    is_error: bool = True


Problems = Iterator[Problem]


class PaddleVideoFastError(Exception):
    """Base of every error whose message says what is wrong and what to do.

    Lines that quote too much of a broken file lose their middle, and URLs what may be secret in them.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__("\n".join(map(_line, str(message).split("\n"))))

    def __reduce__(self):  # not by the constructor, which takes other things than the message
        return _restored, (type(self), self.args, self.__dict__)


def exit_code(error: BaseException) -> int:
    """Of a process that ends with `error`: 2 where a user can put it right, else 1."""
    return EXIT_USER_ERROR if isinstance(error, PaddleVideoFastError) else 1


class UsageError(PaddleVideoFastError):
    """A command line with an unknown, missing or wrong flag."""


class ConfigError(PaddleVideoFastError):
    """One or more problems of a config, all found before anything else runs.

    Args:
        problems: one line each, `where  KEY: what`; the text alone where there is one.

    Attributes:
        problems: the first hundred, and a line for the others.
    """

    def __init__(self, problems: str | Sequence[str]) -> None:
        problems = [problems] if isinstance(problems, str) else problems
        count = len(problems)
        self.problems = [_line(problem) for problem in problems[:MAX_PROBLEMS]]
        if count > MAX_PROBLEMS:
            self.problems.append("and more; correct these first")
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"{counted(count, 'problem')}\n{lines}")


class SettingError(ConfigError):
    """A problem of one key, raised by code that does not know in which file the key was written.

    Attributes:
        key: dotted; behind it may stand `=` and the value.
        text: what is wrong, and what to do.
    """

    def __init__(self, key: str, text: str) -> None:
        super().__init__(f"{key}: {text}")
        self.key, self.text = key, text


class ExplanationError(PaddleVideoFastError):
    """What decided cannot be shown in this way; the message names another."""


class AnnotationError(PaddleVideoFastError):
    """An annotation list that is missing, empty or malformed; the message names file and line."""


class VideoDecodeError(PaddleVideoFastError):
    """A video, frame folder or image that does not decode.

    Attributes:
        path: the file; of a URL what may be shown.
        cause: why, in one line.
    """

    def __init__(self, path: str, cause: str) -> None:
        self.path = shown_url(str(path))
        self.cause = masked(cause)
        super().__init__(f"{self.path}: cannot be decoded: {cause}")

    def cause_in(self, clip: str) -> str:
        """The cause, for a report that names `clip`; it begins with the image where `clip` is its folder."""
        inside = "" if self.path == shown_url(clip) else f"{self.path}: "
        return " ".join(f"{inside}{self.cause}".split())


class OutputError(PaddleVideoFastError):
    """An output folder or file that cannot be written."""


class OutputInUseError(PaddleVideoFastError):
    """Another process writes to the same output; the message says which."""


class StoreAccessError(PaddleVideoFastError):
    """A store that refuses what is asked of it, or a URL that cannot be used; trying again does not help."""


class StoreAwayError(PaddleVideoFastError):
    """A store that has not answered for any of its objects for a while."""


class ObjectError(PaddleVideoFastError, OSError):
    """An object of a store that cannot be read: it is broken, or was changed while it was in use.

    It is an `OSError` too, so that a URL fails as a file does.

    Attributes:
        cause: why, in one line.
    """

    def __init__(self, url: str, cause: str) -> None:
        self.filename = shown_url(url)
        super().__init__(f"{self.filename}: {cause}")
        self.cause = self.strerror = masked(cause)

    def __reduce__(self):
        return type(self), (self.filename, self.cause)

    def __str__(self) -> str:
        return str(self.args[0])


class ObjectMissingError(ObjectError, FileNotFoundError):
    """A store that has no such object."""


class ShardError(PaddleVideoFastError):
    """A shard of packed frames that is missing, unfinished, altered or of another version."""


class FeatureError(PaddleVideoFastError):
    """Stored features that are missing, unfinished, altered, or of another network or other data."""


class BadSampleShareError(PaddleVideoFastError):
    """More samples than the set share did not decode."""


class WeightError(PaddleVideoFastError):
    """A weight file that cannot be read, or does not fit the model."""


class ProgramError(PaddleVideoFastError):
    """An inference program that cannot be written, loaded or run."""


class CheckpointError(PaddleVideoFastError):
    """A checkpoint that cannot be written, found, read or continued from."""


class UnsavedError(CheckpointError):
    """The state of a run cannot be written to its folder; the message says where it is saved, if anywhere."""


class ScheduleError(PaddleVideoFastError):
    """The settings of a schedule contradict each other."""


class NonFiniteLossError(PaddleVideoFastError):
    """The loss turned NaN or infinite."""


class NonFiniteScoreError(PaddleVideoFastError):
    """A network's scores are NaN or infinite."""


class NonFiniteGradientError(PaddleVideoFastError):
    """No loss scale keeps the gradients of a 16-bit format finite."""


class DistributionError(PaddleVideoFastError):
    """The processes of a job do not fit together, or one of them is lost."""


# As Paddle, its allocator, CUDA, cuBLAS, cuDNN, NumPy and Python say it.
_NO_MEMORY = re.compile(
    "(?i)out of memory|(can ?not|fail to|unable to) alloc|ALLOC_FAILED|cudaErrorMemoryAllocation"
)
_LESS_ON_CPU = "smaller clips, or fewer workers"
_LESS_ON_GPU = (
    "accumulate_steps to keep the update as large, smaller clips (-o num_frames=N -o crop_size=N), --amp, or "
    "-o RUNTIME.recompute=true;  nvidia-smi  shows what other processes take"
)


class OutOfMemoryError(PaddleVideoFastError):
    """The memory of the machine or of the device does not hold what a command needs.

    Args:
        error: what NumPy, Python or Paddle said, with a trace of many lines.
    """

    def __init__(self, error: Exception) -> None:
        lines = [line.strip() for line in str(error).splitlines()]
        told = next(filter(_NO_MEMORY.search, lines), "out of memory")
        others = _LESS_ON_GPU if re.search("GPU|CUDA|CUBLAS|CUDNN", told) else _LESS_ON_CPU
        super().__init__(f"{shortened(told)}; take smaller batches with --batch_size N, {others}")

    @staticmethod
    def is_told_by(error: Exception) -> bool:
        """Whether an error says that memory ran out."""
        return isinstance(error, MemoryError) or bool(_NO_MEMORY.search(str(error)))


class InstallationError(PaddleVideoFastError):
    """A package that is missing, too old or broken; the message has the command to type."""


class MissingExtraError(InstallationError):
    """A package is needed and not installed; the message has the command to type."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        command = f"pip install {package}"
        if extra:
            command = f'pip install "paddlevideo_fast[{extra}]"  (in a clone: pip install -e ".[{extra}]")'
        super().__init__(f"{purpose} needs the package '{package}', which is not installed: type  {command}")


class LoaderError(PaddleVideoFastError):
    """A loader that cannot deliver: a set-up that does not fit the data, or a worker process that died."""


class TransformError(LoaderError):
    """A transform that does not fit the frames it gets, such as a crop larger than the frame."""


def _restored(cls: type[PaddleVideoFastError], args: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    """An error that has crossed a process boundary."""
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error

"""The console: our lines, once, with a time; plain text where it is not a terminal."""

import contextlib
import io
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

from paddlevideo_fast.io.urls import masked

_FORMAT = "[%(asctime)s] %(levelname)s: %(message)s"
_DATE = "%m/%d %H:%M:%S"
_warned: set[str] = set()


def get_logger(name: str = "paddlevideo_fast") -> logging.Logger:
    """A logger below the package's own; it is silent until `setup_logging` has run or the host set one up."""
    return logging.getLogger(name)


def setup_logging(level: str = "INFO", rank: int = 0) -> logging.Logger:
    """Sends the package's log to stderr.

    Args:
        level: a standard level name.
        rank: ranks other than 0 print warnings only, with their number.
    """
    logger = logging.getLogger("paddlevideo_fast")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(level.upper())
    if rank != 0:
        logger.setLevel(max(logger.level, logging.WARNING))
    logger.propagate = False
    handler = logging.StreamHandler()
    style = _FORMAT if rank == 0 else _FORMAT.replace("%(message)s", f"rank {rank}: %(message)s")
    handler.setFormatter(_Formatter(style, _DATE))
    logger.addHandler(handler)
    return logger


@contextlib.contextmanager
def log_file(path: str | Path) -> Iterator[None]:
    """Sends the package's log to a file as well, until the block ends; the file is appended to.

    A file that is removed or moved while the log is written begins anew at its place. An exception that
    leaves the block is its last line; the console gets it from whoever catches it.
    """
    handler = _QuietFileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(_Formatter(_FORMAT, _DATE))
    logger = logging.getLogger("paddlevideo_fast")
    logger.addHandler(handler)
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if handler in logger.handlers:  # else the file cannot be written, as was said
            handler.handle(logger.makeRecord(logger.name, logging.ERROR, str(path), 0, text, (), None))
        raise
    finally:
        logger.removeHandler(handler)
        handler.close()


class _Formatter(logging.Formatter):
    """Shows no signatures of URLs."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


class _QuietFileHandler(WatchedFileHandler):
    """Gives up with one warning where its file cannot be written: the disk may be full for long."""

    def _open(self) -> Any:
        os.makedirs(os.path.dirname(self.baseFilename), exist_ok=True)
        return super()._open()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # it cannot be opened again
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        logger = logging.getLogger("paddlevideo_fast")
        logger.removeHandler(self)
        logger.warning("%s cannot be written and ends here: %s", self.baseFilename, sys.exc_info()[1])


def warn_once(logger: logging.Logger, message: str, level: int = logging.WARNING) -> None:
    """Logs a warning, or a message of another level, the first time this process has it to say."""
    if message not in _warned:
        _warned.add(message)
        logger.log(level, message)


def printable(name: str) -> str:
    r"""A name as one line of valid Unicode: a character that does not print is its escape, such as `\n`.

    A byte that is not UTF-8 is shown as `\xff`. Python holds it as a lone surrogate, which no UTF-8 file
    and no library in C++ takes. Of a URL, what may be secret is left out.
    """
    name = masked(name)
    if name.isprintable():
        return name
    return "".join(char if char.isprintable() else _escape(char) for char in name)


def counted(number: int, noun: str) -> str:
    """A number with its noun in the singular or plural: "1 class", "2 classes"."""
    ending = "" if number == 1 else "es" if noun.endswith(("s", "x", "tch")) else "s"
    return f"{number} {noun}{ending}"


def value_text(value: Any) -> str:
    """A result in a line: numbers with five decimals, and named values after their names."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {value_text(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return "; ".join(map(value_text, value))
    return f"{value:.5f}" if isinstance(value, float) else printable(str(value))


def is_unicode(name: str) -> bool:
    """Whether a name is Unicode throughout, without bytes that are not UTF-8."""
    return not any("\ud800" <= char <= "\udfff" for char in name)


def tolerate_names() -> None:
    """Lets the console show any name: what its encoding does not have becomes an escape, not an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # else a host has put its own in its place
            stream.reconfigure(errors="backslashreplace")


def _escape(char: str) -> str:
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")

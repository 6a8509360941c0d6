"""The console: our lines, once, with a time; plain text where it is not a terminal."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, Iterator, Optional, Set, TextIO, Union

from paddlevideo_fast.urls import masked

_FORMAT = "[%(asctime)s] %(levelname)s: %(message)s"
_DATE = "%m/%d %H:%M:%S"
_warned: Set[str] = set()


def get_logger(name: str = "paddlevideo_fast") -> logging.Logger:
    """A logger below the package's own; it is silent until `setup_logging` has run or the host set one up."""
    return logging.getLogger(name)


def setup_logging(level: str = "INFO", rank: int = 0, stream: Optional[TextIO] = None) -> logging.Logger:
    """Sends the package's log to the console.

    Args:
        level: a standard level name.
        rank: ranks other than 0 print warnings only, with their number.
        stream: where the lines go; None: to stdout.
    """
    logger = logging.getLogger("paddlevideo_fast")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(level.upper())
    if rank != 0:
        logger.setLevel(max(logger.level, logging.WARNING))
    logger.propagate = False
    handler = logging.StreamHandler(stream or sys.stdout)
    style = _FORMAT if rank == 0 else _FORMAT.replace("%(message)s", f"rank {rank}: %(message)s")
    handler.setFormatter(_Formatter(style, _DATE))
    logger.addHandler(handler)
    return logger


@contextlib.contextmanager
def log_file(path: Union[str, Path]) -> Iterator[None]:
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

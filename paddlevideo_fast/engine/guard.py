"""What only shows never ends a run: trackers, pictures, pages and counts fail with one warning."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar, cast

from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.log import get_logger

logger = get_logger(__name__)

Shown = TypeVar("Shown")


@contextlib.contextmanager
def only_shown(what: str) -> Iterator[None]:
    """Context that turns an error of its block into a warning.

    Args:
        what: what the block shows.
    """
    try:
        yield
    except Exception as error:
        _warn(what, error)


def guarded(shown: Shown) -> Shown:
    """The same object behind a guard: its first error is one warning, and later calls do nothing.

    `close` is always called. One error gets through, because it comes before training begins and a user can
    put it right: a `PaddleVideoFastError` of `open`, such as a package that is not installed.

    Args:
        shown: a sink, or a callback with `only_shows`. A guarded object comes back as it is.
    """
    return shown if isinstance(shown, _Guarded) else cast(Shown, _Guarded(shown))


class _Guarded:
    _shown: Any = None

    def __init__(self, shown: Any) -> None:
        self._shown = shown
        self._given_up = False

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._shown, name)
        return partial(self._call, name, attribute) if callable(attribute) else attribute

    def _call(self, name: str, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self._given_up and name != "close":
            return None
        try:
            return method(*args, **options)
        except Exception as error:
            if name == "open" and isinstance(error, PaddleVideoFastError):
                raise
            if not self._given_up:
                _warn(type(self._shown).__name__, error)
            self._given_up = True
            return None


def _warn(what: str, error: Exception) -> None:
    text = "%s fails and is left out, the run goes on: %s: %s"
    logger.warning(text, what, type(error).__name__, error)
    logger.debug("%s: where it failed", what, exc_info=error)

"""Calls hooks of callbacks, sinks and trackers: what only shows never ends a run, and all are closed.

Trackers, pictures, pages and counts only show. Their first error is one warning.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.log import get_logger

logger = get_logger(__name__)


class Hooked:
    """The base of callbacks and sinks.

    Attributes:
        non_critical: training does not need it. The first error of its hooks is one warning, and the run goes
            on without it.
        has_failed: whether it had that error.
    """

    non_critical = False
    has_failed = False


def call_hook(targets: Iterable[Hooked], hook: str, *args: Any) -> None:
    """Calls a method of each callback or sink, in their order; see `Hooked`.

    The first error of a target that only shows is one warning, and from then on it is only closed. One error
    gets through, because it comes before training begins and a user can put it right: a
    `PaddleVideoFastError` of `open`, such as a package that is not installed. All are closed, also where some
    cannot be: their errors are logged, and the first one is raised at the end.
    """
    not_closed: list[Exception] = []
    for target in targets:
        if target.has_failed and hook != "close":
            continue
        try:
            getattr(target, hook)(*args)
        except Exception as error:
            name = type(target).__name__
            if target.non_critical and not (hook == "open" and isinstance(error, PaddleVideoFastError)):
                if not target.has_failed:
                    _warn(name, error)
                target.has_failed = True
            elif hook == "close":
                logger.error("cannot be closed: %s: %s: %s", name, type(error).__name__, error)
                not_closed.append(error)
            else:
                raise
        if hook == "close":
            target.has_failed = False  # the next run tries it again
    if not_closed:
        raise not_closed[0]


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


def _warn(what: str, error: Exception) -> None:
    text = "%s fails and is left out, the run goes on: %s: %s"
    logger.warning(text, what, type(error).__name__, error)
    logger.debug("%s: where it failed", what, exc_info=error)

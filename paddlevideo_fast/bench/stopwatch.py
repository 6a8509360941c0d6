"""Time by stage, taken around methods of living objects from outside: the hot path has no code for it."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from typing import Any, Callable, Dict, Iterator, List

import paddle


class Stopwatch:
    """Adds up what wrapped methods take, by stage. A stage inside another one counts for itself alone.

    Use it as a context manager: at its end the wrapped objects are as they were.

    Attributes:
        seconds: stage → seconds.
    """

    def __init__(self) -> None:
        self.seconds: Dict[str, float] = defaultdict(float)
        self._inside: List[float] = []
        self._on_gpu = paddle.get_device() != "cpu"
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Stopwatch:
        return self

    def __exit__(self, *error: Any) -> None:
        self._undo.close()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts the time of a block; on a GPU with all work that the block gave to it."""
        self._wait()
        self._inside.append(0.0)
        began = time.perf_counter()
        try:
            yield
        finally:
            self._wait()
            elapsed = time.perf_counter() - began
            self.seconds[name] += elapsed - self._inside.pop()
            if self._inside:
                self._inside[-1] += elapsed

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` with its time counted for stage `name`."""

        def call(*args: Any, **options: Any) -> Any:
            with self.stage(name):
                return function(*args, **options)

        return call

    def wrap(self, owner: Any, method: str, stage: str) -> None:
        """Counts a method of an object, or of all objects of a class."""
        self.replace(owner, method, self.timed(stage, getattr(owner, method)))

    def replace(self, owner: Any, method: str, function: Callable[..., Any]) -> None:
        """Puts `function` in the place of a method."""
        if method in vars(owner):
            self._undo.callback(setattr, owner, method, vars(owner)[method])
        else:
            self._undo.callback(delattr, owner, method)
        setattr(owner, method, function)

    def _wait(self) -> None:
        """A GPU works on after a call has returned."""
        if self._on_gpu:
            paddle.device.synchronize()

"""Paddle's mixed precision on a CPU, as far as it goes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import paddle


class _Tracer:
    """Paddle's tracer, which says that it computes on a GPU."""

    _expected_place = SimpleNamespace(
        is_gpu_place=lambda: True, is_xpu_place=lambda: False, is_custom_place=lambda: False
    )
    _real = paddle.base.framework._dygraph_tracer()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)


@contextlib.contextmanager
def gpu_amp() -> Iterator[None]:
    """Context in which `GradScaler`, `decorate` and `auto_cast` do their work, as on a GPU.

    A static graph gets the casts of `auto_cast`. Operators that run at once compute in float32: Paddle casts
    no tensor that lies on a CPU.
    """
    auto_cast = sys.modules["paddle.amp.auto_cast"]
    with contextlib.ExitStack() as stack:
        for module in (auto_cast, sys.modules["paddle.amp.grad_scaler"]):
            stack.enter_context(mock.patch.object(module, "_dygraph_tracer", _Tracer))
        for dtype in ("float16", "bfloat16"):
            stack.enter_context(mock.patch.object(auto_cast, f"_is_gpu_{dtype}_supported", return_value=True))
        yield

"""Clips that the installed DALI decodes, on a CPU or a GPU: its versions differ in their codecs."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paddlevideo_fast.extensions.dali.loader import DaliLoader, DaliOptions
from paddlevideo_fast.loader import Batch
from paddlevideo_fast.machine import installed_gpus

# DALI_TEST_GPU=0 runs the tests of DALI on that GPU
_GPU = os.environ.get("DALI_TEST_GPU")
WHERE = DaliOptions(None if _GPU is None else int(_GPU))
MAKE = partial(DaliLoader, options=WHERE)


def no_dali() -> str | None:
    """Why the tests of DALI cannot run; None: they can."""
    if importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.dali") is None:
        return "DALI is not installed: pip install -e '.[dali120]'"
    if _GPU is not None and not installed_gpus():
        return f"DALI_TEST_GPU={_GPU}: the driver lists no GPU"
    return None


def encoder() -> dict[str, Any]:
    """Arguments of `make_clip` for a codec that it decodes: H.264, or VP9 where only a GPU decodes that."""
    from paddlevideo_fast.extensions.dali.graph import generation_of, import_dali

    if "h264" in generation_of(import_dali()).codecs("cpu" if WHERE.device_id is None else "gpu"):
        return {"codec": "libx264"}
    return {
        "codec": "libvpx-vp9",
        "options": {"deadline": "realtime", "cpu-used": "8", "crf": "10", "b": "0"},
    }


class HostLoader:
    """A loader whose clips are NumPy arrays, wherever DALI decodes."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def epoch(self, *args: Any, **options: Any) -> Iterator[Batch]:
        return map(_on_host, self._loader.epoch(*args, **options))


def _on_host(batch: Batch) -> Batch:
    return dataclasses.replace(batch, clips=np.asarray(batch.clips))


def clip_for_dali(make_clip: Callable[..., Path], path: Any, num_frames: int = 24, **options: Any) -> Path:
    """A clip of `make_clip` in such a codec."""
    return make_clip(path, num_frames, **encoder(), **options)

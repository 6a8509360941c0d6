"""Clips that the installed DALI decodes on a CPU: its versions differ in their codecs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any


def has_dali() -> bool:
    """Whether DALI is installed; its tests are skipped, by name, where it is not."""
    return importlib.util.find_spec("nvidia") is not None and bool(importlib.util.find_spec("nvidia.dali"))


def encoder() -> dict[str, Any]:
    """Arguments of `make_clip` for a codec that it decodes: H.264 before version 2, then VP9."""
    from paddlevideo_fast.loader.dali.graph import generation_of, import_dali

    if "h264" in generation_of(import_dali()).cpu:
        return {"codec": "libx264"}
    return {
        "codec": "libvpx-vp9",
        "options": {"deadline": "realtime", "cpu-used": "8", "crf": "10", "b": "0"},
    }


def clip_for_dali(make_clip: Callable[..., Path], path: Any, num_frames: int = 24, **options: Any) -> Path:
    """A clip of `make_clip` in such a codec."""
    return make_clip(path, num_frames, **encoder(), **options)

"""Transforms that change the size."""

from __future__ import annotations

from typing import ClassVar, Dict, Optional

import numpy as np

from paddlevideo_fast.config.types import PositiveInt
from paddlevideo_fast.loader.errors import LoaderError
from paddlevideo_fast.loader.transforms.base import BACKEND_IGNORED, Geometric
from paddlevideo_fast.loader.transforms.geometry import ClipGeometry, fit_short_side
from paddlevideo_fast.registry import TRANSFORMS


@TRANSFORMS.register()
class Scale(Geometric):
    """Scales the shorter side to a size.

    Args:
        short_size: of the shorter side in pixels.
        fixed_ratio: the longer side becomes 4/3 of the shorter one, whatever the video's ratio is.
        keep_ratio: without `fixed_ratio`: False makes the frame square; otherwise the ratio stays.
        do_round: round the longer side rather than cut it.
    """

    def __init__(
        self,
        short_size: PositiveInt,
        fixed_ratio: bool = True,
        keep_ratio: Optional[bool] = None,
        do_round: bool = False,
    ) -> None:
        if fixed_ratio and keep_ratio:
            raise LoaderError("Scale: fixed_ratio and keep_ratio exclude each other; set fixed_ratio: False")
        self.short_size = short_size
        self.fixed_ratio = fixed_ratio
        self.keep_ratio = keep_ratio
        self.do_round = do_round

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        size = geometry.scaled(self.short_size)
        width, height = geometry.width, geometry.height
        if min(width, height) == size:
            return
        if self.fixed_ratio:
            long_size = int(size * 4.0 / 3.0)
        elif self.keep_ratio is False:
            long_size = size
        elif self.do_round:
            long_size = int(max(width, height) * (size / min(width, height)) + 0.5)
        else:
            long_size = int(max(width, height) * size / min(width, height))
        geometry.resize(*((size, long_size) if width <= height else (long_size, size)))


@TRANSFORMS.register()
class JitterScale(Geometric):
    """Scales the shorter side to a random size.

    Args:
        min_size: smallest size in pixels.
        max_size: largest.
    """

    ignored_arguments: ClassVar[Dict[str, str]] = {
        "short_cycle_factors": "the short cycle is part of each request",
        "default_min_size": "the short cycle is part of each request",
    }

    def __init__(self, min_size: PositiveInt, max_size: PositiveInt) -> None:
        if not 0 < min_size <= max_size:
            raise LoaderError(f"JitterScale: expected 0 < min_size {min_size} <= max_size {max_size}")
        self.min_size = min_size
        self.max_size = max_size

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        size = geometry.scaled(rng.uniform(self.min_size, self.max_size))
        if min(geometry.width, geometry.height) != size:
            geometry.resize(*fit_short_side(geometry.width, geometry.height, size))


@TRANSFORMS.register()
class GroupResize(Geometric):
    """Resizes to a fixed size.

    Args:
        height: in pixels.
        width: in pixels.
    """

    ignored_arguments: ClassVar[Dict[str, str]] = {
        **BACKEND_IGNORED,
        "scale": "image pyramids are for depth estimation",
        "K": "camera intrinsics are for depth estimation",
        "mode": "it is the same in training and evaluation",
    }

    def __init__(self, height: PositiveInt, width: PositiveInt) -> None:
        self.height = height
        self.width = width

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        geometry.resize(geometry.scaled(self.width), geometry.scaled(self.height))

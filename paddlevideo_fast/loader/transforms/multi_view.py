"""Transforms that make several views of a frame."""

import math
from typing import ClassVar

import numpy as np

from paddlevideo_fast.config.types import Size
from paddlevideo_fast.errors import TransformError
from paddlevideo_fast.loader.transforms.crop import RandomCrop
from paddlevideo_fast.loader.transforms.geometry import ClipGeometry, Geometric
from paddlevideo_fast.registry import TRANSFORMS

Sides = Size | tuple[Size, Size]


def _pair(size: Sides, geometry: ClipGeometry) -> tuple[int, int]:
    width, height = (size, size) if isinstance(size, int) else size
    return geometry.scaled(width), geometry.scaled(height)


@TRANSFORMS.register()
class TenCrop(Geometric):
    """The four corners and the centre, each also mirrored: 10 views.

    Args:
        target_size: side of the squares in pixels.
    """

    num_views = 10

    def __init__(self, target_size: Size) -> None:
        self.target_size = target_size

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        width, height = _pair(self.target_size, geometry)
        geometry.require(width, height)
        x, y = (geometry.width - width) // 4, (geometry.height - height) // 4
        places = [(0, 0), (4 * x, 0), (0, 4 * y), (4 * x, 4 * y), (2 * x, 2 * y)]
        geometry.split([(*place, flip) for place in places for flip in (False, True)], width, height)


@TRANSFORMS.register()
class UniformCrop(Geometric):
    """Both ends and the middle of the longer side: 3 views.

    Args:
        target_size: side, or (width, height), in pixels; one of them must be the frame's, so scale first.
    """

    num_views = 3

    def __init__(self, target_size: Sides) -> None:
        self.target_size = target_size

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        width, height = _pair(self.target_size, geometry)
        geometry.require(width, height)
        if geometry.height == height:
            x = (geometry.width - width) // 2
            places = [(0, 0, False), (2 * x, 0, False), (x, 0, False)]
        elif geometry.width == width:
            y = (geometry.height - height) // 2
            places = [(0, 0, False), (0, 2 * y, False), (0, y, False)]
        else:
            raise TransformError(
                f"{width}×{height} fills neither side of a frame of {geometry.width}×{geometry.height}; "
                f"put a Scale with short_size {min(width, height)} before it"
            )
        geometry.split(places, width, height)


@TRANSFORMS.register()
class GroupFullResSample(Geometric):
    """Left, right and centre at mid-height: 3 views, or 6 with their mirror images.

    Args:
        crop_size: side, or (width, height), in pixels.
        flip: add the mirror image of each.
    """

    def __init__(self, crop_size: Sides, flip: bool = False) -> None:
        self.crop_size = crop_size
        self.flips = (False, True) if flip else (False,)
        self.num_views = 3 * len(self.flips)

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        width, height = _pair(self.crop_size, geometry)
        geometry.require(width, height)
        x, y = (geometry.width - width) // 4, (geometry.height - height) // 4
        places = [(0, 2 * y), (4 * x, 2 * y), (2 * x, 2 * y)]
        geometry.split([(*place, flip) for place in places for flip in self.flips], width, height)


@TRANSFORMS.register()
class MultiCenterCrop(Geometric):
    """Centre, left and right at mid-height: 3 views.

    Args:
        target_size: side of the squares in pixels.
    """

    num_views = 3

    def __init__(self, target_size: Size) -> None:
        self.target_size = target_size

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        width, height = _pair(self.target_size, geometry)
        geometry.require(width, height)
        x, y = geometry.width - width, (geometry.height - height) // 2
        geometry.split([(x // 2, y, False), (0, y, False), (x, y, False)], width, height)


@TRANSFORMS.register()
class MultiCrop(RandomCrop):
    """SlowFast's crop: a random square, or in test mode both ends and the middle of the longer side.

    Args:
        target_size: side of the square in pixels.
        test_mode: the three fixed places, as 3 views.

    Reference: SlowFast, arXiv:1812.03982, section 4 (inference).
    """

    ignored_arguments: ClassVar[dict[str, str]] = {
        "default_crop_size": "the short cycle is part of each request",
        "short_cycle_factors": "the short cycle is part of each request",
    }

    def __init__(self, target_size: Size, test_mode: bool = False) -> None:
        super().__init__(target_size)
        self.test_mode = test_mode
        self.num_views = 3 if test_mode else 1

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        if not self.test_mode:
            super().apply(geometry, rng)
            return
        width, height = _pair(self.target_size, geometry)
        geometry.require(width, height)
        x, y = geometry.width - width, geometry.height - height
        if geometry.height > geometry.width:
            places = [(math.ceil(x / 2), top, False) for top in (0, math.ceil(y / 2), y)]
        else:
            places = [(left, math.ceil(y / 2), False) for left in (0, math.ceil(x / 2), x)]
        geometry.split(places, width, height)

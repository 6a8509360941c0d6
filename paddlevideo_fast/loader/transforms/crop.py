"""Transforms that resize the frame, keep one part of it, or mirror it."""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from paddlevideo_fast.config.types import Count, Share, Size
from paddlevideo_fast.errors import LoaderError
from paddlevideo_fast.loader.transforms.geometry import (
    BACKEND_IGNORED,
    ClipGeometry,
    Geometric,
    fit_short_side,
)
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
        short_size: Size,
        fixed_ratio: bool = True,
        keep_ratio: bool | None = None,
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

    ignored_arguments: ClassVar[dict[str, str]] = {
        "short_cycle_factors": "the short cycle is part of each request",
        "default_min_size": "the short cycle is part of each request",
    }

    def __init__(self, min_size: Size, max_size: Size) -> None:
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

    ignored_arguments: ClassVar[dict[str, str]] = {
        **BACKEND_IGNORED,
        "scale": "image pyramids are for depth estimation",
        "K": "camera intrinsics are for depth estimation",
        "mode": "it is the same in training and evaluation",
    }

    def __init__(self, height: Size, width: Size) -> None:
        self.height = height
        self.width = width

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        geometry.resize(geometry.scaled(self.width), geometry.scaled(self.height))


@TRANSFORMS.register()
class RandomCrop(Geometric):
    """A square at a random place.

    Args:
        target_size: its side in pixels.
    """

    def __init__(self, target_size: Size) -> None:
        self.target_size = target_size

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        size = geometry.scaled(self.target_size)
        geometry.require(size, size)
        left = int(rng.integers(geometry.width - size + 1))
        top = int(rng.integers(geometry.height - size + 1))
        geometry.crop(left, top, size, size)


@TRANSFORMS.register()
class CenterCrop(Geometric):
    """The square in the middle.

    Args:
        target_size: its side in pixels.
        do_round: where the margin is odd, round half of it to even rather than down.
    """

    def __init__(self, target_size: Size, do_round: bool = True) -> None:
        self.target_size = target_size
        self.do_round = do_round

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        size = geometry.scaled(self.target_size)
        geometry.require(size, size)
        spare_x, spare_y = geometry.width - size, geometry.height - size
        if self.do_round:
            geometry.crop(round(spare_x / 2), round(spare_y / 2), size, size)
        else:
            geometry.crop(spare_x // 2, spare_y // 2, size, size)


@TRANSFORMS.register()
class MultiScaleCrop(Geometric):
    """A random rectangle of a few sizes, ratios and places, resized to a square.

    Args:
        target_size: side of the square in pixels.
        scales: sides of the rectangle as shares of the frame's shorter side.
        max_distort: how many places in `scales` width and height may lie apart.
        fix_crop: take one of a few fixed places, not any.
        allow_duplication: let a place count twice where the rectangle fills the frame.
        more_fix_crop: 13 fixed places rather than 5.

    Reference: TSN, arXiv:1608.00859, section 3.2 (corner cropping and scale jittering).
    """

    def __init__(
        self,
        target_size: Size,
        scales: Sequence[float] | None = None,
        max_distort: Count = 1,
        fix_crop: bool = True,
        allow_duplication: bool = False,
        more_fix_crop: bool = True,
    ) -> None:
        self.target_size = target_size
        self.scales = list(scales) if scales else [1, 0.875, 0.75, 0.66]
        self.max_distort = max_distort
        self.fix_crop = fix_crop
        self.allow_duplication = allow_duplication
        self.more_fix_crop = more_fix_crop

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        target = geometry.scaled(self.target_size)
        short_side = min(geometry.width, geometry.height)
        sides = [max(1, int(short_side * scale)) for scale in self.scales]
        sides = [target if abs(side - target) < 3 and target <= short_side else side for side in sides]
        pairs = [
            (width, height)
            for row, height in enumerate(sides)
            for column, width in enumerate(sides)
            if abs(row - column) <= self.max_distort
        ]
        width, height = pairs[rng.integers(len(pairs))]
        geometry.require(width, height)
        spare_x, spare_y = geometry.width - width, geometry.height - height
        if self.fix_crop:
            places = self._places(spare_x, spare_y)
            left, top = places[rng.integers(len(places))]
        else:
            left, top = int(rng.integers(spare_x + 1)), int(rng.integers(spare_y + 1))
        geometry.crop(left, top, width, height)
        geometry.resize(target, target)

    def _places(self, spare_x: int, spare_y: int) -> list[tuple[int, int]]:
        """Corners and centre in quarters of the spare room; PIL rounds them to whole pixels, so do we."""
        both = self.allow_duplication
        quarters = [(0, 0)]
        quarters += [(4, 0)] if both or spare_x else []
        quarters += [(0, 4)] if both or spare_y else []
        quarters += [(4, 4)] if both or (spare_x and spare_y) else []
        quarters += [(2, 2)] if both or spare_x or spare_y else []
        if self.more_fix_crop:
            quarters += [(0, 2), (4, 2), (2, 4), (2, 0), (1, 1), (3, 1), (1, 3), (3, 3)]
        return [(round(x * spare_x / 4), round(y * spare_y / 4)) for x, y in quarters]


@TRANSFORMS.register()
class RandomResizedCrop(Geometric):
    """A rectangle of random area, ratio and place, resized to a square.

    Args:
        area_range: smallest and largest area as shares of the frame's.
        aspect_ratio_range: smallest and largest width over height.
        target_size: side of the square in pixels.

    Reference: Going deeper with convolutions, arXiv:1409.4842, section 6.
    """

    _ATTEMPTS = 10

    def __init__(
        self,
        area_range: Sequence[float] = (0.08, 1.0),
        aspect_ratio_range: Sequence[float] = (3 / 4, 4 / 3),
        target_size: Size = 224,
    ) -> None:
        if not 0 < area_range[0] <= area_range[1] <= 1:
            raise LoaderError(f"RandomResizedCrop: area_range {list(area_range)} must rise within 0 to 1")
        if not 0 < aspect_ratio_range[0] <= aspect_ratio_range[1]:
            raise LoaderError(f"RandomResizedCrop: aspect_ratio_range {list(aspect_ratio_range)} must rise")
        self.area_range = area_range
        self.aspect_ratio_range = aspect_ratio_range
        self.target_size = target_size

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        geometry.crop(*self._rectangle(geometry.width, geometry.height, rng))
        target = geometry.scaled(self.target_size)
        geometry.resize(target, target)

    def _rectangle(
        self, frame_width: int, frame_height: int, rng: np.random.Generator
    ) -> tuple[int, int, int, int]:
        low, high = (math.log(ratio) for ratio in self.aspect_ratio_range)
        for _ in range(self._ATTEMPTS):
            ratio = math.exp(rng.uniform(low, high))
            area = rng.uniform(self.area_range[0], self.area_range[1]) * frame_width * frame_height
            width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < width <= frame_width and 0 < height <= frame_height:
                left = int(rng.integers(frame_width - width + 1))
                return left, int(rng.integers(frame_height - height + 1)), width, height
        side = min(frame_width, frame_height)
        return (frame_width - side) // 2, (frame_height - side) // 2, side, side


@TRANSFORMS.register()
class RandomFlip(Geometric):
    """Mirrors left and right, all frames of a clip or none.

    Args:
        p: how often.
        swapped_labels: pairs of classes of which each is the other's mirror image, such as pulling something
            from left to right, and from right to left. The labels of a mirrored clip change with it.

    Raises:
        LoaderError: a class is in more than one pair.
    """

    def __init__(self, p: Share = 0.5, swapped_labels: Sequence[tuple[Count, Count]] | None = None) -> None:
        self.p = p
        self.swapped_labels: dict[int, int] = {}
        for first, second in swapped_labels or ():
            if first == second or {first, second} & set(self.swapped_labels):
                raise LoaderError(
                    f"RandomFlip: swapped_labels {list(swapped_labels or ())}: a class has one mirror image, "
                    "which is another class; classes that stay the same are not listed"
                )
            self.swapped_labels.update({first: second, second: first})

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        if rng.random() < self.p:
            geometry.flip()
            geometry.labels = tuple(self.swapped_labels.get(label, label) for label in geometry.labels)

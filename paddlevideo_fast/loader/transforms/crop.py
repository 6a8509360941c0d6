"""Transforms that resize the frame, keep one or several parts of it, or mirror it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from paddlevideo_fast.config.types import Count, CropSize, Pixels, Share
from paddlevideo_fast.errors import LoaderError, TransformError
from paddlevideo_fast.loader.transforms.geometry import BACKEND_IGNORED, ClipGeometry, Geometric
from paddlevideo_fast.registry import TRANSFORMS

Sides = CropSize | tuple[CropSize, CropSize]

# Where a crop lies, in quarters of the room that it leaves in the frame: (x, y).
_MIDDLE = (2, 2)
_FIVE = ((0, 0), (4, 0), (0, 4), (4, 4), _MIDDLE)
_EIGHT_MORE = ((0, 2), (4, 2), (2, 4), (2, 0), (1, 1), (3, 1), (1, 3), (3, 3))
_SCALES = (1, 0.875, 0.75, 0.66)  # of MultiScaleCrop


@TRANSFORMS.register()
@dataclass(eq=False)
class Scale(Geometric):
    """Scales the shorter side to a size.

    Args:
        short_size: of the shorter side in pixels.
        fixed_ratio: the longer side becomes 4/3 of the shorter one, whatever the video's ratio is.
        keep_ratio: without `fixed_ratio`: False makes the frame square; otherwise the ratio stays.
        do_round: round the longer side rather than cut it.
    """

    short_size: Pixels
    fixed_ratio: bool = True
    keep_ratio: bool | None = None
    do_round: bool = False

    def __post_init__(self) -> None:
        if self.fixed_ratio and self.keep_ratio:
            raise LoaderError("Scale: fixed_ratio and keep_ratio exclude each other; set fixed_ratio: False")

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
@dataclass(eq=False)
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

    min_size: Pixels
    max_size: Pixels

    def __post_init__(self) -> None:
        if self.min_size > self.max_size:
            raise LoaderError(f"JitterScale: expected min_size {self.min_size} <= max_size {self.max_size}")

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        size = geometry.scaled(rng.uniform(self.min_size, self.max_size))
        short_size = min(geometry.width, geometry.height)
        geometry.resize(geometry.width * size // short_size, geometry.height * size // short_size)


@TRANSFORMS.register()
@dataclass(eq=False)
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

    height: Pixels
    width: Pixels

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        geometry.resize(geometry.scaled(self.width), geometry.scaled(self.height))


class _FixedCrop(Geometric):
    """Crops of one size at fixed places.

    Attributes:
        target_size: side, or (width, height), in pixels.
        positions: of the crops, in quarters of the room.
        flips: each place gives a view for each of them, a mirrored one for True.
    """

    positions: Sequence[tuple[int, int]] = (_MIDDLE,)
    flips: Sequence[bool] = (False,)

    def __init__(self, target_size: CropSize) -> None:
        self.target_size: Any = target_size
        self.num_views = len(self.positions) * len(self.flips)

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        size = self.target_size
        width, height = (geometry.scaled(side) for side in ((size, size) if isinstance(size, int) else size))
        geometry.require(width, height)
        room_x, room_y = geometry.width - width, geometry.height - height
        positions = self._positions_in(geometry, width, height)
        corners = [(self._offset(room_x, x), self._offset(room_y, y)) for x, y in positions]
        geometry.split([(*corner, flip) for corner in corners for flip in self.flips], width, height)

    def _positions_in(self, geometry: ClipGeometry, width: int, height: int) -> Sequence[tuple[int, int]]:
        return self.positions

    def _offset(self, room: int, quarters: int) -> int:
        """Where a crop begins, in pixels; PaddleVideo's transforms differ in how they round."""
        return room * quarters // 4


@TRANSFORMS.register()
class CenterCrop(_FixedCrop):
    """The square in the middle.

    Args:
        target_size: its side in pixels.
        do_round: where the margin is odd, round half of it to even rather than down.
    """

    def __init__(self, target_size: CropSize, do_round: bool = True) -> None:
        super().__init__(target_size)
        self.do_round = do_round

    def _offset(self, room: int, quarters: int) -> int:
        return round(room / 2) if self.do_round else room // 2


@TRANSFORMS.register()
class TenCrop(_FixedCrop):
    """The four corners and the centre, each also mirrored: 10 views.

    Args:
        target_size: side of the squares in pixels.
    """

    positions, flips = _FIVE, (False, True)

    def _offset(self, room: int, quarters: int) -> int:
        return room // 4 * quarters


@TRANSFORMS.register()
class UniformCrop(_FixedCrop):
    """Both ends and the middle of the longer side: 3 views.

    Args:
        target_size: side, or (width, height), in pixels; one of them must be the frame's, so scale first.
    """

    positions = ((0, 0), (4, 4), _MIDDLE)  # there is room on one axis only

    def __init__(self, target_size: Sides) -> None:
        super().__init__(target_size)  # type: ignore[arg-type]

    def _positions_in(self, geometry: ClipGeometry, width: int, height: int) -> Sequence[tuple[int, int]]:
        if geometry.width != width and geometry.height != height:
            raise TransformError(
                f"{width}×{height} fills neither side of a frame of {geometry.width}×{geometry.height}; "
                f"put a Scale with short_size {min(width, height)} before it"
            )
        return self.positions

    def _offset(self, room: int, quarters: int) -> int:
        return room // 2 * (quarters // 2)


@TRANSFORMS.register()
class GroupFullResSample(_FixedCrop):
    """Left, right and centre at mid-height: 3 views, or 6 with their mirror images.

    Args:
        crop_size: side, or (width, height), in pixels.
        flip: add the mirror image of each.
    """

    positions = ((0, 2), (4, 2), _MIDDLE)

    def __init__(self, crop_size: Sides, flip: bool = False) -> None:
        self.flips = (False, True) if flip else (False,)
        self.crop_size = crop_size
        super().__init__(crop_size)  # type: ignore[arg-type]

    def _offset(self, room: int, quarters: int) -> int:
        return room // 4 * quarters


@TRANSFORMS.register()
class MultiCenterCrop(_FixedCrop):
    """Centre, left and right at mid-height: 3 views.

    Args:
        target_size: side of the squares in pixels.
    """

    positions = (_MIDDLE, (0, 2), (4, 2))


@TRANSFORMS.register()
@dataclass(eq=False)
class RandomCrop(Geometric):
    """A square at a random place.

    Args:
        target_size: its side in pixels.
    """

    target_size: CropSize

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        size = geometry.scaled(self.target_size)
        geometry.require(size, size)
        geometry.crop(*_random_corner(geometry, size, size, rng), size, size)


@TRANSFORMS.register()
class MultiCrop(_FixedCrop):
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

    def __init__(self, target_size: CropSize, test_mode: bool = False) -> None:
        super().__init__(target_size)
        self.test_mode = test_mode
        self.num_views = 3 if test_mode else 1

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        if self.test_mode:
            super().apply(geometry, rng)
        else:
            RandomCrop(self.target_size).apply(geometry, rng)

    def _positions_in(self, geometry: ClipGeometry, width: int, height: int) -> Sequence[tuple[int, int]]:
        is_tall = geometry.height > geometry.width
        return [(2, end) if is_tall else (end, 2) for end in (0, 2, 4)]

    def _offset(self, room: int, quarters: int) -> int:
        return -(-room * quarters // 4)


def _random_corner(
    geometry: ClipGeometry, width: int, height: int, rng: np.random.Generator
) -> tuple[int, int]:
    left = int(rng.integers(geometry.width - width + 1))
    return left, int(rng.integers(geometry.height - height + 1))


@TRANSFORMS.register()
@dataclass(eq=False)
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

    target_size: CropSize
    scales: Sequence[float] | None = None
    max_distort: Count = 1
    fix_crop: bool = True
    allow_duplication: bool = False
    more_fix_crop: bool = True

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        target = geometry.scaled(self.target_size)
        short_side = min(geometry.width, geometry.height)
        sides = [max(1, int(short_side * scale)) for scale in self.scales or _SCALES]
        sides = [target if abs(side - target) < 3 and target <= short_side else side for side in sides]
        pairs = [
            (width, height)
            for row, height in enumerate(sides)
            for column, width in enumerate(sides)
            if abs(row - column) <= self.max_distort
        ]
        width, height = pairs[rng.integers(len(pairs))]
        geometry.require(width, height)
        if self.fix_crop:
            positions = self._positions(geometry.width - width, geometry.height - height)
            left, top = positions[rng.integers(len(positions))]
        else:
            left, top = _random_corner(geometry, width, height, rng)
        geometry.crop(left, top, width, height)
        geometry.resize(target, target)

    def _positions(self, room_x: int, room_y: int) -> list[tuple[int, int]]:
        """The fixed places in pixels; PIL rounds them to whole ones, so do we."""
        quarters = [*_FIVE, *(_EIGHT_MORE if self.more_fix_crop else ())]
        if not self.allow_duplication:  # without room, the ends of an axis and its middle are one place
            five = dict.fromkeys((x * (room_x > 0), y * (room_y > 0)) for x, y in _FIVE)
            quarters[: len(_FIVE)] = five
        return [(round(x * room_x / 4), round(y * room_y / 4)) for x, y in quarters]


@TRANSFORMS.register()
@dataclass(eq=False)
class RandomResizedCrop(Geometric):
    """A rectangle of random area, ratio and place, resized to a square.

    Args:
        area_range: smallest and largest area as shares of the frame's.
        aspect_ratio_range: smallest and largest width over height.
        target_size: side of the square in pixels.

    Reference: Going deeper with convolutions, arXiv:1409.4842, section 6.
    """

    area_range: Sequence[float] = (0.08, 1.0)
    aspect_ratio_range: Sequence[float] = (3 / 4, 4 / 3)
    target_size: CropSize = 224
    _ATTEMPTS: ClassVar = 10

    def __post_init__(self) -> None:
        areas, ratios = list(self.area_range), list(self.aspect_ratio_range)
        if not 0 < areas[0] <= areas[1] <= 1:
            raise LoaderError(f"RandomResizedCrop: area_range {areas} must rise within 0 to 1")
        if not 0 < ratios[0] <= ratios[1]:
            raise LoaderError(f"RandomResizedCrop: aspect_ratio_range {ratios} must rise")

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """See `Geometric`."""
        geometry.crop(*self._rectangle(geometry, rng))
        target = geometry.scaled(self.target_size)
        geometry.resize(target, target)

    def _rectangle(self, geometry: ClipGeometry, rng: np.random.Generator) -> tuple[int, int, int, int]:
        low, high = (math.log(ratio) for ratio in self.aspect_ratio_range)
        for _ in range(self._ATTEMPTS):
            ratio = math.exp(rng.uniform(low, high))
            area = rng.uniform(self.area_range[0], self.area_range[1]) * geometry.width * geometry.height
            width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < width <= geometry.width and 0 < height <= geometry.height:
                return *_random_corner(geometry, width, height, rng), width, height
        side = min(geometry.width, geometry.height)
        return (geometry.width - side) // 2, (geometry.height - side) // 2, side, side


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

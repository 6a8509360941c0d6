"""What all crops, resizes and flips of a pipeline do to a clip together, and one resample that does it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import List, Sequence, Tuple

import cv2
import numpy as np

from paddlevideo_fast.loader.errors import TransformError

_TOLERANCE_PX = 1 / 32  # the grid that OpenCV's own fixed-point warps are rounded to
_MAX_MARGIN_PX = 24


@dataclass
class View:
    """A box of the source frame, in source pixels, that becomes one output frame; `flip` mirrors it."""

    left: float
    top: float
    width: float
    height: float
    flip: bool = False


class ClipGeometry:
    """The box of the source that is shown, and the size it is shown at.

    Transforms speak in the coordinates of the frame as it is after the transforms before them:

        source 340×256       resize(425, 320)        crop(100, 48, 224, 224)
        +-----------+        +-----------+           box (80, 38.4, 179.2, 179.2)
        |           |   →    |  425×320  |     →     shown at 224×224
        +-----------+        +-----------+

    Args:
        source_width: width of the decoded frames in pixels.
        source_height: their height.
        size_factor: what the sizes that transforms ask for are multiplied with; 1 unless the request has a
            crop size of its own.

    Attributes:
        width: current width of the output in pixels.
        height: current height.
        views: the boxes; more than one after a multi-crop.
    """

    def __init__(self, source_width: int, source_height: int, size_factor: float = 1.0) -> None:
        self.source_width = source_width
        self.source_height = source_height
        self.size_factor = size_factor
        self.width = source_width
        self.height = source_height
        self.views = [View(0.0, 0.0, float(source_width), float(source_height))]

    def scaled(self, size_px: float) -> int:
        """A size of the configuration in pixels of this request."""
        return max(1, round(size_px * self.size_factor))

    def resize(self, width: int, height: int) -> None:
        """Shows the same box at another size."""
        self.width, self.height = width, height

    def crop(self, left: int, top: int, width: int, height: int) -> None:
        """Cuts a rectangle out of the current frame.

        Raises:
            TransformError: it reaches over the frame.
        """
        self.split([(left, top, False)], width, height)

    def split(self, places: Sequence[Tuple[int, int, bool]], width: int, height: int) -> None:
        """Cuts several rectangles of one size out of the current frame; each becomes a view.

        Args:
            places: (left, top, mirrored) of each.
            width: of all of them.
            height: of all of them.

        Raises:
            TransformError: one reaches over the frame.
        """
        self.views = [
            self._cut(view, left, top, width, height, flip)
            for left, top, flip in places
            for view in self.views
        ]
        self.width, self.height = width, height

    def flip(self) -> None:
        """Mirrors left and right."""
        for view in self.views:
            view.flip = not view.flip

    def require(self, width: int, height: int) -> None:
        """Checks that a crop of this size fits.

        Raises:
            TransformError: it does not.
        """
        if width > self.width or height > self.height:
            raise TransformError(
                f"a crop of {width}×{height} does not fit into a frame of {self.width}×{self.height} "
                f"(decoded at {self.source_width}×{self.source_height}); put a Scale before it"
            )

    def _cut(self, view: View, left: int, top: int, width: int, height: int, flip: bool) -> View:
        self.require(left + width, top + height)
        if left < 0 or top < 0:
            raise TransformError(f"a crop at ({left}, {top}) starts outside the frame")
        scale_x, scale_y = view.width / self.width, view.height / self.height
        if view.flip:  # left in the mirrored frame is right in the source
            left = self.width - left - width
        return replace(
            view,
            left=view.left + left * scale_x,
            top=view.top + top * scale_y,
            width=width * scale_x,
            height=height * scale_y,
            flip=view.flip != flip,
        )

    def render(self, frames: np.ndarray) -> np.ndarray:
        """Resamples each frame once for each view.

        Args:
            frames: uint8 [T, H, W, 3].

        Returns:
            uint8 [V * T, height, width, 3], the frames of a view one after the other.
        """
        num_frames = len(frames)
        clip = np.empty((len(self.views) * num_frames, self.height, self.width, 3), np.uint8)
        for number, view in enumerate(self.views):
            shrink = _shrink_factor(view.width / self.width, view.height / self.height)
            columns = _plan_axis(view.left, view.width, self.width, frames.shape[2], shrink)
            rows = _plan_axis(view.top, view.height, self.height, frames.shape[1], shrink)
            out = clip[number * num_frames : (number + 1) * num_frames]
            _resample(frames, rows, columns, view.flip, out)
        return clip


def _shrink_factor(*scales: float) -> int:
    """The power of 2 by which frames are averaged down first, so that less than 2 pixels are left for one.

    A linear resample reads two pixels on an axis and would lose those between. Halving with cv2.INTER_AREA is
    ten times faster than INTER_AREA straight to the size.
    """
    factor = 1
    while min(scales) / factor >= 2:
        factor *= 2
    return factor


@dataclass(frozen=True)
class _Axis:
    """Source pixels [start, stop) are averaged down by `shrink`, resized to `size`, cut from `offset` on."""

    start: int
    stop: int
    shrink: int
    size: int
    offset: int


def _plan_axis(start: float, length: float, size: int, source_size: int, shrink: int) -> _Axis:
    """Whole source pixels that resize to the wanted pixels.

    A box from a crop of a resized frame starts between source pixels, and cv2.resize takes whole ones. So the
    box grows by the few output pixels after which the two grids meet again; they are cut off afterwards. The
    result is what resizing the whole frame gives, to about 1/32 of a pixel.
    """
    phase = (
        round(start) % shrink
    )  # blocks of `shrink` pixels are laid from the box, not from the frame's edge
    start, length, source_size = (start - phase) / shrink, length / shrink, (source_size - phase) // shrink
    scale = length / size
    before, low = _meet(start, -scale, source_size)
    after, high = _meet(start + length, scale, source_size)
    high = max(high, low + 1)
    return _Axis(phase + low * shrink, phase + high * shrink, shrink, before + size + after, before)


def _meet(edge: float, step: float, source_size: int) -> Tuple[int, int]:
    """Output pixels to grow by from `edge`, and the whole source coordinate met there."""
    inside = _TOLERANCE_PX < edge < source_size - _TOLERANCE_PX
    # enlarging reads half a pixel over the edge
    first = 1 if inside and abs(step) < 1 else 0
    best = (0, min(max(round(edge), 0), source_size))
    best_error = 1.0
    for margin in range(first, _MAX_MARGIN_PX + 1):
        position = edge + margin * step
        if not -_TOLERANCE_PX <= position <= source_size + _TOLERANCE_PX:
            break
        error = abs(position - round(position))
        if error < best_error:
            best, best_error = (margin, round(position)), error
        if error <= _TOLERANCE_PX:
            break
    return best


def _resample(frames: np.ndarray, rows: _Axis, columns: _Axis, flip: bool, out: np.ndarray) -> None:
    height, width = out.shape[1:3]
    size = (columns.size, rows.size)
    region = frames[:, rows.start : rows.stop, columns.start : columns.stop]
    for frame, target in zip(region, out):
        for _ in range(rows.shrink.bit_length() - 1):
            frame = cv2.resize(frame, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
        if frame.shape[1::-1] != size:
            frame = cv2.resize(frame, size, interpolation=cv2.INTER_LINEAR)
        frame = frame[rows.offset : rows.offset + height, columns.offset : columns.offset + width]
        if flip:
            cv2.flip(frame, 1, dst=target)
        else:
            target[:] = frame


def fit_short_side(width: int, height: int, short_size: int) -> List[int]:
    """[width, height] with the shorter one `short_size` and the longer one in proportion, rounded down."""
    if width <= height:
        return [short_size, height * short_size // width]
    return [width * short_size // height, short_size]

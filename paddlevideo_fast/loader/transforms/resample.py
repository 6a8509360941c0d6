"""The one resample of a pipeline: planned before anything is decoded, run once for each frame and view."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import cv2
import numpy as np

from paddlevideo_fast.decode.reader import Crops

_TOLERANCE_PX = 1 / 32  # the grid that OpenCV's own fixed-point warps are rounded to
_MAX_MARGIN_PX = 24
_WHOLE_PX = 1e-6  # rounding of sums of sizes and places that are whole numbers

ResampleMode = Literal["antialias", "bilinear"]


@dataclass
class View:
    """A box of the source frame, in source pixels, that becomes one output frame; `flip` mirrors it."""

    left: float
    top: float
    width: float
    height: float
    flip: bool = False

    def shrunk(self, by: int) -> "View":
        """The same box in a frame of so many times fewer rows and columns."""
        return View(self.left / by, self.top / by, self.width / by, self.height / by, self.flip)


class Resample:
    """Makes the views of a clip, frame by frame, out of the parts of the frames that they show.

    Args:
        views: what each output frame shows.
        width: of the output in pixels.
        height: of the output.
        source_width: of the whole frames, or of their crops.
        source_height: likewise.
        mode: "antialias" averages the pixels that a shrunk frame has no room for; "bilinear" leaves them out,
            as PaddleVideo does (`PipelineSettings`).
        crops: cuts from each frame what the views are boxes of; None: they are boxes of the whole frame.
    """

    def __init__(
        self,
        views: Sequence[View],
        width: int,
        height: int,
        source_width: int,
        source_height: int,
        mode: ResampleMode = "antialias",
        crops: Crops | None = None,
    ) -> None:
        self.width, self.height, self._crops = width, height, crops
        self._mode, self._views, self._source_size = mode, views, (source_width, source_height)
        self._reduced: Resample | None = None  # of smaller pictures
        self._shrink = math.inf
        axes: list[tuple[_Axis, _Axis]] = []
        for view in views:
            shrink = shrink_factor(view.width / width, view.height / height) if mode == "antialias" else 1
            rows, columns = (
                (mode == "bilinear" and _whole_axis(*axis)) or _plan_axis(*axis, shrink)
                for axis in (
                    (view.top, view.height, height, source_height),
                    (view.left, view.width, width, source_width),
                )
            )
            axes.append((rows, columns))
            self._shrink = min(self._shrink, shrink)
        self._region = tuple(
            slice(min(axis.start for axis in of_views), max(axis.stop for axis in of_views))
            for of_views in zip(*axes)
        )
        top, left = (part.start for part in self._region)
        self._steps = [
            _Step(rows.moved(-top), columns.moved(-left), view.flip, width, height)
            for (rows, columns), view in zip(axes, views)
        ]

    def shape(self, num_frames: int) -> tuple[int, int, int, int]:
        """The shape of the clip that so many frames make."""
        return len(self._steps) * num_frames, self.height, self.width, 3

    def draw(self, frame: Any, clip: np.ndarray, slots: Sequence[int]) -> None:
        """Resamples a frame once for each view.

        Args:
            frame: uint8 [H, W, 3], a whole frame, or what is cut as such an array.
            clip: uint8 [V * T, height, width, 3], the frames of a view one after the other, to be written.
            slots: which of the T frames of each view this frame is.
        """
        reduction = self._reduction_of(frame)
        if reduction > 1:
            self._for_reduced(reduction).draw(frame.reduced(reduction), clip, slots)
            return
        num_frames = len(clip) // len(self._steps)
        first, *repeats = slots
        if self._crops is not None:
            frame = self._crops.cut(frame, first)
        frame = frame[self._region]
        for step, view in zip(self._steps, clip.reshape(len(self._steps), num_frames, *clip.shape[1:])):
            step.draw(frame, view[first])
            for slot in repeats:
                view[slot] = view[first]

    def _reduction_of(self, frame: Any) -> int:
        """By how much a picture that can be decoded smaller is; 1 where it would have too few pixels."""
        reductions = getattr(frame, "reductions", ()) if self._crops is None else ()
        return next((each for each in reductions if each <= self._shrink), 1)

    def _for_reduced(self, reduction: int) -> "Resample":
        """Makes the same views out of smaller pictures, which are of one size in a clip."""
        if self._reduced is None:
            width, height = (side // reduction for side in self._source_size)
            views = [view.shrunk(reduction) for view in self._views]
            self._reduced = Resample(views, self.width, self.height, width, height, self._mode)
        return self._reduced


def shrink_factor(*scales: float) -> int:
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

    @property
    def length(self) -> int:
        """Source pixels."""
        return self.stop - self.start

    def moved(self, by: int) -> "_Axis":
        """The same pixels, counted from another one."""
        return replace(self, start=self.start + by, stop=self.stop + by)


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


def _whole_axis(start: float, length: float, size: int, source_size: int) -> _Axis | None:
    """The whole frame resized, and the wanted pixels cut from it: the bits of PaddleVideo's Scale and crop.

    None where the wanted pixels lie between those of the resized frame, and where nothing is resized.
    """
    scale = size / length
    offset, whole_size = start * scale, source_size * scale
    if size == length or max(abs(offset - round(offset)), abs(whole_size - round(whole_size))) > _WHOLE_PX:
        return None
    return _Axis(0, source_size, 1, round(whole_size), round(offset))


def _meet(edge: float, step: float, source_size: int) -> tuple[int, int]:
    """How far to extend the crop, in output pixels, so that its edge falls on an integer source pixel; and
    that pixel.
    """
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


class _Step:
    """Makes one view; its scratch pictures serve all frames."""

    def __init__(self, rows: _Axis, columns: _Axis, flip: bool, width: int, height: int) -> None:
        self._region = np.s_[rows.start : rows.stop, columns.start : columns.stop]
        self._window = np.s_[rows.offset : rows.offset + height, columns.offset : columns.offset + width]
        self._size = (columns.size, rows.size)
        self._flip = flip
        self._halves = [
            np.empty((rows.length >> step, columns.length >> step, 3), np.uint8)
            for step in range(1, rows.shrink.bit_length())
        ]
        self._resized = np.empty((rows.size, columns.size, 3), np.uint8)
        self._keeps_size = (columns.length // columns.shrink, rows.length // rows.shrink) == self._size
        self._is_straight = self._size == (width, height) and not self._keeps_size and not flip

    def draw(self, frame: np.ndarray, target: np.ndarray) -> None:
        """Writes the view of a frame's region into `target`, uint8 [height, width, 3]."""
        part = frame[self._region]
        for half in self._halves:
            part = cv2.resize(part, half.shape[1::-1], dst=half, interpolation=cv2.INTER_AREA)
        if self._is_straight:
            cv2.resize(part, self._size, dst=target, interpolation=cv2.INTER_LINEAR)
            return
        if not self._keeps_size:
            part = cv2.resize(part, self._size, dst=self._resized, interpolation=cv2.INTER_LINEAR)
        if self._flip:
            cv2.flip(part[self._window], 1, dst=target)
        else:
            target[:] = part[self._window]

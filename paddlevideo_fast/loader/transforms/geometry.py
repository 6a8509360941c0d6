"""The kinds of transform, and what all crops, resizes and flips of a pipeline do to a clip together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from paddlevideo_fast.decode.reader import Crops
from paddlevideo_fast.errors import TransformError
from paddlevideo_fast.loader.transforms.resample import Resample, ResampleMode, View

IMAGENET: tuple[tuple[float, ...], tuple[float, ...]] = (  # mean and std of its channels
    (0.485, 0.456, 0.406),
    (0.229, 0.224, 0.225),
)
BACKEND_IGNORED = {"backend": "all transforms of a pipeline are one OpenCV resample here"}


class Geometric:
    """Adds to the geometry of the clip; touches no pixel.

    Attributes:
        num_views: views it makes of each view.
    """

    ignored_arguments: ClassVar[dict[str, str]] = BACKEND_IGNORED
    num_views = 1

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """Changes `geometry`.

        Raises:
            TransformError: the frame is too small for it.
        """
        raise NotImplementedError


class Pixelwise:
    """Changes the values of the finished clip.

    Attributes:
        normalization: mean and standard deviation of the channels for pixel values in 0 to 1, by which the
            device will normalise the clip; the pipeline sets it.
    """

    normalization = IMAGENET

    def apply(self, clip: np.ndarray, rng: np.random.Generator) -> None:
        """Changes `clip`, uint8 [T, H, W, 3], in place; all frames in the same way."""
        raise NotImplementedError


class Descriptive:
    """Describes what the device does with the clip. The loader itself does nothing."""


@dataclass(eq=False)
class ClipGeometry:
    """The box of the source that is shown, and the size it is shown at.

    Transforms speak in the coordinates of the frame as it is after the transforms before them:

        source 340×256       resize(425, 320)        crop(100, 48, 224, 224)
        +-----------+        +-----------+           box (80, 38.4, 179.2, 179.2)
        |           |   →    |  425×320  |     →     shown at 224×224
        +-----------+        +-----------+

    Args:
        source_width: width of the source, which is the decoded frames or `crops` of them, in pixels.
        source_height: its height.
        size_factor: factor for the sizes in the config; not 1 if the request has a crop size of its own.
        labels: classes of the video.
        mode: how pixels are resampled; see `Resample`.
        shown_width: width of the frames as they are shown, in square pixels; None: as they are.
        crops: cuts the source out of the decoded frames; None: they are the source.

    Attributes:
        width: current width of the output in pixels.
        height: current height.
        views: the boxes; more than one after a multi-crop.
        labels: classes of the clip; mirroring may change them.
    """

    source_width: int
    source_height: int
    size_factor: float = 1.0
    labels: tuple[int, ...] = (0,)
    mode: ResampleMode = "antialias"
    shown_width: int | None = None
    crops: Crops | None = None

    def __post_init__(self) -> None:
        self.width, self.height = self.shown_width or self.source_width, self.source_height
        self.views = [View(0.0, 0.0, float(self.source_width), float(self.source_height))]

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

    def split(self, corners: Sequence[tuple[int, int, bool]], width: int, height: int) -> None:
        """Cuts several rectangles of one size out of the current frame; each becomes a view.

        Args:
            corners: (left, top, mirrored) of each.
            width: of all of them.
            height: of all of them.

        Raises:
            TransformError: one reaches over the frame.
        """
        self.views = [
            self._cut(view, left, top, width, height, flip)
            for left, top, flip in corners
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

    def plan(self) -> Resample:
        """What makes the clip out of decoded frames."""
        size = (self.source_width, self.source_height)
        return Resample(self.views, self.width, self.height, *size, self.mode, self.crops)

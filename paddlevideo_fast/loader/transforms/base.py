"""The three kinds of transform."""

from __future__ import annotations

from typing import ClassVar, Dict

import numpy as np

from paddlevideo_fast.loader.transforms.geometry import ClipGeometry

BACKEND_IGNORED = {"backend": "all transforms of a pipeline are one OpenCV resample here"}


class Geometric:
    """Adds to the geometry of the clip; touches no pixel.

    Attributes:
        num_views: views it makes of each view.
    """

    ignored_arguments: ClassVar[Dict[str, str]] = BACKEND_IGNORED
    num_views = 1

    def apply(self, geometry: ClipGeometry, rng: np.random.Generator) -> None:
        """Changes `geometry`.

        Raises:
            TransformError: the frame is too small for it.
        """
        raise NotImplementedError


class Pixelwise:
    """Changes the values of the finished clip."""

    def apply(self, clip: np.ndarray, rng: np.random.Generator) -> None:
        """Changes `clip`, uint8 [T, H, W, 3], in place; all frames in the same way."""
        raise NotImplementedError


class Descriptive:
    """Says what the device does with the clip; nothing happens in the loader."""

"""From a decoded picture to RGB."""

from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from paddlevideo_fast.decode.orientation import turned

# PyAV 17 began to convert colours on all cores; other workers need them.
ONE_THREAD: dict[str, Any] = {"threads": 1} if int(av.__version__.split(".")[0]) >= 17 else {}

# AVColorSpace (ITU-T H.273) -> libswscale's matrix. What is not tagged is taken for BT.601, as by all players
# of small videos.
_BT601 = 5
_MATRICES = {1: 1, 4: 4, 7: 7, 9: 9, 10: 9}
_LIMITED, _FULL = 1, 2


class RgbConverter:
    """Converts pictures to RGB by the matrix and the range that they are tagged with.

    PyAV before 17 ignores both tags unless told, and keeps the first matrix in its converter: so both are
    always passed, and other colours get another converter. It is not PyAV's default one, which from 19 on
    keeps threads that a forked worker does not have and waits for.
    """

    def __init__(self) -> None:
        self._colours: tuple[Any, ...] = ()
        self._converter = VideoReformatter()
        self._options: dict[str, Any] = {}

    def __call__(self, frame: Any, orientation: int = 0) -> np.ndarray:
        """The picture, uint8 [H, W, 3], in this orientation; rows may be padded."""
        colours = (frame.format.name, int(frame.colorspace), int(frame.color_range))
        if colours != self._colours:
            self._colours, self._converter = colours, VideoReformatter()
            self._options = _options(frame.format, *colours[1:])
        plane = self._converter.reformat(frame, format="rgb24", **self._options, **ONE_THREAD).planes[0]
        shape, strides = (frame.height, frame.width, 3), (plane.line_size, 3, 1)
        picture: np.ndarray = np.ndarray(shape, np.uint8, plane, 0, strides)
        return turned(picture, orientation)


def _options(pixel_format: Any, colour_space: int, colour_range: int) -> dict[str, Any]:
    if pixel_format.is_rgb:
        return {}
    matrix = _MATRICES.get(colour_space, _BT601)
    full = colour_range == _FULL or pixel_format.name.startswith(("yuvj", "gray"))
    return {
        "src_colorspace": matrix,
        "dst_colorspace": 1 if matrix == _BT601 else _BT601,  # PyAV sets a matrix only where the two differ
        "src_color_range": _FULL if full else _LIMITED,
        "dst_color_range": _FULL,
    }

"""From a decoded picture to RGB."""

from typing import Any, NamedTuple

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from paddlevideo_fast.decode.orientation import turned
from paddlevideo_fast.errors import VideoDecodeError

# PyAV converts colours on all cores, and other workers need them.
ONE_THREAD: dict[str, Any] = {"threads": 1}

# AVColorSpace (ITU-T H.273) -> libswscale's matrix. What is not tagged is taken for BT.601, as by all players
# of small videos.
_BT601 = 5
_MATRICES = {0: 5, 1: 1, 2: 5, 3: 5, 4: 4, 5: 5, 6: 5, 7: 7, 9: 9}
_YCGCO = 8
_UNKNOWN = {
    10: "BT.2020 with constant luminance",
    11: "Y′D′zD′x",
    12: "a matrix of their primaries",
    13: "a matrix of their primaries with constant luminance",
    14: "ICtCp",
    15: "IPT-C2",
    16: "YCgCo-Re",
    17: "YCgCo-Ro",
}
LIMITED, FULL = 1, 2

# A part of a picture in one of these formats becomes the RGB that it has in the whole, if it begins with even
# rows and columns: there each pixel is converted with its own chroma, and with nothing around it.
_CUT = ("yuv420p", "yuvj420p", "yuv422p", "yuv444p")
_LEAST_SAVED = 2**17  # pixels; to copy a part takes longer than to convert fewer than these


class Colours(NamedTuple):
    """What the values of a picture mean.

    Attributes:
        matrix: of luma and chroma, in libswscale's numbers; None: the picture has none of its matrices.
        is_full: whether they have the range 0 to 255, not 16 to 235.
    """

    matrix: int | None
    is_full: bool


BT601_LIMITED = Colours(_BT601, False)


def colours_of(frame: Any, name: str) -> Colours:
    """The colours of a picture of PyAV.

    Args:
        frame: as the decoder gives it.
        name: of the video, for the error.

    Raises:
        VideoDecodeError: they cannot be converted.
    """
    form, space = frame.format, int(frame.colorspace)
    is_full = int(frame.color_range) == FULL or form.name.startswith(("yuvj", "gray"))
    if form.is_rgb or len(form.components) < 3:  # grey, or a palette
        return Colours(None, is_full)
    if space in _UNKNOWN:
        cause = f"its colours are stored as {_UNKNOWN[space]}, which is not supported: re-encode it as BT.709"
        raise VideoDecodeError(name, cause)
    return Colours(None if space == _YCGCO else _MATRICES.get(space, _BT601), is_full)


class RgbConverter:
    """Converts pictures to RGB by the matrix and the range that they are tagged with.

    PyAV before 17 ignores both tags unless told, and keeps the first matrix in its converter: so both are
    always passed, and other colours get another converter. It is not PyAV's default one, which from 19 on
    keeps threads that a forked worker does not have and waits for.

    Args:
        name: of the video, for errors.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._tags: tuple[Any, ...] = ()
        self._converter = VideoReformatter()
        self._cut = av.VideoFrame(2, 2)
        self._options: dict[str, Any] = {}
        self._is_full = False

    def __call__(self, frame: Any, orientation: int = 0) -> np.ndarray:
        """The picture, uint8 [H, W, 3], in this orientation; rows may be padded.

        Raises:
            VideoDecodeError: its colours cannot be converted.
        """
        self._read_tags(frame)
        if int(frame.colorspace) == _YCGCO and len(frame.format.components) >= 3:
            return turned(self._from_ycgco(frame), orientation)
        return turned(self._converted(frame), orientation)

    def part(self, frame: Any, rows: slice, columns: slice) -> np.ndarray:
        """These rows and columns of the picture as it is stored, uint8 [height, width, 3].

        Raises:
            VideoDecodeError: its colours cannot be converted.
        """
        width, height = frame.width, frame.height
        (top, bottom, _), (left, right, _) = rows.indices(height), columns.indices(width)
        is_small = width * height - (bottom - top) * (right - left) < _LEAST_SAVED
        if is_small or not _is_plain(frame):
            return self(frame)[rows, columns]
        self._read_tags(frame)
        box = (top - top % 2, bottom + bottom % 2, left - left % 2, right + right % 2)
        size = (box[3] - box[2], box[1] - box[0])
        if (self._cut.width, self._cut.height, self._cut.format.name) != (*size, frame.format.name):
            self._cut = av.VideoFrame(*size, frame.format.name)
        for plane, target in zip(map(_values, frame.planes), map(_values, self._cut.planes)):
            down, across = height // plane.shape[0], width // plane.shape[1]
            target[:] = plane[box[0] // down : box[1] // down, box[2] // across : box[3] // across]
        picture = self._converted(self._cut)
        return picture[top % 2 :, left % 2 :][: bottom - top, : right - left]

    def _read_tags(self, frame: Any) -> None:
        tags = (frame.format.name, int(frame.colorspace), int(frame.color_range))
        if tags != self._tags:
            matrix, self._is_full = colours_of(frame, self._name)
            self._tags, self._converter = tags, VideoReformatter()
            self._options = {} if frame.format.is_rgb else _options(matrix or _BT601, self._is_full)

    def _converted(self, frame: Any) -> np.ndarray:
        plane = self._converter.reformat(frame, format="rgb24", **self._options, **ONE_THREAD).planes[0]
        shape, strides = (frame.height, frame.width, 3), (plane.line_size, 3, 1)
        picture: np.ndarray = np.ndarray(shape, np.uint8, plane, 0, strides)
        return picture

    def _from_ycgco(self, frame: Any) -> np.ndarray:
        """Reference: ITU-T H.273, equations 53 to 56 (matrix 8)."""
        same = {"src_colorspace": 1, "dst_colorspace": 1, "src_color_range": FULL, "dst_color_range": FULL}
        planes = self._converter.reformat(frame, format="yuv444p", **same, **ONE_THREAD).planes
        luma, green, orange = (_values(plane).astype(np.int16) for plane in planes)
        green, orange = green - 128, orange - 128
        picture = np.stack([luma - green + orange, luma + green, luma - green - orange], -1)
        if not self._is_full:
            picture = np.rint((picture - 16) * (255 / 219))
        return picture.clip(0, 255).astype(np.uint8)


class Picture:
    """A decoded picture that becomes RGB where it is looked at.

    It stands for an array uint8 [H, W, 3]: two slices cut a part out of it, `np.asarray` converts all of it.

    Args:
        frame: as the decoder gives it.
        to_rgb: converts it.
        orientation: in which it is shown.

    Attributes:
        shape: of the array.
    """

    def __init__(self, frame: Any, to_rgb: RgbConverter, orientation: int) -> None:
        self._frame, self._to_rgb, self._orientation = frame, to_rgb, orientation
        self.shape = (*(frame.height, frame.width)[:: -1 if orientation % 2 else 1], 3)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return self._to_rgb(self._frame, self._orientation)

    def __getitem__(self, region: tuple[slice, slice]) -> np.ndarray:
        """Rows and columns, as they are shown."""
        if self._orientation:
            return np.asarray(self)[region]
        return self._to_rgb.part(self._frame, *region)


def _is_plain(frame: Any) -> bool:
    """Whether parts can be converted alone; swscale converts interlaced pictures and odd sizes otherwise."""
    is_odd = frame.width % 2 or frame.height % 2 or frame.interlaced_frame
    has_matrix = frame.format.name in _CUT and int(frame.colorspace) != _YCGCO
    return bool(has_matrix and not is_odd and frame.planes[0].line_size > 0)


def _values(plane: Any) -> np.ndarray:
    """The bytes of a plane, uint8 [height, width], to be read and written."""
    return np.ndarray((plane.height, plane.width), np.uint8, plane, 0, (plane.line_size, 1))


def _options(matrix: int, is_full: bool) -> dict[str, Any]:
    return {
        "src_colorspace": matrix,
        "dst_colorspace": 1 if matrix == _BT601 else _BT601,  # PyAV sets a matrix only where the two differ
        "src_color_range": FULL if is_full else LIMITED,
        "dst_color_range": FULL,
    }

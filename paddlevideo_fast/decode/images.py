"""One compressed image to pixels, for everything that stores videos as images."""

from __future__ import annotations

import struct
from typing import Optional, Tuple, Union

import cv2
import numpy as np

from paddlevideo_fast.errors import VideoDecodeError

_JPEG_START, _JPEG_END, _JPEG_SCAN = b"\xff\xd8", b"\xff\xd9", b"\xff\xda"
_FRAME_MARKERS = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # these three are tables


def is_jpeg(data: bytes) -> bool:
    """Whether an image file is a JPEG, by its first bytes."""
    return data[:2] == _JPEG_START


def decode_image(data: Union[bytes, memoryview], path: str) -> np.ndarray:
    """The pixels of an image file.

    Args:
        data: the whole file.
        path: what it is called in an error.

    Returns:
        uint8 [H, W, 3], RGB.

    Raises:
        VideoDecodeError: it is empty, cut off, or no image.
    """
    if not data:
        raise VideoDecodeError(path, "empty (0 bytes)")
    if is_jpeg(bytes(data[:2])) and not _is_whole(data):
        raise VideoDecodeError(path, "the image is cut off")
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    except cv2.error:  # a size above OpenCV's limit, which damage can claim
        pixels = None
    if pixels is None:
        raise VideoDecodeError(path, "not an image, or damaged")
    return pixels


def jpeg_size(data: bytes) -> Optional[Tuple[int, int]]:
    """(width, height) of a JPEG as it is shown, from its header; None where only decoding tells.

    A file is a row of segments: 0xFF, a marker, the segment's length in two bytes, and its content. The size
    is in the one that starts a frame. Exif may say that the picture is shown turned.

    Reference: ITU-T T.81, annex B.
    """
    place = len(_JPEG_START)
    while is_jpeg(data) and place + 9 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker in _FRAME_MARKERS:
            height, width = struct.unpack_from(">HH", data, place + 5)
            return (width, height) if width and height else None
        if data[place + 4 : place + 8] == b"Exif":
            return None
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return None


def _is_whole(data: Union[bytes, memoryview]) -> bool:
    """Whether a JPEG has its end; OpenCV paints what is missing grey and says nothing.

    A preview inside the file has an end of its own, but there the picture's scan comes after it.
    """
    tail = bytes(data[-64:])
    if _JPEG_END in tail and _JPEG_SCAN not in tail:
        return True
    whole = bytes(data)
    end = whole.rfind(_JPEG_END)
    return end >= 0 and whole.find(_JPEG_SCAN, end) < 0

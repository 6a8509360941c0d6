"""One compressed image to pixels, for everything that stores videos as images."""

from __future__ import annotations

from typing import Union

import cv2
import numpy as np

from paddlevideo_fast.errors import VideoDecodeError

_JPEG_START, _JPEG_END, _JPEG_SCAN = b"\xff\xd8", b"\xff\xd9", b"\xff\xda"


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
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    if pixels is None:
        raise VideoDecodeError(path, "not an image, or damaged")
    return pixels


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

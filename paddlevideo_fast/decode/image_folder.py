"""Videos stored as a folder of numbered images, and the decoding of one image."""

import os
import re
import string
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from paddlevideo_fast.decode.reader import VideoReader
from paddlevideo_fast.errors import VideoDecodeError, cause_of
from paddlevideo_fast.io.files import as_path
from paddlevideo_fast.io.paths import file_system
from paddlevideo_fast.io.urls import join

_JPEG_START, _JPEG_END, _JPEG_SCAN = b"\xff\xd8", b"\xff\xd9", b"\xff\xda"
_FRAME_MARKERS = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # these three are tables


def is_jpeg(data: bytes | memoryview) -> bool:
    """Whether an image file is a JPEG, by its first bytes."""
    return data[:2] == _JPEG_START


# OpenCV before 4.11 gives all pictures in BGR
_RGB = getattr(cv2, "IMREAD_COLOR_RGB", None)

_READS = {1: cv2.IMREAD_COLOR, 2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4}


def decode_image(data: bytes | memoryview, path: str, reduction: int = 1) -> np.ndarray:
    """The pixels of an image file.

    Args:
        data: the whole file.
        path: name of the image in errors.
        reduction: of a JPEG: 2 or 4 decodes it at a half or a quarter of its width and height.

    Returns:
        uint8 [H, W, 3], RGB.

    Raises:
        VideoDecodeError: it is empty, cut off, or no image.
    """
    if not data:
        raise VideoDecodeError(path, "empty (0 bytes)")
    if is_jpeg(bytes(data[:2])) and not _is_whole(data):
        raise VideoDecodeError(path, "the image is cut off")
    flag = _READS[reduction] if reduction > 1 or _RGB is None else _RGB
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    except cv2.error:  # a size above OpenCV's limit, which damage can claim
        pixels = None
    if pixels is None:
        raise VideoDecodeError(path, "not an image, or damaged")
    if flag != _RGB:
        cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB, dst=pixels)
    return pixels


class JpegPicture:
    """A JPEG that is decoded where it is looked at, as a whole or smaller.

    It stands for an array uint8 [H, W, 3], RGB, as `colour.Picture` does. Decoding at a half takes about half
    of the time, and averages pixels, as a resample does.

    Args:
        data: the whole file.
        path: name of the image in errors.
        size: (width, height) of the image.

    Attributes:
        shape: of the array.
    """

    reductions = (4, 2)

    def __init__(self, data: bytes | memoryview, path: str, size: tuple[int, int]) -> None:
        self._data, self._path = data, path
        self.shape = (size[1], size[0], 3)
        self._decoded: dict[int, np.ndarray] = {}

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return self.reduced(1)

    def __getitem__(self, region: tuple[slice, slice]) -> np.ndarray:
        return self.reduced(1)[region]

    def reduced(self, reduction: int) -> np.ndarray:
        """All of it at 1, 1/2 or 1/4 of its width and height, which are rounded up.

        Raises:
            VideoDecodeError: as `decode_image`.
        """
        if reduction not in self._decoded:
            self._decoded[reduction] = decode_image(self._data, self._path, reduction)
        return self._decoded[reduction]


def open_image(data: bytes | memoryview, path: str) -> np.ndarray | JpegPicture:
    """An image file, decoded at once where it is no JPEG, or where only decoding tells its size."""
    size = jpeg_size(data)
    return JpegPicture(data, path, size) if size else decode_image(data, path)


def jpeg_size(data: bytes | memoryview) -> tuple[int, int] | None:
    """(width, height) of a JPEG as it is shown, from its header; None where only decoding tells.

    A file is a row of segments: 0xFF, a marker, the segment's length in two bytes, and its content. The size
    is in the one that starts a frame. Exif may say that the picture is shown turned.

    Reference: ITU-T T.81, annex B.
    """
    at = len(_JPEG_START)
    while is_jpeg(data) and at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _FRAME_MARKERS:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return (width, height) if width and height else None
        if data[at + 4 : at + 8] == b"Exif":
            return None
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def _is_whole(data: bytes | memoryview) -> bool:
    """Whether a JPEG has its end; OpenCV paints what is missing grey and says nothing.

    A preview inside the file has an end of its own, but there the picture's scan comes after it.
    """
    tail = bytes(data[-64:])
    if _JPEG_END in tail and _JPEG_SCAN not in tail:
        return True
    whole = bytes(data)
    end = whole.rfind(_JPEG_END)
    return end >= 0 and whole.find(_JPEG_SCAN, end) < 0


DEFAULT_SUFFIX = "img_{:05}.jpg"


class FrameFolderReader(VideoReader):
    """Reads frame i (from 0) from the image with number i + 1, or i where there is an image 0.

    Args:
        folder: where the images are; a path or a URL.
        suffix: the images' names as a format string of the number; None: as the images in the folder say.
        num_frames: as the annotation list has it; None counts the images 1, 2, 3, … that are there.

    Raises:
        VideoDecodeError: the folder is missing, or has no first frame.
    """

    avg_fps = 0.0

    def __init__(
        self, folder: str | Path, suffix: str | None = DEFAULT_SUFFIX, num_frames: int | None = None
    ) -> None:
        self.path = str(folder)
        files = file_system(self.path)
        if files.is_local and not os.path.isdir(self.path):
            cause = "is not a folder of frames" if os.path.exists(self.path) else "no such folder"
            raise VideoDecodeError(self.path, cause)
        self.suffix = guess_suffix(self.path) if suffix is None else suffix
        self._first = 1 - files.exists(join(self.path, self.suffix.format(0)))
        self.num_frames = self._count() if num_frames is None else int(num_frames)
        if self.num_frames < 1:
            raise VideoDecodeError(self.path, f"has no frame '{self._name(0)}'")

    def _name(self, index: int) -> str:
        return self.suffix.format(index + self._first)

    def _count(self) -> int:
        present = set(_names_in(self.path))
        count = 0
        while self._name(count) in present:
            count += 1
        return count

    def image_file(self, index: int) -> str:
        """Path or URL of the image of frame `index`."""
        return join(self.path, self._name(index))

    def _shown_size(self) -> tuple[int, int]:
        self._require_open()
        if self._size is None:
            self._size = jpeg_size(read_image(self.image_file(0)))
        return super()._shown_size()

    def _decode(self, wanted: list[int]) -> Iterator[tuple[int, Any]]:
        files = ((index, self.image_file(index)) for index in wanted)
        return ((index, open_image(read_image(file), file)) for index, file in files)


_MAX_IMAGE_BYTES = 2**28  # of a store


def read_image(file: str) -> bytes:
    """The bytes of an image file.

    Raises:
        VideoDecodeError: it cannot be read.
    """
    try:  # once a frame: without a path object and without a buffer
        return file_system(file).read_unchecked(file, _MAX_IMAGE_BYTES)
    except OSError as error:
        raise VideoDecodeError(file, f"cannot be read: {cause_of(error)}") from error


def _names_in(folder: str) -> list[str]:
    """The names in a folder or below a URL.

    Raises:
        VideoDecodeError: it cannot be listed.
    """
    try:
        return [path.name for path in as_path(folder).iterdir()]
    except OSError as error:
        raise VideoDecodeError(folder, f"cannot be listed: {cause_of(error)}") from error


open_frames = FrameFolderReader


def is_frame_format(suffix: str) -> bool:
    """Whether a text is a format string from the number of a frame to a name, such as `img_{:05}.jpg`.

    A format may ask for a name of any length, or for parts of the number object; such a text is none.
    """
    try:
        fields = [(name, spec, kind) for _, name, spec, kind in string.Formatter().parse(suffix)]
    except ValueError:
        return False
    field_names = [name for name, _, _ in fields if name is not None]
    simple = all(
        name is None or (name in ("", "0") and kind is None and re.fullmatch(r"0?\d{0,2}d?", spec or ""))
        for name, spec, kind in fields
    )
    return simple and bool(field_names) and field_names in ([""], ["0"] * len(field_names))


def guess_suffix(folder: str) -> str:
    """The format string of the numbered images in a folder; PaddleVideo's where none is found.

    Example:
        `img_00001.jpg` gives `img_{:05}.jpg`.
    """
    for name in sorted(_names_in(folder)):
        match = re.fullmatch(r"(.*?)(0*[01])(\.(?:jpe?g|png|bmp))", name, re.IGNORECASE)
        if match:
            prefix, number, ending = match.groups()
            return f"{prefix}{{:0{len(number)}}}{ending}"
    return DEFAULT_SUFFIX

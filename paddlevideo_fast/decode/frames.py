"""Videos stored as a folder of numbered images."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Iterator, List, Optional, Tuple, Union

import numpy as np

from paddlevideo_fast.decode.images import decode_image, jpeg_size
from paddlevideo_fast.decode.reader import VideoReader
from paddlevideo_fast.errors import VideoDecodeError

DEFAULT_SUFFIX = "img_{:05}.jpg"


class FrameFolderReader(VideoReader):
    """Reads frame i (from 0) from the image with number i + 1.

    Args:
        folder: where the images are.
        suffix: the images' names as a format string of the number.
        num_frames: as the annotation list has it; None counts the images 1, 2, 3, … that are there.

    Raises:
        VideoDecodeError: the folder is missing, or has no frame 1.
    """

    avg_fps = 0.0

    def __init__(self, folder: str, suffix: str = DEFAULT_SUFFIX, num_frames: Optional[int] = None) -> None:
        self.path = str(folder)
        self.suffix = suffix
        if not os.path.isdir(self.path):
            cause = "is not a folder of frames" if os.path.exists(self.path) else "no such folder"
            raise VideoDecodeError(self.path, cause)
        self.num_frames = self._count() if num_frames is None else int(num_frames)
        if self.num_frames < 1:
            raise VideoDecodeError(self.path, f"has no frame '{self._name(0)}'")

    def _name(self, index: int) -> str:
        return self.suffix.format(index + 1)

    def _count(self) -> int:
        present = set(os.listdir(self.path))
        count = 0
        while self._name(count) in present:
            count += 1
        return count

    def image_file(self, index: int) -> str:
        """Path of the image of frame `index`."""
        return os.path.join(self.path, self._name(index))

    def _shown_size(self) -> Tuple[int, int]:
        self._require_open()
        if self._size is None:
            self._size = jpeg_size(read_image(self.image_file(0)))
        return super()._shown_size()

    def _decode(self, wanted: List[int]) -> Iterator[Tuple[int, np.ndarray]]:
        files = ((index, self.image_file(index)) for index in wanted)
        return ((index, decode_image(read_image(file), file)) for index, file in files)


def read_image(file: str) -> bytes:
    """The bytes of an image file.

    Raises:
        VideoDecodeError: it cannot be read.
    """
    try:
        with open(file, "rb", buffering=0) as image:
            return image.read()
    except OSError as error:
        raise VideoDecodeError(file, f"cannot be read: {error.strerror or error}") from error


def open_frames(
    folder: Union[str, Path], suffix: str = DEFAULT_SUFFIX, num_frames: Optional[int] = None
) -> FrameFolderReader:
    """Opens a folder of frames; see `FrameFolderReader` for arguments and errors."""
    return FrameFolderReader(str(folder), suffix, num_frames)


def guess_suffix(folder: str) -> str:
    """The format string of the numbered images in a folder; PaddleVideo's where none is found.

    Example:
        `img_00001.jpg` gives `img_{:05}.jpg`.
    """
    for name in sorted(os.listdir(folder)):
        match = re.fullmatch(r"(.*?)(0*1)(\.(?:jpe?g|png|bmp))", name, re.IGNORECASE)
        if match:
            prefix, number, ending = match.groups()
            return f"{prefix}{{:0{len(number)}}}{ending}"
    return DEFAULT_SUFFIX

"""What every decoding backend offers, and the index checks they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Dict, Iterator, List, Sequence

import numpy as np

from paddlevideo_fast.errors import VideoDecodeError


class VideoReader(ABC):
    """An open video; frames are counted from 0 in the order they are shown.

    Use it as a context manager. All problems of the file are raised as `VideoDecodeError`.

    Attributes:
        path: what was opened.
        num_frames: how many frames can be asked for.
        avg_fps: frames a second, on average; 0.0 where nothing says.
    """

    path: str
    num_frames: int
    avg_fps: float

    @property
    @abstractmethod
    def width(self) -> int:
        """Width of a frame as it is shown, in pixels."""

    @property
    @abstractmethod
    def height(self) -> int:
        """Height of a frame as it is shown, in pixels."""

    @abstractmethod
    def _decode(self, wanted: List[int]) -> Dict[int, np.ndarray]:
        """The frames `wanted` (ascending, distinct, in range), each uint8 [H, W, 3] RGB."""

    @abstractmethod
    def close(self) -> None:
        """Frees the file; the reader cannot be used afterwards."""

    def read(self, indices: Sequence[int]) -> np.ndarray:
        """Decodes frames.

        Args:
            indices: frame numbers from 0, in any order; repeats are allowed.

        Returns:
            uint8 [T, H, W, 3], RGB, one frame for each index.

        Raises:
            VideoDecodeError: an index is out of range, or a frame does not decode.
        """
        order = [int(index) for index in indices]
        wanted = sorted(set(order))
        if not wanted:
            return np.empty((0, self.height, self.width, 3), np.uint8)
        if wanted[0] < 0 or wanted[-1] >= self.num_frames:
            bad = wanted[0] if wanted[0] < 0 else wanted[-1]
            raise VideoDecodeError(
                self.path, f"frame {bad} is out of range: the video has frames 0 to {self.num_frames - 1}"
            )
        frames = self._decode(wanted)
        shapes = {frame.shape for frame in frames.values()}
        if len(shapes) > 1:
            raise VideoDecodeError(self.path, f"the frame size changes within the video: {sorted(shapes)}")
        return np.stack([frames[index] for index in order])

    def __iter__(self) -> Iterator[np.ndarray]:
        """All frames in order, each uint8 [H, W, 3]; few are held at a time.

        Raises:
            VideoDecodeError: a frame does not decode.
        """
        for first in range(0, self.num_frames, 16):
            yield from self.read(range(first, min(first + 16, self.num_frames)))

    def __enter__(self) -> VideoReader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

"""OpenCV's decoder: reads from the beginning up to the last frame wanted."""

from __future__ import annotations

from typing import Iterator, List, Sequence, Tuple

import cv2
import numpy as np

from paddlevideo_fast.decode.pyav_reader import PyAVReader
from paddlevideo_fast.decode.reader import VideoReader
from paddlevideo_fast.decode.source import Source, path_of
from paddlevideo_fast.errors import VideoDecodeError


class Cv2Reader(VideoReader):
    """Reads frames with `cv2.VideoCapture`.

    OpenCV announces an estimate of the number of frames and stops without a word in a damaged file. So the
    frames are counted by the packet index, and ending before the frame wanted is an error.

    Args:
        source: the path of a video file; this backend reads nothing else.

    Raises:
        VideoDecodeError: it is not a video, or OpenCV does not open it.
    """

    def __init__(self, source: Source) -> None:
        with PyAVReader(path_of(source, "cv2")) as counted:
            self.path, self.num_frames, self.avg_fps = counted.path, counted.num_frames, counted.avg_fps
            self._size = (counted.width, counted.height)
        probe = self._open()
        probe.release()

    def _open(self) -> cv2.VideoCapture:
        capture = cv2.VideoCapture(self.path, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
        if not capture.isOpened():
            raise VideoDecodeError(self.path, "OpenCV does not open it")
        return capture

    def __iter__(self) -> Iterator[np.ndarray]:
        """See `VideoReader`."""
        self._require_open()
        return (frame for _, frame in self._in_sequence(range(self.num_frames)))

    def _decode(self, wanted: List[int]) -> Iterator[Tuple[int, np.ndarray]]:
        return self._in_sequence(wanted)

    def _in_sequence(self, wanted: Sequence[int]) -> Iterator[Tuple[int, np.ndarray]]:
        """Number and picture of each frame in `wanted`, which ascends."""
        capture = self._open()
        targets = set(wanted)
        try:
            for place in range(wanted[-1] + 1):
                picture = None
                ok = capture.grab()
                if ok and place in targets:
                    ok, picture = capture.retrieve()
                if not ok:
                    cause = f"damaged or cut off: OpenCV stops at frame {place} of {self.num_frames}"
                    raise VideoDecodeError(self.path, cause)
                if picture is not None:
                    yield place, cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)
        finally:
            capture.release()

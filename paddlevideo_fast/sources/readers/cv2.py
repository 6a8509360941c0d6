"""Reads videos with OpenCV."""

from collections.abc import Iterator, Sequence

import cv2
import numpy as np

from paddlevideo_fast.decode.orientation import turned
from paddlevideo_fast.decode.pyav_reader import PyAVReader
from paddlevideo_fast.decode.reader import VideoReader
from paddlevideo_fast.decode.source import Source, VideoSource, path_of
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.log import is_unicode
from paddlevideo_fast.registry import READERS


@READERS.register("cv2")
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
            self._size, self._orientation = (counted.width, counted.height), counted.orientation
            self._pixel_aspect = counted.pixel_aspect
        probe = self._open()
        probe.release()

    def times_sec(self) -> np.ndarray:
        """See `VideoReader`; OpenCV guesses them, the packet index has them."""
        with PyAVReader(self.path) as counted:
            return counted.times_sec()

    @property
    def orientation(self) -> int:
        """See `VideoReader`."""
        return self._orientation

    @property
    def pixel_aspect(self) -> float:
        """See `VideoReader`."""
        return self._pixel_aspect

    def _open(self) -> cv2.VideoCapture:
        path = VideoSource(self.path).open()
        if not is_unicode(path):  # OpenCV 4 crashes
            cause = "OpenCV takes no name that is not UTF-8; rename the file, or choose backend 'pyav'"
            raise VideoDecodeError(self.path, cause)
        capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
        if not capture.isOpened():
            raise VideoDecodeError(self.path, "OpenCV does not open it")
        capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)  # it turns, but does not mirror
        return capture

    def __iter__(self) -> Iterator[np.ndarray]:
        """See `VideoReader`."""
        self._require_open()
        return (frame for _, frame in self._in_sequence(range(self.num_frames)))

    def _decode(self, wanted: list[int]) -> Iterator[tuple[int, np.ndarray]]:
        return self._in_sequence(wanted)

    def _in_sequence(self, wanted: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
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
                    yield place, turned(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB), self._orientation)
        finally:
            capture.release()

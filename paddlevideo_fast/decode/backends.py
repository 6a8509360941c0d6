"""Opens whatever holds a video, with the default reader or with OpenCV or decord."""

import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, get_args

import cv2
import numpy as np

from paddlevideo_fast.decode.container import open_container
from paddlevideo_fast.decode.image_folder import open_frames
from paddlevideo_fast.decode.index_cache import IndexCache
from paddlevideo_fast.decode.orientation import turned
from paddlevideo_fast.decode.pyav_reader import PyAVReader
from paddlevideo_fast.decode.reader import OnCorrupt, VideoReader
from paddlevideo_fast.decode.source import Source, VideoSource, path_of
from paddlevideo_fast.errors import PaddleVideoFastError, VideoDecodeError
from paddlevideo_fast.log import is_unicode
from paddlevideo_fast.registry import did_you_mean


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


class DecordReader(VideoReader):
    """Reads frames with decord on one thread.

    decord gives wrong frames, without a word, on ordinary files: H.264 with open groups of pictures, MP4 with
    edit lists, MPEG-TS, and AVI with B-frames. It can count more frames than exist. decord 0.6.0 shows videos
    that are turned by 180° upright, and refuses some that are turned by 90° or 270°.

    Args:
        source: the path of a video file; this backend reads nothing else.

    Raises:
        PaddleVideoFastError: decord is not installed.
        VideoDecodeError: decord does not open the file.
    """

    def __init__(self, source: Source) -> None:
        self.path = path_of(source, "decord")
        try:
            decord: Any = importlib.import_module("decord")
        except ImportError as error:
            raise PaddleVideoFastError(
                "backend 'decord' needs the package 'decord', which is not installed: type  pip install "
                "decord  (it has wheels for x86-64 only), or choose backend 'pyav', which needs nothing more"
            ) from error
        opened = VideoSource(source)
        container, _ = open_container(opened)  # which refuses what is no video
        container.close()
        opened.release()
        try:
            self._reader = decord.VideoReader(self.path, num_threads=1)
            self.num_frames = len(self._reader)
            self.avg_fps = float(self._reader.get_avg_fps()) if self.num_frames else 0.0
        except Exception as error:  # decord raises a type of its own and RuntimeError
            raise VideoDecodeError(self.path, f"decord does not open it: {_first_line(error)}") from error
        if self.num_frames == 0:
            raise VideoDecodeError(self.path, "decord finds no frame in it")

    def close(self) -> None:
        """See `VideoReader`."""
        super().close()
        self._reader = None

    def times_sec(self) -> np.ndarray:
        """See `VideoReader`."""
        starts = self._reader.get_frame_timestamp(range(self.num_frames))[:, 0].astype(np.float64)
        return starts - starts[0]

    def _decode(self, wanted: list[int]) -> Iterable[tuple[int, np.ndarray]]:
        try:
            frames = self._reader.get_batch(wanted).asnumpy()
        except Exception as error:
            raise VideoDecodeError(self.path, f"decord stops: {_first_line(error)}") from error
        return zip(wanted, frames)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


class FrameStore(Protocol):
    """Keeps decoded frames, so that a frame is decoded once."""

    def reader(self, source: Source, opener: Callable[[], VideoReader]) -> VideoReader:
        """A reader that looks here first; `opener` opens the video for what is missing."""


ON_CORRUPT = get_args(OnCorrupt)
# The data tools and prediction take files with these endings for videos.
VIDEO_EXTENSIONS = (
    *(".avi", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ts", ".webm", ".wmv"),
    *(".3g2", ".3gp", ".asf", ".f4v", ".gif", ".m2ts", ".mts", ".mxf", ".ogv", ".vob"),
)


def _open_folder(source: Source) -> VideoReader:
    return open_frames(VideoSource(source).url or path_of(source, "frames"), None)


_OPENERS: dict[str, Callable[[Source], VideoReader]] = {
    "pyav": PyAVReader,
    "cv2": Cv2Reader,
    "decord": DecordReader,
    "frames": _open_folder,
}
BACKENDS = ("auto", *_OPENERS)


def open_video(
    source: Source,
    backend: str = "auto",
    on_corrupt: OnCorrupt = "raise",
    cache: IndexCache | None = None,
    frames: FrameStore | None = None,
) -> VideoReader:
    """Opens a video for exact access to its frames.

    Args:
        source: the path of a video file or of a folder of numbered images; for both also a URL; for
            "pyav" also the bytes of a file, or a file object that reads bytes and can seek (it stays open).
        backend: "pyav" (exact, the fastest), "cv2", "decord" (must be installed; see its reader for the files
            it gets wrong), "frames" (a folder), or "auto": "frames" for a folder, else "pyav".
        on_corrupt: "raise", or "nearest", which "pyav" offers: a frame that does not decode is replaced by
            the nearest that does, and counted in the reader's `num_replaced`.
        cache: keeps indexes of long videos, for "pyav" without "nearest"; no effect on others.
        frames: keeps decoded frames, with the same limits.

    Returns:
        A reader, to be used as a context manager.

    Raises:
        VideoDecodeError: it does not decode; the message has the path and the cause.
        PaddleVideoFastError: the backend is unknown, not installed, or cannot do what is asked.
    """
    if backend == "auto":
        backend = "frames" if isinstance(source, (str, os.PathLike)) and os.path.isdir(source) else "pyav"
    if backend not in _OPENERS:
        raise PaddleVideoFastError(f"unknown decoding backend '{backend}'{did_you_mean(backend, BACKENDS)}")
    if on_corrupt not in ON_CORRUPT:
        raise PaddleVideoFastError(f"on_corrupt is one of {', '.join(ON_CORRUPT)}, found {on_corrupt!r}")
    if backend == "pyav":
        opener = partial(PyAVReader, source, on_corrupt, cache)
        return opener() if frames is None or on_corrupt != "raise" else frames.reader(source, opener)
    if on_corrupt != "raise":
        raise PaddleVideoFastError(f"backend '{backend}' cannot replace damaged frames; backend 'pyav' can")
    return _OPENERS[backend](source)


def check_video(source: Source, backend: str = "auto") -> str | None:
    """Decodes everything, see `VideoReader.verify`; returns why that fails, or None for an intact video."""
    try:
        with open_video(source, backend) as reader:
            reader.verify()
    except VideoDecodeError as error:
        return error.cause
    return None

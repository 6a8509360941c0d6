"""Reads videos with decord."""

import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from paddlevideo_fast.decode.container import open_container
from paddlevideo_fast.decode.reader import VideoReader
from paddlevideo_fast.decode.source import Source, VideoSource, path_of
from paddlevideo_fast.errors import PaddleVideoFastError, VideoDecodeError
from paddlevideo_fast.registry import READERS


@READERS.register("decord")
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

"""Reads ahead of a network: the next files, or the next windows of long videos. Needs no Paddle."""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np

from paddlevideo_fast.apps.predict.views import OpenedVideo, Views, read_views
from paddlevideo_fast.decode import Span, VideoReader
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.loader import VideoRecord
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.sources.untrimmed.windowing import Window

Item = TypeVar("Item")


def read_ahead(
    reads: Iterable[Callable[[], Item]], num_readers: int, num_ahead: int
) -> Generator[Item, None, None]:
    """Calls functions that read, in threads, ahead of the one whose result is taken.

    Args:
        reads: the functions; they are taken one by one, in the calling thread.
        num_readers: threads; 0: each function is called when its result is asked for.
        num_ahead: functions that are called ahead, at least one for each thread.

    Yields:
        The results, in the order of the functions. The error of a function comes in its turn.
    """
    if not num_readers:
        for read in reads:
            yield read()
        return
    waiting: deque[Future[Item]] = deque()
    with ThreadPoolExecutor(num_readers, "readers") as threads:
        try:
            for read in reads:
                waiting.append(threads.submit(read))
                if len(waiting) > max(num_ahead, num_readers):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for one in waiting:
                one.cancel()


class _OpenReader(NamedTuple):
    """A reader, and the data set that reads the windows with it."""

    video: VideoReader
    dataset: ClipDataset


class CutVideo:
    """A long video that is cut into windows. Several threads may read it, each with a reader of its own.

    Args:
        video: an open reader; `close` closes it.
        windows: windows of it, in order.
        views: how a window becomes clips.
        reopen: opens the video again, for another thread.
        draw_part: says what clips of a window show, as of a `VideoRecord`; None: all of it.

    Attributes:
        path: of the video.
        windows: as given.
    """

    def __init__(
        self,
        video: VideoReader,
        windows: Sequence[Window],
        views: Views,
        reopen: Callable[[], VideoReader],
        draw_part: Callable[..., VideoReader] | None = None,
    ) -> None:
        self.path, self.windows = video.path, windows
        self._views, self._reopen = views, reopen
        spans = [Span(window.first, window.stop) for window in windows]
        self._records = [VideoRecord(video.path, (0,), span=span, draw_part=draw_part) for span in spans]
        self._lock = threading.Lock()
        self._idle: list[_OpenReader] = [self._reader(video)]
        self._is_closed = False

    def read(self, number: int) -> np.ndarray:
        """All views of a window, uint8 [V, T, H, W, 3].

        Raises:
            PaddleVideoFastError: as `read_views`, or the video is closed.
        """
        with self._lock:
            if self._is_closed:
                raise VideoDecodeError(self.path, "the reader is closed")
            reader = self._idle.pop() if self._idle else None
        reader = reader or self._reader(self._reopen())
        try:
            return read_views(reader.dataset, number)
        finally:
            with self._lock:
                self._idle.append(reader)
                if self._is_closed:
                    self._close_idle()

    def close(self) -> None:
        """Closes the readers; one that a thread is using is closed when the thread has read."""
        with self._lock:
            self._is_closed = True
            self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().video.close()

    def _reader(self, video: VideoReader) -> _OpenReader:
        return _OpenReader(video, self._views.dataset(self._records, OpenedVideo(video)))

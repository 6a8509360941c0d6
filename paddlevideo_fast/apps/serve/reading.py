"""Reads the videos of strangers in processes that may run out of memory, crash or be killed. Needs no Paddle.

What a file can do to its reader ends with the process: the server starts another one and answers.
"""

import contextlib
import multiprocessing
import os
import queue
import resource
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import reduction, resource_tracker
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from paddlevideo_fast.apps.predict.views import OpenedVideo, Views, read_views
from paddlevideo_fast.decode import Span, VideoReader
from paddlevideo_fast.errors import PaddleVideoFastError, VideoDecodeError
from paddlevideo_fast.extensions.cpu.tuning import keep_freed_memory
from paddlevideo_fast.loader.annotations import VideoRecord
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.plugins import import_all, installed_imports, located
from paddlevideo_fast.sources.untrimmed.windowing import Window, Windowing

_POLL_SEC = 0.5
_STOP, _ACCEPTED = "stop", "accepted"  # what the server says to a process, and the process to the server


class UnusableError(PaddleVideoFastError):
    """A video that does not decode, or is larger than the server takes."""


class SlowError(PaddleVideoFastError):
    """A request that was not done in its time."""


@dataclass(frozen=True)
class VideoLimits:
    """The largest videos that are read.

    Args:
        max_sec: length.
        max_frames: number of frames.
        max_pixels: pixels of a frame.
        max_windows: windows that a request may ask for.
        memory_mb: memory that reading one video may take, in MiB.
    """

    max_sec: float = 600.0
    max_frames: int = 100_000
    max_pixels: int = 4096 * 2304
    max_windows: int = 1000
    memory_mb: int = 2048

    def check(self, video: VideoReader) -> None:
        """Raises `UnusableError` where a video is larger."""
        if video.num_frames > self.max_frames:
            raise UnusableError(f"has {video.num_frames:,} frames; {self.max_frames:,} are allowed")
        length_sec = video.end_sec() if video.avg_fps else 0.0
        if length_sec > self.max_sec:
            raise UnusableError(f"lasts {length_sec:,.0f} s; {self.max_sec:,.0f} s are allowed")
        width = max(video.width, video.square_size[0])
        if width * video.height > self.max_pixels:
            cause = f"has frames of {width}×{video.height}; {self.max_pixels:,} pixels are allowed"
            raise UnusableError(cause)


class ReadVideo(NamedTuple):
    """What is known of a video before its clips come.

    Attributes:
        windows: that it is cut into; None: it is read as a whole.
    """

    windows: Sequence[Window] | None


@dataclass(frozen=True)
class ReadingSettings:
    """What a process has to know to read videos.

    Args:
        views: how a video becomes clips.
        imports: plug-ins that the pipeline needs.
        limits: of the videos.
    """

    views: Views
    imports: Sequence[str]
    limits: VideoLimits


def _read(path: str, windowing: Windowing | None, settings: ReadingSettings) -> Iterator[Any]:
    """A `ReadVideo`, then the views uint8 [V, T, H, W, 3] of the video or of each window."""
    whole = settings.views.dataset([VideoRecord(path, (0,))])
    with whole.open(whole.records[0]) as video:
        settings.limits.check(video)
        windows = None if windowing is None else windowing.cut(video)
        if windows is not None and len(windows) > settings.limits.max_windows:
            raise UnusableError(f"has {len(windows):,} windows; {settings.limits.max_windows:,} are allowed")
        yield ReadVideo(windows)
        spans = [None] if windows is None else [Span(one.first, one.stop) for one in windows]
        records = [VideoRecord(path, (0,), span=span) for span in spans]
        dataset = settings.views.dataset(records, OpenedVideo(video))
        for number in range(len(records)):
            yield read_views(dataset, number)


def _answers(path: str, windowing: Windowing | None, settings: ReadingSettings) -> Iterator[Any]:
    """As `_read`; at the end None, or an error whose text does not name the path."""
    memory = f"needs more than the {settings.limits.memory_mb:,} MiB of memory that serve --memory_mb allows"
    try:
        yield from _read(path, windowing, settings)
        yield None
    except MemoryError:
        yield UnusableError(memory)
    except VideoDecodeError as error:
        yield UnusableError(f"cannot be decoded: {error.cause}".replace(path, "the file"))
    except PaddleVideoFastError as error:
        if isinstance(error.__cause__, MemoryError):
            yield UnusableError(memory)
            return
        yield UnusableError(str(error).removeprefix(f"{path}: ").replace(path, "the video"))
    except Exception:  # of this package or of a library, which must not cost the process
        get_logger(__name__).exception("a video made its reader fail")
        yield UnusableError("makes its reader fail; the server's log says why")


def _work(connection: Connection, settings: ReadingSettings) -> None:
    """Answers the requests of a connection until its other end is closed."""
    keep_freed_memory()
    named = (located(name, "imports", "") for name in settings.imports)
    for problem in import_all([*installed_imports(), *named]):
        get_logger(__name__).warning("%s", problem)  # a request that needs it has an error of its own
    with open("/proc/self/statm", encoding="ascii") as file:
        own = int(file.read().split()[0]) * resource.getpagesize()
    limit = own + (settings.limits.memory_mb << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            while (windowing := connection.recv()) == _STOP:
                pass  # of a request that was done
            descriptor = reduction.recv_handle(connection)
            connection.send(_ACCEPTED)
            try:
                for answer in _answers(f"/proc/self/fd/{descriptor}", windowing, settings):
                    is_dropped = connection.poll()
                    connection.send(None if is_dropped else answer)
                    if is_dropped:
                        break
            finally:
                os.close(descriptor)


class _Process:
    """A process that reads one video at a time.

    Attributes:
        is_reading: it has not answered everything.
    """

    is_reading = False

    def __init__(self, settings: ReadingSettings) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, settings), daemon=True, name="reader")
        # The process never gets Ctrl-C, from its first moment on: the server does, and closes the connection.
        resource_tracker.ensure_running()  # its start would unblock the signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        self._process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def accept(self, descriptor: int, windowing: Windowing | None, deadline: float) -> bool:
        """Hands a file over; whether the process has taken it, and has not ended before."""
        self.is_reading = True
        try:
            self._connection.send(windowing)
            reduction.send_handle(self._connection, descriptor, self._process.pid)
            return bool(self._receive(deadline) == _ACCEPTED)
        except (EOFError, OSError):
            return False

    def answers(self, deadline: float) -> Iterator[Any]:
        """As `Readers.read`, of the file that it has taken."""
        try:
            while isinstance(answer := self._receive(deadline), (ReadVideo, np.ndarray)):
                yield answer
        except (EOFError, OSError) as error:
            self._process.join(1)
            text = f"ended the process that read it (exit code {self._process.exitcode})"
            raise UnusableError(text) from error
        self.is_reading = False
        if answer is not None:
            raise answer

    def drop_answers(self, deadline: float) -> bool:
        """Lets it finish the clip that it reads; whether it is ready for another file then."""
        try:
            self._connection.send(_STOP)
            while isinstance(self._receive(deadline), (ReadVideo, np.ndarray)):
                pass
        except (SlowError, EOFError, OSError):
            return False
        self.is_reading = False
        return True

    def _receive(self, deadline: float) -> Any:
        if not self._connection.poll(max(deadline - time.monotonic(), 0.0)):
            raise SlowError("reading the video takes too long")
        return self._connection.recv()

    def stop(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()
        self._connection.close()


class Readers:
    """Processes that read videos; one that has ended is replaced.

    Args:
        settings: of all of them.
        num_readers: number of processes.
    """

    def __init__(self, settings: ReadingSettings, num_readers: int) -> None:
        self._settings = settings
        self._num_readers = num_readers
        self._idle: queue.Queue[_Process | None] = queue.Queue()  # None: one that could not be started
        for _ in range(num_readers):
            self._idle.put(_Process(settings))

    def read(
        self,
        descriptor: int,
        windowing: Windowing | None,
        deadline: float,
        check: Callable[[], None] = lambda: None,
    ) -> Generator[Any, None, None]:
        """Reads a video.

        Args:
            descriptor: of an open file.
            windowing: how to cut it; None: it is read as a whole.
            deadline: by `time.monotonic`.
            check: is called while it waits, and raises where nobody wants the video any more.

        Yields:
            A `ReadVideo`, then the views uint8 [V, T, H, W, 3] of the video or of each window.

        Raises:
            UnusableError: the video does not decode, is too large, or ends its process.
            SlowError: there is no time left, or no process can be started.
        """
        process = self._next_idle(deadline, check)
        try:
            if process is None or not process.accept(descriptor, windowing, deadline):
                process = self._replacement(process)
                if process is None or not process.accept(descriptor, windowing, deadline):
                    raise SlowError("no process to read the video can be started")
            yield from process.answers(deadline)
        finally:
            if process is not None and process.is_reading and not process.drop_answers(deadline):
                process = self._replacement(process)
            self._idle.put(process)

    def _next_idle(self, deadline: float, check: Callable[[], None]) -> _Process | None:
        while True:
            check()
            left_sec = deadline - time.monotonic()
            try:
                return self._idle.get(timeout=min(max(left_sec, 0.001), _POLL_SEC))
            except queue.Empty:
                if left_sec <= _POLL_SEC:
                    raise SlowError("no process was free to read the video") from None

    def _replacement(self, process: _Process | None) -> _Process | None:
        """A new process; None where none can be started now, so that the next request tries again."""
        if process is not None:
            process.stop()
        logger = get_logger(__name__)
        try:
            process = _Process(self._settings)
        except OSError as error:
            logger.warning("a process that reads videos cannot be started: %s", error)
            return None
        logger.info("a process that reads videos is replaced")
        return process

    def close(self) -> None:
        """Ends the processes, each when it is idle."""
        for _ in range(self._num_readers):
            if process := self._idle.get():
                process.stop()

"""Predicts live video: a camera, a network stream or a pipe, of which the newest frames are kept."""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import av
import numpy as np

from paddlevideo_fast.apps.predict.addresses import PIPE, is_pipe
from paddlevideo_fast.apps.predict.predictor import Entry, Prediction, Predictor, Unread, Windowing, entry_of
from paddlevideo_fast.decode.colour import RgbConverter
from paddlevideo_fast.decode.container import LIBAV_ERRORS, VIDEOS_ONLY, unread_format
from paddlevideo_fast.decode.orientation import orientation_of
from paddlevideo_fast.decode.packets import has_pts, is_bare, rate_of
from paddlevideo_fast.decode.reader import TOLERANCE_SEC, VideoReader, end_of, frames_between
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.io.urls import shown_url
from paddlevideo_fast.log import counted, get_logger, printable

WhenSlow = Literal["drop", "wait"]

_STDIN = 0
_NUM_LOOKED_AT = 8  # bytes
_MP4_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip")
_DEFAULT_FPS = 25
_JUMP_SEC = 10.0  # the stream began anew where times go back, or jump by more than this
_LONGEST_PAUSE_SEC = 30.0


class LiveFrame(NamedTuple):
    """A decoded frame.

    Attributes:
        time_sec: when it is shown, in seconds of the stream since its first frame.
        arrived: when it was decoded, by `time.monotonic`.
        picture: PyAV's frame, in the colours of the stream.
        orientation: how it is shown, see `orientation_of`.
        pixel_aspect: width of its pixels over their height, as they are shown.
    """

    time_sec: float
    arrived: float
    picture: Any
    orientation: int
    pixel_aspect: float


class LiveWindow(VideoReader):
    """Frames of a live source as a video.

    Args:
        path: the source, for messages.
        frames: at least one, in order.
        avg_fps: frames a second of the source; 0.0: as these frames have it.
    """

    def __init__(self, path: str, frames: list[LiveFrame], avg_fps: float) -> None:
        self.path = path
        self.shown = frames
        self.num_frames = len(frames)
        lasts = frames[-1].time_sec - frames[0].time_sec
        self.avg_fps = avg_fps or ((len(frames) - 1) / lasts if lasts > 0 else 0.0)
        self._to_rgb = RgbConverter(path)

    @property
    def orientation(self) -> int:
        return self.shown[0].orientation

    @property
    def pixel_aspect(self) -> float:
        return self.shown[0].pixel_aspect

    def times_sec(self) -> np.ndarray:
        times = np.array([frame.time_sec for frame in self.shown])
        return times - times[0]

    def _decode(self, wanted: list[int]) -> Iterable[tuple[int, np.ndarray]]:
        frames = ((index, self.shown[index]) for index in wanted)
        return ((index, self._to_rgb(frame.picture, frame.orientation)) for index, frame in frames)


@dataclass(eq=False, repr=False)
class LiveSource:
    """Decodes a live source in a thread of its own and keeps its newest frames.

    Frames have times in seconds since the first frame, in a pipe as in the file that it comes from. Where the
    source begins anew (after a reconnection, or where its times go back or, except in a pipe, jump forward),
    what was kept is dropped, and times go on by the clock.

    Args:
        address: `-` for the standard input, an address such as rtsp://…, a device or a named pipe.
        keep_sec: how much of the stream is kept; a frame takes its size in the stream's own colours.
        when_slow: what happens where frames are not used in time: "drop": the oldest go; "wait": the source
            is not read on, as is right for a pipe from a file.
        stall_sec: after how long without a frame this is told.
        num_reconnects: how often in a row a device or network stream that ends is opened again, with pauses
            of 1, 2, 4, … up to 30 seconds. A pipe that ends has ended.
        container_format: FFmpeg's name of the format; None: FFmpeg finds out.
        options: of FFmpeg, for the format and its protocol.

    Attributes:
        begin_sec: time of the newest beginning; no window reaches over it.
        newest_sec: time of the newest frame.
        num_frames: frames that were decoded.
        num_dropped: frames that went before they were used, because of "drop" or a new beginning.
        num_corrupt: packets that did not decode.
        num_restarts: new beginnings.
        fps: frames a second, as a pipe says them; 0.0: nothing says.
    """

    address: str
    keep_sec: float
    when_slow: WhenSlow | None = None
    stall_sec: float = 5.0
    num_reconnects: int = 10
    container_format: str | None = None
    options: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        self.name = "<stdin>" if self.address == PIPE else shown_url(self.address)
        self._ends = is_pipe(self.address)
        self.when_slow = self.when_slow or ("wait" if self._ends else "drop")
        if self.address.startswith("/dev/video"):
            self.container_format = self.container_format or "v4l2"
        usual = {"rtsp_transport": "tcp"} if self.address.startswith(("rtsp://", "rtsps://")) else {}
        self.options = {**usual, **(self.options or {})}
        self.num_frames = self.num_dropped = self.num_corrupt = self.num_restarts = 0
        self._frames: deque[LiveFrame] = deque()
        self._changed = threading.Condition()
        self._is_open = self._stopped = self._has_ended = False
        self._error: VideoDecodeError | None = None
        self._num_failures = 0  # in a row
        self.begin_sec = self.newest_sec = 0.0
        self._needed_sec = self._used_sec = 0.0
        self._first_pts_sec: float | None = None  # of what has come since the newest beginning
        self._last_arrival = 0.0
        self._rotation: int | None = None  # that the stream named last, in degrees
        self._orientation, self._pixel_aspect = 0, 1.0
        self.fps = 0.0

    def __enter__(self) -> LiveSource:
        """Opens the source.

        Raises:
            VideoDecodeError: it cannot be opened, or has no video.
        """
        threading.Thread(target=self._run, name="live source", daemon=True).start()
        self._wait_for(lambda: self._is_open)
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    @property
    def end_sec(self) -> float:
        """Time at which the newest frame ends, see `end_of`."""
        with self._changed:
            return end_of(self._times(), self.fps)

    def _times(self) -> np.ndarray:
        return np.array([frame.time_sec for frame in self._frames])

    def wait_until(self, time_sec: float) -> bool:
        """Waits for a frame at `time_sec` or later; False: the source has ended before.

        A source that gives no frame for `stall_sec` is told once.

        Raises:
            VideoDecodeError: the source ended with an error.
        """
        return self._wait_for(lambda: self.num_frames > 0 and self.newest_sec >= time_sec - TOLERANCE_SEC)

    def _wait_for(self, has_come: Callable[[], bool]) -> bool:
        told = False
        with self._changed:
            while not has_come():
                if self._has_ended:
                    if self._error is not None:
                        raise self._error
                    return False
                if not self._changed.wait(self.stall_sec) and not told:
                    told = True
                    get_logger().warning("%s: no frame for %g s; waiting", self.name, self.stall_sec)
        return True

    def take(self, start_sec: float, end_sec: float) -> LiveWindow | None:
        """The frames with start ≤ time < end, or the one on display; None: they are gone."""
        with self._changed:
            first, stop = frames_between(self._times(), start_sec, end_sec)
            frames = list(itertools.islice(self._frames, first, stop))
            self._used_sec = max(self._used_sec, end_sec)
        is_there = frames and frames[0].time_sec < end_sec - TOLERANCE_SEC
        return LiveWindow(self.name, frames, self.fps) if is_there else None

    def go_on_at(self, time_sec: float, has_skipped: bool = False) -> None:
        """Frees the frames that are no longer on display at a time.

        Args:
            time_sec: the frame on display here and those after it will be taken.
            has_skipped: frames before that nobody has taken count as dropped.
        """
        with self._changed:
            if has_skipped:
                self.num_dropped += int(
                    ((self._used_sec <= self._times()) & (self._times() < time_sec)).sum()
                )
                self._used_sec = max(self._used_sec, time_sec)
            deque(self._free_before(time_sec), maxlen=0)
            self._needed_sec = time_sec
            self._changed.notify_all()

    def _free_before(self, time_sec: float) -> Iterator[LiveFrame]:
        """Takes out the frames that another one follows until this time."""
        while len(self._frames) > 1 and self._frames[1].time_sec <= time_sec + TOLERANCE_SEC:
            yield self._frames.popleft()

    def summary(self, num_windows: int) -> str:
        """What has come so far, in one line."""
        return (
            f"{printable(self.name)}: {self.newest_sec:.1f} s, {counted(self.num_frames, 'frame')}, "
            f"{counted(num_windows, 'window')}; {counted(self.num_dropped, 'frame')} dropped, "
            f"{counted(self.num_corrupt, 'packet')} corrupt, {counted(self.num_restarts, 'new beginning')}"
        )

    def _run(self) -> None:
        """Reads to the end; whoever waits for frames hears of any error."""
        ended_by = None
        try:
            self._read_all()
        except VideoDecodeError as error:
            ended_by = error
        except Exception as error:
            ended_by = VideoDecodeError(self.name, f"{type(error).__name__}: {error}")
        with self._changed:
            self._has_ended, self._error = True, ended_by
            self._changed.notify_all()

    def _read_all(self) -> None:
        container = self._open()
        with self._changed:
            self._is_open = True
            self._changed.notify_all()
        while True:
            before, cause = self.num_frames, ""
            try:
                with container:
                    for picture, packet, pts_sec in self._pictures(container):
                        self._put(picture, packet, pts_sec)
                        if self._stopped:
                            return
            except LIBAV_ERRORS as error:
                cause = _cause(error)
            if self._ends and not cause:
                return
            if self._ends:
                raise VideoDecodeError(self.name, self._why_not(cause))
            self._num_failures = 0 if self.num_frames > before else self._num_failures + 1
            container = self._reopen(cause or "the stream has ended")

    def _reopen(self, cause: str) -> Any:
        """Opens the source again, with pauses."""
        while self._num_failures < self.num_reconnects and not self._stopped:
            pause_sec = min(2.0**self._num_failures, _LONGEST_PAUSE_SEC)
            get_logger().warning("%s: %s; connecting again in %g s", self.name, cause, pause_sec)
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, pause_sec)
            try:
                container = self._open()
            except VideoDecodeError as error:
                cause = error.cause
                self._num_failures += 1
            else:
                self._first_pts_sec = None
                return container
        raise VideoDecodeError(self.name, f"{cause}, also after {self._num_failures} reconnections")

    def _open(self) -> Any:
        self._stdin = _StandardInput() if self.address == PIPE else None
        source: Any = self._stdin or self.address
        timeout = None if self._ends else (30.0, max(2 * self.stall_sec, 10.0))
        is_free = not self._ends or self.container_format
        allowed = {} if is_free else VIDEOS_ONLY  # a text may name other files
        options: dict[str, Any] = {"options": self.options, "container_options": allowed}
        try:
            container = av.open(source, format=self.container_format, timeout=timeout, **options)
        except LIBAV_ERRORS as error:
            raise VideoDecodeError(self.name, self._why_not(_cause(error))) from error
        if not container.streams.video:
            container.close()
            raise VideoDecodeError(self.name, "has no video")
        return container

    def _why_not(self, cause: str) -> str:
        return self._stdin.why_not(cause) if self._stdin and not self.num_frames else cause

    def _pictures(self, container: Any) -> Iterator[tuple[Any, Any, float | None]]:
        """Pictures as they are shown, each with its last packet and the stream's time; None: it says none."""
        stream = container.streams.video[0]
        self._pixel_aspect = float(stream.sample_aspect_ratio or 1)
        stream.codec_context.thread_count = 1  # more would hold frames back
        if self._ends:
            self.fps = float(rate_of(stream) or _DEFAULT_FPS)
            if is_bare(stream) and not stream.codec_context.framerate:
                get_logger().warning(
                    "%s: says no frame rate; %g frames a second are taken", self.name, self.fps
                )
        for packet in container.demux(stream):
            try:
                for picture in packet.decode():
                    ticks = picture.pts if has_pts(stream) else picture.dts
                    yield picture, packet, None if ticks is None else float(ticks * picture.time_base)
            except av.error.InvalidDataError:
                self.num_corrupt += 1

    def _put(self, picture: Any, packet: Any, pts_sec: float | None) -> None:
        now = time.monotonic()
        if self._rotation is None or picture.rotation not in (0, self._rotation):
            self._rotation = picture.rotation
            self._orientation = orientation_of(picture, self.name, packet)
        aspect = 1 / self._pixel_aspect if self._orientation % 2 else self._pixel_aspect
        with self._changed:
            time_sec = self._time_of(pts_sec, now)
            if time_sec is None:
                return
            self.num_frames += 1
            self.newest_sec, self._last_arrival = time_sec, now
            self._frames.append(LiveFrame(time_sec, now, picture, self._orientation, aspect))
            self._changed.notify_all()
            if self.when_slow == "wait":
                self._changed.wait_for(lambda: self._stopped or time_sec - self._needed_sec <= self.keep_sec)
            for frame in self._free_before(time_sec - self.keep_sec):
                self.num_dropped += frame.time_sec >= self._used_sec

    def _time_of(self, pts_sec: float | None, now: float) -> float | None:
        """When a picture is shown, in seconds since the first; None: it comes twice, or too late."""
        if pts_sec is None:
            if self.fps and self._frames:
                return self.end_sec
            pts_sec = 0.0 if self.fps else now
        if self._first_pts_sec is not None:
            time_sec = self.begin_sec + pts_sec - self._first_pts_sec
            since_newest_sec = time_sec - self.newest_sec
            if 0 < since_newest_sec <= (math.inf if self._ends else _JUMP_SEC):
                return time_sec
            if -_JUMP_SEC < since_newest_sec <= 0:
                if self.fps:  # a file may be joined from several, or its times are guesses of libav
                    return self.newest_sec + 1 / self.fps
                self.num_dropped += 1
                return None
        self._first_pts_sec = pts_sec
        if self.num_frames:
            self.num_restarts += 1
            pause_sec = 1 / self.fps if self.fps else max(now - self._last_arrival, 1e-3)
            self.begin_sec = self.newest_sec + pause_sec
            self.num_dropped += sum(frame.time_sec >= self._used_sec for frame in self._frames)
            self._frames.clear()
        return self.begin_sec


class _StandardInput:
    """The standard input for libav: it has no `seek`, and gives what is there without waiting for more.

    It takes no lock of Python's, which a thread that waits for input would hold at the end of the process.
    """

    def __init__(self) -> None:
        self._begin = b""

    def read(self, num_bytes: int) -> bytes:
        data = os.read(_STDIN, num_bytes)
        if len(self._begin) < _NUM_LOOKED_AT:
            self._begin += data[:_NUM_LOOKED_AT]
        return data

    def why_not(self, cause: str) -> str:
        """Why libav opens no video here, where its own cause does not say it."""
        if not self._begin:
            return "the input is empty"
        if self._begin[4:8] in _MP4_BOXES:
            return (
                "an MP4 or MOV is read from its end, and a pipe cannot go back: give the file's path, or "
                "send MPEG-TS or Matroska"
            )
        return f"is no video that libav knows: {cause}"


def _cause(error: BaseException) -> str:
    name = unread_format(error)
    return f"the format {name} is not read" if name else getattr(error, "strerror", None) or str(error)


@dataclass(frozen=True)
class LivePrediction:
    """The prediction of a window of a live source.

    Attributes:
        prediction: the window's; `Unread` where its frames cannot be used.
        start_sec, end_sec: the window, in seconds since the first frame of the source.
        num_frames: frames in the window.
        delay_sec: from the arrival of the window's last frame until the prediction was done.
        num_dropped: frames of the source that no window could use so far; see `LiveSource`.
        num_skipped: windows that were left out so far because predictions take longer than strides.
    """

    prediction: Prediction | Unread
    start_sec: float
    end_sec: float
    num_frames: int
    delay_sec: float
    num_dropped: int
    num_skipped: int

    def entry(self, top_k: int) -> Entry:
        """JSON values: those of `entry_of`, or `path` and `error`, and the attributes."""
        prediction = self.prediction
        told = (
            {"path": prediction.path, "error": str(prediction.error)}
            if isinstance(prediction, Unread)
            else entry_of(prediction, top_k)
        )
        return {
            "start_sec": round(self.start_sec, 3),
            "end_sec": round(self.end_sec, 3),
            **told,
            "num_frames": self.num_frames,
            "delay_sec": round(self.delay_sec, 3),
            "num_dropped": self.num_dropped,
            "num_skipped": self.num_skipped,
        }


def predict_live(predictor: Predictor, source: LiveSource, windowing: Windowing) -> Iterator[LivePrediction]:
    """Predicts the windows of a live source as they come; each is read as a video of its own.

    Windows begin at multiples of the stride. Where the source is read on while predictions are late, those
    between are skipped: so the delay stays below one stride and the time of one prediction. Where a source
    ends, its last window ends with it.

    Args:
        predictor: of an exported network.
        source: entered; it must keep a window and a stride.
        windowing: length and distance of the windows.

    Raises:
        VideoDecodeError: the source has ended with an error.
        ProgramError: the network does not take the clips.
    """
    length_sec = windowing.window_sec
    stride_sec = length_sec if windowing.stride_sec is None else windowing.stride_sec
    start_sec, num_skipped, predicted_sec = 0.0, 0, 0.0

    def predict(start_sec: float, end_sec: float) -> Iterator[LivePrediction]:
        window = source.take(start_sec, end_sec)
        if window is not None:
            prediction = _predicted(predictor, window)
            delay_sec = time.monotonic() - window.shown[-1].arrived
            yield LivePrediction(
                prediction, start_sec, end_sec, window.num_frames, delay_sec, source.num_dropped, num_skipped
            )

    while source.wait_until(start_sec + length_sec):
        if source.begin_sec > start_sec:
            start_sec = source.begin_sec
            source.go_on_at(start_sec)
            continue
        num_late = int((source.newest_sec - start_sec - length_sec) / stride_sec)
        if source.when_slow == "drop" and num_late > 0:
            start_sec += num_late * stride_sec
            num_skipped += num_late
            source.go_on_at(start_sec, has_skipped=True)
        source.go_on_at(start_sec)  # kept until the next: the source may end before it is full
        predicted_sec = start_sec + length_sec
        yield from predict(start_sec, predicted_sec)
        start_sec += stride_sec
    end_sec = source.end_sec
    if source.newest_sec >= predicted_sec - TOLERANCE_SEC:  # frames that no window has had
        yield from predict(max(end_sec - length_sec, source.begin_sec), end_sec)


def _predicted(predictor: Predictor, window: LiveWindow) -> Prediction | Unread:
    try:
        return predictor.predict_open(window)
    except VideoDecodeError as error:
        return Unread(window.path, error)


def live_row(entry: Entry) -> str:
    """An entry of `LivePrediction` as a line of text."""
    span = f"{entry['start_sec']:9.2f} - {entry['end_sec']:9.2f} s"
    if "error" in entry:
        return f"{span}  {printable(entry['error'])}"
    best = entry["top"][0]
    return f"{span}  {best['score']:8.5f}  {printable(best['name'])}"

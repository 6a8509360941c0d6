"""Windows of a video in time."""

import itertools
from dataclasses import dataclass
from typing import NamedTuple

from paddlevideo_fast.decode import VideoReader
from paddlevideo_fast.decode.reader import TOLERANCE_SEC, frames_between
from paddlevideo_fast.errors import PaddleVideoFastError, ProgramError

_MOST_SEC = 1_000_000


class Window(NamedTuple):
    """A part of a video in time, and the frames `first` to `stop` - 1 that it shows."""

    first: int
    stop: int
    start_sec: float
    end_sec: float


@dataclass(frozen=True)
class Windowing:
    """How a video is cut into windows, by the times at which its frames are shown.

    The last window ends with the video and is as long as the others, so it may begin earlier than one stride
    after the window before it. A video shorter than a window is one window. A window in which no frame begins
    shows the one that is on display. For example, 11 s in windows of 4 s with a stride of 3 s:

        second    0  1  2  3  4  5  6  7  8  9  10 11
        windows   |-----------|
                           |-----------|
                                    |-----------|
                                       |-----------|

    Args:
        window_sec: length of a window, in seconds.
        stride_sec: from the beginning of a window to the beginning of the next; None: `window_sec`.

    Raises:
        PaddleVideoFastError: a length is not above 0, or has no end.
    """

    window_sec: float
    stride_sec: float | None = None

    def __post_init__(self) -> None:
        for name in ("window_sec", "stride_sec"):
            value = getattr(self, name)
            if value is not None and not 0 < value < _MOST_SEC:
                text = f"expected a number of seconds above 0 and below {_MOST_SEC:,}"
                raise PaddleVideoFastError(f"{name} is {value}, {text}")

    def cut(self, video: VideoReader) -> list[Window]:
        """The windows of a video, in order.

        Raises:
            VideoDecodeError: nothing says when its frames are shown.
            ProgramError: the window or the stride is shorter than a frame.
        """
        times, video_sec = video.times_sec(), video.end_sec()
        frame_sec = video_sec / video.num_frames
        stride_sec = self.window_sec if self.stride_sec is None else self.stride_sec
        for name, value in (("window", self.window_sec), ("stride", stride_sec)):
            if value + TOLERANCE_SEC < frame_sec:
                cause = f"a {name} of {value:g} s is shorter than one of its frames ({frame_sec:.4f} s)"
                raise ProgramError(f"{video.path}: {cause}")
        last_sec = max(video_sec - self.window_sec, 0.0)
        latest = times[-1] + TOLERANCE_SEC - self.window_sec  # a frame is shown after a window that is full
        regular = (number * stride_sec for number in itertools.count())
        starts = [*itertools.takewhile(lambda start: start <= latest, regular), last_sec]
        return [
            Window(*frames_between(times, start, end), round(start, 6), round(end, 6))
            for start, end in ((start, min(start + self.window_sec, video_sec)) for start in starts)
        ]

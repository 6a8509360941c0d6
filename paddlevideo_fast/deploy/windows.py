"""Long videos window by window: where the windows lie, and what is said of the time they cover."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import List, NamedTuple, Optional, Sequence

import numpy as np

from paddlevideo_fast.decode import VideoReader
from paddlevideo_fast.decode.part import VideoPart
from paddlevideo_fast.deploy.prediction import Prediction, Score
from paddlevideo_fast.errors import PaddleVideoFastError, ProgramError
from paddlevideo_fast.loader import VideoRecord


class Window(NamedTuple):
    """The frames `first` to `stop` - 1 of a video."""

    first: int
    stop: int


@dataclass(frozen=True)
class Windowing:
    """How a video is cut into windows.

    The last window ends with the video and is as long as the others, so it may begin earlier than the stride
    says. A video shorter than a window is one window. Here the video has 11 frames, windows 4, the stride 3:

        frame     0  1  2  3  4  5  6  7  8  9  10
        windows   |--------|
                           |--------|
                                    |--------|
                                       |--------|

    Args:
        window_sec: length of a window, in seconds.
        stride_sec: from the beginning of a window to that of the next; None: `window_sec`.

    Raises:
        PaddleVideoFastError: one of them is not above 0.
    """

    window_sec: float
    stride_sec: Optional[float] = None

    def __post_init__(self) -> None:
        for name in ("window_sec", "stride_sec"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise PaddleVideoFastError(f"{name} is {value}, expected a number of seconds above 0")

    def cut(self, path: str, num_frames: int, fps: float) -> List[Window]:
        """The windows of a video, in order.

        Args:
            path: for messages.
            num_frames: of the video.
            fps: its frames a second.

        Raises:
            ProgramError: nothing says the frame rate, or the window or the stride is shorter than a frame.
        """
        if not fps:
            raise ProgramError(f"{path}: says no frame rate, so it cannot be cut into windows of seconds")
        stride_sec = self.window_sec if self.stride_sec is None else self.stride_sec
        for name, value in (("window", self.window_sec), ("stride", stride_sec)):
            if value * fps < 1:
                raise ProgramError(
                    f"{path}: a {name} of {value:g} s is shorter than one of its frames ({1 / fps:.4f} s)"
                )
        length = min(round(self.window_sec * fps), num_frames)
        last = num_frames - length
        regular = (round(number * stride_sec * fps) for number in itertools.count())
        firsts = [*itertools.takewhile(lambda first: first < last, regular), last]
        return [Window(first, first + length) for first in firsts]


class PartDecoder:
    """A pipeline's `decode` that opens some frames of a video which is open already."""

    def __init__(self, video: VideoReader, window: Window) -> None:
        self._video, self._window = video, window

    def open(self, record: VideoRecord) -> VideoPart:
        """The window."""
        return VideoPart(self._video, *self._window)


class Segment(NamedTuple):
    """Consecutive windows with the same best class.

    Attributes:
        start_sec: where it begins.
        end_sec: where the next one begins, or the video ends.
        best: the class, with its mean probability over the windows.
    """

    start_sec: float
    end_sec: float
    best: Score


@dataclass(frozen=True)
class WindowedPrediction:
    """What a long video shows, and when.

    Times are frame numbers divided by the average frame rate.

    Attributes:
        whole: the mean over the windows; its logits are those of all windows, one after the other.
        windows: in order.
        parts: of each window.
        num_frames: of the video.
        fps: its frames a second.
    """

    whole: Prediction
    windows: Sequence[Window]
    parts: Sequence[Prediction]
    num_frames: int
    fps: float

    @property
    def path(self) -> str:
        """The file."""
        return self.whole.path

    @property
    def scores(self) -> np.ndarray:
        """float32 [num_windows, num_classes], probabilities."""
        return np.stack([part.scores for part in self.parts])

    @property
    def edges(self) -> List[int]:
        """Frame numbers [num_windows + 1]: frame f is window k's where edges[k] <= f < edges[k + 1].

        It is the window whose middle is nearest; windows may overlap or leave gaps.
        """
        inner = [
            (one.first + one.stop + other.first + other.stop + 1) // 4
            for one, other in zip(self.windows, self.windows[1:])
        ]
        return [0, *inner, self.num_frames]

    def segments(self) -> List[Segment]:
        """The video from its beginning to its end, consecutive windows of one best class merged."""
        segments = []
        edges = self.edges
        places = range(len(self.parts))
        for class_id, run in itertools.groupby(places, lambda place: self.parts[place].top(1)[0].class_id):
            members = list(run)
            mean = float(np.mean([self.parts[place].scores[class_id] for place in members]))
            best = Score(class_id, self.whole.name_of(class_id), mean)
            start, stop = edges[members[0]], edges[members[-1] + 1]
            segments.append(Segment(start / self.fps, stop / self.fps, best))
        return segments


def join(parts: Sequence[Prediction], windows: Sequence[Window], video: VideoReader) -> WindowedPrediction:
    """The prediction of a video from those of its windows."""
    scores = np.stack([part.scores for part in parts]).mean(axis=0, dtype=np.float64).astype(np.float32)
    logits = np.concatenate([part.logits for part in parts])
    whole = Prediction(video.path, scores, logits, parts[0].class_names)
    return WindowedPrediction(whole, windows, parts, video.num_frames, video.avg_fps)

"""Predicts a live source: a camera, a network stream or a pipe."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from paddlevideo_fast.deploy.live_source import LiveSource, LiveWindow
from paddlevideo_fast.deploy.prediction import Entry, Prediction, Unread, Windowing, entry_of
from paddlevideo_fast.deploy.predictor import Predictor
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.log import printable

_ROUNDING_SEC = 1e-6  # of sums of times


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
        found = self.prediction
        told = (
            {"path": found.path, "error": str(found.error)}
            if isinstance(found, Unread)
            else entry_of(found, top_k)
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
        window = source.take(start_sec - _ROUNDING_SEC, end_sec - _ROUNDING_SEC)
        if window is not None:
            found = _predicted(predictor, window)
            delay_sec = time.monotonic() - window.shown[-1].arrived
            yield LivePrediction(
                found, start_sec, end_sec, window.num_frames, delay_sec, source.num_dropped, num_skipped
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
    if source.newest_sec >= predicted_sec:  # frames that no window has had
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

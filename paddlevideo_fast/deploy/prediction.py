"""Predictions of videos and of windows of long videos, and how they are shown."""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from paddlevideo_fast.decode import VideoReader
from paddlevideo_fast.decode.reader import VideoPart
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.loader import VideoRecord
from paddlevideo_fast.loader.untrimmed import Window
from paddlevideo_fast.loader.untrimmed import Windowing as Windowing
from paddlevideo_fast.log import printable


class Score(NamedTuple):
    """A class and its probability. A class without a name has its number as the name."""

    class_id: int
    name: str
    score: float


@dataclass(frozen=True)
class Prediction:
    """The classes of a video, or of a window of it.

    Attributes:
        path: the file.
        scores: float32 [num_classes], probabilities: the mean over the views.
        logits: float32 [V, num_classes], the logits of each view.
        class_names: names by number, where they are known.
        threshold: a video has any number of classes, the predicted ones have this probability or more; None:
            a video has one class.
    """

    path: str
    scores: np.ndarray
    logits: np.ndarray
    class_names: Sequence[str] | None = None
    threshold: float | None = None

    def top(self, num_classes: int) -> list[Score]:
        """The most probable classes, the best first."""
        best = np.argsort(-self.scores, kind="stable")[:num_classes].tolist()
        return [Score(number, self.name_of(number), float(self.scores[number])) for number in best]

    def predicted(self) -> list[Score]:
        """The most probable class; with a threshold, the classes that reach it, the best first."""
        if self.threshold is None:
            return self.top(1)
        return self.top(int((self.scores >= self.threshold).sum()))

    def name_of(self, class_id: int) -> str:
        """Name of a class, or its number where there are no names."""
        return self.class_names[class_id] if self.class_names else str(class_id)


class Unread(NamedTuple):
    """A file that gave no prediction, and why."""

    path: str
    error: PaddleVideoFastError


class BatchTime(NamedTuple):
    """How long the files of one batch took."""

    num_files: int
    preprocess_sec: float
    inference_sec: float


class OpenDecoder:
    """Opens a video that is open already; closing what `open` returns leaves it open."""

    def __init__(self, video: VideoReader) -> None:
        self._video = video

    def open(self, record: VideoRecord) -> VideoPart:
        """All of the video."""
        return VideoPart(self._video, 0, self._video.num_frames)


class Segment(NamedTuple):
    """Consecutive windows with the same predicted class.

    Attributes:
        start_sec: beginning of the segment.
        end_sec: beginning of the first window after it, or end of the video.
        best: the class, with its mean probability over the windows.
    """

    start_sec: float
    end_sec: float
    best: Score


@dataclass(frozen=True)
class WindowedPrediction:
    """The classes of a long video over time.

    Times are frame numbers divided by the average frame rate.

    Attributes:
        whole: the mean over the windows; its logits are the logits of all windows, in order.
        windows: the windows, in order.
        parts: the prediction of each window.
        num_frames: frames of the video.
        fps: average frames a second.
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
    def edges(self) -> list[int]:
        """Frame numbers [num_windows + 1]: frame f belongs to window k where edges[k] <= f < edges[k + 1].

        A frame belongs to the window whose middle is nearest; windows may overlap or leave gaps.
        """
        inner = [
            (one.first + one.stop + other.first + other.stop + 1) // 4
            for one, other in zip(self.windows, self.windows[1:])
        ]
        return [0, *inner, self.num_frames]

    def segments(self) -> list[Segment]:
        """The segments of the video, by their beginnings: consecutive windows with one class are a segment.

        Where a video has one class, the segments follow each other from its beginning to its end. With a
        threshold they may overlap, as segments of different classes, and leave gaps.
        """
        edges = self.edges
        predicted = [{score.class_id for score in part.predicted()} for part in self.parts]
        segments = []
        for class_id in sorted(set().union(*predicted)):
            has_class = [class_id in classes for classes in predicted]
            for is_run, run in itertools.groupby(range(len(has_class)), has_class.__getitem__):
                if not is_run:
                    continue
                members = list(run)
                mean = float(np.mean([self.parts[place].scores[class_id] for place in members]))
                best = Score(class_id, self.whole.name_of(class_id), mean)
                start, stop = edges[members[0]], edges[members[-1] + 1]
                segments.append(Segment(start / self.fps, stop / self.fps, best))
        return sorted(segments, key=lambda segment: segment.start_sec)


def join(parts: Sequence[Prediction], windows: Sequence[Window], video: VideoReader) -> WindowedPrediction:
    """Joins the predictions of a video's windows to the prediction of the video."""
    scores = np.stack([part.scores for part in parts]).mean(axis=0, dtype=np.float64).astype(np.float32)
    logits = np.concatenate([part.logits for part in parts])
    whole = Prediction(video.path, scores, logits, parts[0].class_names, parts[0].threshold)
    return WindowedPrediction(whole, windows, parts, video.num_frames, video.avg_fps)


Entry = dict[str, Any]

_WARMUP_BATCHES = 3


def entry_of(prediction: Prediction | WindowedPrediction, top_k: int) -> Entry:
    """A prediction as JSON values.

    Args:
        prediction: the prediction of a video.
        top_k: classes to list.

    Returns:
        `path` and `top`, a list of class_id, name and score, the best first. Where a video has any number of
        classes also `predicted`, a list like `top` of those that reach the threshold. With windows also
        `windows`, each with start_sec, end_sec, `top` and `predicted`, and `segments`, each with start_sec,
        end_sec, class_id, name and score.
    """
    if isinstance(prediction, Prediction):
        return {"path": prediction.path, **_tops(prediction, top_k)}
    fps = prediction.fps
    windows = [
        {"start_sec": first / fps, "end_sec": stop / fps, **_tops(part, top_k)}
        for (first, stop), part in zip(prediction.windows, prediction.parts)
    ]
    segments = [
        {"start_sec": segment.start_sec, "end_sec": segment.end_sec, **segment.best._asdict()}
        for segment in prediction.segments()
    ]
    return {**entry_of(prediction.whole, top_k), "windows": windows, "segments": segments}


def table(entry: Entry) -> str:
    """An entry of `entry_of` as text: the best classes of the file, of each window and of each segment.

    Where a video has any number of classes, a star marks those that reach the threshold.
    """
    lines = [printable(entry["path"]), *_rows("", entry, entry["top"])]
    if "windows" in entry:
        lines.append("  windows")
        for window in entry["windows"]:
            lines += _rows(_span(window), window, window["top"][:1])
        lines += ["  segments", *(_row(_span(segment), segment) for segment in entry["segments"])]
    return "\n".join(lines)


def timing(times: Sequence[BatchTime]) -> str:
    """Median times of the batches of a prediction, without the first few."""
    times = times[_WARMUP_BATCHES:] or times
    preprocess_ms = statistics.median(time.preprocess_sec for time in times) * 1e3
    inference_ms = statistics.median(time.inference_sec for time in times) * 1e3
    return (
        f"preprocess_time(ms): {preprocess_ms:.1f}, inference_time(ms): {inference_ms:.1f}: "
        f"median of {len(times)} batches of {times[0].num_files} files"
    )


def _tops(prediction: Prediction, top_k: int) -> Entry:
    lists = {"top": prediction.top(top_k)}
    if prediction.threshold is not None:
        lists["predicted"] = prediction.predicted()
    return {name: [score._asdict() for score in scores] for name, scores in lists.items()}


def _rows(span: str, entry: Entry, best: Sequence[Entry]) -> list[str]:
    """The predicted classes of an entry with a mark, and what else is among the `best`."""
    marked = entry.get("predicted", [])
    others = [one for one in best if one not in marked]
    return [*(_row(span, one, "*") for one in marked), *(_row(span, one) for one in others)]


def _row(span: str, best: Entry, mark: str = " ") -> str:
    return f"{span} {mark}{best['score']:8.5f}  {printable(best['name'])}"


def _span(part: Entry) -> str:
    return f"  {part['start_sec']:8.2f} - {part['end_sec']:8.2f} s"

"""Untrimmed footage: training clips from between the spans of a list, and evaluation by windows."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np

from paddlevideo_fast.config.types import Count, Range
from paddlevideo_fast.decode import Span, VideoReader
from paddlevideo_fast.decode.reader import TOLERANCE_SEC, VideoPart, frames_between
from paddlevideo_fast.errors import (
    AnnotationError,
    LoaderError,
    PaddleVideoFastError,
    ProgramError,
    VideoDecodeError,
)
from paddlevideo_fast.loader.annotations import VideoRecord
from paddlevideo_fast.loader.sampling import AboveZero

Label = Count | str | None
_MOST_SEC = 1_000_000
Part = tuple[float, float]  # of a video, in seconds


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


@dataclass(frozen=True)
class Background:
    """Clips of training that show what is between the spans of a video: `background` of DATASET.train.

    Args:
        share: of the clips of an epoch.
        label: number or name of their class; null for no class, where a video has any number of classes.
    """

    share: Annotated[float, Range(1e-3, below=1.0)]
    label: Label = None


@dataclass(frozen=True)
class Windows:
    """Windows that an evaluation sees of untrimmed videos: `windows` of DATASET.valid and .test.

    Args:
        length_sec: of a window, in seconds.
        stride_sec: from one window to the next, in seconds; null for the length.
        label: number or name of the class of a window without one; null: where a video has one class, such
            windows are left out.
    """

    length_sec: AboveZero
    stride_sec: AboveZero | None = None
    label: Label = None


# --- training: between the spans


def _by_file(records: Sequence[VideoRecord]) -> dict[Any, list[VideoRecord]]:
    files: dict[Any, list[VideoRecord]] = {}
    for record in records:
        files.setdefault((record.path, record.place), []).append(record)
    return files


def with_background(
    records: Sequence[VideoRecord], share: float, label: int | None, file_path: str
) -> list[VideoRecord]:
    """The records, and after them more of the same files that avoid the spans of classes.

    A file has as large a part of them as it has of the records with spans.

    Raises:
        LoaderError: no file has spans only.
    """
    avoided = {
        key: tuple(record.span for record in found if record.span and record.labels)
        for key, found in _by_file(records).items()
        if all(record.span or not record.labels for record in found)
    }
    usable = [record for record in records if avoided.get((record.path, record.place))]
    if not usable:
        raise LoaderError(
            f"{file_path}: DATASET.train.background draws clips from between the spans of a video, and no "
            "video has spans; give start_sec and end_sec in the list, or leave background out"
        )
    count = max(1, round(len(records) * share / (1 - share)))
    labels = () if label is None else (label,)
    chosen = (usable[number * len(usable) // count] for number in range(count))
    return [
        *records,
        *(
            replace(one, labels=labels, span=None, weight=1.0, avoid=avoided[one.path, one.place])
            for one in chosen
        ),
    ]


def between(video: VideoReader, avoid: Sequence[Span], rng: np.random.Generator) -> VideoPart:
    """A random part of a video outside of spans, as long as a random one of them where a gap has room.

    Lengths are times; of images in a folder, of which nothing says when they are shown, numbers of frames.

    Raises:
        VideoDecodeError: a span is not inside the video, or the spans leave no frame.
    """
    taken = sorted(video.frames_of(span) for span in avoid)
    gaps, free = [], 0
    for first, stop in [*taken, (video.num_frames, video.num_frames)]:
        if first > free:
            gaps.append((free, first))
        free = max(free, stop)
    if not gaps:
        raise VideoDecodeError(video.path, "has no frame between its spans, which background is drawn from")
    edges = _edges(video)
    first, stop = taken[int(rng.integers(len(taken)))]
    length = min(edges[stop] - edges[first], max(edges[stop] - edges[first] for first, stop in gaps))
    ends = edges + (length - TOLERANCE_SEC)
    starts = np.concatenate([first + np.flatnonzero(ends[first:stop] <= edges[stop]) for first, stop in gaps])
    begin = int(starts[rng.integers(len(starts))])
    return VideoPart(video, begin, int(np.searchsorted(edges, ends[begin])))


def _edges(video: VideoReader) -> np.ndarray:
    """When each frame begins, and when the last one ends; in frames where nothing says."""
    if not video.avg_fps:
        return np.arange(video.num_frames + 1.0)
    return np.append(video.times_sec(), video.end_sec())


# --- evaluation: windows


def windows_of(
    records: Sequence[VideoRecord],
    open_file: Callable[[VideoRecord], VideoReader],
    windows: Windows,
    label: int | None,
    has_several: bool,
    file_path: str,
) -> list[VideoRecord]:
    """A record for each window of each file, with the classes of the spans that it shows.

    A window shows a class where spans of the class cover at least half of the window, or where at least half
    of such a span lies in it. Spans of one class that overlap are one span. Where a video has one class, the
    class that covers most of the window counts.

    Args:
        records: of a list; a record without a span is about all of its file.
        open_file: opens the file of a record.
        windows: their length and stride.
        label: of windows that show no class; None: no class.
        has_several: a video may have any number of classes.
        file_path: the list, for messages.

    Raises:
        AnnotationError: a span is not inside its video; there is no window.
        VideoDecodeError: nothing says when the frames of a file are shown.
        ProgramError: a window is shorter than a frame.
    """
    windowing = Windowing(windows.length_sec, windows.stride_sec)
    found: list[VideoRecord] = []
    for of_file in _by_file(records).values():
        try:
            video = open_file(of_file[0])
        except VideoDecodeError:
            found.append(replace(of_file[0], span=None))  # told when the evaluation reads it
            continue
        with video:
            spans = _spans_of_classes(video, of_file, file_path)
            for window in windowing.cut(video):
                labels = _labels_of(window, spans, has_several)
                if not labels and label is not None:
                    labels = (label,)
                if labels or has_several:
                    found.append(replace(of_file[0], labels=labels, span=Span(window.first, window.stop)))
    if not found:
        text = f"{file_path}: no window shows a class; give windows.label for those that do not"
        raise AnnotationError(text)
    return found


def _spans_of_classes(
    video: VideoReader, records: Sequence[VideoRecord], file_path: str
) -> dict[int, list[Part]]:
    """The spans of each class, in seconds; spans that overlap are one, so that no moment counts twice."""
    spans, edges = [], _edges(video)
    for record in records:
        try:
            own = video.frames_of(record.span) if record.span else (0, video.num_frames)
        except VideoDecodeError as error:
            raise AnnotationError(f"{file_path}:{record.line}: {error}") from None
        spans += [((edges[own[0]], edges[own[1]]), label) for label in record.labels]
    found: dict[int, list[Part]] = {}
    for (first, stop), label in sorted(spans):
        of_class = found.setdefault(label, [])
        if of_class and first < of_class[-1][1]:
            first, before = of_class.pop()
            stop = max(stop, before)
        of_class.append((first, stop))
    return found


def _labels_of(window: Window, spans: Mapping[int, Sequence[Part]], has_several: bool) -> tuple[int, ...]:
    """The classes that a window shows; `spans` are those of each class as `_spans_of_classes` gives them."""
    covered: dict[int, float] = defaultdict(float)
    shown_half = set()
    for label, of_class in spans.items():
        for start, end in of_class:
            overlap = min(end, window.end_sec) - max(start, window.start_sec)
            if overlap > TOLERANCE_SEC:
                covered[label] += round(overlap, 6)
                if 2 * overlap >= end - start - TOLERANCE_SEC:
                    shown_half.add(label)
    half = (window.end_sec - window.start_sec) / 2 - TOLERANCE_SEC
    labels = [label for label, overlap in covered.items() if overlap >= half or label in shown_half]
    if not has_several and labels:
        labels = [max(labels, key=lambda label: (covered[label], -label))]
    return tuple(labels)

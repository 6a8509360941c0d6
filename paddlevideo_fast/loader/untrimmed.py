"""Untrimmed footage: training clips from between the spans of a list, and evaluation by windows."""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np

from paddlevideo_fast.config.types import Count, Range
from paddlevideo_fast.decode import Span, VideoReader
from paddlevideo_fast.decode.reader import VideoPart
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
_MOST_SEC = 1_000_000  # so that no number of frames overflows
Frames = tuple[int, int]  # of a video, the first one and the one after the last


class Window(NamedTuple):
    """The frames `first` to `stop` - 1 of a video."""

    first: int
    stop: int


@dataclass(frozen=True)
class Windowing:
    """How a video is cut into windows.

    The last window ends with the video and is as long as the others, so it may begin earlier than one stride
    after the window before it. A video shorter than a window is one window. For example, 11 frames in windows
    of 4 with a stride of 3:

        frame     0  1  2  3  4  5  6  7  8  9  10
        windows   |--------|
                           |--------|
                                    |--------|
                                       |--------|

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

    def cut(self, path: str, num_frames: int, fps: float) -> list[Window]:
        """The windows of a video, in order.

        Args:
            path: the video, for messages.
            num_frames: frames of the video.
            fps: frames a second of the video.

        Raises:
            ProgramError: the frame rate is unknown, or the window or the stride is shorter than a frame.
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
    first, stop = taken[int(rng.integers(len(taken)))]
    length = min(stop - first, max(stop - first for first, stop in gaps))
    starts = np.concatenate([np.arange(first, stop - length + 1) for first, stop in gaps])
    begin = int(starts[rng.integers(len(starts))])
    return VideoPart(video, begin, begin + length)


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
        ProgramError: a file says no frame rate, or a window is shorter than a frame.
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
            for window in windowing.cut(video.path, video.num_frames, video.avg_fps):
                labels = _labels_of(window, spans, has_several)
                if not labels and label is not None:
                    labels = (label,)
                if labels or has_several:
                    found.append(replace(of_file[0], labels=labels, span=Span(*window)))
    if not found:
        raise AnnotationError(
            f"{file_path}: no window shows a class; give windows.label for those that do not"
        )
    return found


def _spans_of_classes(
    video: VideoReader, records: Sequence[VideoRecord], file_path: str
) -> dict[int, list[Frames]]:
    """The spans of each class; spans that overlap are one, so that no frame counts twice."""
    spans = []
    for record in records:
        try:
            own = video.frames_of(record.span) if record.span else (0, video.num_frames)
        except VideoDecodeError as error:
            raise AnnotationError(f"{file_path}:{record.line}: {error}") from None
        spans += [(own, label) for label in record.labels]
    found: dict[int, list[Frames]] = {}
    for (first, stop), label in sorted(spans):
        of_class = found.setdefault(label, [])
        if of_class and first < of_class[-1][1]:
            first, before = of_class.pop()
            stop = max(stop, before)
        of_class.append((first, stop))
    return found


def _labels_of(window: Window, spans: Mapping[int, Sequence[Frames]], has_several: bool) -> tuple[int, ...]:
    """The classes that a window shows; `spans` are those of each class as `_spans_of_classes` gives them."""
    covered: Counter = Counter()
    shown_half = set()
    for label, of_class in spans.items():
        for first, stop in of_class:
            overlap = min(stop, window.stop) - max(first, window.first)
            if overlap > 0:
                covered[label] += overlap
                if 2 * overlap >= stop - first:
                    shown_half.add(label)
    half = (window.stop - window.first) / 2
    labels = [label for label, overlap in covered.items() if overlap >= half or label in shown_half]
    if not has_several and labels:
        labels = [max(labels, key=lambda label: (covered[label], -label))]
    return tuple(labels)

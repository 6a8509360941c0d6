"""The sections `background` and `windows` of a data set, whose list has spans of untrimmed videos."""

import contextlib
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from paddlevideo_fast.config.types import Count, Range
from paddlevideo_fast.decode import Span, VideoReader
from paddlevideo_fast.decode.reader import TOLERANCE_SEC, VideoPart
from paddlevideo_fast.decode.source import VideoSource
from paddlevideo_fast.decode.stored_index import StoredIndex, learned_indexes
from paddlevideo_fast.errors import AnnotationError, LoaderError, PaddleVideoFastError, VideoDecodeError
from paddlevideo_fast.loader.annotations import ClassNumbers, RecordSection, VideoRecord
from paddlevideo_fast.loader.sampling import AboveZero
from paddlevideo_fast.machine import num_cores
from paddlevideo_fast.registry import RECORD_SECTIONS
from paddlevideo_fast.sources.untrimmed.windowing import Window, Windowing

if TYPE_CHECKING:
    from paddlevideo_fast.loader.dataset import ClipDataset

Label = Count | str | None
Part = tuple[float, float]  # of a video, in seconds
_WRONG_SPLIT = "background is for DATASET.train, and windows are for DATASET.valid and .test"


@RECORD_SECTIONS.register("background")
@dataclass(frozen=True)
class Background(RecordSection):
    """Clips of training that show what is between the spans of a video: `background` of DATASET.train.

    Args:
        share: of the clips of an epoch.
        label: number or name of their class; null for no class, where a video has any number of classes.
    """

    share: Annotated[float, Range(1e-3, below=1.0)]
    label: Label = None

    def records(self, dataset: "ClipDataset") -> list[VideoRecord]:
        """The records, and after them more of the same files that avoid the spans of classes.

        A file has as large a part of them as it has of the records with spans.

        Raises:
            LoaderError: it is no training; no file has spans only; or the label is missing.
        """
        if not dataset.training:
            raise LoaderError(_WRONG_SPLIT)
        label = _number_of(self.label, "background.label", dataset)
        avoided = {
            key: BetweenSpans(tuple(record.span for record in records if record.span and record.labels))
            for key, records in _by_file(dataset.records).items()
            if all(record.span or not record.labels for record in records)
        }
        avoided = {key: between for key, between in avoided.items() if between.spans}
        usable = [record for record in dataset.records if _file_of(record) in avoided]
        if not usable:
            raise LoaderError(
                f"{dataset.file_path}: DATASET.train.background draws clips from between the spans of a "
                "video, and no video has spans; give start_sec and end_sec in the list, or leave background "
                "out"
            )
        if label is None and dataset.num_classes is None:
            raise LoaderError(
                "background.label is missing: with a softmax a video has one class; name a class for the "
                "background, or set MODEL.head.activation to sigmoid"
            )
        count = max(1, round(len(dataset.records) * self.share / (1 - self.share)))
        labels = () if label is None else (label,)
        chosen = (usable[number * len(usable) // count] for number in range(count))
        return [
            *dataset.records,
            *(
                replace(record, labels=labels, span=None, weight=1.0, draw_part=avoided[_file_of(record)])
                for record in chosen
            ),
        ]


@RECORD_SECTIONS.register("windows")
@dataclass(frozen=True)
class Windows(RecordSection):
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

    def records(self, dataset: "ClipDataset") -> list[VideoRecord]:
        """A record for each window of each file, with the classes of the spans that it shows.

        A window shows a class where spans of the class cover at least half of the window, or where at least
        half of such a span lies in it. Spans of one class that overlap are one span. Where a video has one
        class, the class that covers most of the window counts. A record of the list without a span is about
        all of its file.

        Raises:
            LoaderError: it is a training.
            AnnotationError: a span is not inside its video; there is no window.
            VideoDecodeError: nothing says when the frames of a file are shown.
            ProgramError: a window is shorter than a frame.
        """
        if dataset.training:
            raise LoaderError(_WRONG_SPLIT)
        from paddlevideo_fast.jobs.executor import run_if_long  # takes 20 ms, which other runs need not wait

        label = _number_of(self.label, "windows.label", dataset)
        files = list(_by_file(dataset.records).values())
        windowing = Windowing(self.length_sec, self.stride_sec)
        cut = partial(_cut_file, dataset, windowing, label)
        windows: list[VideoRecord] = []
        with contextlib.closing(run_if_long(cut, files, _num_processes(dataset), "videos indexed")) as cuts:
            for of_file in cuts:
                if of_file.error is not None:
                    raise of_file.error
                windows += of_file.windows
                if of_file.learned is not None:
                    learned_indexes.put(*of_file.learned)  # for the workers of the loader, too
        if not windows:
            text = f"{dataset.file_path}: no window shows a class; give windows.label for those that do not"
            raise AnnotationError(text)
        return windows


class _CutFile(NamedTuple):
    """What came of a file.

    Attributes:
        windows: a record for each window.
        error: why there are none, where a user can act on it; the run ends with the first of the list.
        learned: key and index, where the file was decoded to index it; see `learned_indexes`.
    """

    windows: Sequence[VideoRecord]
    error: PaddleVideoFastError | None = None
    learned: tuple[Any, StoredIndex] | None = None


def _cut_file(
    dataset: "ClipDataset", windowing: Windowing, label: int | None, records: Sequence[VideoRecord]
) -> _CutFile:
    """Opens the file of records and cuts it into windows; see `Windows.records`. May run in a process."""
    try:
        windows = _windows_of(dataset, windowing, label, records)
    except PaddleVideoFastError as error:
        return _CutFile((), error)
    source = VideoSource(records[0].path)
    key = (source.path, source.state() if source.path else None)
    learned = learned_indexes.get(key)
    return _CutFile(windows, learned=None if learned is None else (key, learned))


def _windows_of(
    dataset: "ClipDataset", windowing: Windowing, label: int | None, records: Sequence[VideoRecord]
) -> list[VideoRecord]:
    first, has_several = records[0], dataset.num_classes is not None
    try:
        video = dataset.open(first)
    except VideoDecodeError:
        return [replace(first, span=None)]  # the evaluation reports it when it reads the file
    windows = []
    with video:
        spans = _spans_of_classes(video, records, dataset.file_path)
        for window in windowing.cut(video):
            labels = _labels_of(window, spans, has_several)
            if not labels and label is not None:
                labels = (label,)
            if labels or has_several:
                windows.append(replace(first, labels=labels, span=Span(window.first, window.stop)))
    return windows


def _num_processes(dataset: "ClipDataset") -> int:
    """Processes that index files: on each core one, of those that the ranks of this machine share evenly."""
    if getattr(dataset.decoder, "reader", "") == "nvdec":
        return 1  # a forked process cannot use the GPU of its parent
    num_ranks = int(os.environ.get("PADDLE_LOCAL_SIZE", 1))  # set by paddle.distributed.launch
    return min(num_cores(), (os.cpu_count() or 1) // num_ranks)


def _number_of(label: Label, key: str, dataset: "ClipDataset") -> int | None:
    return None if label is None else ClassNumbers(dataset.class_names).of(label, key)


def _file_of(record: VideoRecord) -> tuple[Any, ...]:
    return record.path, record.position


def _by_file(records: Sequence[VideoRecord]) -> dict[Any, list[VideoRecord]]:
    files: dict[Any, list[VideoRecord]] = {}
    if any(record.draw_part for record in records):
        raise LoaderError("windows and background are about whole pictures, and the list has boxes or tracks")
    for record in records:
        files.setdefault(_file_of(record), []).append(record)
    return files


@dataclass(frozen=True)
class BetweenSpans:
    """Draws a part of a video outside of spans.

    Args:
        spans: to avoid.
    """

    spans: tuple[Span, ...]

    def __repr__(self) -> str:
        return repr(self.spans)  # is in the identity of a run, which is the same in earlier checkpoints

    def __call__(self, video: VideoReader, rng: np.random.Generator) -> VideoPart:
        """See `between`."""
        return between(video, self.spans, rng)


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
    parts: dict[int, list[Part]] = {}
    for (first, stop), label in sorted(spans):
        of_class = parts.setdefault(label, [])
        if of_class and first < of_class[-1][1]:
            first, before = of_class.pop()
            stop = max(stop, before)
        of_class.append((first, stop))
    return parts


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

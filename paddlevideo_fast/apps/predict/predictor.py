"""Predicts the classes of video files, or of windows of long videos, with an exported program."""

import contextlib
import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paddlevideo_fast.apps.predict.program import (
    ONNX_SUFFIX,
    ProgramOptions,
    Runtime,
    open_program,
    settings_file,
)
from paddlevideo_fast.apps.predict.reading import CutVideo, read_ahead
from paddlevideo_fast.apps.predict.recipe import FREE, Recipe, read_recipe
from paddlevideo_fast.apps.predict.views import OpenedVideo, read_views
from paddlevideo_fast.config.types import Activation
from paddlevideo_fast.decode import VIDEO_EXTENSIONS, VideoReader
from paddlevideo_fast.decode.reader import VideoPart
from paddlevideo_fast.errors import PaddleVideoFastError, ProgramError, UsageError, cause_of
from paddlevideo_fast.io.files import as_path, hint_at_working_folder, read_names, walk
from paddlevideo_fast.io.urls import shown_url
from paddlevideo_fast.loader import VideoRecord
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.log import counted, printable
from paddlevideo_fast.metrics.predictions import DECISION
from paddlevideo_fast.modeling import Preprocess
from paddlevideo_fast.sources.untrimmed.windowing import Window
from paddlevideo_fast.sources.untrimmed.windowing import Windowing as Windowing

Entry = dict[str, Any]
Progress = Callable[[Sequence[Sequence[int]]], Iterable[Sequence[int]]]
_WARMUP_BATCHES = 3


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


class _Read(NamedTuple):
    """A file that was read: its views as the program takes them, or why there are none; and the time."""

    path: str
    clips: np.ndarray | PaddleVideoFastError
    sec: float


class _ReadWindow(NamedTuple):
    """A window that was read: its views as the program takes them, or why there are none."""

    video: CutVideo | Unread
    clips: np.ndarray | PaddleVideoFastError


class BatchTime(NamedTuple):
    """How long the files of one batch took: the time of reading is summed over the threads."""

    num_files: int
    preprocess_sec: float
    inference_sec: float


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

    Attributes:
        whole: the mean over the windows; its logits are the logits of all windows, in order.
        windows: the windows, in order.
        parts: the prediction of each window.
    """

    whole: Prediction
    windows: Sequence[Window]
    parts: Sequence[Prediction]

    @property
    def path(self) -> str:
        """The file."""
        return self.whole.path

    @property
    def scores(self) -> np.ndarray:
        """float32 [num_windows, num_classes], probabilities."""
        return np.stack([part.scores for part in self.parts])

    @property
    def edges_sec(self) -> list[float]:
        """Times [num_windows + 1]: a moment t belongs to window k where edges[k] <= t < edges[k + 1].

        It belongs to the window whose middle is nearest; windows may overlap or leave gaps.
        """
        middles = [(window.start_sec + window.end_sec) / 2 for window in self.windows]
        inner = [round((one + other) / 2, 6) for one, other in zip(middles, middles[1:])]
        return [self.windows[0].start_sec, *inner, self.windows[-1].end_sec]

    def segments(self) -> list[Segment]:
        """The segments of the video, by their beginnings: consecutive windows with one class are a segment.

        Where a video has one class, the segments follow each other from its beginning to its end. With a
        threshold they may overlap, as segments of different classes, and leave gaps.
        """
        edges = self.edges_sec
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
                segments.append(Segment(edges[members[0]], edges[members[-1] + 1], best))
        return sorted(segments, key=lambda segment: segment.start_sec)


def join(parts: Sequence[Prediction], windows: Sequence[Window]) -> WindowedPrediction:
    """Joins the predictions of a video's windows to the prediction of the video."""
    scores = np.stack([part.scores for part in parts]).mean(axis=0, dtype=np.float64).astype(np.float32)
    logits = np.concatenate([part.logits for part in parts])
    whole = Prediction(parts[0].path, scores, logits, parts[0].class_names, parts[0].threshold)
    return WindowedPrediction(whole, windows, parts)


def find_videos(path: str | Path) -> list[Path]:
    """The given file, or all videos below the given folder, sorted by name.

    Names that begin with a dot are left out, such as temporary files of this package.

    Raises:
        UsageError: there is no such file.
        PaddleVideoFastError: the folder has no video.
    """
    place = as_path(path)
    if not place.is_dir():
        if not place.is_file() and not place.exists():
            where = hint_at_working_folder(path)
            raise UsageError(f"{path}: there is no such file or folder{where}")
        return [place]
    there = (as_path(folder) / name for folder, _, names in walk(place) for name in names if name[0] != ".")
    videos = sorted(file for file in there if file.suffix.lower() in VIDEO_EXTENSIONS)
    if not videos:
        raise PaddleVideoFastError(f"{path}: has no video; looked for {', '.join(VIDEO_EXTENSIONS)}")
    return videos


def listed_videos(path: str | Path) -> list[Path]:
    """The videos that a text file lists, one a line.

    Raises:
        PaddleVideoFastError: the list cannot be read, or is empty.
    """
    try:
        lines = read_names(path)
    except (OSError, ValueError) as error:
        raise PaddleVideoFastError(f"{path}: is no list of videos: {cause_of(error)}") from error
    videos = [as_path(line.strip()) for line in lines if line.strip()]
    if not videos:
        raise PaddleVideoFastError(f"{path}: lists no video; write one a line")
    return videos


class Predictor:
    """Predicts videos with an exported network. Videos are read as validation reads them.

    Args:
        model_file: the program; its ending may be left out.
        params_file: the program's parameters; None: next to it.
        recipe: how the program is fed; None: the recipe that export wrote next to it.
        class_names: names by number; None: the recipe's names.
        options: how to run the program.
        backend: what runs the program on a CPU; None: as the recipe says.
        threshold: from this probability on a class is predicted, where a video has any number of classes;
            None: 0.5.

    Attributes:
        times: how long each batch took so far.

    Raises:
        PaddleVideoFastError: a file is missing or wrong, the pipeline makes clips of another shape, or there
            is a threshold and a video has one class.
    """

    def __init__(
        self,
        model_file: str | Path,
        params_file: str | Path | None = None,
        recipe: Recipe | None = None,
        class_names: Sequence[str] | None = None,
        options: ProgramOptions | None = None,
        threshold: float | None = None,
        backend: Runtime | None = None,
    ) -> None:
        self.recipe = recipe or read_recipe(settings_file(model_file))
        settings = self.recipe.settings
        if threshold is not None and settings.activation == "softmax":
            raise ProgramError(
                f"{model_file}: gives one class a video, by softmax, and no threshold decides on it; leave "
                f"threshold {threshold:g} out"
            )
        if settings.activation == "sigmoid" and threshold is None:
            threshold = DECISION
        self.threshold = threshold
        mean_and_std = self.recipe.dataset().pipeline.normalization
        self._preprocess = Preprocess(*mean_and_std, settings.layout)
        runtime = backend or settings.cpu_runtime
        self.program = open_program(model_file, params_file, options, settings.checksums, runtime)
        if backend == "onnxruntime" and self.program.model_file.suffix != ONNX_SUFFIX:
            text = "no .onnx of this export, or no onnxruntime; export it with --onnx"
            raise ProgramError(f"backend onnxruntime: {model_file} has {text}")
        self.class_names = class_names or settings.class_names
        if self.class_names and len(self.class_names) != settings.num_classes:
            raise ProgramError(
                f"{self.program.model_file}: has {settings.num_classes} classes, and there are "
                f"{len(self.class_names)} class_names"
            )
        self.times: list[BatchTime] = []

    def predict(
        self, paths: Iterable[str | Path], batch_size: int = 1, num_readers: int = 0
    ) -> Iterator[Prediction | Unread]:
        """Predicts files, in order.

        Args:
            paths: video files.
            batch_size: files that go through the network at a time, each with all its views.
            num_readers: threads that read the next files while the network computes, up to two batches
                ahead; 0: this thread reads a batch and then computes. They wait while Paddle Inference
                computes, which holds Python's lock.

        Yields:
            `Unread` for a file that does not decode or that the pipeline cannot use; the other files go on.

        Raises:
            ProgramError: the program does not take the clips, or its logits are not finite.
        """
        _check_batch_size(batch_size)
        reads = (partial(self._read_one, path) for path in map(str, paths))
        with contextlib.closing(read_ahead(reads, num_readers, 2 * batch_size)) as read:
            while batch := list(itertools.islice(read, batch_size)):
                yield from self._predict_batch(batch)

    def predict_windows(
        self,
        paths: Iterable[str | Path],
        windowing: Windowing,
        batch_size: int = 1,
        progress: Progress = iter,
        num_readers: int = 0,
    ) -> Iterator[WindowedPrediction | Unread]:
        """Predicts long videos window by window; each window is read as `predict` reads a whole video.

        Args:
            paths: video files.
            windowing: how the videos are cut.
            batch_size: windows of a video that go through the network at a time, each with all its views.
            progress: wraps the batches of each video's windows, for a progress bar such as `tqdm`.
            num_readers: threads that read the next windows, as of `predict`; each opens the video. They go
                on with the next video.

        Yields:
            `Unread` for a file that does not decode, cannot be cut, or does not fit the program; the other
            files go on.
        """
        _check_batch_size(batch_size)
        cuts = (self._cut(path, windowing) for path in map(str, paths))
        yield from self._predict_cuts(cuts, batch_size, progress, num_readers)

    def predict_parts(
        self,
        video: VideoReader,
        windows: Sequence[Window],
        batch_size: int = 1,
        progress: Progress = iter,
        draw_part: Callable[..., VideoReader] | None = None,
    ) -> WindowedPrediction:
        """Predicts windows of an open video, which stays open; one thread reads the next of them.

        Args:
            video: an open reader.
            windows: windows of it, in order.
            batch_size: windows that go through the network at a time, each with all its views.
            progress: wraps the batches, for a progress bar such as `tqdm`.
            draw_part: says what clips of a window show, as of a `VideoRecord`; None: all of it.

        Raises:
            VideoDecodeError: it does not decode.
            ProgramError: the program does not take its clips, or its logits are not finite.
        """
        whole = partial(VideoPart, video, 0, video.num_frames)  # closing it leaves the video open
        cut = CutVideo(whole(), windows, self.recipe.views, whole, draw_part)
        (result,) = self._predict_cuts([cut], batch_size, progress, num_readers=1)
        if isinstance(result, Unread):
            raise result.error
        return result

    def _cut(self, path: str, windowing: Windowing) -> CutVideo | Unread:
        """A video in windows, open."""
        with contextlib.ExitStack() as held:
            try:
                video = held.enter_context(self.open(path))
                cut = CutVideo(video, windowing.cut(video), self.recipe.views, partial(self.open, path))
            except PaddleVideoFastError as error:
                return Unread(shown_url(path), error)
            held.pop_all()
            return cut

    def _predict_cuts(
        self, cuts: Iterable[CutVideo | Unread], batch_size: int, progress: Progress, num_readers: int
    ) -> Iterator[WindowedPrediction | Unread]:
        """Predicts videos in windows, and closes them; the windows are read ahead, over all videos."""
        opened: list[CutVideo] = []

        def reads() -> Iterator[Callable[[], _ReadWindow]]:
            for cut in cuts:
                if isinstance(cut, CutVideo):
                    opened.append(cut)
                    yield from (partial(self._read_window, cut, at) for at in range(len(cut.windows)))
                else:
                    yield partial(_ReadWindow, cut, cut.error)

        try:
            with contextlib.closing(read_ahead(reads(), num_readers, 2 * batch_size)) as read:
                for first in read:
                    if isinstance(first.video, Unread):
                        yield first.video
                        continue
                    others = itertools.islice(read, len(first.video.windows) - 1)
                    of_video = itertools.chain([first], others)
                    yield self._predict_cut(first.video, of_video, batch_size, progress)
                    deque(others, maxlen=0)  # of a video that failed
                    opened.remove(first.video)
        finally:
            for cut in opened:
                cut.close()

    def _predict_cut(
        self, cut: CutVideo, read: Iterator[_ReadWindow], batch_size: int, progress: Progress
    ) -> WindowedPrediction | Unread:
        numbers = range(len(cut.windows))
        parts: list[Prediction] = []
        try:
            for batch in progress([numbers[first : first + batch_size] for first in numbers[::batch_size]]):
                clips = [_clips_or_error(one.clips) for one in itertools.islice(read, len(batch))]
                parts += self._run([cut.path] * len(batch), clips)
        except PaddleVideoFastError as error:
            return Unread(shown_url(cut.path), error)
        finally:
            cut.close()  # what is left of it is not read
        return join(parts, cut.windows)

    def _read_window(self, cut: CutVideo, number: int) -> _ReadWindow:
        try:
            return _ReadWindow(cut, self._prepared(cut.read(number), cut.path))
        except PaddleVideoFastError as error:
            return _ReadWindow(cut, error)

    def predict_open(self, video: VideoReader) -> Prediction:
        """Predicts a video that is open already, and stays open.

        Raises:
            VideoDecodeError: it does not decode.
            ProgramError: the program does not take its clips, or its logits are not finite.
        """
        dataset = self.recipe.views.dataset([VideoRecord(video.path, (0,))], OpenedVideo(video))
        return self._run([video.path], [self._clips(dataset)])[0]

    def open(self, path: str | Path) -> VideoReader:
        """Opens a video as `predict` does.

        Raises:
            VideoDecodeError: the video cannot be read.
        """
        dataset = self.recipe.dataset([str(path)])
        return dataset.open(dataset.records[0])

    def clips_of(self, path: str | Path) -> np.ndarray:
        """The views of a video, ready for the program: [V, ...].

        Raises:
            PaddleVideoFastError: the video does not decode, or its clips do not fit the program.
        """
        return self._clips(self.recipe.dataset([str(path)]))

    def pixels_of(self, path: str | Path) -> np.ndarray:
        """The first view of a video, uint8 [T, H, W, 3].

        Raises:
            PaddleVideoFastError: the video does not decode.
        """
        return read_views(self.recipe.dataset([str(path)]))[0]

    def scores_of(self, pixels: np.ndarray) -> np.ndarray:
        """Probabilities, float32 [N, num_classes], of clips, uint8 [N, T, H, W, 3].

        Raises:
            ProgramError: as of `predict_clips`.
        """
        predictions = self.predict_clips(np.split(pixels, len(pixels)), "")
        return np.stack([each.scores for each in predictions])

    def predict_clips(self, clips: Sequence[np.ndarray], path: str) -> list[Prediction]:
        """Predicts parts of a video, whose clips have the same shape.

        Args:
            clips: the views of each part, uint8 [V, T, H, W, 3], as the pipeline makes them.
            path: of the video, for messages and the predictions.

        Raises:
            ProgramError: the program does not take the clips, or its logits are not finite.
        """
        return self._run([path] * len(clips), [self._prepared(views, path) for views in clips])

    def _clips(self, dataset: ClipDataset, index: int = 0) -> np.ndarray:
        """As `clips_of`, of one record of a data set."""
        return self._prepared(read_views(dataset, index), dataset.records[index].path)

    def _prepared(self, clips: np.ndarray, path: str) -> np.ndarray:
        """Clips uint8 [V, T, H, W, 3] as the program takes them."""
        settings = self.recipe.settings
        shape = clips.shape[1:4]
        if any(size not in (FREE, own) for size, own in zip(settings.input_shape, shape)):
            raise ProgramError(
                f"{path}: its clips have T, H, W = {list(shape)}, the model takes "
                f"{list(settings.input_shape)}; export it with another --input_shape"
            )
        return clips if settings.input_dtype == "uint8" else self._preprocess.in_numpy(clips)

    def _read_one(self, path: str) -> _Read:
        began = time.perf_counter()
        try:
            clips: np.ndarray | PaddleVideoFastError = self.clips_of(path)
        except PaddleVideoFastError as error:
            clips = error
        return _Read(path, clips, time.perf_counter() - began)

    def _predict_batch(self, batch: Sequence[_Read]) -> list[Prediction | Unread]:
        began = time.perf_counter()
        clips: dict[int, np.ndarray] = {}
        results: dict[int, Prediction | Unread] = {}
        for number, one in enumerate(batch):
            if isinstance(one.clips, np.ndarray):
                clips[number] = one.clips
            else:
                results[number] = Unread(shown_url(one.path), one.clips)
        for shape in {item.shape[1:] for item in clips.values()}:
            same = [number for number, item in clips.items() if item.shape[1:] == shape]
            predictions = self._run(
                [shown_url(batch[number].path) for number in same], [clips[number] for number in same]
            )
            results.update(zip(same, predictions))
        read_sec = sum(one.sec for one in batch)
        self.times.append(BatchTime(len(batch), read_sec, time.perf_counter() - began))
        return [results[number] for number in range(len(batch))]

    def _run(self, paths: Sequence[str], clips: Sequence[np.ndarray]) -> list[Prediction]:
        """Predicts videos, or windows, whose views [V, ...] have the same shape."""
        logits = self.program.run(np.concatenate(clips))
        num_clips, num_classes = sum(map(len, clips)), self.recipe.settings.num_classes
        if logits.shape != (num_clips, num_classes):
            raise ProgramError(
                f"{self.program.model_file}: gives {list(logits.shape)} for {num_clips} clips and "
                f"{num_classes} classes; it was exported from another config"
            )
        if not np.isfinite(logits).all():
            text = f"{self.program.model_file}: gives logits that are not finite; in fp16, try fp32"
            raise ProgramError(text)
        ends = np.cumsum([len(views) for views in clips])
        activation = self.recipe.settings.activation
        return [
            Prediction(path, _mean_probabilities(views, activation), views, self.class_names, self.threshold)
            for path, views in zip(paths, np.split(logits, ends[:-1]))
        ]


def _clips_or_error(clips: np.ndarray | PaddleVideoFastError) -> np.ndarray:
    if isinstance(clips, PaddleVideoFastError):
        raise clips
    return clips


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise PaddleVideoFastError(f"batch_size is {batch_size}, expected 1 or more")


def probabilities(logits: np.ndarray, activation: Activation) -> np.ndarray:
    """Float64 [V, num_classes] of logits [V, num_classes]."""
    logits = logits.astype(np.float64)
    if activation == "sigmoid":
        return 0.5 * (1 + np.tanh(logits / 2))  # which never overflows
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _mean_probabilities(logits: np.ndarray, activation: Activation) -> np.ndarray:
    """Mean probabilities of the views, as in validation: [V, num_classes] to float32 [num_classes]."""
    return probabilities(logits, activation).mean(axis=0).astype(np.float32)


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
    windows = [
        {"start_sec": window.start_sec, "end_sec": window.end_sec, **_tops(part, top_k)}
        for window, part in zip(prediction.windows, prediction.parts)
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


def timing(times: Sequence[BatchTime], wall_sec: float) -> str:
    """Median times of the batches of a prediction, without the first few, and the files a second of all."""
    rate = sum(each.num_files for each in times) / wall_sec
    times = times[_WARMUP_BATCHES:] or times
    preprocess_ms = statistics.median(time.preprocess_sec for time in times) * 1e3
    inference_ms = statistics.median(time.inference_sec for time in times) * 1e3
    return (
        f"preprocess_time(ms): {preprocess_ms:.1f}, inference_time(ms): {inference_ms:.1f}: "
        f"median of {counted(len(times), 'batch')} of {counted(times[0].num_files, 'file')}; "
        f"{rate:.2f} files a second in all"
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

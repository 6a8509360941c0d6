"""Predicts the classes of video files with an exported program."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from paddlevideo_fast.config.types import Activation
from paddlevideo_fast.decode import VIDEO_EXTENSIONS, Span, VideoReader
from paddlevideo_fast.deploy.prediction import (
    BatchTime,
    OpenDecoder,
    Prediction,
    Unread,
    WindowedPrediction,
    Windowing,
    join,
)
from paddlevideo_fast.deploy.program import ProgramOptions, open_program, settings_file
from paddlevideo_fast.deploy.recipe import FREE, Recipe, read_recipe
from paddlevideo_fast.errors import PaddleVideoFastError, ProgramError, VideoDecodeError, cause_of
from paddlevideo_fast.io.files import UrlPath, as_path, read_names, walk
from paddlevideo_fast.io.urls import shown_url
from paddlevideo_fast.loader import ClipRequest, VideoRecord
from paddlevideo_fast.loader.collate import make_batch
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.metrics import DECISION
from paddlevideo_fast.modeling import Preprocess

Progress = Callable[[Sequence[Sequence[int]]], Iterable[Sequence[int]]]


def find_videos(path: str | Path) -> list[Path]:
    """The given file, or all videos below the given folder, sorted by name.

    Names that begin with a dot are left out, such as temporary files of this package.

    Raises:
        PaddleVideoFastError: there is no such file, or the folder has no video.
    """
    place = as_path(path)
    if not place.is_dir():
        if not place.is_file() and not place.exists():
            raise PaddleVideoFastError(f"{path}: there is no such file or folder")
        return [place]
    if isinstance(place, UrlPath):
        there = (as_path(folder) / name for folder, _, names in walk(place) for name in names)
        found = sorted(file for file in there if file.suffix.lower() in VIDEO_EXTENSIONS)
    else:
        named_so = (file for file in place.rglob("[!.]*") if file.suffix.lower() in VIDEO_EXTENSIONS)
        found = sorted(file for file in named_so if not file.is_dir())
    if not found:
        raise PaddleVideoFastError(f"{path}: has no video; looked for {', '.join(VIDEO_EXTENSIONS)}")
    return found


def listed_videos(path: str | Path) -> list[Path]:
    """The videos that a text file lists, one a line.

    Raises:
        PaddleVideoFastError: the list cannot be read, or is empty.
    """
    try:
        lines = read_names(path)
    except (OSError, ValueError) as error:
        raise PaddleVideoFastError(f"{path}: is no list of videos: {cause_of(error)}") from error
    found = [as_path(line.strip()) for line in lines if line.strip()]
    if not found:
        raise PaddleVideoFastError(f"{path}: lists no video; write one a line")
    return found


class Predictor:
    """Predicts videos with an exported network. Videos are read as validation reads them.

    Args:
        model_file: the program; its ending may be left out.
        params_file: the program's parameters; None: next to it.
        recipe: how the program is fed; None: the recipe that export wrote next to it.
        class_names: names by number; None: the recipe's names.
        options: how to run the program.
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
        self.program = open_program(
            model_file, params_file, options, settings.checksums, settings.cpu_runtime
        )
        self.class_names = class_names or settings.class_names
        if self.class_names and len(self.class_names) != settings.num_classes:
            raise ProgramError(
                f"{self.program.model_file}: has {settings.num_classes} classes, and there are "
                f"{len(self.class_names)} class_names"
            )
        mean_and_std = self.recipe.dataset().pipeline.normalization
        self._preprocess = Preprocess(*mean_and_std, settings.layout)
        self.times: list[BatchTime] = []

    def predict(self, paths: Iterable[str | Path], batch_size: int = 1) -> Iterator[Prediction | Unread]:
        """Predicts files, in order.

        Args:
            paths: video files.
            batch_size: files that go through the network at a time, each with all its views.

        Yields:
            `Unread` for a file that does not decode or that the pipeline cannot use; the other files go on.

        Raises:
            ProgramError: the program does not take the clips, or its logits are not finite.
        """
        _check_batch_size(batch_size)
        remaining = iter(paths)
        while batch := [str(path) for path in itertools.islice(remaining, batch_size)]:
            yield from self._predict_batch(batch)

    def predict_windows(
        self,
        paths: Iterable[str | Path],
        windowing: Windowing,
        batch_size: int = 1,
        progress: Progress = iter,
    ) -> Iterator[WindowedPrediction | Unread]:
        """Predicts long videos window by window; each window is read as `predict` reads a whole video.

        Args:
            paths: video files.
            windowing: how the videos are cut.
            batch_size: windows that go through the network at a time, each with all its views.
            progress: wraps the batches of each video's windows, for a progress bar such as `tqdm`.

        Yields:
            `Unread` for a file that does not decode, cannot be cut, or does not fit the program; the other
            files go on.
        """
        _check_batch_size(batch_size)
        for path in map(str, paths):
            try:
                with self.open(path) as video:
                    yield self._predict_windows(video, windowing, batch_size, progress)
            except PaddleVideoFastError as error:
                yield Unread(shown_url(path), error)

    def predict_open(self, video: VideoReader) -> Prediction:
        """Predicts a video that is open already, and stays open.

        Raises:
            VideoDecodeError: it does not decode.
            ProgramError: the program does not take its clips, or its logits are not finite.
        """
        dataset = self.recipe.dataset_of([VideoRecord(video.path, (0,))], OpenDecoder(video))
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

    def _clips(self, dataset: ClipDataset, index: int = 0) -> np.ndarray:
        """As `clips_of`, of one record of a data set."""
        path = dataset.records[index].path
        requests = [ClipRequest(index, 0, view, dataset.num_views) for view in range(dataset.num_views)]
        batch = make_batch(dataset, requests)
        for _, cause in batch.failures:
            raise VideoDecodeError(path, cause)
        settings = self.recipe.settings
        shape = batch.clips.shape[1:4]
        if any(size not in (FREE, own) for size, own in zip(settings.input_shape, shape)):
            raise ProgramError(
                f"{path}: its clips have T, H, W = {list(shape)}, the program takes "
                f"{list(settings.input_shape)}; export it with another --input_shape"
            )
        return batch.clips if settings.input_dtype == "uint8" else self._preprocess.in_numpy(batch.clips)

    def _predict_batch(self, paths: Sequence[str]) -> list[Prediction | Unread]:
        began = time.perf_counter()
        clips: dict[int, np.ndarray] = {}
        results: dict[int, Prediction | Unread] = {}
        for number, path in enumerate(paths):
            try:
                clips[number] = self.clips_of(path)
            except PaddleVideoFastError as error:
                results[number] = Unread(shown_url(path), error)
        read = time.perf_counter()
        for shape in {item.shape[1:] for item in clips.values()}:
            same = [number for number, item in clips.items() if item.shape[1:] == shape]
            predictions = self._run(
                [shown_url(paths[number]) for number in same], [clips[number] for number in same]
            )
            results.update(zip(same, predictions))
        self.times.append(BatchTime(len(paths), read - began, time.perf_counter() - read))
        return [results[number] for number in range(len(paths))]

    def _predict_windows(
        self, video: VideoReader, windowing: Windowing, batch_size: int, progress: Progress
    ) -> WindowedPrediction:
        windows = windowing.cut(video.path, video.num_frames, video.avg_fps)
        numbers = range(len(windows))
        batches = [numbers[first : first + batch_size] for first in numbers[::batch_size]]
        records = [VideoRecord(video.path, (0,), span=Span(*window)) for window in windows]
        dataset = self.recipe.dataset_of(records, OpenDecoder(video))
        parts: list[Prediction] = []
        for batch in progress(batches):
            clips = [self._clips(dataset, number) for number in batch]
            parts += self._run([video.path] * len(batch), clips)
        return join(parts, windows, video)

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
            raise ProgramError(
                f"{self.program.model_file}: gives logits that are not finite; in fp16, try fp32"
            )
        ends = np.cumsum([len(views) for views in clips])
        activation = self.recipe.settings.activation
        return [
            Prediction(path, _mean_probabilities(views, activation), views, self.class_names, self.threshold)
            for path, views in zip(paths, np.split(logits, ends[:-1]))
        ]


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise PaddleVideoFastError(f"batch_size is {batch_size}, expected 1 or more")


def _mean_probabilities(logits: np.ndarray, activation: Activation) -> np.ndarray:
    """Mean probabilities of the views, as in validation: [V, num_classes] to [num_classes]."""
    logits = logits.astype(np.float64)
    if activation == "sigmoid":
        return (0.5 * (1 + np.tanh(logits / 2))).mean(axis=0).astype(np.float32)  # which never overflows
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (powers / powers.sum(axis=1, keepdims=True)).mean(axis=0).astype(np.float32)

"""Classes of video files, from an exported program."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Union

import numpy as np

from paddlevideo_fast.decode import VideoReader
from paddlevideo_fast.deploy.prediction import BatchTime, Prediction, Score, Unread
from paddlevideo_fast.deploy.program import ProgramOptions
from paddlevideo_fast.deploy.program_files import open_program, settings_file
from paddlevideo_fast.deploy.settings import FREE, Recipe, read_recipe
from paddlevideo_fast.deploy.windows import PartDecoder, Window, WindowedPrediction, Windowing, join
from paddlevideo_fast.errors import PaddleVideoFastError, ProgramError, VideoDecodeError
from paddlevideo_fast.loader import ClipRequest
from paddlevideo_fast.loader.collate import make_batch
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.modeling import Preprocess

__all__ = ["Prediction", "Predictor", "Score", "Unread", "WindowedPrediction", "Windowing"]

Progress = Callable[[Sequence[Sequence[Window]]], Iterable[Sequence[Window]]]


class Predictor:
    """An exported network and the code that validation reads videos with.

    Args:
        model_file: the program; its ending may be left out.
        params_file: its parameters; None: next to it.
        recipe: how it is fed; None: as export wrote it next to it.
        class_names: by number; None: those of the recipe.
        options: how the program is run.

    Attributes:
        times: of the batches so far.

    Raises:
        PaddleVideoFastError: a file is missing or wrong, or the pipeline makes clips of another shape.
    """

    def __init__(
        self,
        model_file: Union[str, Path],
        params_file: Optional[Union[str, Path]] = None,
        recipe: Optional[Recipe] = None,
        class_names: Optional[Sequence[str]] = None,
        options: Optional[ProgramOptions] = None,
    ) -> None:
        self.recipe = recipe or read_recipe(settings_file(model_file))
        settings = self.recipe.settings
        self.program = open_program(model_file, params_file, options, settings.checksums)
        self.class_names = class_names or settings.class_names
        if self.class_names and len(self.class_names) != settings.num_classes:
            raise ProgramError(
                f"{self.program.model_file}: has {settings.num_classes} classes, and there are "
                f"{len(self.class_names)} class_names"
            )
        mean_and_std = self.recipe.dataset().pipeline.normalization
        self._preprocess = Preprocess(*mean_and_std, settings.layout)
        self.times: List[BatchTime] = []

    def predict(
        self, paths: Iterable[Union[str, Path]], batch_size: int = 1
    ) -> Iterator[Union[Prediction, Unread]]:
        """Predictions of files, in their order.

        Args:
            paths: video files.
            batch_size: files that go through the network at a time, each with all its views.

        Yields:
            `Unread` for a file that does not decode or that the pipeline cannot use; the others go on.

        Raises:
            ProgramError: the program does not take the clips, or its logits are not finite.
        """
        _check_batch_size(batch_size)
        remaining = iter(paths)
        while batch := [str(path) for path in itertools.islice(remaining, batch_size)]:
            yield from self._predict_batch(batch)

    def predict_windows(
        self,
        paths: Iterable[Union[str, Path]],
        windowing: Windowing,
        batch_size: int = 1,
        progress: Progress = iter,
    ) -> Iterator[Union[WindowedPrediction, Unread]]:
        """Predictions of long videos, each read window by window as `predict` reads a whole video.

        Args:
            paths: video files.
            windowing: how they are cut.
            batch_size: windows that go through the network at a time, each with all its views.
            progress: called for each video with the batches of its windows, which it hands on one by one;
                such as `tqdm`.

        Yields:
            `Unread` for a file that does not decode, cannot be cut, or is not for this program; the others
            go on.
        """
        _check_batch_size(batch_size)
        for path in map(str, paths):
            try:
                with self.open(path) as video:
                    yield self._predict_windows(video, windowing, batch_size, progress)
            except PaddleVideoFastError as error:
                yield Unread(path, error)

    def open(self, path: Union[str, Path]) -> VideoReader:
        """A reader of a video's frames, which are those that predictions are made of.

        Raises:
            VideoDecodeError: it cannot be read.
        """
        dataset = self.recipe.dataset([str(path)])
        return dataset.pipeline.decode.open(dataset.records[0])

    def clips_of(self, path: Union[str, Path]) -> np.ndarray:
        """The views of a video, as the program takes them: [V, ...].

        Raises:
            PaddleVideoFastError: it does not decode, or its clips are not for this program.
        """
        return self._clips(self.recipe.dataset([str(path)]))

    def _clips(self, dataset: ClipDataset) -> np.ndarray:
        """As `clips_of`, of a data set's one record."""
        path = dataset.records[0].path
        requests = [ClipRequest(0, 0, view, dataset.num_views) for view in range(dataset.num_views)]
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

    def _predict_batch(self, paths: Sequence[str]) -> List[Union[Prediction, Unread]]:
        began = time.perf_counter()
        clips: Dict[int, np.ndarray] = {}
        results: Dict[int, Union[Prediction, Unread]] = {}
        for number, path in enumerate(paths):
            try:
                clips[number] = self.clips_of(path)
            except PaddleVideoFastError as error:
                results[number] = Unread(path, error)
        read = time.perf_counter()
        for shape in {item.shape[1:] for item in clips.values()}:
            same = [number for number, item in clips.items() if item.shape[1:] == shape]
            predictions = self._run([paths[number] for number in same], [clips[number] for number in same])
            results.update(zip(same, predictions))
        self.times.append(BatchTime(len(paths), read - began, time.perf_counter() - read))
        return [results[number] for number in range(len(paths))]

    def _predict_windows(
        self, video: VideoReader, windowing: Windowing, batch_size: int, progress: Progress
    ) -> WindowedPrediction:
        windows = windowing.cut(video.path, video.num_frames, video.avg_fps)
        batches = [windows[place : place + batch_size] for place in range(0, len(windows), batch_size)]
        dataset = self.recipe.dataset([video.path])
        parts: List[Prediction] = []
        for batch in progress(batches):
            clips = []
            for window in batch:
                dataset.pipeline.decode = PartDecoder(video, window)
                clips.append(self._clips(dataset))
            parts += self._run([video.path] * len(batch), clips)
        return join(parts, windows, video)

    def _run(self, paths: Sequence[str], clips: Sequence[np.ndarray]) -> List[Prediction]:
        """Predictions of videos, or windows, whose views [V, ...] have one shape."""
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
        return [
            Prediction(path, _mean_softmax(views), views, self.class_names)
            for path, views in zip(paths, np.split(logits, ends[:-1]))
        ]


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise PaddleVideoFastError(f"batch_size is {batch_size}, expected 1 or more")


def _mean_softmax(logits: np.ndarray) -> np.ndarray:
    """Mean of the views' probabilities, as `MultiCropMetric` takes it: [V, num_classes] to [num_classes]."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return (powers / powers.sum(axis=1, keepdims=True)).mean(axis=0).astype(np.float32)

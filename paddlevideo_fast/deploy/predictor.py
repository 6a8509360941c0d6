"""Classes of video files, from an exported program."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Union

import numpy as np

from paddlevideo_fast.deploy.program import Program, ProgramOptions, settings_file
from paddlevideo_fast.deploy.settings import FREE, Recipe, read_recipe
from paddlevideo_fast.errors import PaddleVideoFastError, ProgramError, VideoDecodeError
from paddlevideo_fast.loader import ClipRequest
from paddlevideo_fast.loader.collate import make_batch
from paddlevideo_fast.modeling import Preprocess

VIDEO_SUFFIXES = (".avi", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm", ".wmv")


class Score(NamedTuple):
    """A class and its probability; the name is its number where nobody gave one."""

    class_id: int
    name: str
    score: float


@dataclass(frozen=True)
class Prediction:
    """What a video shows.

    Attributes:
        path: the file.
        scores: float32 [num_classes], probabilities: the mean over the video's views.
        logits: float32 [V, num_classes], of each view.
        class_names: by number, where they are known.
    """

    path: str
    scores: np.ndarray
    logits: np.ndarray
    class_names: Optional[Sequence[str]] = None

    def top(self, num_classes: int) -> List[Score]:
        """The most probable classes, the best first."""
        best = np.argsort(-self.scores, kind="stable")[:num_classes].tolist()
        names = self.class_names
        return [Score(i, names[i] if names else str(i), float(self.scores[i])) for i in best]


class Unread(NamedTuple):
    """A file that no clip can be made of."""

    path: str
    error: PaddleVideoFastError


class BatchTime(NamedTuple):
    """What the files of one batch took, in seconds."""

    num_files: int
    preprocess_sec: float
    inference_sec: float


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
        self.program = Program(model_file, params_file, options)
        self.recipe = recipe or read_recipe(settings_file(model_file))
        settings = self.recipe.settings
        self.class_names = class_names or settings.class_names
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
            ProgramError: the program does not take the clips.
        """
        remaining = iter(paths)
        while batch := [str(path) for path in itertools.islice(remaining, batch_size)]:
            yield from self._predict_batch(batch)

    def clips_of(self, path: Union[str, Path]) -> np.ndarray:
        """The views of a video, as the program takes them: [V, ...].

        Raises:
            PaddleVideoFastError: it does not decode, or its clips are not for this program.
        """
        dataset = self.recipe.dataset([str(path)])
        requests = [ClipRequest(0, 0, view, dataset.num_views) for view in range(dataset.num_views)]
        batch = make_batch(dataset, requests)
        for _, cause in batch.failures:
            raise VideoDecodeError(str(path), cause)
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
            ends = np.cumsum([len(clips[number]) for number in same])
            logits = self._run(np.concatenate([clips[number] for number in same]))
            for number, views in zip(same, np.split(logits, ends[:-1])):
                results[number] = Prediction(paths[number], _mean_softmax(views), views, self.class_names)
        self.times.append(BatchTime(len(paths), read - began, time.perf_counter() - read))
        return [results[number] for number in range(len(paths))]

    def _run(self, clips: np.ndarray) -> np.ndarray:
        logits = self.program.run(clips)
        num_classes = self.recipe.settings.num_classes
        if logits.shape != (len(clips), num_classes):
            raise ProgramError(
                f"{self.program.model_file}: gives {list(logits.shape)} for {len(clips)} clips and "
                f"{num_classes} classes; it was exported from another config"
            )
        return logits


def find_videos(path: Union[str, Path]) -> List[Path]:
    """A file, or the videos in a folder and the folders in it, in the order of their names.

    Raises:
        ProgramError: there is no such file, or no video in the folder.
    """
    path = Path(path)
    if not path.is_dir():
        if not path.exists():
            raise ProgramError(f"{path}: there is no such file or folder")
        return [path]
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in VIDEO_SUFFIXES)
    if not found:
        raise ProgramError(f"{path}: has no video; looked for {', '.join(VIDEO_SUFFIXES)}")
    return found


def _mean_softmax(logits: np.ndarray) -> np.ndarray:
    """Mean of the views' probabilities, as `MultiCropMetric` takes it: [V, num_classes] to [num_classes]."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return (powers / powers.sum(axis=1, keepdims=True)).mean(axis=0).astype(np.float32)

"""What becomes of predictions: entries of a list, pictures and videos."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Union

from tqdm import tqdm

from paddlevideo_fast.deploy.listing import Entry, entry_of
from paddlevideo_fast.deploy.predictor import Prediction, Predictor, Unread, WindowedPrediction
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.report import (
    AnnotatedFormat,
    Caption,
    annotate,
    draw_timeline,
    lettering,
    refuse_inputs,
    targets,
)


class Wanted(NamedTuple):
    """What is written of each video.

    Attributes:
        annotated: folder for videos with the class on their frames; None: none.
        form: their format.
        timeline: folder for timelines, or for one video a file that ends in .png; None: none.
    """

    annotated: Optional[Path] = None
    form: AnnotatedFormat = "mp4"
    timeline: Optional[Path] = None


class PredictionPictures:
    """Writes annotated videos and timelines of predictions.

    Args:
        predictor: that makes them.
        sources: the videos.
        root: relative paths of the results start here; where it is no folder, where all sources are.
        wanted: what is written.

    Raises:
        PaddleVideoFastError: a result would overwrite a source or another result, or cannot be written.
    """

    def __init__(self, predictor: Predictor, sources: Sequence[Path], root: Path, wanted: Wanted) -> None:
        self._predictor = predictor
        self._form = wanted.form
        if not root.is_dir():
            root = Path(os.path.commonpath([source.absolute().parent for source in sources]))
        videos = targets(sources, root, wanted.annotated, f".{wanted.form}") if wanted.annotated else []
        timelines = _timelines(sources, root, wanted.timeline) if wanted.timeline else []
        _make_folders([*videos, *timelines])
        paths = [str(source) for source in sources]
        self._videos: Dict[str, Path] = dict(zip(paths, videos))
        self._timelines: Dict[str, Path] = dict(zip(paths, timelines))
        num_classes = predictor.recipe.settings.num_classes
        self._letters = lettering(predictor.class_names or [str(number) for number in range(num_classes)])

    def write(self, prediction: Union[Prediction, WindowedPrediction]) -> None:
        """Writes what is wanted of one video.

        Raises:
            PaddleVideoFastError: a frame of it does not decode, or a file cannot be written.
        """
        if prediction.path in self._timelines and isinstance(prediction, WindowedPrediction):
            edges_sec = [edge / prediction.fps for edge in prediction.edges]
            target = self._timelines[prediction.path]
            draw_timeline(target, edges_sec, prediction.scores, self._letters)
        if prediction.path in self._videos:
            target = self._videos[prediction.path]
            with self._predictor.open(prediction.path) as video:
                progress = partial(
                    tqdm, total=video.num_frames, desc=target.name, leave=False, disable=None, unit="frame"
                )
                captions = self._captions(prediction)
                annotate(video, captions, self._letters.font_file, target, self._form, progress)

    def _captions(self, prediction: Union[Prediction, WindowedPrediction]) -> List[Caption]:
        if isinstance(prediction, Prediction):
            return [Caption(0, self._text(prediction))]
        return [Caption(first, self._text(part)) for first, part in zip(prediction.edges, prediction.parts)]

    def _text(self, prediction: Prediction) -> str:
        best = prediction.top(1)[0]
        return f"{self._letters.names[best.class_id]}  {best.score:.2f}"


def entries_of(
    results: Iterable[Union[Prediction, WindowedPrediction, Unread]],
    top_k: int,
    pictures: Optional[PredictionPictures],
    show: Callable[[Entry], None],
    tell: Callable[[PaddleVideoFastError], None],
) -> Iterator[Entry]:
    """Goes through the results of a predictor and writes what is wanted of each.

    Args:
        results: of files, in order.
        top_k: classes to list.
        pictures: what is written; None: nothing.
        show: called with the entry of a prediction before anything of it is written, which may take long.
        tell: called with what went wrong with a file; the others go on.

    Yields:
        See `entry_of`; with `error` where the file was not read or something of it was not written.
    """
    for result in results:
        entry: Entry = {"path": result.path}
        try:
            if isinstance(result, Unread):
                raise result.error
            entry = entry_of(result, top_k)
            show(entry)
            if pictures is not None:
                pictures.write(result)
        except PaddleVideoFastError as error:
            entry["error"] = str(error)
            tell(error)
        yield entry


def _timelines(sources: Sequence[Path], root: Path, path: Path) -> List[Path]:
    if path.suffix.lower() != ".png":
        return targets(sources, root, path, ".png")
    if len(sources) != 1:
        raise PaddleVideoFastError(
            f"{path}: is one picture, and there are {len(sources)} videos; name a folder"
        )
    refuse_inputs([path], sources)
    return [path]


def _make_folders(files: Sequence[Path]) -> None:
    """Makes the folders of files, so that a long prediction does not end in vain.

    Raises:
        PaddleVideoFastError: one cannot be made, or not be written to.
    """
    for folder in {file.parent for file in files}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PaddleVideoFastError(f"{folder}: cannot be made: {error.strerror or error}") from error
        if not os.access(folder, os.W_OK):
            raise PaddleVideoFastError(f"{folder}: no permission to write there")

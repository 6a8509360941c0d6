"""What becomes of predictions: entries of a list, timelines and annotated videos."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tqdm import tqdm

from paddlevideo_fast.apps.predict.annotated import Caption, annotate
from paddlevideo_fast.apps.predict.explanations import Explaining, draw_explanation
from paddlevideo_fast.apps.predict.predictor import (
    Entry,
    Prediction,
    Predictor,
    Unread,
    WindowedPrediction,
    entry_of,
)
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.extensions.report.drawings import Lettering, draw_timeline, lettering
from paddlevideo_fast.extensions.report.output import make_folders, refuse_inputs, targets
from paddlevideo_fast.io.files import as_path
from paddlevideo_fast.io.urls import shown_url

_NOTHING = "\N{EN DASH}"  # where no class reaches the threshold


class PredictionPictures:
    """Writes videos with the class on their frames, timelines of predictions, and what decided.

    Args:
        predictor: makes the predictions.
        sources: the videos.
        root: relative paths of the results start here; where `root` is no folder, in the folder that all
            sources have in common.
        annotated: folder of the annotated videos; None: none are written.
        timeline: folder of the timelines, or a file that ends in .png for the timeline of one video; None:
            none are drawn.
        explaining: how predictions of whole videos are explained; None: they are not.

    Raises:
        PaddleVideoFastError: a result would overwrite a source or another result, or cannot be written.
    """

    def __init__(
        self,
        predictor: Predictor,
        sources: Sequence[Path],
        root: Path,
        annotated: Path | None = None,
        timeline: Path | None = None,
        explaining: Explaining | None = None,
    ) -> None:
        self._predictor = predictor
        self._explaining = explaining
        if not root.is_dir():
            root = as_path(os.path.commonpath([source.absolute().parent for source in sources]))
        videos = targets(sources, root, annotated, ".mp4") if annotated else []
        timelines = _timelines(sources, root, timeline) if timeline else []
        explanations = targets(sources, root, explaining.folder, ".png") if explaining else []
        make_folders([*videos, *timelines, *explanations])
        paths = [shown_url(str(source)) for source in sources]
        self._sources = dict(zip(paths, map(str, sources)))
        self._videos: dict[str, Path] = dict(zip(paths, videos))
        self._timelines: dict[str, Path] = dict(zip(paths, timelines))
        self._explanations: dict[str, Path] = dict(zip(paths, explanations))
        self._letters = letters_of(predictor)

    def write(self, prediction: Prediction | WindowedPrediction) -> Entry:
        """Writes the pictures of one video.

        Returns:
            What they add to its entry: `explanation`, the path of the picture of what decided.

        Raises:
            PaddleVideoFastError: a frame of the video does not decode, a file cannot be written, or the
                network cannot be explained in this way.
        """
        if prediction.path in self._timelines and isinstance(prediction, WindowedPrediction):
            target = self._timelines[prediction.path]
            draw_timeline(target, prediction.edges_sec, prediction.scores, self._letters)
        if prediction.path in self._videos:
            target = self._videos[prediction.path]
            with self._predictor.open(self._sources[prediction.path]) as video:
                progress = partial(
                    tqdm, total=video.num_frames, desc=target.name, leave=False, disable=None, unit="frame"
                )
                annotate(video, self._captions(prediction), self._letters.font_file, target, progress)
        if self._explaining is None or not isinstance(prediction, Prediction):
            return {}
        return {"explanation": self._explain(prediction, self._explaining)}

    def _explain(self, prediction: Prediction, explaining: Explaining) -> str:
        """Draws what decided on the most probable class; returns the path of the picture."""
        target, (best,) = self._explanations[prediction.path], prediction.top(1)
        clip = self._predictor.pixels_of(self._sources[prediction.path])
        heat = explaining.explain(clip, best.class_id)
        draw_explanation(target, clip[: len(heat)], heat, best, self._letters)
        return f"{explaining.shown_folder.rstrip('/')}/{target.relative_to(explaining.folder).as_posix()}"

    def _captions(self, prediction: Prediction | WindowedPrediction) -> list[Caption]:
        if isinstance(prediction, Prediction):
            return [Caption(0.0, self._text(prediction))]
        return [
            Caption(start, self._text(part)) for start, part in zip(prediction.edges_sec, prediction.parts)
        ]

    def _text(self, prediction: Prediction) -> str:
        return text_of(prediction, self._letters.names)


def text_of(prediction: Prediction, names: Sequence[str]) -> str:
    """The predicted classes and their probabilities, as they are written on frames."""
    texts = (f"{names[each.class_id]}  {each.score:.2f}" for each in prediction.predicted())
    return ",  ".join(texts) or _NOTHING


def letters_of(predictor: Predictor) -> Lettering:
    """How the names of the classes, or their numbers, are written into pictures."""
    num_classes = predictor.recipe.settings.num_classes
    return lettering(predictor.class_names or [str(number) for number in range(num_classes)])


def entries_of(
    results: Iterable[Prediction | WindowedPrediction | Unread],
    top_k: int,
    pictures: PredictionPictures | None,
    show: Callable[[Entry], None],
    show_error: Callable[[PaddleVideoFastError], None],
) -> Iterator[Entry]:
    """Makes a list entry of each result of a predictor, and writes its pictures.

    Args:
        results: results for the files, in order.
        top_k: classes to list.
        pictures: writes the pictures; None: there are none.
        show: called with the entry of a prediction before its pictures are written, which may take long.
        show_error: called with what went wrong with a file; the other files go on.

    Yields:
        See `entry_of` and `PredictionPictures.write`; with `error` where a file was not read or a picture was
        not written.
    """
    for result in results:
        entry: Entry = {"path": result.path}
        try:
            if isinstance(result, Unread):
                raise result.error
            entry = entry_of(result, top_k)
            show(entry)
            if pictures is not None:
                entry.update(pictures.write(result))
        except PaddleVideoFastError as error:
            entry["error"] = str(error)
            show_error(error)
        yield entry


def _timelines(sources: Sequence[Path], root: Path, path: Path) -> list[Path]:
    if path.suffix.lower() != ".png":
        return targets(sources, root, path, ".png")
    if len(sources) != 1:
        raise PaddleVideoFastError(
            f"{path}: is one picture, and there are {len(sources)} videos; name a folder"
        )
    refuse_inputs([path], sources)
    return [path]

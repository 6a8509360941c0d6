"""Reports of runs: the files of a test, and what VisualDL and `report.html` show of training."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paddlevideo_fast.engine import Trainer
from paddlevideo_fast.engine.callbacks import Callback
from paddlevideo_fast.engine.callbacks.evaluation import best_of
from paddlevideo_fast.engine.guard import call_hook, only_shown
from paddlevideo_fast.engine.output import CheckpointStore, move_aside
from paddlevideo_fast.engine.sinks import Sink
from paddlevideo_fast.engine.trainer import Slot
from paddlevideo_fast.errors import ExplanationError, NonFiniteScoreError
from paddlevideo_fast.extensions.report.drawings import confusion_picture, curve_figures, threshold_figures
from paddlevideo_fast.extensions.report.explain import Explain, by_grad_cam
from paddlevideo_fast.extensions.report.output import atomic_write, save_json
from paddlevideo_fast.extensions.report.page import Example, Page, contact_sheet, heat_sheet, render
from paddlevideo_fast.extensions.report.scores import own_scores
from paddlevideo_fast.extensions.report.tables import (
    Naming,
    class_rows,
    hardest_rows,
    joined,
    write_predictions,
    write_tables,
)
from paddlevideo_fast.extensions.trackers.trackers import TrackedRun, VisualDL
from paddlevideo_fast.io.urls import shown_url
from paddlevideo_fast.loader import ClipRequest
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.metrics import VideoMetric
from paddlevideo_fast.metrics.accuracy import with_certainty
from paddlevideo_fast.metrics.predictions import Predictions, confusion_matrix
from paddlevideo_fast.modeling.contexts import evaluating

logger = get_logger(__name__)

_NUM_TRAINING_CLIPS = 4
_NUM_EXAMPLES = 12
_NUM_PICTURES = 4
_NUM_HARDEST = 50
_NO_CLASS = "no class"


@dataclass(frozen=True)
class ReportedRun:
    """The run that a report is about, and which kinds of report it gets.

    Attributes:
        name: the `model_name` of the config.
        folder: the run's output folder.
        config: the config as YAML text, shown at the end of a page.
        with_page: write `report.html`.
        with_board: write curves, clips and settings for VisualDL.
    """

    name: str
    folder: Path
    config: str
    with_page: bool = True
    with_board: bool = True


@dataclass(frozen=True)
class Evaluated:
    """A finished evaluation.

    Attributes:
        metrics: see `Evaluator.run`.
        predictions: the scores of the evaluated videos.
        naming: names of the classes and paths of the videos.
        dataset: the data set of the videos.
        explain: what decided in a clip; None: examples do not show it.
    """

    metrics: Mapping[str, float]
    predictions: Predictions
    naming: Naming
    dataset: ClipDataset
    explain: Explain | None = None

    def examples(self) -> list[Example]:
        """Clips of the videos with the worst predictions, and of the videos that the model is surest of."""
        predictions = self.predictions
        order = np.argsort(own_scores(predictions), kind="stable")
        right = (predictions.predicted == predictions.there).all(axis=1)[order]
        num_wrong = max(_NUM_EXAMPLES // 2, _NUM_EXAMPLES - int(right.sum()))
        wrong_ones = order[~right][:num_wrong].tolist()
        right_ones = order[right][::-1][: _NUM_EXAMPLES - len(wrong_ones)].tolist()
        clips = [
            (place, clip)
            for place in [*wrong_ones, *right_ones]
            for _, clip in first_clips(self.dataset, [int(predictions.ids[place])])
        ]
        heats = self._heat_sheets([(clip, int(predictions.scores[place].argmax())) for place, clip in clips])
        return [
            Example(
                self.naming.paths[predictions.ids[place]],
                joined(self.naming.classes, predictions.there[place]) or _NO_CLASS,
                joined(self.naming.classes, predictions.predicted[place]) or _NO_CLASS,
                float(predictions.scores[place].max()),
                contact_sheet(clip),
                heat,
            )
            for (place, clip), heat in zip(clips, heats)
        ]

    def _heat_sheets(self, clips: Sequence[tuple[np.ndarray, int]]) -> list[np.ndarray | None]:
        """The heat sheet of each clip for a class; None for all where they cannot be made."""
        if self.explain is not None:
            with only_shown("what decided in the example clips"):
                try:
                    return [heat_sheet(clip, self.explain(clip, class_id)) for clip, class_id in clips]
                except ExplanationError as error:
                    logger.info("report.html shows no heat maps: %s", error)
        return [None] * len(clips)


def first_clips(dataset: ClipDataset, indices: Iterable[int]) -> Iterator[tuple[str, np.ndarray]]:
    """File name and first clip, uint8 [T, H, W, 3], of each of some videos that decodes."""
    num_views = dataset.pipeline.num_views
    for index in indices:
        clip = dataset[ClipRequest(index, epoch=0, num_views=dataset.num_views)].clip
        if clip is not None:
            yield Path(shown_url(dataset.records[index].path)).name, clip[: len(clip) // num_views]


def sheets(dataset: ClipDataset, indices: Iterable[int]) -> dict[str, np.ndarray]:
    """Contact sheets, uint8 [H, W, 3], of `first_clips`."""
    return {name: contact_sheet(clip) for name, clip in first_clips(dataset, indices)}


def network_pictures(trainer: Trainer, dataset: ClipDataset) -> dict[str, np.ndarray]:
    """Sheets of the first clips of a data set, above what the network makes of them.

    Args:
        trainer: its model makes them if it has `pictures`; see `engine.protocols.VideoModel`.
        dataset: whose clips are shown.

    Returns:
        Title → uint8 [H, W, 3]; nothing where the model shows nothing.
    """
    model: Any = trainer.model
    if not hasattr(model, "pictures"):
        return {}
    mean, std = (np.array(values) for values in dataset.pipeline.normalization)
    axes = ["NTHWC".index(axis) for axis in model.layout]
    shown = {}
    with evaluating(model):
        for name, clip in first_clips(dataset, range(min(_NUM_PICTURES, len(dataset)))):
            made = model.pictures(trainer.preprocess(clip[None]))
            clips = [
                (each.numpy().transpose(np.argsort(axes))[0] * std + mean) * 255 for each in made.values()
            ]
            rows = [contact_sheet(each.round().clip(0, 255).astype(np.uint8)) for each in clips]
            shown[f"{name}: clip, {', '.join(made)}"] = np.concatenate([contact_sheet(clip), *rows])
    return shown


def _sheets_of(examples: Sequence[Example]) -> dict[str, np.ndarray]:
    return {Path(example.path).name: example.sheet for example in examples}


def _require_finite(evaluated: Evaluated, weights: str) -> None:
    broken = np.flatnonzero(~np.isfinite(evaluated.predictions.scores).all(axis=1))
    if len(broken):
        first = evaluated.naming.paths[evaluated.predictions.ids[broken[0]]]
        raise NonFiniteScoreError(
            f"{weights}: the scores of {len(broken)} videos, such as {first}, are not finite; "
            "test weights of an earlier epoch"
        )


def write_test(run: ReportedRun, weights: str, evaluated: Evaluated, note: str = "") -> None:
    """Writes the tables, pictures and report of a test to `<run.folder>/test/`; moves an earlier test aside.

    A picture or page that fails is a warning; the tables are the result.

    Args:
        run: whose weights were tested.
        weights: the tested weight file.
        evaluated: the result.
        note: a sentence beside the result; "": none.

    Raises:
        NonFiniteScoreError: some scores are NaN or infinite.
        PaddleVideoFastError: a table cannot be written.
    """
    _require_finite(evaluated, weights)
    folder = run.folder / "test"
    if folder.exists():
        move_aside(run.folder, [folder])
    metrics, predictions, naming = evaluated.metrics, evaluated.predictions, evaluated.naming
    write_tables(folder, predictions, naming)
    save_json({"weights": weights, **metrics}, folder / "metrics.json")
    facts = {"weights": weights, "data": str(evaluated.dataset.file_path)}
    if note:
        facts["note"] = note
    png = _confusion_of(evaluated) if run.with_page else None
    if png:
        with only_shown("confusion.png"), atomic_write(folder / "confusion.png") as partial:
            partial.write_bytes(png)
    examples = _examples_of(evaluated) if run.with_board or run.with_page else []
    if run.with_board:
        with only_shown("VisualDL"):
            board = VisualDL(TrackedRun(run.name, folder))
            board.open(0, 0)
            board.write({"kind": "test", "step": 0, **metrics})
            board.add_clips("test", 0, _sheets_of(examples))
    if run.with_page:
        with only_shown("report.html"):
            write_page(folder, page_of(run, f"Test of {run.name}", facts, evaluated, png, examples))
    logger.info("tables, pictures and report of the test: %s", folder)


def _confusion_of(evaluated: Evaluated) -> bytes | None:
    """The confusion matrix as PNG; None where a video has several labels, or it cannot be drawn."""
    if not evaluated.predictions.has_several:
        with only_shown("the confusion matrix"):
            return confusion_picture(confusion_matrix(evaluated.predictions), evaluated.naming.classes)
    return None


def _examples_of(evaluated: Evaluated) -> list[Example]:
    """The example clips; none where they cannot be read."""
    with only_shown("the example clips"):
        return evaluated.examples()
    return []


def page_of(
    run: ReportedRun,
    title: str,
    facts: Mapping[str, str],
    evaluated: Evaluated,
    confusion_png: bytes | None,
    examples: list[Example],
) -> Page:
    """Collects what `report.html` shows of an evaluation; curves that fail are left out."""
    predictions, naming = evaluated.predictions, evaluated.naming
    curves = {}
    if predictions.has_several:
        with only_shown("the threshold curves"):
            curves = threshold_figures(predictions, naming.classes)
    hardest = hardest_rows(predictions, naming, _NUM_HARDEST)
    return Page(
        title=title,
        facts=facts,
        metrics=with_certainty(evaluated.metrics),
        curves=curves,
        confusion_png=confusion_png,
        classes=class_rows(predictions, naming),
        hardest=[row for row in hardest if row.get("rank", 0) > 1 or row.get("missed") or row.get("wrong")],
        examples=examples,
        config=run.config,
    )


def write_page(folder: Path, page: Page) -> None:
    """Writes `report.html`.

    Raises:
        PaddleVideoFastError: the file cannot be written.
    """
    with atomic_write(folder / "report.html") as partial:
        partial.write_text(render(page), encoding="utf-8", errors="backslashreplace")


@dataclass(eq=False)
class Reporting(Callback):
    """Shows clips and predictions on VisualDL's board, and writes `report.html` when training ends.

    A start that ends no epoch, as the run was finished, leaves the report as it was. A board that fails is
    left out, and the page is still written.

    Attributes:
        run: the run; its folder holds metrics.jsonl.
        trained: the training data set.
        evaluated: the validation data set, or the training data set where the run does not validate.
        naming: names of the classes and paths of the videos of `evaluated`.
        metric: holds the predictions of the last validation; None: the run does not validate.
        store: knows where the files of the run are seen.
        sinks: where the records of the run go; VisualDL is the board.
    """

    slot = Slot.SHOW

    run: ReportedRun
    trained: ClipDataset
    evaluated: ClipDataset
    naming: Naming
    metric: VideoMetric | None
    store: CheckpointStore
    sinks: Sequence[Sink] = ()

    non_critical = True

    def __post_init__(self) -> None:
        self._boards: list[VisualDL] = []
        self._first_epoch = 0

    @property
    def _predictions(self) -> Predictions | None:
        return self.metric.predictions if self.metric else None

    def fit_begin(self, trainer: Trainer) -> None:
        self._first_epoch = trainer.state.epoch
        self._boards = [sink for sink in self.sinks if isinstance(sink, VisualDL)]
        if self._boards:
            indices = range(min(_NUM_TRAINING_CLIPS, len(self.trained)))
            call_hook(self._boards, "add_clips", "train", trainer.state.step, sheets(self.trained, indices))

    def epoch_end(self, trainer: Trainer) -> None:
        state, shows = trainer.state, any(not board.has_failed for board in self._boards)
        if shows and state.last_validation.get("epoch") == state.epoch:
            pictures = network_pictures(trainer, self.evaluated)
            call_hook(self._boards, "add_clips", "valid", state.step, pictures)

    def fit_end(self, trainer: Trainer) -> None:
        state = trainer.state
        page_file = self.run.folder / "report.html"
        if state.epoch > self._first_epoch or not page_file.exists():
            self._write(trainer)
        if page_file.exists():
            logger.info("report: %s", self.store.mirror.address(page_file))

    def _write(self, trainer: Trainer) -> None:
        state, predictions = trainer.state, self._predictions
        title = f"Training of {self.run.name}"
        facts = {
            "epochs": str(state.epoch),
            "steps": str(state.step),
            "best": best_of(state.best, state.choice, state.last_validation),
            "training data": str(self.trained.file_path),
        }
        page = Page(title, facts, config=self.run.config)
        if predictions is not None:
            explain = by_grad_cam(trainer.model, trainer.preprocess) if self.run.with_page else None
            evaluated = Evaluated(state.last_validation, predictions, self.naming, self.evaluated, explain)
            examples = _examples_of(evaluated)
            call_hook(self._boards, "add_clips", "valid", state.step, _sheets_of(examples))
            if self.run.with_page:
                page = page_of(self.run, title, facts, evaluated, _confusion_of(evaluated), examples)
        if self.run.with_page:
            with only_shown("the pictures of the network"):
                page = replace(page, pictures=network_pictures(trainer, self.evaluated))
            if predictions is not None:
                write_predictions(self.run.folder / "predictions.jsonl", predictions, self.naming)
            lines = (self.run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            curves = curve_figures([json.loads(line) for line in lines])
            write_page(self.run.folder, replace(page, curves={**curves, **page.curves}))

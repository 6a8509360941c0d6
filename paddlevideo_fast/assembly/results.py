"""What an evaluation leaves for people to look at: tables, pictures, a report, VisualDL's board."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

import numpy as np

from paddlevideo_fast.config import Config, DatasetSettings, RunSettings
from paddlevideo_fast.config.yaml_source import dump
from paddlevideo_fast.engine.output import move_aside
from paddlevideo_fast.engine.sinks import VisualDLSink
from paddlevideo_fast.errors import NonFiniteScoreError
from paddlevideo_fast.loader import ClipRequest
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.metrics import Predictions, confusion_matrix
from paddlevideo_fast.report import (
    Example,
    Naming,
    Page,
    class_rows,
    confusion_picture,
    contact_sheet,
    hardest_rows,
    render,
    save_json,
    whole,
    write_tables,
)

logger = get_logger(__name__)

_NUM_EXAMPLES = 12
_NUM_HARDEST = 50


@dataclass(frozen=True)
class Evaluated:
    """A finished evaluation.

    Attributes:
        metrics: see `engine.evaluate`.
        predictions: of its videos.
        naming: of the classes and videos.
        dataset: where the videos are from.
    """

    metrics: Mapping[str, float]
    predictions: Predictions
    naming: Naming
    dataset: Any

    def examples(self) -> List[Example]:
        """Clips of the videos that went most wrong, and of those that the model is surest of."""
        predictions = self.predictions
        best = predictions.ranking()[:, 0]
        order = np.argsort(predictions.own_scores(), kind="stable")
        right = best[order] == predictions.labels[order]
        num_wrong = max(_NUM_EXAMPLES // 2, _NUM_EXAMPLES - int(right.sum()))
        wrong_ones = order[~right][:num_wrong].tolist()
        right_ones = order[right][::-1][: _NUM_EXAMPLES - len(wrong_ones)].tolist()
        return [
            Example(
                self.naming.paths[predictions.ids[place]],
                self.naming.classes[predictions.labels[place]],
                self.naming.classes[best[place]],
                float(predictions.scores[place, best[place]]),
                sheet,
            )
            for place in [*wrong_ones, *right_ones]
            for sheet in sheets(self.dataset, [int(predictions.ids[place])]).values()
        ]


def naming_of(cfg: Config, num_classes: int, dataset: Any) -> Naming:
    """Names of the classes and paths of the videos.

    Raises:
        AnnotationError: the file of names does not fit.
    """
    paths = [record.path for record in dataset.records]
    return Naming.of(DatasetSettings.from_config(cfg).class_names, num_classes, paths)


def sheets(dataset: Any, indices: List[int]) -> Dict[str, np.ndarray]:
    """Contact sheets of the first clip of some videos, by file name; uint8 [H, W, 3].

    A video that does not decode has none.
    """
    found = {}
    for index in indices:
        clip = dataset[ClipRequest(index, epoch=0, num_views=dataset.num_views)].clip
        if clip is not None:
            found[Path(dataset.records[index].path).name] = contact_sheet(
                clip[: len(clip) // dataset.pipeline.num_views]
            )
    return found


def _require_finite(evaluated: Evaluated, weights: Optional[str]) -> None:
    broken = np.flatnonzero(~np.isfinite(evaluated.predictions.scores).all(axis=1))
    if len(broken):
        first = evaluated.naming.paths[evaluated.predictions.ids[broken[0]]]
        raise NonFiniteScoreError(
            f"{weights}: the scores of {len(broken)} videos are not finite, such as those of {first}; "
            "test weights of an earlier epoch"
        )


def write_test(cfg: Config, evaluated: Evaluated) -> None:
    """Writes `<output>/test/`; an earlier test is moved aside.

    Raises:
        NonFiniteScoreError: there are scores that say nothing.
        PaddleVideoFastError: a file cannot be written.
    """
    settings = RunSettings.from_config(cfg)
    _require_finite(evaluated, settings.weights)
    output = Path(settings.output_dir)
    folder = output / "test"
    if folder.exists():
        move_aside(output, [folder])
    metrics, predictions, naming = evaluated.metrics, evaluated.predictions, evaluated.naming
    write_tables(folder, predictions, naming)
    with whole(folder / "confusion.png") as partial:
        partial.write_bytes(confusion_picture(confusion_matrix(predictions), naming.classes))
    save_json({"weights": settings.weights, **metrics}, folder / "metrics.json")
    examples = evaluated.examples()
    if settings.use_visualdl:
        board = VisualDLSink(folder / "vdl")
        board.open(0, 0)
        board.write({"kind": "test", "step": 0, **metrics})
        board.add_predictions("test", 0, predictions, naming.classes)
        board.add_clips("test", 0, {Path(example.path).name: example.sheet for example in examples})
        board.close()
    if settings.report:
        facts = {"weights": str(settings.weights), "data": str(evaluated.dataset.file_path)}
        title = f"Test of {settings.model_name}"
        write_page(folder, page_of(cfg, title, facts, evaluated, examples))
    logger.info("tables, pictures and report of the test: %s", folder)


def page_of(
    cfg: Config, title: str, facts: Mapping[str, str], evaluated: Evaluated, examples: List[Example]
) -> Page:
    """The report of an evaluation."""
    predictions, naming = evaluated.predictions, evaluated.naming
    return Page(
        title=title,
        facts=facts,
        metrics=evaluated.metrics,
        confusion_png=confusion_picture(confusion_matrix(predictions), naming.classes),
        classes=class_rows(predictions, naming),
        hardest=hardest_rows(predictions, naming, _NUM_HARDEST),
        examples=examples,
        config=dump(dict(cfg)),
    )


def write_page(folder: Path, page: Page) -> None:
    """Writes `report.html`.

    Raises:
        PaddleVideoFastError: it cannot be written.
    """
    with whole(folder / "report.html") as partial:
        partial.write_text(render(page), encoding="utf-8")

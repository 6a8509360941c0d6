"""What shows a training run to people: VisualDL's board while it runs, a report at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Optional, Union

from paddlevideo_fast.assembly.data import Split
from paddlevideo_fast.assembly.parts import TrainingParts
from paddlevideo_fast.assembly.results import Evaluated, naming_of, page_of, sheets, write_page
from paddlevideo_fast.config import Config, DatasetSettings, RunSettings
from paddlevideo_fast.config.yaml_source import dump
from paddlevideo_fast.engine import Trainer
from paddlevideo_fast.engine.callbacks import Callback
from paddlevideo_fast.engine.sinks import VisualDLSink
from paddlevideo_fast.metrics import PredictionMetric, Predictions
from paddlevideo_fast.report import Page, curve_figures

_NUM_TRAINING_CLIPS = 4
_COMPARED = ("MODEL", "OPTIMIZER", "MIX", "EMA", "MULTIGRID", "DISTRIBUTED")


class Reporting(Callback):
    """Shows clips and predictions on a board, and writes the report of the run.

    Args:
        parts: of the run.
        folder: of the run; holds metrics.jsonl.
        valid: what it validates on; None: it does not.
        metric: holds the predictions of the last validation; None: there is none.
        board: one of the run's sinks; None: there is none.

    Raises:
        AnnotationError: the file of class names does not fit.
    """

    def __init__(
        self,
        parts: TrainingParts,
        folder: Path,
        valid: Optional[Split],
        metric: Optional[PredictionMetric],
        board: Optional[VisualDLSink],
    ) -> None:
        self.parts = parts
        self.folder = folder
        self.metric = metric
        self.board = board
        self.trained = parts.split.loader.dataset
        self.evaluated = valid.loader.dataset if valid else self.trained
        self.naming = naming_of(parts.cfg, parts.model.num_classes, self.evaluated)

    @property
    def _predictions(self) -> Optional[Predictions]:
        return self.metric.predictions if self.metric else None

    def fit_begin(self, trainer: Trainer) -> None:
        if self.board is not None:
            indices = list(range(min(_NUM_TRAINING_CLIPS, len(self.trained))))
            self.board.add_clips("train", trainer.state.step, sheets(self.trained, indices))

    def epoch_end(self, trainer: Trainer) -> None:
        state, predictions = trainer.state, self._predictions
        if self.board is not None and predictions and state.last_validation.get("epoch") == state.epoch:
            self.board.add_predictions("valid", state.step, predictions, self.naming.classes)

    def fit_end(self, trainer: Trainer) -> None:
        cfg, state, predictions = self.parts.cfg, trainer.state, self._predictions
        title = f"Training of {self.parts.settings.model_name}"
        facts = {
            "epochs": str(state.epoch),
            "steps": str(state.step),
            "best": ", ".join(f"{name} {value:.5g}" for name, value in state.best.items()) or "not validated",
            "training data": str(self.trained.file_path),
        }
        page = Page(title, facts, config=dump(dict(cfg)))
        if predictions is not None:
            evaluated = Evaluated(state.last_validation, predictions, self.naming, self.evaluated)
            examples = evaluated.examples()
            if self.board is not None:
                shown = {Path(example.path).name: example.sheet for example in examples}
                self.board.add_clips("valid", state.step, shown)
            page = page_of(cfg, title, facts, evaluated, examples)
        if self.parts.settings.report:
            lines = (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            curves = curve_figures([json.loads(line) for line in lines])
            write_page(self.folder, replace(page, curves=curves))


def hyperparameters(cfg: Config) -> Dict[str, Union[str, int, float]]:
    """The plain values in which runs differ, by their key."""
    run = RunSettings.from_config(cfg)
    found: Dict[str, Union[str, int, float]] = {
        "epochs": run.epochs,
        "seed": run.seed,
        "accumulate_steps": run.accumulate_steps,
        "DATASET.batch_size": DatasetSettings.from_config(cfg).batch_size,
    }

    def collect(key: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for name, item in value.items():
                collect(f"{key}.{name}", item)
        elif isinstance(value, (str, int, float)):
            found[key] = int(value) if isinstance(value, bool) else value

    for name in _COMPARED:
        collect(name, cfg.get(name))
    return found

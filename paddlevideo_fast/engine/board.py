"""VisualDL: scalars, clips, precision and recall, hyper-parameters."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Union

import numpy as np

from paddlevideo_fast.engine.callbacks.recorder import Record
from paddlevideo_fast.engine.output import writing
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.metrics import Predictions, precision_recall

_NO_SCALARS = ("step", "epochs", "step_in_epoch", "eta_sec")
_NUM_CURVES = 10


class VisualDLSink:
    """What `visualdl --logdir <output>/vdl` shows, by optimizer step.

    Args:
        folder: VisualDL's log folder.
        hyperparameters: shown beside the numbers of `compared`.
        compared: tags of scalars, `kind/name`.
    """

    def __init__(
        self,
        folder: Path,
        hyperparameters: Optional[Mapping[str, Union[str, int, float]]] = None,
        compared: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.hyperparameters = dict(hyperparameters or {})
        self.compared = list(compared)
        self._writer: Any = None

    def open(self, step: int, epoch: int) -> None:
        """Starts a new event file; VisualDL shows all of a folder as one curve."""
        try:
            from visualdl import LogWriter
        except ImportError as exc:
            raise PaddleVideoFastError(
                f"VisualDL cannot be imported ({exc}): type  pip install visualdl  or set "
                "-o use_visualdl=false"
            ) from exc
        with writing(self.folder):
            self._writer = LogWriter(logdir=str(self.folder), display_name="", file_name="")
        if self.hyperparameters:
            self._writer.add_hparams(self.hyperparameters, self.compared)

    def write(self, record: Record) -> None:
        """Adds each number under `kind/name`."""
        for name, value in record.items():
            if isinstance(value, (int, float)) and name not in _NO_SCALARS:
                self._writer.add_scalar(f"{record['kind']}/{name}", float(value), int(record["step"]))

    def add_clips(self, tag: str, step: int, sheets: Mapping[str, np.ndarray]) -> None:
        """Adds pictures.

        Args:
            tag: what they are.
            step: optimizer step.
            sheets: name → uint8 [H, W, 3].
        """
        for name, sheet in sheets.items():
            self._writer.add_image(f"{tag}/{name}", sheet, step)

    def add_predictions(
        self, tag: str, step: int, predictions: Predictions, class_names: Sequence[str]
    ) -> None:
        """Adds precision and recall: of all classes together, and of those with the most videos."""
        right = predictions.labels[:, None] == np.arange(predictions.scores.shape[1])
        self._add_curve(f"{tag}/all classes", step, right.reshape(-1), predictions.scores.reshape(-1))
        for label in np.argsort(-right.sum(axis=0), kind="stable")[:_NUM_CURVES]:
            if right[:, label].any():
                name = class_names[label].replace("%", " percent")  # VisualDL refuses the sign
                self._add_curve(f"{tag}/{name}", step, right[:, label], predictions.scores[:, label])

    def _add_curve(self, tag: str, step: int, right: np.ndarray, scores: np.ndarray) -> None:
        # LogWriter.add_pr_curve of VisualDL 2.5 needs np.float, which NumPy took out in 1.24.
        from visualdl.component.base_component import pr_curve_raw

        curve = precision_recall(right, scores)
        counts = [count.tolist() for count in curve]
        numbers = dict(zip(("tp", "fp", "tn", "fn"), counts))
        record = pr_curve_raw(
            tag,
            **numbers,
            precision=curve.precision.tolist(),
            recall=curve.recall.tolist(),
            step=step,
            walltime=round(time.time() * 1000),
        )
        self._writer._get_file_writer().add_record(record)

    def close(self) -> None:
        """Flushes and closes the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

"""Where records go: the console, metrics.jsonl, VisualDL."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from pathlib import Path
from typing import IO, Optional

from paddlevideo_fast.engine.board import VisualDLSink
from paddlevideo_fast.engine.callbacks.recorder import Record, Sink
from paddlevideo_fast.engine.output import writing
from paddlevideo_fast.log import get_logger

__all__ = ["ConsoleSink", "JsonLinesSink", "Sink", "VisualDLSink"]

logger = get_logger(__name__)


class ConsoleSink:
    """PaddleVideo's log lines."""

    def open(self, step: int, epoch: int) -> None:
        """Nothing to prepare."""

    def write(self, record: Record) -> None:
        """Logs one line."""
        logger.info(_LINES[record["kind"]](record))

    def close(self) -> None:
        """Nothing to release."""


class JsonLinesSink:
    """One JSON object a line, `metrics.jsonl`.

    A resumed run takes the lines of the steps it is about to repeat out first, so each step stands once.

    Args:
        path: appended to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Optional[IO[str]] = None

    def open(self, step: int, epoch: int) -> None:
        """Keeps the lines of the first `step` steps and of the first `epoch` epochs."""
        with writing(self.path):
            self._open(step, epoch)

    def _open(self, step: int, epoch: int) -> None:
        if self.path.exists():
            lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = "".join(line for line in lines if _is_until(line, step, epoch))
            aside = self.path.with_name(f".saving-{self.path.name}")
            aside.write_text(kept, encoding="utf-8")
            os.replace(aside, self.path)
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, record: Record) -> None:
        """Appends and flushes one line."""
        assert self._file is not None
        with writing(self.path):
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # what could not be flushed was reported when it was written
                self._file.close()
            self._file = None


def _is_until(line: str, step: int, epoch: int) -> bool:
    try:
        record = json.loads(line)
        return bool(record["step"] <= step and (record["kind"] == "train" or record["epoch"] <= epoch))
    except (ValueError, KeyError):
        return False  # the half line of a process that was killed while it wrote


def _step_line(record: Record) -> str:
    eta = datetime.timedelta(seconds=int(record["eta_sec"]))
    efficiency = f", efficiency: {record['efficiency']:.1%}" if "efficiency" in record else ""
    return (
        f"epoch:[{record['epoch']:>3d}/{record['epochs']:<3d}] train step:{record['step_in_epoch']:<4d} "
        f"loss: {record['loss']:7.5f} lr: {record['lr']:f} "
        f"top1: {record['top1']:.5f} top5: {record['top5']:.5f} "
        f"batch_cost: {record['batch_cost']:.5f} sec, reader_cost: {record['reader_cost']:.5f} sec, "
        f"ips: {record['ips']:.5f} instance/sec, eta: {eta}{efficiency}"
    )


def _epoch_line(record: Record) -> str:
    return (
        f"END epoch:{record['epoch']:<3d} train loss_avg: {record['loss']:7.5f} "
        f"{_top_averages(record)} in {record['sec']:.1f} sec{_replaced(record)}{_skipped(record)}"
    )


def _valid_line(record: Record) -> str:
    if not record["num_samples"]:
        return f"END epoch:{record['epoch']:<3d} val: none of {record['num_failed']} samples decodes"
    failed = f", {record['num_failed']} did not decode" if record["num_failed"] else ""
    best = "".join(
        f"; best {name[len('best_') :]}: {value:.5f} (epoch {record['best_epoch']})"
        for name, value in record.items()
        if name.startswith("best_top")
    )
    return (
        f"END epoch:{record['epoch']:<3d} val loss_avg: {record['loss']:7.5f} "
        f"{_top_averages(record)} over {record['num_samples']} samples{failed}{_replaced(record)}{best}"
    )


def _replaced(record: Record) -> str:
    return f", {record['num_replaced']} damaged frames replaced" if record["num_replaced"] else ""


def _skipped(record: Record) -> str:
    return f", {record['num_skipped']} steps left out" if record["num_skipped"] else ""


def _top_averages(record: Record) -> str:
    return " ".join(f"{name}_avg: {value:.5f}" for name, value in record.items() if name.startswith("top"))


_LINES = {"train": _step_line, "train_epoch": _epoch_line, "valid": _valid_line}

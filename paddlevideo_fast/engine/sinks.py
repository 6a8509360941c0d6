"""Where records go: the console, metrics.jsonl, VisualDL."""

import contextlib
import datetime
import hashlib
import json
import math
import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from paddlevideo_fast.engine.checkpoint import writing
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.io.files import atomic_write, atomic_write_text, sweep
from paddlevideo_fast.log import get_logger, printable
from paddlevideo_fast.metrics import Predictions, precision_recall

logger = get_logger(__name__)

Record = dict[str, Any]

_NO_SCALARS = ("step", "epochs", "step_in_epoch", "eta_sec")
_NUM_CURVES = 10
_SHARES = ("top", "mAP", "hit")  # the values of a record that its line shows, by how their names begin
_LENGTH = struct.Struct("<Q")  # of the record behind it, in VisualDL's files


class Sink:
    """A place where the records of a run go. Methods do nothing unless a subclass overrides them."""

    def open(self, step: int, epoch: int) -> None:
        """Prepares to go on after `step` optimizer steps and `epoch` whole epochs."""

    def write(self, record: Record) -> None:
        """Takes one record: "train" every few steps, "train_epoch" and "valid" after an epoch."""

    def close(self) -> None:
        """Flushes and releases; also after an error, and where `open` has failed."""


class ConsoleSink(Sink):
    """PaddleVideo's log lines."""

    def write(self, record: Record) -> None:
        logger.info(_LINES[record["kind"]](record))


class JsonLinesSink(Sink):
    """Writes one JSON object a line: `metrics.jsonl`. A number that is NaN or infinite is null.

    A resumed run first removes the lines of the steps that it will repeat, so each step has one line. A line
    that cannot be written, because the disk is full for example, waits for the next one, with one warning. A
    file that was removed or moved with its folder is written anew with all its lines.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None
        self._waiting = b""
        self._warned = False

    def open(self, step: int, epoch: int) -> None:
        """Keeps the lines of the first `step` steps and of the first `epoch` epochs."""
        with writing(self.path):
            if self.path.exists():
                lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
                kept = "".join(line for line in lines if _is_until(line, step, epoch))
                atomic_write_text(self.path, kept)
            self._file = FileIO(self.path, "a+")

    def write(self, record: Record) -> None:
        """Appends one line, and before it the lines that wait."""
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in record.items()
        }
        self._waiting += json.dumps(finite, allow_nan=False).encode() + b"\n"
        try:
            self._append()
            self._warned = False
        except OSError as error:
            if not self._warned:
                text = "'%s' cannot be written, its lines wait for better times: %s"
                logger.warning(text, self.path, error.strerror or error)
            self._warned = True

    def _append(self) -> None:
        assert self._file is not None
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file.seek(0)
            lines, new = self._file.readall(), FileIO(self.path, "a+")
            self._file.close()
            self._file, self._waiting = new, lines + self._waiting
            logger.warning("'%s' was removed or moved: it is written anew, with all its lines", self.path)
        while self._waiting:  # a disk that becomes full takes a part, and the rest waits
            self._waiting = self._waiting[self._file.write(self._waiting) :]

    def close(self) -> None:
        """Closes the file."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            self._append()
        if self._waiting:
            count = self._waiting.count(b"\n")
            logger.warning("'%s' still cannot be written: %d lines are lost", self.path, count)
        self._file.close()
        self._file = None


class VisualDLSink(Sink):
    """Writes curves, pictures and hyper-parameters for `visualdl --logdir <output>/vdl`.

    Args:
        folder: VisualDL's log folder.
        hyperparameters: values of VisualDL's table of runs.
        compared: tags of scalars, `kind/name`, that the table shows beside them.
    """

    def __init__(
        self,
        folder: Path,
        hyperparameters: Mapping[str, str | int | float] | None = None,
        compared: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.hyperparameters = dict(hyperparameters or {})
        self.compared = list(compared)
        self._path: Path | None = None
        self._parts: Any = None  # the module that makes VisualDL's records

    def open(self, step: int, epoch: int) -> None:
        """Goes on with the curves of the first `step` steps and of the first `epoch` epochs.

        VisualDL shows one event file of a folder, the newest. So all that is kept goes into one file. Its own
        `LogWriter` writes in a thread, which ends at the first error, and then the run waits for ever.
        """
        try:
            from visualdl.component import base_component
        except ImportError as exc:
            raise PaddleVideoFastError(
                f"VisualDL cannot be imported ({exc}): type  pip install visualdl  or set "
                "-o use_visualdl=false"
            ) from exc
        self._parts = base_component
        with writing(self.folder):
            self._path = self.folder / _keep_events(self.folder, step, epoch)
            self._add(base_component.meta_data(display_name="", walltime=_now_ms()))
            if self.hyperparameters:
                identity = hashlib.sha256(os.fsencode(self._path)).hexdigest()
                self._add(base_component.hparam(identity, self.hyperparameters, self.compared, _now_ms()))

    def write(self, record: Record) -> None:
        """Adds each number under `kind/name`."""
        for tag, value in scalars_of(record).items():
            self._add(self._parts.scalar(tag, value, int(record["step"]), _now_ms()))

    def add_clips(self, tag: str, step: int, sheets: Mapping[str, np.ndarray]) -> None:
        """Adds pictures.

        Args:
            tag: what they are.
            step: optimizer step.
            sheets: name → uint8 [H, W, 3].
        """
        for name, sheet in sheets.items():
            self._add(self._parts.image(f"{tag}/{_in_tag(name)}", sheet, step, _now_ms()))

    def add_predictions(
        self, tag: str, step: int, predictions: Predictions, class_names: Sequence[str]
    ) -> None:
        """Adds curves of precision and recall: of all classes together, and of the largest classes."""
        right = predictions.there
        self._add_curve(f"{tag}/all classes", step, right.reshape(-1), predictions.scores.reshape(-1))
        for label in np.argsort(-right.sum(axis=0), kind="stable")[:_NUM_CURVES]:
            if right[:, label].any():
                name = _in_tag(class_names[label])
                self._add_curve(f"{tag}/{name}", step, right[:, label], predictions.scores[:, label])

    def _add_curve(self, tag: str, step: int, right: np.ndarray, scores: np.ndarray) -> None:
        curve = precision_recall(right, scores)
        counts = [count.tolist() for count in curve]
        numbers = dict(zip(("tp", "fp", "tn", "fn"), counts))
        record = self._parts.pr_curve_raw(
            tag,
            **numbers,
            precision=curve.precision.tolist(),
            recall=curve.recall.tolist(),
            step=step,
            walltime=_now_ms(),
        )
        self._add(record)

    def _add(self, record: Any) -> None:
        assert self._path is not None
        self.folder.mkdir(parents=True, exist_ok=True)  # it may have been removed since
        data = record.SerializeToString()
        with self._path.open("ab") as file:
            file.write(_LENGTH.pack(len(data)) + data)


def _in_tag(name: str) -> str:
    """A name as a part of a tag. VisualDL takes the sign % for a slash."""
    return printable(name).replace("%", "\N{FULLWIDTH PERCENT SIGN}")


def _now_ms() -> int:
    return round(time.time() * 1000)


def scalars_of(record: Record) -> dict[str, float]:
    """The numbers of a record that make a curve, by their tag `kind/name`."""
    return {
        f"{record['kind']}/{name}": float(value)
        for name, value in record.items()
        if isinstance(value, (int, float)) and name not in _NO_SCALARS
    }


def _keep_events(folder: Path, step: int, epoch: int) -> str:
    """Puts the events that a resumed run does not repeat into one file.

    Returns:
        The file's name; the file may be new.
    """
    sweep(folder)  # VisualDL would read them, too
    files = sorted(folder.glob("vdlrecords.*"))
    if not files:
        return f"vdlrecords.{int(time.time()):010d}.log"
    # a process that died between the two steps below has left events in two files
    events = dict.fromkeys(event for file in files for event in _events_in(file.read_bytes()))
    kept = _kept_events(list(events), step, epoch)
    with atomic_write(files[-1]) as partial:
        partial.write_bytes(b"".join(_LENGTH.pack(len(event)) + event for event in kept))
    for file in files[:-1]:
        file.unlink()
    return files[-1].name


def _kept_events(events: Sequence[bytes], step: int, epoch: int) -> Iterator[bytes]:
    from visualdl.proto.record_pb2 import Record as Event

    values = [Event.FromString(event).values[0] for event in events]
    tags = [value.tag.replace("%", "/") for value in values]
    kinds = [tag.partition("/")[0] for tag in tags]
    # records after an epoch are repeated with its hooks; the number of the epoch is a curve of its own
    repeated = {
        value.id
        for value, tag in zip(values, tags)
        if tag in ("train_epoch/epoch", "valid/epoch") and value.value > epoch
    }
    has_head = False
    for event, value, kind in zip(events, values, kinds):
        content = value.WhichOneof("one_value")
        if content == "meta_data":  # the head of a file
            if not has_head:
                yield event
            has_head = True
        elif content != "hparam" and value.id <= step and (kind == "train" or value.id not in repeated):
            yield event


def _events_in(data: bytes) -> Iterator[bytes]:
    """The records of an event file. The last may be cut short; zeros after a power failure are no record."""
    start = 0
    while start + _LENGTH.size <= len(data):
        end = start + _LENGTH.size + _LENGTH.unpack_from(data, start)[0]
        if start + _LENGTH.size < end <= len(data):
            yield data[start + _LENGTH.size : end]
        start = end


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
        f"loss: {record['loss']:7.5f} lr: {record['lr']:f} {_shares(record)} "
        f"batch_cost: {record['batch_cost']:.5f} sec, reader_cost: {record['reader_cost']:.5f} sec, "
        f"ips: {record['ips']:.5f} instance/sec, eta: {eta}{efficiency}"
    )


def _epoch_line(record: Record) -> str:
    return (
        f"END epoch:{record['epoch']:<3d} train loss_avg: {record['loss']:7.5f} "
        f"{_shares(record, '_avg')} in {record['sec']:.1f} sec{_replaced(record)}{_skipped(record)}"
    )


def _valid_line(record: Record) -> str:
    if not record["num_samples"]:
        return f"END epoch:{record['epoch']:<3d} val: none of {record['num_failed']} samples decodes"
    failed = f", {record['num_failed']} did not decode" if record["num_failed"] else ""
    best = "".join(
        f"; best {name[len('best_') :]}: {value:.5f} (epoch {record['best_epoch']})"
        for name, value in record.items()
        if name.startswith("best_") and name != "best_epoch"
    )
    return (
        f"END epoch:{record['epoch']:<3d} val loss_avg: {record['loss']:7.5f} "
        f"{_shares(record, '_avg')} over {record['num_samples']} samples{failed}{_replaced(record)}{best}"
    )


def _replaced(record: Record) -> str:
    return f", {record['num_replaced']} damaged frames replaced" if record["num_replaced"] else ""


def _skipped(record: Record) -> str:
    return f", {record['num_skipped']} steps left out" if record["num_skipped"] else ""


def _shares(record: Record, ending: str = "") -> str:
    return " ".join(
        f"{name}{ending}: {value:.5f}" for name, value in record.items() if name.startswith(_SHARES)
    )


_LINES = {"train": _step_line, "train_epoch": _epoch_line, "valid": _valid_line}

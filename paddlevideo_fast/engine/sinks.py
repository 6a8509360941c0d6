"""Where records go: the console and metrics.jsonl; `extensions.trackers` has those that a config chooses."""

import contextlib
import datetime
import json
from io import FileIO
from pathlib import Path
from typing import Any

from paddlevideo_fast.engine.checkpoint import writing
from paddlevideo_fast.engine.guard import Hooked
from paddlevideo_fast.io.files import as_json, atomic_write_text
from paddlevideo_fast.log import counted, get_logger

logger = get_logger(__name__)

Record = dict[str, Any]

_NO_SCALARS = ("step", "epochs", "step_in_epoch", "eta_sec")
_REPLACED = "damaged frames replaced"
_SHARES = ("top", "mAP", "hit")  # the values of a record that its line shows, by how their names begin


class Sink(Hooked):
    """A place where the records of a run go. Methods do nothing unless a subclass overrides them."""

    non_critical = True

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
                text = "".join(line for line in lines if _is_until(line, step, epoch))
                atomic_write_text(self.path, text)
            self._file = FileIO(self.path, "a+")

    def write(self, record: Record) -> None:
        """Appends one line, and before it the lines that wait."""
        self._waiting += as_json(record).encode() + b"\n"
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


def scalars_of(record: Record) -> dict[str, float]:
    """The numbers of a record that make a curve, by their tag `kind/name`."""
    return {
        f"{record['kind']}/{name}": float(value)
        for name, value in record.items()
        if isinstance(value, (int, float)) and name not in _NO_SCALARS
    }


def _is_until(line: str, step: int, epoch: int) -> bool:
    try:
        record = json.loads(line)
        return bool(record["step"] <= step and (record["kind"] == "train" or record["epoch"] <= epoch))
    except (ValueError, KeyError):
        return False  # the half line of a process that was killed while it wrote


def _step_line(record: Record) -> str:
    eta = datetime.timedelta(seconds=int(record["eta_sec"])) if "eta_sec" in record else "not known yet"
    more = f", efficiency: {record['efficiency']:.1%}" if "efficiency" in record else ""
    more += f", grad_norm: {record['grad_norm']:.5g}" if "grad_norm" in record else ""
    if "memory_mb" in record:
        now, held, most = (record[f"memory_{name}mb"] / 1024 for name in ("", "reserved_", "peak_"))
        more += f", memory: {now:.1f} GiB, reserved: {held:.1f} GiB, peak: {most:.1f} GiB"
    return (
        f"epoch:[{record['epoch']:>3d}/{record['epochs']:<3d}] train step:{record['step_in_epoch']:<4d} "
        f"loss: {record['loss']:7.5f} lr: {record['lr']:f} {_shares(record)} "
        f"batch_cost: {record['batch_cost']:.5f} sec, reader_cost: {record['reader_cost']:.5f} sec, "
        f"ips: {record['ips']:.5f} instance/sec, eta: {eta}{more}"
    )


def _epoch_line(record: Record) -> str:
    return (
        f"END epoch:{record['epoch']:<3d} train loss_avg: {record['loss']:7.5f} "
        f"{_shares(record, '_avg')} in {record['sec']:.1f} sec"
        f"{_counted(record['num_replaced'], _REPLACED)}{_counted(record['num_skipped'], 'steps left out')}"
    )


def _valid_line(record: Record) -> str:
    if not record["num_samples"]:
        return f"END epoch:{record['epoch']:<3d} val: none of {record['num_failed']} samples decodes"
    replaced = _counted(record["num_replaced"], _REPLACED)
    name = next((name for name in record if name.startswith("best_")), "")
    best = f"; best epoch so far: {record['best_epoch']} ({name[5:]}: {record[name]:.5f})" if name else ""
    if record.get("best_mean_of", 1) > 1:
        best += f", by the mean of {record['best_mean_of']} validations in a row: {record['best_mean']:.5f}"
    return (
        f"END epoch:{record['epoch']:<3d} val loss_avg: {record['loss']:7.5f} "
        f"{_shares(record, '_avg')} over {counted(record['num_samples'], 'sample')}"
        f"{_counted(record['num_failed'], 'did not decode')}{replaced}{best}"
    )


def _counted(count: int, words: str) -> str:
    return f", {count} {words}" if count else ""


def _shares(record: Record, ending: str = "") -> str:
    return " ".join(
        f"{name}{ending}: {value:.5f}" for name, value in record.items() if name.startswith(_SHARES)
    )


_LINES = {"train": _step_line, "train_epoch": _epoch_line, "valid": _valid_line}

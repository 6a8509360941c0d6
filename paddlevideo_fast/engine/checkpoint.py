"""Checkpoints on disk: complete, atomic, and under PaddleVideo's names.

A checkpoint called P is

    P.pdparams    the model's state dict; PaddleVideo reads it, and its files are read here
    P.pdopt       the optimizer's state, by structured parameter names (see `engine.optimizer_state`)
    P.pdstates    tensors of callbacks (the moving average); only where there are any
    P.json        position, best, averages, callback state, and the size and SHA-256 of the files above

Every file is written aside, synced and renamed, and the JSON last: it is the mark that the others are whole.
A checkpoint that is written again loses its mark first. So a process that dies at any moment leaves either a
checkpoint that loads or none of that name.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

import numpy as np
import paddle

from paddlevideo_fast.engine.output import writing
from paddlevideo_fast.errors import CheckpointError, WeightError
from paddlevideo_fast.modeling.weights import read_weights

_FORMAT = 1
_ASIDE = ".saving-"


@dataclass
class Checkpoint:
    """What a checkpoint holds, as numpy arrays and JSON values."""

    prefix: str
    weights: Dict[str, np.ndarray]
    optimizer: Dict[str, Any]
    tensors: Dict[str, np.ndarray] = field(default_factory=dict)
    state: Dict[str, Any] = field(default_factory=dict)


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: the run's output folder.
        name: the model's name, which the files start with.

    Raises:
        CheckpointError: the name cannot start a file's name.
    """

    def __init__(self, folder: Union[str, Path], name: str) -> None:
        if "/" in name:
            raise CheckpointError(f"model_name '{name}' holds a '/', but files are named after it")
        self.folder = Path(folder).expanduser()
        self.name = name
        self._mark = re.compile(re.escape(name) + r"_(epoch|step)_\d+\.json")

    def prepare(self) -> None:
        """Makes the folder, and sweeps up what processes that died while they saved have left.

        Raises:
            CheckpointError: the folder cannot be made or written to.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for stale in self.folder.glob(f"{_ASIDE}*"):
                if not _is_running(stale.name[len(_ASIDE) :].partition("-")[0]):
                    stale.unlink()
            probe = self._aside("probe")
            probe.touch()
            probe.unlink()
        except OSError as exc:
            raise CheckpointError(
                f"output folder '{self.folder}' cannot be written: {exc.strerror or exc}; "
                "choose another with -o output_dir=..."
            ) from exc

    def prefix(self, tag: str) -> Path:
        """Path without ending of the checkpoint `tag`, such as "epoch_00003"."""
        return self.folder / f"{self.name}_{tag}"

    def save(
        self,
        tag: str,
        weights: Mapping[str, Any],
        optimizer: Mapping[str, Any],
        tensors: Mapping[str, Any],
        state: Mapping[str, Any],
    ) -> str:
        """Writes a checkpoint and returns its prefix.

        Raises:
            CheckpointError: it cannot be written (disk full, say); earlier checkpoints are whole.
        """
        prefix = self.prefix(tag)
        payloads = {".pdparams": weights, ".pdopt": optimizer}
        if tensors:
            payloads[".pdstates"] = tensors
        aside: Dict[str, Path] = {}
        try:
            for ending, payload in payloads.items():
                write = functools.partial(_write_tensors, dict(payload))
                aside[ending] = self._write_aside(prefix.name + ending, write)
            record = {
                "format": _FORMAT,
                **state,
                "files": {ending: _fingerprint(path) for ending, path in aside.items()},
            }
            text = json.dumps(record, indent=1)
            aside[".json"] = self._write_aside(
                prefix.name + ".json", lambda path: path.write_text(text, encoding="utf-8")
            )
            _with_ending(prefix, ".json").unlink(missing_ok=True)
            for ending, path in aside.items():
                os.replace(path, _with_ending(prefix, ending))
            _sync_folder(self.folder)
        except OSError as exc:
            for ending in (*payloads, ".json"):
                self._aside(prefix.name + ending).unlink(missing_ok=True)
            raise CheckpointError(
                f"checkpoint '{prefix}' cannot be written: {exc.strerror or exc}; "
                f"earlier checkpoints in '{self.folder}' are whole. Make room and go on with -o resume=auto"
            ) from exc
        return str(prefix)

    def save_weights(self, tag: str, weights: Mapping[str, Any]) -> None:
        """Writes the weights alone, atomically: what testing and export need of the best epoch."""
        name = self.prefix(tag).name + ".pdparams"
        try:
            with writing(self.folder / name):
                path = self._write_aside(name, functools.partial(_write_tensors, dict(weights)))
                os.replace(path, self.folder / name)
        finally:
            self._aside(name).unlink(missing_ok=True)

    def complete(self) -> List[Tuple[int, int, str]]:
        """(step, epoch, prefix) of the checkpoints that carry their mark, oldest first.

        One at the end of an epoch is newer than one before the evaluation that ends it.
        """
        found = []
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            record = _read_mark(path) if self._mark.fullmatch(path.name) else None
            if record is not None:
                position = record["trainer"]["step"], record["trainer"]["epoch"]
                found.append((*position, str(path)[: -len(".json")]))
        return sorted(found)

    def latest(self) -> Optional[str]:
        """Prefix of the newest complete checkpoint."""
        found = self.complete()
        return found[-1][-1] if found else None

    def remove_all_but(self, num_kept: int) -> None:
        """Removes all checkpoints but the newest ones."""
        for *_, old in self.complete()[:-num_kept]:
            for path in self.files(old):
                path.unlink()

    def files(self, prefix: str) -> List[Path]:
        """The files of a checkpoint that are there, its mark first."""
        paths = [Path(prefix + ending) for ending in (".json", ".pdstates", ".pdopt", ".pdparams")]
        return [path for path in paths if path.exists()]

    def _aside(self, name: str) -> Path:
        return self.folder / f"{_ASIDE}{os.getpid()}-{name}"

    def _write_aside(self, name: str, write: Callable[[Path], Any]) -> Path:
        path = self._aside(name)
        write(path)
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
        return path


class ReadOnlyStore(CheckpointStore):
    """The checkpoints of a run whose files another process writes."""

    def prepare(self) -> None:
        """The writing process does it."""

    def save(
        self,
        tag: str,
        weights: Mapping[str, Any],
        optimizer: Mapping[str, Any],
        tensors: Mapping[str, Any],
        state: Mapping[str, Any],
    ) -> str:
        """The prefix of what the writing process writes."""
        return str(self.prefix(tag))

    def save_weights(self, tag: str, weights: Mapping[str, Any]) -> None:
        """The writing process does it."""

    def remove_all_but(self, num_kept: int) -> None:
        """The writing process does it."""


def load_checkpoint(prefix: str) -> Checkpoint:
    """Reads and verifies a checkpoint.

    PaddleVideo's own checkpoints have no JSON; they load with an empty `state`.

    Args:
        prefix: path without ending; a path to any of its files is understood.

    Raises:
        CheckpointError: missing, unreadable or altered; names the file.
    """
    prefix = re.sub(r"\.(pdparams|pdopt|pdstates|json)$", "", str(prefix))
    if not Path(prefix + ".pdparams").is_file():
        raise CheckpointError(f"no checkpoint '{prefix}': there is no file '{prefix}.pdparams'")
    record: Dict[str, Any] = {}
    if Path(prefix + ".json").exists():
        found = _read_mark(Path(prefix + ".json"))
        if found is None:
            raise CheckpointError(
                f"'{prefix}.json' cannot be read or lacks a part; choose another checkpoint with -o resume="
            )
        record = found
    files = record.pop("files", {".pdparams": None, ".pdopt": None})
    contents: Dict[str, Dict[str, Any]] = {}
    for ending, expected in files.items():
        path = Path(prefix + ending)
        if expected is not None and (not path.is_file() or _fingerprint(path) != expected):
            raise CheckpointError(
                f"'{path}' is missing or altered; choose another checkpoint with -o resume="
            )
        try:
            contents[ending] = read_weights(str(path))
        except WeightError as exc:
            raise CheckpointError(str(exc)) from exc
    if not record and any(re.search(r"\.(weight|bias)\.", key) for key in contents[".pdopt"]):
        raise CheckpointError(
            f"'{prefix}' has no '.json' mark: its writing was cut short. Choose another with -o resume="
        )
    return Checkpoint(
        prefix=prefix,
        weights=contents[".pdparams"],
        optimizer=contents[".pdopt"],
        tensors=contents.get(".pdstates", {}),
        state=record,
    )


def _write_tensors(tensors: Dict[str, Any], path: Path) -> None:
    paddle.save(tensors, str(path))


def _with_ending(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)


def _read_mark(path: Path) -> Optional[Dict[str, Any]]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    try:
        whole = record["format"] == _FORMAT and {"files", "run", "precision", "callbacks"} <= set(record)
        return (
            record if whole and all(int(record["trainer"][key]) >= 0 for key in ("step", "epoch")) else None
        )
    except (KeyError, TypeError, ValueError):
        return None


def _is_running(pid: str) -> bool:
    """Whether the process that wrote an aside file still lives; this one's own files are left-overs."""
    if not pid.isdigit() or int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _fingerprint(path: Path) -> Dict[str, Any]:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"size": path.stat().st_size, "sha256": digest.hexdigest()}


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

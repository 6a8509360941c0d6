"""Checkpoints on disk: complete, atomic, and under PaddleVideo's names.

A checkpoint called P is

    P.pdparams    the model's state dict, exchangeable with PaddleVideo
    P.pdopt       the optimizer's state, by structured parameter names (see `portable_state`)
    P.pdstates    tensors of callbacks (the moving average); only where there are any
    P.json        position, best, averages, callback state, names of the classes where they are known, and the
                  size and SHA-256 of the files above

Every file is written aside, synced and renamed. The JSON comes last: it is the mark that the others are
complete (`files.atomic_write_all`). When a checkpoint is overwritten, its old mark is removed first. So a
process that dies at any moment leaves either a checkpoint that loads or no checkpoint of that name.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import json
import os
import pickle
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.base.layer_helper import LayerHelper

from paddlevideo_fast.device import HostCopy
from paddlevideo_fast.errors import CheckpointError, UnsavedError, WeightError
from paddlevideo_fast.io.files import (
    atomic_write,
    atomic_write_all,
    fingerprint,
    read_text,
    sweep,
    working_folder,
)
from paddlevideo_fast.io.sync import Mirror
from paddlevideo_fast.io.urls import is_url, join
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling.weights import read_weights

logger = get_logger(__name__)

Payload = dict[str, Any]  # arrays by name
Buffers = dict[Any, Any]  # arrays in host memory by name, dtype and shape, or several such mappings

_FORMAT = 1
_NAMES = "StructuredToParameterName@@"  # of Paddle's files: the name of each tensor
_ENDINGS = (".pdparams", ".pdopt", ".pdstates")
_MAX_MARK_BYTES = 2**26
_LONGEST_BYTES = 255 - len("_step_00000000.pdparams")


@dataclass
class Snapshot:
    """What a checkpoint holds.

    Attributes:
        weights: the model's state dict; arrays where a checkpoint was read.
        optimizer: the optimizer's state, see `portable_state`.
        tensors: of callbacks.
        state: JSON values; empty in PaddleVideo's checkpoints.
        prefix: path without ending of the checkpoint that was read.
    """

    weights: dict[str, Any]
    optimizer: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    prefix: str = ""

    def on_host(self, buffers: Buffers | None = None) -> Snapshot:
        """A copy in memory of its own; arrays of `buffers` are used again where they fit."""

        def copied(name: str, values: dict[str, Any]) -> dict[str, Any]:
            return on_host(values, None if buffers is None else buffers.setdefault(name, {}))

        weights, optimizer = copied("weights", self.weights), copied("optimizer", self.optimizer)
        tensors = copied("tensors", self.tensors) if self.tensors else {}
        return Snapshot(weights, optimizer, tensors, copy.deepcopy(self.state))


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: the run's output folder; a URL has a local one, which goes into the store with each save.
        name: the model's name, with which the names of the files start.

    Attributes:
        folder: the local folder.
        name: as given.
        mirror: of a URL; None for a folder.

    Raises:
        CheckpointError: the name cannot be part of a file name.
    """

    def __init__(self, folder: str | Path, name: str) -> None:
        if "/" in name:
            raise CheckpointError(f"model_name '{name}' holds a '/', but files are named after it")
        if len(os.fsencode(name)) > _LONGEST_BYTES:
            raise CheckpointError(
                f"model_name is {len(os.fsencode(name))} bytes long, but files are named after it: take at "
                f"most {_LONGEST_BYTES}"
            )
        self.mirror = Mirror(str(folder)) if is_url(str(folder)) else None
        self.folder = working_folder(folder)
        self.name = name
        self._mark = re.compile(re.escape(name) + r"_(epoch|step)_\d+\.json")

    def prepare(self) -> None:
        """Makes the folder, and removes temporary files of processes that died while they saved.

        Of a run in a store, all but the weights is fetched.

        Raises:
            CheckpointError: the folder cannot be made or written to.
            PaddleVideoFastError: the store does not answer, or refuses.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            sweep(self.folder)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as exc:
            raise CheckpointError(
                f"output folder '{self.folder}' cannot be written: {exc.strerror or exc}; "
                "choose another with -o output_dir=..."
            ) from exc
        if self.mirror is not None:
            self.fetch_marks()
            self.mirror.try_writing()

    def fetch_marks(self) -> None:
        """Fetches what a store has of a run, but for weights; does nothing for a folder."""
        if self.mirror is not None:
            self.mirror.fetch(skip=_ENDINGS)

    def fetch(self, prefix: str) -> None:
        """Fetches the files of a checkpoint, and the best weights; does nothing for a folder."""
        if self.mirror is not None and Path(prefix).parent == self.folder:
            stem = Path(prefix).name
            best = f"{self.name}_best.pdparams"
            self.mirror.fetch([best, *(f"{stem}{ending}" for ending in (*_ENDINGS, ".json"))])

    def address(self, path: Path) -> str:
        """Where a file of the folder is for others: its path, or its URL."""
        return str(path) if self.mirror is None else join(self.mirror.url, str(path.relative_to(self.folder)))

    def upload(self) -> None:
        """Puts what has changed in the folder of a URL into the store.

        A log or curve that the store does not take is a warning; the next upload tries again.

        Raises:
            PaddleVideoFastError: the store does not take a checkpoint.
        """
        if self.mirror is not None:
            self.mirror.push(required=(*_ENDINGS, ".json"))

    def discard(self, paths: Iterable[Path]) -> None:
        """Lets the next upload remove files from the store of a URL that the run removed from its folder."""
        if self.mirror is not None:
            self.mirror.discard([str(path.relative_to(self.folder)) for path in paths])

    def prefix(self, tag: str) -> Path:
        """Path without ending of the checkpoint `tag`, such as "epoch_00003"."""
        return self.folder / f"{self.name}_{tag}"

    def save(self, tag: str, snapshot: Snapshot) -> str:
        """Writes a checkpoint and returns its prefix.

        Raises:
            UnsavedError: a file cannot be written (disk full, say); earlier checkpoints are whole. The
                checkpoint is then beside the folder or in a temporary folder, where there is room for it.
        """
        self._put("checkpoint", snapshot, lambda copied: self._save(tag, copied))
        return str(self.prefix(tag))

    def _put(self, kind: str, snapshot: Snapshot, write: Callable[[Snapshot], None]) -> None:
        """Writes a copy in host memory, which may use buffers of earlier saves of this kind."""
        write(snapshot.on_host())

    def _save(self, tag: str, snapshot: Snapshot) -> None:
        prefix = self.prefix(tag)
        try:
            _write(prefix, snapshot)
        except OSError as exc:
            problem = f"checkpoint '{prefix}' cannot be written: {exc.strerror or exc}; "
            elsewhere = self._save_elsewhere(tag, snapshot)
            if elsewhere is None:
                problem += f"earlier checkpoints in '{self.folder}' are whole. Make room and go on with "
                raise UnsavedError(problem + "-o resume=auto") from exc
            problem += f"it is '{elsewhere}' instead. Mend the folder and go on with "
            raise UnsavedError(problem + f"-o resume={shlex.quote(str(elsewhere))}") from exc
        self.upload()

    def _save_elsewhere(self, tag: str, snapshot: Snapshot) -> Path | None:
        """The prefix of a checkpoint outside the folder; None where it cannot be written either."""
        place = self.folder.absolute()
        for parent in (place.parent, None):
            try:
                folder = Path(tempfile.mkdtemp(prefix=f"{place.name}-saved-", dir=parent))
            except OSError:
                continue
            try:
                _write(folder / f"{self.name}_{tag}", snapshot)
                return folder / f"{self.name}_{tag}"
            except OSError:
                shutil.rmtree(folder, ignore_errors=True)
        return None

    def save_weights(self, tag: str, weights: Mapping[str, Any]) -> None:
        """Writes the weights alone, which is all that testing and export need of the best epoch."""
        self._put(tag, Snapshot(dict(weights)), lambda copied: self._save_weights(tag, copied))

    def _save_weights(self, tag: str, snapshot: Snapshot) -> None:
        path = _with_ending(self.prefix(tag), ".pdparams")
        with writing(path), atomic_write(path) as partial:
            _dump(snapshot.weights, partial)
        self.upload()

    def check(self) -> None:
        """Raises the error of a save that has failed since the last call; does not wait."""

    def wait(self) -> None:
        """Waits until all that was saved is on the disk.

        Raises:
            UnsavedError, CheckpointError: a save failed.
        """

    def close(self) -> None:
        """Like `wait`; an error is logged."""

    def complete(self) -> list[tuple[int, int, str]]:
        """(step, epoch, prefix) of the checkpoints that have their mark, oldest first.

        At the same step, a checkpoint after the evaluation of an epoch is newer than one before it.
        """
        found = []
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            record = _read_mark(path) if self._mark.fullmatch(path.name) else None
            if record is not None:
                position = record["trainer"]["step"], record["trainer"]["epoch"]
                found.append((*position, str(path)[: -len(".json")]))
        return sorted(found)

    def latest(self) -> str | None:
        """Prefix of the newest complete checkpoint."""
        found = self.complete()
        return found[-1][-1] if found else None

    def remove_all_but(self, num_kept: int) -> None:
        """Removes all checkpoints but the `num_kept` newest; what cannot be removed stays, with a warning."""
        for *_, old in self.complete()[:-num_kept]:
            try:
                for path in self.files(old):
                    path.unlink(missing_ok=True)
            except OSError as error:
                logger.warning("'%s' cannot be removed: %s", old, error.strerror or error)
            else:
                self.discard(Path(old + ending) for ending in (".json", *_ENDINGS))

    def files(self, prefix: str) -> list[Path]:
        """The existing files of a checkpoint, its mark first."""
        paths = [Path(prefix + ending) for ending in (".json", ".pdstates", ".pdopt", ".pdparams")]
        return [path for path in paths if path.exists()]


class ReadOnlyStore(CheckpointStore):
    """The checkpoints of a run on a rank that only reads them: rank 0 writes."""

    def prepare(self) -> None:
        """Rank 0 does it."""

    def upload(self) -> None:
        """Rank 0 does it."""

    def _put(self, kind: str, snapshot: Snapshot, write: Callable[[Snapshot], None]) -> None:
        """Rank 0 does it."""

    def remove_all_but(self, num_kept: int) -> None:
        """Rank 0 does it."""


def load_checkpoint(prefix: str) -> Snapshot:
    """Reads and verifies a checkpoint.

    PaddleVideo's own checkpoints have no JSON; they load with an empty `state`.

    Args:
        prefix: path without ending, or the path of any of its files.

    Raises:
        CheckpointError: a file is missing, unreadable or altered; names the file.
    """
    prefix = re.sub(r"\.(pdparams|pdopt|pdstates|json)$", "", str(prefix))
    if not Path(prefix + ".pdparams").is_file():
        raise CheckpointError(f"no checkpoint '{prefix}': there is no file '{prefix}.pdparams'")
    record: dict[str, Any] = {}
    if Path(prefix + ".json").exists():
        found = _read_mark(Path(prefix + ".json"))
        if found is None:
            raise CheckpointError(
                f"'{prefix}.json' cannot be read or lacks a part; choose another checkpoint with -o resume="
            )
        record = found
    elif not Path(prefix + ".pdopt").exists():
        raise CheckpointError(
            f"'{prefix}.pdparams' are weights alone, without the '.json' and '.pdopt' of a checkpoint; "
            f"start a training from them with -w {shlex.quote(prefix)}.pdparams"
        )
    files = record.pop("files", {".pdparams": None, ".pdopt": None})
    contents: dict[str, dict[str, Any]] = {}
    for ending, expected in files.items():
        path = Path(prefix + ending)
        if expected is not None and (not path.is_file() or fingerprint(path) != expected):
            raise CheckpointError(
                f"'{path}' is missing or altered; choose another checkpoint with -o resume="
            )
        try:
            contents[ending] = read_weights(str(path))
        except WeightError as exc:
            raise CheckpointError(str(exc)) from exc
    if not record and any(re.search(r"\.(weight|bias)\.", key) for key in contents[".pdopt"]):
        raise CheckpointError(
            f"'{prefix}' has no '.json' mark: its writing was cut short. Choose another with -o resume=, or "
            f"start a training from its weights with -w {shlex.quote(prefix)}.pdparams"
        )
    tensors = contents.get(".pdstates", {})
    return Snapshot(contents[".pdparams"], contents[".pdopt"], tensors, record, prefix)


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Context that turns an error of the file system while `path` is written into one that a user can act on.

    Raises:
        CheckpointError: names the file and the cause (disk full, say).
    """
    try:
        yield
    except OSError as exc:
        raise CheckpointError(
            f"'{exc.filename or path}' cannot be written: {exc.strerror or exc}; earlier checkpoints are "
            "whole. Make room, or choose another folder with -o output_dir=..., and go on with -o resume=auto"
        ) from exc


def portable_state(optimizer: Any, model: Any) -> dict[str, Any]:
    """The optimizer's state under structured parameter names in place of Paddle's generated names.

    Paddle counts the layers that a process builds and names accumulators after the count, such as
    `conv2d_7.w_0_velocity_0`. Such a state fits only a process that built the same layers in the same order.
    """
    names = {parameter.name: structured for structured, parameter in model.named_parameters()}
    state = {}
    for key, value in optimizer.state_dict().items():
        name = _renamed(key, names, ".")
        if name is None:
            raise CheckpointError(f"the optimizer holds '{key}', of a parameter that the model does not have")
        state[name] = value
    return state


def restore_optimizer(optimizer: Any, model: Any, state: Mapping[str, Any]) -> None:
    """Restores what `portable_state` gave; ignores names of another toolkit, with a warning."""
    names = {structured: parameter.name for structured, parameter in model.named_parameters()}
    renamed = {_renamed(key, names, "_"): value for key, value in state.items()}
    known = {key: value for key, value in renamed.items() if key is not None}
    if state and not known:
        logger.warning("the optimizer state is under names of another toolkit: the optimizer starts afresh")
        return
    optimizer.set_state_dict({key: paddle.to_tensor(value) for key, value in known.items()})


def settle_state(optimizer: Any) -> None:
    """Gives the parameters the state that `restore_optimizer` has put ready for their first step.

    Until all of it is taken, Paddle refuses a parameter without one, such as one that was frozen until now.
    """
    ready = optimizer._accumulators_holder
    parameters = [
        each for each in optimizer._parameter_list if any(key.startswith(f"{each.name}_") for key in ready)
    ]
    if parameters:
        optimizer.helper = optimizer.helper or LayerHelper(type(optimizer).__name__)  # Paddle 2.6 needs one
        optimizer._create_accumulators(paddle.static.default_main_program().global_block(), parameters)
    optimizer._accumulators_holder = {}


def _renamed(key: str, names: Mapping[str, str], separator: str) -> str | None:
    """`key` with the name of its parameter replaced. The longest name that fits is the parameter's."""
    for cut in range(len(key), 0, -1):
        if key[:cut] in names and key[cut : cut + 1] in ("_", "."):
            return f"{names[key[:cut]]}{separator}{key[cut + 1 :]}"
    return None


def on_host(values: Mapping[str, Any], buffers: Buffers | None = None) -> Payload:
    """Tensors as arrays in memory of their own, and their names; what `paddle.save` writes of a state dict.

    Args:
        values: tensors by name; other values stay as they are.
        buffers: arrays of earlier calls, which are used again where they fit. None: the arrays are new.
    """
    tensors = {name: value for name, value in values.items() if isinstance(value, paddle.Tensor)}
    if buffers is not None and all(tensor.place.is_cpu_place() for tensor in tensors.values()):
        arrays = {name: _copied(name, tensor, buffers) for name, tensor in tensors.items()}
    else:
        arrays = dict(zip(tensors, HostCopy(list(tensors.values())).read()))
    names = {name: tensor.name for name, tensor in tensors.items()}
    return {**{name: arrays.get(name, value) for name, value in values.items()}, _NAMES: names}


def _copied(name: str, tensor: paddle.Tensor, buffers: Buffers) -> np.ndarray:
    key = name, str(tensor.dtype), tuple(tensor.shape)
    if key not in buffers:
        buffers[key] = tensor.numpy()
    else:  # `numpy` would take fresh memory, which costs twice the time of the copy
        tensor = tensor.contiguous()
        ctypes.memmove(buffers[key].ctypes.data, tensor.data_ptr(), buffers[key].nbytes)
    return buffers[key]


def _dump(payload: Payload, path: Path) -> None:
    """Writes what `paddle.save` writes of a state dict. Unlike it, this calls nothing of Paddle."""
    with open(path, "wb") as file:
        pickle.dump(payload, file, protocol=4)


def _write(prefix: Path, snapshot: Snapshot) -> None:
    values = (snapshot.weights, snapshot.optimizer, snapshot.tensors)
    payloads = {ending: one for ending, one in zip(_ENDINGS, values) if one or ending != ".pdstates"}
    with atomic_write_all(*(_with_ending(prefix, ending) for ending in (*payloads, ".json"))) as partials:
        files = {}
        for (ending, payload), partial in zip(payloads.items(), partials):
            _dump(payload, partial)
            files[ending] = fingerprint(partial)
        mark = {"format": _FORMAT, **snapshot.state, "files": files}
        partials[-1].write_text(json.dumps(mark, indent=1), encoding="utf-8")


def _with_ending(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)


def _read_mark(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(read_text(path, _MAX_MARK_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    parts = ("files", "run", "precision", "callbacks", "trainer")
    if not isinstance(record, dict) or not all(isinstance(record.get(part), dict) for part in parts):
        return None
    counts = {"step": None, "epoch": None, "step_in_epoch": 0, **record["trainer"]}
    right = (
        record.get("format") == _FORMAT
        and {".pdparams", ".pdopt"} <= set(record["files"]) <= set(_ENDINGS)
        and all(_is_count(counts[key]) for key in ("step", "epoch", "step_in_epoch"))
    )
    return record if right else None


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53  # JSON may hold numbers of any length

"""What a checkpoint holds, and its files: complete, atomic, and under PaddleVideo's names.

A checkpoint called P is

    P.pdparams    the model's state dict, exchangeable with PaddleVideo; a model with a record stores what the
                  record says (see `modeling.weights.WeightRecord`)
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
import pickle
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.base.layer_helper import LayerHelper

from paddlevideo_fast.device import HostCopy
from paddlevideo_fast.errors import CheckpointError, WeightError
from paddlevideo_fast.io.files import atomic_write, atomic_write_all, fingerprint, read_text
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling.weights import read_weights

logger = get_logger(__name__)

Payload = dict[str, Any]  # arrays by name
Buffers = dict[Any, Any]  # arrays in host memory by name, dtype and shape, or several such mappings

_FORMAT = 1
_NAMES = "StructuredToParameterName@@"  # of Paddle's files: the name of each tensor
ENDINGS = (".pdparams", ".pdopt", ".pdstates")
_MAX_MARK_BYTES = 2**26


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
        text = f"there is no file '{prefix}.pdparams'; --resume alone takes the newest checkpoint of the run"
        raise CheckpointError(f"no checkpoint '{prefix}': {text}")
    record: dict[str, Any] = {}
    if Path(prefix + ".json").exists():
        mark = read_mark(Path(prefix + ".json"))
        if mark is None:
            raise CheckpointError(
                f"'{prefix}.json' cannot be read or lacks a part; choose another checkpoint with -o resume="
            )
        record = mark
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
            text = f"'{path}' is missing or altered; choose another checkpoint with -o resume="
            raise CheckpointError(text)
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
    named = {key: value for key, value in renamed.items() if key is not None}
    if state and not named:
        logger.warning("the optimizer state is under names of another toolkit: the optimizer starts afresh")
        return
    optimizer.set_state_dict({key: paddle.to_tensor(value) for key, value in named.items()})


def apply_restored_state(optimizer: Any) -> None:
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


def write_weights(prefix: Path, weights: Payload) -> None:
    """Writes weights alone.

    Raises:
        CheckpointError: the file cannot be written.
    """
    path = Path(f"{prefix}.pdparams")
    with writing(path), atomic_write(path) as partial:
        _dump(weights, partial)


def write_checkpoint(prefix: Path, snapshot: Snapshot) -> None:
    """Writes the files of a checkpoint; an `OSError` leaves the earlier files of this name, or none."""
    values = (snapshot.weights, snapshot.optimizer, snapshot.tensors)
    payloads = {ending: one for ending, one in zip(ENDINGS, values) if one or ending != ".pdstates"}
    with atomic_write_all(*(Path(f"{prefix}{ending}") for ending in (*payloads, ".json"))) as partials:
        files = {}
        for (ending, payload), partial in zip(payloads.items(), partials):
            _dump(payload, partial)
            files[ending] = fingerprint(partial)
        mark = {"format": _FORMAT, **snapshot.state, "files": files}
        partials[-1].write_text(json.dumps(mark, indent=1), encoding="utf-8")


def read_mark(path: Path) -> dict[str, Any] | None:
    """The content of a checkpoint's JSON file; None where it is not complete."""
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
        and {".pdparams", ".pdopt"} <= set(record["files"]) <= set(ENDINGS)
        and all(_is_count(counts[key]) for key in ("step", "epoch", "step_in_epoch"))
    )
    return record if right else None


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53  # JSON may hold numbers of any length

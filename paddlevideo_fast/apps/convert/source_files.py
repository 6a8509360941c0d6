"""Reads weight files of any toolkit without PyTorch, and without running anything that is in them.

PyTorch 1.6 and later writes a zip: one folder with `data.pkl`, a pickle that refers to storages by persistent
id, and `data/<key>`, the numbers of each storage, uncompressed. Earlier versions wrote five pickles (a magic
number, a version, facts about the machine, the content, the keys of the storages) and then, for each key, the
number of elements and the elements.
"""

import io
import json
import math
import mmap
import os
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from paddlevideo_fast.errors import WeightError
from paddlevideo_fast.modeling.pickles import (
    Buildable,
    PickleError,
    array_of,
    array_table,
    check_layout,
    read_pickle,
    resolved,
    tuple_of,
)
from paddlevideo_fast.modeling.weights import map_file, read_arrays

_STATES = (
    *("state_dict", "model_state", "model_state_dict", "model", "blobs"),
    "module",  # of DeepSpeed
    *("target_encoder", "encoder"),  # of V-JEPA 2, whose probes see the first where a file has both
)
_BESIDE_ENCODER = "predictor"
_WRAPPERS = ("module.", "_orig_mod.", "model.")
_BF16 = "<u2"  # the upper half of a float32; no other numbers here have this type
_SAFETENSORS = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "U8": "|u1",
    "BOOL": "|b1",
    "BF16": _BF16,
}


def read_source(path: str | Path) -> dict[str, np.ndarray]:
    """Reads the arrays of a weight file by name, without running anything in it.

    The content tells which kind of file it is: PyTorch's zip or pickles, safetensors, or a pickle of arrays
    as Paddle and Caffe2 write them. It may be a whole checkpoint (`state_dict`, `model_state`, ...) or the
    weights alone. Where all names have a wrapper's prefix (`module.`), it is removed. Of a checkpoint of
    V-JEPA 2 the arrays of the predictor come too, as `predictor.…`.

    Raises:
        WeightError: the file is missing, damaged or of another kind, or it refers to anything but arrays.
    """
    with map_file(path) as file:
        try:
            content = _content(file, path)
        except PickleError as exc:
            raise WeightError(
                f"{path}: is no file of weights, or a damaged one: it {exc}; nothing of it was run. Where it "
                "can be trusted, save its weights alone: torch.save(model.state_dict(), path)"
            ) from exc
    state = _state(content)
    arrays = {str(name): value for name, value in state.items() if isinstance(value, np.ndarray)}
    if not arrays:
        text = f"{path}: has no arrays under names; its keys are {', '.join(map(str, state))[:200]}"
        raise WeightError(text)
    return _unwrapped(arrays)


def _content(file: mmap.mmap, path: str | Path) -> Any:
    if file[:4] == b"PK\x03\x04":
        return read_torch_zip(path)
    if _MAGIC_NUMBER.to_bytes(10, "little") in file[:16]:
        return read_torch_pickles(file)
    if file[257:262] == b"ustar":
        raise PickleError("is a tar archive, as PyTorch wrote until 2017")
    if file[8:9] == b"{":
        return _safetensors(file)
    return read_arrays(file)


def _state(content: Any) -> Mapping[Any, Any]:
    if not isinstance(content, Mapping):
        return {type(content).__name__: content}
    probes = content.get("classifiers")  # of V-JEPA 2, which trains several at a time and publishes one
    if isinstance(probes, list) and len(probes) == 1 and isinstance(probes[0], Mapping):
        return probes[0]
    for key in _STATES:
        if isinstance(content.get(key), Mapping):
            beside = content.get(_BESIDE_ENCODER)
            if not isinstance(beside, Mapping):
                return content[key]
            named = {f"{_BESIDE_ENCODER}.{name}": value for name, value in beside.items()}
            return {**content[key], **named}
    return content


def _unwrapped(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    for prefix in _WRAPPERS:
        if all(name.startswith(prefix) for name in arrays):
            arrays = {name[len(prefix) :]: value for name, value in arrays.items()}
    return arrays


def _numbers(data: bytes, dtype: str, *layout: Any) -> np.ndarray:
    """An array as `array_of` gives it; bfloat16 becomes float32."""
    array = array_of(data, np.dtype(dtype), *layout)
    return np.left_shift(array, 16, dtype="<u4").view("<f4") if dtype == _BF16 else array


def _safetensors(file: mmap.mmap) -> dict[str, np.ndarray]:
    """A JSON header (its length first) with type, shape and place of each tensor, then the numbers.

    Raises:
        PickleError: the header has another form, or tensors reach out of the file or share data.
    """
    start = 8 + int.from_bytes(file[:8], "little")
    try:
        header: dict[str, Any] = json.loads(file[8:start])
        arrays, used = {}, 0
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            used += max(end - begin, 0)
            if not 0 <= begin <= end <= len(file) - start or used > len(file) - start:
                raise PickleError(f"has the tensor '{name[:40]}', which reaches out of the file")
            data = file[start + begin : start + end]
            arrays[name] = _numbers(data, _SAFETENSORS[entry["dtype"]], entry["shape"])
    except PickleError:
        raise
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as exc:
        raise PickleError(f"has a damaged header: {exc or type(exc).__name__}") from exc
    return arrays


_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C  # which PyTorch before 1.6 wrote first
_STORAGES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": _BF16,
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "|i1",
    "ByteStorage": "|u1",
    "BoolStorage": "|b1",
}


@dataclass(frozen=True)
class _StorageType:
    """The type of a storage in a persistent id. It is no function: a call of it is an error."""

    dtype: str


@dataclass
class _Storage:
    type: _StorageType
    num_elements: int
    data: bytes = b""


class _Tensor(Buildable):
    """A tensor: part of a storage, whose data may come after the pickle."""

    def __init__(
        self, storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> None:
        self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides

    def value(self) -> np.ndarray:
        return _numbers(self.storage.data, self.storage.type.dtype, self.shape, self.strides, self.offset)


class _Content:
    """The storages and tensors that the pickle of a PyTorch file refers to.

    Args:
        num_bytes: size of the file. The tensors together may not have more elements, even where some share a
            storage.
    """

    def __init__(self, num_bytes: int) -> None:
        self.storages: dict[str, _Storage] = {}
        self._elements_left = num_bytes

    def read(self, stream: Any) -> Any:
        """The content of one pickle, whose tensors still lack their data."""
        return read_pickle(stream, self._table(), self._storage)

    def _table(self) -> dict[tuple[str, str], Any]:
        table: dict[tuple[str, str], Any] = {**array_table()}
        table["torch._utils", "_rebuild_tensor_v2"] = self._tensor
        table["torch._utils", "_rebuild_tensor"] = self._tensor
        table["torch._utils", "_rebuild_parameter"] = _parameter
        table["torch", "Size"] = tuple_of
        for name, dtype in _STORAGES.items():
            for module in ("torch", "torch.cuda"):
                table[module, name] = _StorageType(dtype)  # a name that is no function: calling it fails
        return table

    def _storage(self, identity: Any) -> _Storage:
        if not isinstance(identity, tuple) or len(identity) not in (5, 6):
            raise PickleError("refers to data outside of it in an unknown way")
        kind, storage_type, key, _, num_elements, *view = identity
        if kind != "storage" or not isinstance(storage_type, _StorageType) or any(view):
            raise PickleError("refers to data outside of it in an unknown way")
        if not isinstance(key, str) or not isinstance(num_elements, int):
            raise PickleError("refers to a storage without a name or size")
        check_layout((num_elements,), (), 0)
        known = self.storages.setdefault(key, _Storage(storage_type, num_elements))
        if (known.type, known.num_elements) != (storage_type, num_elements):
            raise PickleError(f"says different things about the storage '{key}'")
        return known

    def _tensor(self, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
        if not isinstance(storage, _Storage) or not all(isinstance(one, tuple) for one in (shape, strides)):
            raise PickleError("has a tensor without a storage or shape")
        check_layout(shape, strides, offset)
        self._elements_left -= math.prod(shape)
        if self._elements_left < 0:
            raise PickleError(f"has a tensor of shape {list(shape)}: more than the file has data for")
        return _Tensor(storage, offset, shape, strides)


def _parameter(tensor: Any, *_: Any) -> _Tensor:
    if not isinstance(tensor, _Tensor):
        raise PickleError("has a parameter without a tensor")
    return tensor


def read_torch_zip(path: str | Path) -> Any:
    """Reads a file of PyTorch 1.6 or later, with numpy arrays for tensors; bfloat16 becomes float32.

    Raises:
        PickleError: the file is damaged or of another kind, or it refers to anything but tensors.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _archived(archive, os.path.getsize(path))
    except PickleError:
        raise
    except (
        *(zipfile.BadZipFile, EOFError, NotImplementedError, OSError, OverflowError, RuntimeError),
        *(ValueError, struct.error),  # among them a name that is not UTF-8
    ) as exc:
        raise PickleError(f"is a damaged zip archive: {exc}") from exc


def _archived(archive: zipfile.ZipFile, num_bytes: int) -> Any:
    root = _checked_root(archive.infolist(), num_bytes)
    names = set(archive.namelist())
    if f"{root}/constants.pkl" in names:
        raise PickleError("is a TorchScript program, not weights")
    if f"{root}/byteorder" in names and archive.read(f"{root}/byteorder") != b"little":
        raise PickleError("was written on a big-endian machine")
    content = _Content(num_bytes)
    unresolved = content.read(io.BytesIO(archive.read(f"{root}/data.pkl")))
    for key, storage in content.storages.items():
        member = f"{root}/data/{key}"
        if member not in names:
            raise PickleError(f"lacks the member '{member[:80]}'")
        storage.data = archive.read(member)
    return resolved(unresolved)


def _checked_root(members: list[zipfile.ZipInfo], num_bytes: int) -> str:
    """The folder that holds all members."""
    roots = {member.filename.partition("/")[0] for member in members}
    for member in members:
        path = PurePosixPath(member.filename)
        if path.is_absolute() or ".." in path.parts or "\\" in member.filename or len(roots) != 1:
            text = f"is an archive with the member '{member.filename[:80]}': not what PyTorch writes"
            raise PickleError(text)
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise PickleError(
                f"is an archive whose member '{member.filename[:80]}' is compressed or encrypted, unlike "
                "PyTorch's"
            )
    if sum(member.file_size for member in members) > num_bytes:
        raise PickleError("is an archive whose members are larger than itself")
    root = roots.pop() if roots else ""
    if f"{root}/data.pkl" not in {member.filename for member in members}:
        raise PickleError("is a zip archive without data.pkl, so not of PyTorch")
    return root


def read_torch_pickles(file: mmap.mmap) -> Any:
    """Reads a file that PyTorch before 1.6 wrote; see `read_torch_zip`."""
    for expected in (_MAGIC_NUMBER, 1001):
        if read_pickle(file, {}) != expected:
            raise PickleError("has a header that PyTorch does not write")
    machine = read_pickle(file, {})
    if not isinstance(machine, Mapping) or machine.get("little_endian") is not True:
        raise PickleError("was written on a big-endian machine")
    content = _Content(len(file))
    unresolved = content.read(file)
    keys = read_pickle(file, {})
    if not isinstance(keys, list):
        raise PickleError("has no list of its storages")
    for key in keys:
        storage = content.storages.get(key) if isinstance(key, str) else None
        if storage is None or file.read(8) != struct.pack("<q", storage.num_elements):
            raise PickleError("has other storages than its tensors need")
        storage.data = file.read(storage.num_elements * np.dtype(storage.type.dtype).itemsize)
    return resolved(unresolved)

"""PyTorch's files, read without PyTorch and without running anything that is in them.

Since 1.6 `torch.save` writes a zip: one folder, in it `data.pkl`, a pickle that refers to storages by
persistent id, and `data/<key>`, the numbers of each storage, not compressed. Before, it was five pickles (a
magic number, a version, facts about the machine, the content, the keys of the storages) and then, for each
key, the number of elements and the elements.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Callable, Dict, List, Mapping, Tuple, Union

import numpy as np

from paddlevideo_fast.modeling.array_pickles import array_of, array_table, check_layout, tuple_of
from paddlevideo_fast.modeling.pickles import Buildable, PickleError, read_pickle, settle

_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_BFLOAT16 = "bfloat16"
_STORAGES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": _BFLOAT16,
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "|i1",
    "ByteStorage": "|u1",
    "BoolStorage": "|b1",
}


@dataclass(frozen=True)
class _StorageType:
    """Named in persistent ids, and never called."""

    dtype: str

    def __call__(self, *_: Any) -> None:
        raise PickleError("makes a storage in a way that PyTorch does not")

    @property
    def item_bytes(self) -> int:
        return 2 if self.dtype == _BFLOAT16 else np.dtype(self.dtype).itemsize


@dataclass
class _Storage:
    type: _StorageType
    num_elements: int
    data: bytes = b""


class _Tensor(Buildable):
    """Part of a storage, whose data may come after the pickle."""

    def __init__(
        self, storage: _Storage, offset: int, shape: Tuple[int, ...], strides: Tuple[int, ...]
    ) -> None:
        self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides

    def value(self) -> np.ndarray:
        dtype, data = self.storage.type.dtype, self.storage.data
        if dtype != _BFLOAT16:
            return array_of(data, np.dtype(dtype), self.shape, self.strides, self.offset)
        upper_half = array_of(data, np.dtype("<u2"), self.shape, self.strides, self.offset)
        return np.left_shift(upper_half, 16, dtype="<u4").view("<f4")


class _Content:
    """What the pickle of a PyTorch file refers to.

    Args:
        num_bytes: of the file; the elements of all its tensors are no more, though some may share a storage.
    """

    def __init__(self, num_bytes: int) -> None:
        self.storages: Dict[str, _Storage] = {}
        self._elements_left = num_bytes

    def read(self, stream: Any) -> Any:
        """The content of one pickle, whose tensors still lack their data."""
        return read_pickle(stream, self._table(), self._storage)

    def _table(self) -> Dict[Tuple[str, str], Callable[..., Any]]:
        table = array_table()
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
        storage_type = getattr(storage_type, "call", None)
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
        if (
            not isinstance(storage, _Storage)
            or not isinstance(shape, tuple)
            or not isinstance(strides, tuple)
        ):
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


def read_torch_zip(path: Union[str, Path]) -> Any:
    """The content of a file of PyTorch 1.6 or later, with numpy arrays for tensors; bfloat16 becomes float32.

    Raises:
        PickleError: the file is damaged, no such file, or refers to anything but tensors.
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
    unsettled = content.read(io.BytesIO(archive.read(f"{root}/data.pkl")))
    for key, storage in content.storages.items():
        member = f"{root}/data/{key}"
        if member not in names:
            raise PickleError(f"lacks the member '{member[:80]}'")
        storage.data = archive.read(member)
    return settle(unsettled)


def _checked_root(members: List[zipfile.ZipInfo], num_bytes: int) -> str:
    """The folder that all members are in."""
    roots = {member.filename.partition("/")[0] for member in members}
    for member in members:
        path = PurePosixPath(member.filename)
        if path.is_absolute() or ".." in path.parts or "\\" in member.filename or len(roots) != 1:
            raise PickleError(
                f"is an archive with the member '{member.filename[:80]}': not what PyTorch writes"
            )
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


def starts_as_torch_pickle(file: mmap.mmap) -> bool:
    """Whether the file begins with the number that PyTorch before 1.6 wrote first."""
    number = _MAGIC_NUMBER.to_bytes(10, "little")
    return file[:16].partition(number)[1] == number


def read_torch_pickles(file: mmap.mmap) -> Any:
    """As `read_torch_zip`, of a file that PyTorch before 1.6 wrote."""
    for expected in (_MAGIC_NUMBER, 1001):
        if read_pickle(file, {}) != expected:
            raise PickleError("has a header that PyTorch does not write")
    machine = read_pickle(file, {})
    if not isinstance(machine, Mapping) or machine.get("little_endian") is not True:
        raise PickleError("was written on a big-endian machine")
    content = _Content(len(file))
    unsettled = content.read(file)
    keys = read_pickle(file, {})
    if not isinstance(keys, list):
        raise PickleError("has no list of its storages")
    for key in keys:
        storage = content.storages.get(key) if isinstance(key, str) else None
        if storage is None or file.read(8) != struct.pack("<q", storage.num_elements):
            raise PickleError("has other storages than its tensors need")
        storage.data = file.read(storage.num_elements * storage.type.item_bytes)
    return settle(unsettled)

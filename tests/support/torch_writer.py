"""Writes the files that PyTorch writes, without PyTorch: its zip, and the pickles from before 1.6."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

STORAGES = {"<f4": "FloatStorage", "<f2": "HalfStorage", "<f8": "DoubleStorage", "<i8": "LongStorage"}
MAGIC_NUMBER = 0x1950A86A20F9469CFC6C


class Runs:
    """Calls a function where it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", value)


def numbers(values: Any) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def tensor(array: np.ndarray, key: str, style: str = "zip") -> bytes:
    """The instructions that rebuild `array` from the storage `key`."""
    strides = [step // array.itemsize for step in array.strides]
    storage = text("storage") + f"ctorch\n{STORAGES[array.dtype.str]}\n".encode() + text(key) + text("cpu")
    identity = b"(" + storage + number(array.size) + b"N" * (style == "pickles") + b"tQ"
    content = identity + number(0) + numbers(array.shape) + numbers(strides) + b"\x89" + b"N"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + content + b"tR"


def plain(value: Any, keys: Any, style: str) -> bytes:
    """The instructions that make a dict or list of arrays, dicts, lists and what pickle knows."""
    if isinstance(value, np.ndarray):
        key = str(len(keys))
        keys[key] = value
        return tensor(value, key, style)
    if isinstance(value, Mapping):
        items = b"".join(text(name) + plain(item, keys, style) for name, item in value.items())
        return b"ccollections\nOrderedDict\n)R(" + items + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(plain(item, keys, style) for item in value) + b"e"
    return pickle.dumps(value, protocol=2)[2:-1]


def write_zip(path: str | Path, content: Any, **members: bytes) -> Path:
    """`torch.save(content, path)`, of arrays for tensors; `members` are added, or replace what it writes."""
    keys: Any = {}
    files = {"data.pkl": b"\x80\x02" + plain(content, keys, "zip") + b".", "byteorder": b"little"}
    files.update({f"data/{key}": array.tobytes("A") for key, array in keys.items()})
    files.update({"version": b"3\n", **members})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            # Without the time, so that the same content is the same bytes.
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), data)
    return Path(path)


def write_pickles(path: str | Path, content: Any) -> Path:
    """As `write_zip`, in the form from before 1.6."""
    keys: Any = {}
    file = io.BytesIO()
    machine = {
        "protocol_version": 1001,
        "little_endian": True,
        "type_sizes": {"short": 2, "int": 4, "long": 4},
    }
    for value in (MAGIC_NUMBER, 1001, machine):
        pickle.dump(value, file, protocol=2)
    file.write(b"\x80\x02" + plain(content, keys, "pickles") + b".")
    pickle.dump(list(keys), file, protocol=2)
    for array in keys.values():
        file.write(struct.pack("<q", array.size) + array.tobytes("A"))
    Path(path).write_bytes(file.getvalue())
    return Path(path)

"""Files made to harm: each is refused with a message, nothing in it runs, and memory stays small."""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlevideo_fast.apps.convert.source_files import read_source
from paddlevideo_fast.errors import WeightError
from paddlevideo_fast.modeling import pickles, read_weights
from tests.support import torch_writer
from tests.support.torch_writer import Runs, number, numbers, text, write_pickles, write_zip

LARGEST_BYTES = 30 << 20
MAX_INSTRUCTIONS = 50_000  # in place of a million, which take seconds
TRACE = "trace"
ARRAY = np.arange(6, dtype="float32")


def calls(function: Callable[..., Any], *arguments: Any, protocol: int = 2) -> bytes:
    return pickle.dumps({"a": Runs(function, *arguments)}, protocol=protocol)


def array_of(shape: Any, data: bytes, dtype: str = "f4") -> bytes:
    """A pickled numpy array whose parts need not agree."""
    code = f"U{chr(len(dtype))}{dtype}".encode("latin1")
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR(K\x01"
        + numbers(shape)
        + b"cnumpy\ndtype\n("
        + code
        + b"K\x00K\x01tR(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + b"B"
        + struct.pack("<I", len(data))
        + data
        + b"tb"
    )


def nested(depth: int) -> bytes:
    return b"\x80\x02" + b"(" * depth + b"t" * depth + b"."


def as_key(depth: int) -> bytes:
    """A dict whose key is a tuple in a tuple in a tuple ...: hashing it overruns the stack."""
    return b"\x80\x02})" + b"\x85" * depth + b"K\x01s."


def doubling(levels: int) -> bytes:
    """A list of twice a list of twice a list ...: few bytes, 2**levels leaves."""
    return b"\x80\x02]q\x00" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(levels)) + b"."


def repeated(call: bytes, times: int, payload: int) -> bytes:
    """One large value, and calls that copy it again and again."""
    start = b"\x80\x04X" + struct.pack("<I", payload) + b"x" * payload + b"\x94("
    return start + (call + b"h\x00X\x06\x00\x00\x00latin1\x86R") * times + b"l."


def leaves(levels: int) -> bytes:
    """The list of `doubling` as a value inside of another pickle: its text would have 2**levels zeros."""
    made = b"".join(b"](h%ch%ceq%c0" % (i, i, i + 1) for i in range(levels))
    return b"]K\x00aq\x000" + made + b"h%c" % levels


def many(times: int, each: bytes = b"K\x01") -> bytes:
    """A tuple of `times` values."""
    return b"(" + each * times + b"t"


def wide_number(num_bytes: int) -> bytes:
    return b"\x8b" + struct.pack("<i", num_bytes) + b"\x01" * num_bytes


def pairs_copied(times: int, num_keys: int = 5000) -> bytes:
    """A list of 5,000 pairs, and dicts that are made of it again and again."""
    pairs = b"\x80\x02](" + b"".join(number(i % num_keys) + b"N\x86" for i in range(5000)) + b"eq\x00("
    return pairs + b"ccollections\nOrderedDict\nh\x00\x85R" * times + b"l."


HOSTILE_PICKLES: dict[str, Callable[[], bytes]] = {
    "os.system": lambda: calls(os.system, f"touch {TRACE}"),
    "os.system, protocol 0": lambda: calls(os.system, f"touch {TRACE}", protocol=0),
    "os.system, protocol 4": lambda: calls(os.system, f"touch {TRACE}", protocol=4),
    "subprocess": lambda: calls(subprocess.Popen, ["touch", TRACE]),
    "eval": lambda: calls(eval, f"open({TRACE!r}, 'w')"),
    "exec by INST": lambda: f"(S\"open('{TRACE}', 'w')\"\nibuiltins\nexec\n.".encode(),
    "getattr chain": lambda: calls(getattr, np.ndarray, "tofile"),
    "numpy.load": lambda: calls(np.load, "x.npy", None, True),
    "extension code": lambda: b"\x80\x02\x82\x01.",
    "persistent id": lambda: b"\x80\x02X\x01\x00\x00\x00aQ.",
    "calls a dict": lambda: b"\x80\x02})R.",
    "attributes of a list": lambda: b"\x80\x02]}b.",
    "contains itself": lambda: b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.",
    "nested 20,000 deep": lambda: nested(20_000),
    "nested key": lambda: as_key(20_000),
    "doubles 60 times": lambda: doubling(60),
    "4 GB of bytes announced": lambda: b"\x80\x04B\xff\xff\xff\xffabc.",
    "2**62 bytes announced": lambda: b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"abc.",
    "2**62 of text announced": lambda: b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"abc.",
    "frame of 2**62 bytes": lambda: b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"N.",
    "bytearray of 2**62": lambda: b"\x80\x05\x96" + struct.pack("<Q", 2**62) + b"abc.",
    "memo far out": lambda: b"\x80\x02Nr\xff\xff\xff\xff.",
    "too many instructions": lambda: b"\x80\x02" + b"N0" * MAX_INSTRUCTIONS + b"N.",
    "bytes(10**10)": lambda: calls(bytes, 10**10),
    "encode of a number": lambda: b"\x80\x02c_codecs\nencode\n" + number(2**40) + b"\x85R.",
    "tuple of text": lambda: b"\x80\x02cbuiltins\ntuple\nX\x04\x00\x00\x00abcd\x85R.",
    "one list copied": lambda: pairs_copied(500),
    "one list of equal keys copied": lambda: pairs_copied(5000, num_keys=1),
    "40,000 arguments": lambda: b"\x80\x02ccollections\nOrderedDict\n" + many(40_000) + b"R.",
    "doubling list for a type": lambda: b"\x80\x02cnumpy\ndtype\n" + leaves(60) + b"\x85R.",
    "doubling list for a name": lambda: b"\x80\x04" + leaves(60) + b"h\x01\x93.",
    "doubling list in a shape": lambda: (
        b"\x80\x02}" + text("a") + array_of([1], b"abcd").replace(numbers([1]), leaves(60) + b"\x85") + b"s."
    ),
    "nested 20,000 deep for a type": lambda: (
        b"\x80\x02cnumpy\ndtype\n" + b"]" * 20_000 + b"a" * 19_999 + b"\x85R."
    ),
    "number of 80,000 bits as a name": lambda: b"\x80\x02}" + wide_number(10_000) + b"Ns.",
    "huge empty shape": lambda: b"\x80\x02}" + text("a") + array_of([0, 2**40, 2**40], b"") + b"s.",
    "huge shape": lambda: b"\x80\x02}" + text("a") + array_of([2**20, 2**20], b"abcd") + b"s.",
    "overflowing shape": lambda: b"\x80\x02}" + text("a") + array_of([2**33, 2**31], b"abcd") + b"s.",
    "negative shape": lambda: b"\x80\x02}" + text("a") + array_of([-1], b"abcd") + b"s.",
    "array of objects": lambda: b"\x80\x02}" + text("a") + array_of([1], b"abcdefgh", "O8") + b"s.",
    "array of huge items": lambda: b"\x80\x02}" + text("a") + array_of([1], b"abcd", "V9999999999") + b"s.",
    "array called by name": lambda: b"\x80\x02cnumpy\nndarray\n" + number(2**40) + b"\x85\x85R.",
    "truncated": lambda: pickle.dumps({"a": np.arange(1000.0)}, protocol=2)[:-100],
    "empty stack": lambda: b"\x80\x02R.",
    "no end": lambda: b"\x80\x02N",
    "random bytes": lambda: np.random.default_rng(3).bytes(5000),
    "nothing": lambda: b"",
    "text": lambda: b"Not found\n",
}


def zip_of(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def torch_zip(path: Path, pickled: bytes, **members: bytes) -> Path:
    return write_zip(path, {"a": ARRAY}, **{"data.pkl": pickled, **members})


def tensor_with(offset: int = 0, shape: Any = (6,), strides: Any = (1,), num_elements: int = 6) -> bytes:
    """A state of one tensor that may reach out of its storage of 24 bytes."""
    storage = text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + number(num_elements)
    made = b"((" + storage + b"tQ" + number(offset) + numbers(shape) + numbers(strides) + b"\x89NtR"
    return b"\x80\x02}" + text("a") + b"ctorch._utils\n_rebuild_tensor_v2\n" + made + b"s."


def with_shape(shape: bytes) -> bytes:
    """`tensor_with` and a shape that is no tuple of small numbers."""
    plain = numbers((6,))
    assert tensor_with().count(plain) == 1
    return tensor_with().replace(plain, shape)


def not_utf8(path: Path) -> Path:
    """An archive with a member's name that says it is UTF-8 and is not."""
    zip_of(path, {"archive/data.pkl": tensor_with(), "archive/é": b"x"})
    return changed(path, "é".encode(), b"\xff\xff")


def legacy(path: Path, state: bytes, keys: bytes) -> Path:
    machine = pickle.dumps({"little_endian": True}, protocol=2)
    return written(path, legacy_header() + machine + state + keys + struct.pack("<q", 6) + ARRAY.tobytes())


def changed(path: Path, old: bytes, new: bytes) -> Path:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))
    return path


def tar_of(path: Path) -> Path:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        member = tarfile.TarInfo("../../" + TRACE)
        member.size = 3
        archive.addfile(member, io.BytesIO(b"abc"))
    return path


def wrong_crc(path: Path) -> Path:
    write_zip(path, {"a": ARRAY})
    return changed(path, ARRAY.tobytes(), (ARRAY + 1).tobytes())


def far_directory(path: Path) -> Path:
    """An archive that says its directory is 4 GB long."""
    content = write_zip(path, {"a": ARRAY}).read_bytes()
    size = content.index(b"PK\x05\x06") + 12
    return written(path, content[:size] + b"\xf0\xff\xff\xff" + content[size + 4 :])


def overlapping(path: Path) -> Path:
    """A hundred members that are all the same 400 KB."""
    write_zip(path, {"a": np.zeros(100_000, "float32")})
    content = path.read_bytes()
    directory = content.index(b"PK\x01\x02")
    entries = content[directory : content.index(b"PK\x05\x06")]
    count = entries.count(b"PK\x01\x02")
    end = struct.pack(
        "<4s4H2LH", b"PK\x05\x06", 0, 0, count * 100, count * 100, len(entries) * 100, directory, 0
    )
    path.write_bytes(content[:directory] + entries * 100 + end)
    return path


def expanded(path: Path) -> Path:
    """A thousand tensors of one storage of 4 MB."""
    storage = text("storage") + b"ctorch\nBFloat16Storage\n" + text("0") + text("cpu") + number(2 << 20)
    start = (
        b"ctorch._utils\n_rebuild_tensor_v2\n(h\x00"
        + number(0)
        + numbers([2 << 20])
        + numbers([1])
        + b"\x89NtR"
    )
    state = b"".join(text(f"a{i}") + start for i in range(1000))
    return torch_zip(
        path, b"\x80\x02(" + storage + b"tQq\x000}(" + state + b"u.", **{"data/0": bytes(4 << 20)}
    )


def legacy_header() -> bytes:
    return b"".join(pickle.dumps(value, protocol=2) for value in (torch_writer.MAGIC_NUMBER, 1001))


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


HOSTILE_TORCH_FILES: dict[str, Callable[[Path], Path]] = {
    "os.system in a zip": lambda p: torch_zip(p, calls(os.system, f"touch {TRACE}")),
    "torch.load in a zip": lambda p: torch_zip(p, b"\x80\x02ctorch\nload\n" + text("x") + b"\x85R."),
    "a module": lambda p: torch_zip(p, b"\x80\x02ctorch.nn.modules.linear\nLinear\n)\x81."),
    "storage called": lambda p: torch_zip(p, b"\x80\x02ctorch\nFloatStorage\n" + number(2**40) + b"\x85R."),
    "zip bomb": lambda p: zip_of(
        p, {"archive/data.pkl": tensor_with(), "archive/data/0": bytes(40 << 20)}, zipfile.ZIP_DEFLATED
    ),
    "overlapping members": overlapping,
    "storage shared 1,000 times": expanded,
    "path traversal": lambda p: torch_zip(p, tensor_with(), **{f"../../../{TRACE}": b"x"}),
    "absolute path": lambda p: zip_of(p, {"archive/data.pkl": tensor_with(), f"/tmp/{TRACE}": b"x"}),
    "two roots": lambda p: zip_of(p, {"archive/data.pkl": tensor_with(), "other/data/0": ARRAY.tobytes()}),
    "no data.pkl": lambda p: zip_of(p, {"archive/other": b"x"}),
    "TorchScript": lambda p: torch_zip(p, tensor_with(), **{"constants.pkl": b"x"}),
    "big endian": lambda p: torch_zip(p, tensor_with(), byteorder=b"big"),
    "cut off": lambda p: written(p, write_zip(p, {"a": ARRAY}).read_bytes()[:-40]),
    "wrong checksum": wrong_crc,
    "directory far out": far_directory,
    "storage missing": lambda p: torch_zip(p, tensor_with().replace(text("0"), text("9"))),
    "storage key with a path": lambda p: torch_zip(p, tensor_with().replace(text("0"), text("../../x"))),
    "shape beyond the storage": lambda p: torch_zip(p, tensor_with(shape=[2**30], num_elements=2**30)),
    "strides beyond the storage": lambda p: torch_zip(p, tensor_with(shape=[2, 3], strides=[100, 1])),
    "offset beyond the storage": lambda p: torch_zip(p, tensor_with(offset=3)),
    "negative offset": lambda p: torch_zip(p, tensor_with(offset=-3)),
    "negative strides": lambda p: torch_zip(p, tensor_with(strides=[-1])),
    "strides of 0": lambda p: torch_zip(p, tensor_with(shape=[1000, 1000], strides=[0, 0])),
    "40,000 axes": lambda p: torch_zip(p, with_shape(many(40_000, wide_number(30)))),
    "axis of 80,000 bits": lambda p: torch_zip(p, with_shape(many(2, wide_number(10_000)))),
    "huge empty tensor": lambda p: torch_zip(p, tensor_with(shape=[0, 2**40, 2**40], strides=[1, 1, 1])),
    "persistent id of 40,000": lambda p: torch_zip(p, b"\x80\x02" + many(40_000) + b"Q."),
    "name that is not UTF-8": not_utf8,
    "tar archive": tar_of,
    "legacy: os.system": lambda p: written(p, legacy_header() + calls(os.system, f"touch {TRACE}")),
    "legacy: cut off": lambda p: written(p, write_pickles(p, {"a": ARRAY}).read_bytes()[:-9]),
    "legacy: size of a storage": lambda p: changed(
        write_pickles(p, {"a": ARRAY}), struct.pack("<q", 6) + ARRAY.tobytes(), struct.pack("<q", 2**40)
    ),
    "legacy: storage of 2**70": lambda p: legacy(
        p, tensor_with().replace(number(6) + b"tQ", wide_number(9) + b"tQ"), pickle.dumps(["0"], protocol=2)
    ),
    "legacy: attributes of a tensor": lambda p: legacy(
        p, tensor_with().replace(b"tRs.", b"tR}bs."), pickle.dumps(["0"], protocol=2)
    ),
    "legacy: no list of keys": lambda p: legacy(p, tensor_with(), pickle.dumps(5, protocol=2)),
    "legacy: list as a key": lambda p: legacy(p, tensor_with(), pickle.dumps([["0"]], protocol=2)),
    "legacy: key nested 20,000 deep": lambda p: legacy(
        p, tensor_with(), b"\x80\x02])" + b"\x85" * 20_000 + b"a."
    ),
    "safetensors: header of 2**62": lambda p: written(p, struct.pack("<Q", 2**62) + b"{}"),
    "safetensors: nested": lambda p: written(p, struct.pack("<Q", 100_000) + b'{"a":' * 100_000),
    "safetensors: data out of the file": lambda p: written(
        p,
        struct.pack("<Q", 63) + b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,99999999999]}}'.ljust(63),
    ),
    "safetensors: code for a type": lambda p: written(
        p,
        struct.pack("<Q", 58) + b'{"a":{"dtype":"O","shape":[1],"data_offsets":[0,8]}}'.ljust(58) + bytes(8),
    ),
}


def refuse(read: Callable[[Path], Any], path: Path) -> None:
    """`read` refuses `path` in a message that names it; memory stays bounded, and no file appears."""
    before = sorted(os.listdir("."))
    largest = LARGEST_BYTES + 2 * path.stat().st_size
    tracemalloc.start()
    try:
        with pytest.raises(WeightError, match=path.name):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < largest
    finally:
        tracemalloc.stop()
    assert sorted(os.listdir(".")) == before
    assert not Path("/tmp", TRACE).exists()


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(pickles, "_MAX_INSTRUCTIONS", MAX_INSTRUCTIONS)
    (tmp_path / "in" / "a" / "folder").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "in" / "a" / "folder")


@pytest.mark.smoke
@pytest.mark.parametrize("name", HOSTILE_PICKLES)
def test_a_hostile_pickle_is_refused(name, tmp_path):
    content = HOSTILE_PICKLES[name]()
    for ending, read in ((".pdparams", read_weights), (".pth", read_source)):
        refuse(read, written(tmp_path / f"hostile{ending}", content))
    refuse(read_source, torch_zip(tmp_path / "zipped.pth", content))
    assert not (tmp_path / TRACE).exists()


@pytest.mark.smoke
@pytest.mark.parametrize("name", HOSTILE_TORCH_FILES)
def test_a_hostile_torch_file_is_refused(name, tmp_path):
    path = HOSTILE_TORCH_FILES[name](tmp_path / "hostile.pth")
    refuse(read_source, path)
    refuse(read_weights, path)
    assert not any(TRACE in names for _, _, names in os.walk(tmp_path))


def test_damage_anywhere_gives_an_error_or_other_numbers(tmp_path):
    """Every third byte of small files changed, in turn: never another exception than the one for users."""
    rng = np.random.default_rng(1)
    for write in (write_zip, write_pickles):
        good = write(tmp_path / "good.pth", {"epoch": 1, "state_dict": {"a.weight": ARRAY}}).read_bytes()
        for position in range(0, len(good), 3):
            content = bytearray(good)
            content[position] ^= int(rng.integers(1, 256))
            path = written(tmp_path / "changed.pth", bytes(content))
            try:
                read = read_source(path)
            except WeightError:
                continue
            assert sum(value.size for value in read.values()) <= ARRAY.size

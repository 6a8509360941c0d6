"""Stored features: what a backbone gives for each clip of a data set, computed once and read by training.

A folder holds the features of one part of the data:

    features-00000.npy   float32 or float16 [rows, ...]: the first rows, as many as fit in 256 MiB
    features-00001.npy   the rows after them, and so on
    labels.npy           int64 [rows], or float32 [rows, num_classes] where a video has several classes
    index.json           what the features were computed from, how many rows are there, which clips
                         failed, and size and SHA-256 of each array that is finished

A data set of N records, each of V views with C crops, has N * V * C rows for each copy of its clips:

    row = ((copy * N + record) * V + view) * C + crop

Rows are written in this order. The index is written after the rows that it counts are on the disk, so that a
process which dies loses the rows since the last index and nothing else.
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from paddlevideo_fast.errors import FeatureError
from paddlevideo_fast.io.files import atomic_write, atomic_write_text, fingerprint, read_text
from paddlevideo_fast.io.lru import LRUCache
from paddlevideo_fast.loader.batches import ClipBatchSampler, ShuffleWindow
from paddlevideo_fast.loader.collate import Batch
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.loader.incidents import DecodeFailure
from paddlevideo_fast.loader.request import ClipRequest

KIND = "kind"  # key of the recipe: what the rows are
Kind = Literal["features", "logits"]

DTYPE = "dtype"  # key of the recipe: of a value
Dtype = Literal["float32", "float16"]
MEMORY_BYTES = 8 * 2**30  # features up to this size are in the page cache of any machine that trains

_FORMAT = 2
_SHARD_BYTES = 2**28
_MAX_OPEN = 64  # shards; a process may have 1024 files open
_INDEX, _LABELS = "index.json", "labels.npy"
_MAX_INDEX_BYTES = 2**28
_SAVE_SEC = 5.0


@dataclass
class FeatureIndex:
    """What `index.json` says.

    Attributes:
        recipe: JSON values that decide what the features are; see `recipe`. `KIND` is "features",
            which a head trains on, or "logits" of the whole network. `DTYPE` is the type of a value.
        num_rows: rows of all copies.
        num_copies: differently augmented copies of each clip.
        num_done: rows that are there, from the first on.
        failed: row → (path, cause) of clips that do not decode.
        shape: of a row; empty until it is known.
        rows_of_shard: rows in each file but the last; 0 until the shape is known.
        files: name → size and SHA-256 of each array that is finished; the labels come last.
    """

    recipe: dict[str, Any]
    num_rows: int
    num_copies: int = 1
    num_done: int = 0
    failed: dict[int, tuple[str, str]] = field(default_factory=dict)
    shape: list[int] = field(default_factory=list)
    rows_of_shard: int = 0
    files: dict[str, Any] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether all rows are there."""
        return _LABELS in self.files

    @property
    def dtype(self) -> np.dtype:
        """Of the features."""
        return np.dtype(self.recipe.get(DTYPE, "float32"))

    @property
    def row_bytes(self) -> int:
        """Size of a row; 0 until the shape is known."""
        return math.prod(self.shape) * self.dtype.itemsize if self.shape else 0

    @property
    def num_shards(self) -> int:
        """Files of features, once the shape is known."""
        return -(-self.num_rows // self.rows_of_shard)

    def take_shape(self, shape: Sequence[int]) -> None:
        """Sets the shape of a row where it is not known."""
        if not self.shape:
            self.shape = list(shape)
            self.rows_of_shard = max(1, _SHARD_BYTES // self.row_bytes)

    def shard_shape(self, number: int) -> tuple[int, ...]:
        """Shape of the array of a shard."""
        return (min(self.rows_of_shard, self.num_rows - number * self.rows_of_shard), *self.shape)

    @classmethod
    def read(cls, folder: Path) -> "FeatureIndex | None":
        """The index of a folder; None where there is none.

        Raises:
            FeatureError: it cannot be read, or is no index.
        """
        path = folder / _INDEX
        if not path.exists():
            return None
        try:
            values = json.loads(read_text(path, _MAX_INDEX_BYTES))
            if values.pop("format") != _FORMAT:
                raise ValueError("it has the format of another version")
            failed = {int(row): (str(where), str(why)) for row, (where, why) in values.pop("failed").items()}
            index = cls(**values, failed=failed)
            numbers = (index.num_rows, index.num_copies, index.num_done, index.rows_of_shard, *index.shape)
            are_numbers = all(type(number) is int and number >= 0 for number in numbers)
            unknown = index.files and not index.rows_of_shard
            if not are_numbers or unknown or not index.num_copies or index.dtype.name not in get_args(Dtype):
                raise ValueError("a number is none")
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            cause = getattr(error, "strerror", None) or f"it is no index of features ({error})"
            raise FeatureError(f"{path}: {cause}; remove the folder and compute the features again") from None
        return index

    def write(self, folder: Path) -> None:
        """Writes it, whole or not at all."""
        values = {"format": _FORMAT, **asdict(self)}
        atomic_write_text(folder / _INDEX, json.dumps(values, indent=1))


class FeatureWriter:
    """Writes the rows of a folder in their order; goes on where an earlier writer has ended.

    Args:
        folder: is made where it is missing.
        index: of the folder, or a new one.

    Attributes:
        index: what is there.
    """

    def __init__(self, folder: Path, index: FeatureIndex) -> None:
        self.folder = folder
        self.index = index
        self._arrays: dict[str, np.ndarray] = {}  # mapped files, by name: the labels and one shard
        self._saved = time.monotonic()

    def add(
        self, stop: int, rows: np.ndarray, features: np.ndarray, labels: np.ndarray, failed: Mapping[int, Any]
    ) -> None:
        """Adds the rows of a batch.

        Args:
            stop: all rows before this one are there now, or failed.
            rows: int64 [M], ascending.
            features: float32 or float16 [M, ...].
            labels: [M] or [M, num_classes].
            failed: see `FeatureIndex.failed`.

        Raises:
            FeatureError: a feature has another shape than the rows before it, or the disk is full.
        """
        index = self.index
        with _telling(self.folder):
            if len(rows):
                index.take_shape(features.shape[1:])
                shape = list(features.shape[1:])
                if shape != index.shape:
                    raise FeatureError(
                        f"{self.folder}: features of shapes {index.shape} and {shape}: end the transforms "
                        "with a crop to one size"
                    )
                shards, positions = np.divmod(rows, index.rows_of_shard)
                for shard in np.unique(shards).tolist():
                    self._shard(shard)[positions[shards == shard]] = features[shards == shard]
                self._array(_LABELS, (index.num_rows, *labels.shape[1:]), labels.dtype)[rows] = labels
            index.failed.update(failed)
            index.num_done = stop
            if time.monotonic() - self._saved > _SAVE_SEC:
                self.save()

    def save(self) -> None:
        """Puts what is there on the disk."""
        index = self.index
        self._flush()
        num_finished = index.num_done // index.rows_of_shard if index.rows_of_shard else 0
        if index.rows_of_shard and index.num_done == index.num_rows:
            num_finished = index.num_shards
        for number in range(len(index.files), num_finished):
            path = self.folder / shard_name(number)
            if not path.exists():  # all of its clips failed
                self._shard(number)
            index.files[path.name] = fingerprint(path)
        self.folder.mkdir(parents=True, exist_ok=True)
        index.write(self.folder)
        self._saved = time.monotonic()

    def close(self) -> None:
        """Saves; marks the folder as complete where all rows are there.

        Raises:
            FeatureError: no clip decodes, or the disk is full.
        """
        index = self.index
        with _telling(self.folder):
            if index.num_done == index.num_rows == len(index.failed):
                raise FeatureError(f"{self.folder}: no clip decodes, so there are no features")
            self.save()
            self._arrays = {}
            if index.num_done == index.num_rows and not index.is_complete:
                index.files[_LABELS] = fingerprint(self.folder / _LABELS)
                self.save()

    def num_bytes_missing(self) -> int:
        """What the rest of the features takes on the disk, once the shape is known."""
        there = [path.stat().st_size for path in self.folder.glob("features-*.npy")]
        return max(0, self.index.num_rows * self.index.row_bytes - sum(there))

    def _flush(self) -> None:
        for array in self._arrays.values():
            array.flush()  # type: ignore[attr-defined]  # of a memmap

    def _shard(self, number: int) -> np.ndarray:
        name = shard_name(number)
        if name not in self._arrays:  # rows come in their order: the shard before it is full
            self._flush()
            self._arrays = {name: array for name, array in self._arrays.items() if name == _LABELS}
        return self._array(name, self.index.shard_shape(number), self.index.dtype)

    def _array(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if name not in self._arrays:
            path = self.folder / name
            if not path.exists():
                with atomic_write(path) as partial:
                    np.lib.format.open_memmap(partial, "w+", dtype, shape)
                    with open(partial, "r+b") as file:  # a full disk is an error here, and later a SIGBUS
                        os.posix_fallocate(file.fileno(), 0, os.path.getsize(partial))
            self._arrays[name] = np.load(path, mmap_mode="r+")
        return self._arrays[name]


def shard_name(number: int) -> str:
    """Name of a file of features."""
    return f"features-{number:05d}.npy"


class Shards:
    """The rows of the features of a folder, whose files are mapped into memory as they are needed.

    The sizes of all files are compared at once, the SHA-256 of a file before its first row is given.

    Args:
        folder: the folder.
        index: of the folder.

    Attributes:
        shape: of all rows together.
        dtype: of a value.

    Raises:
        FeatureError: a file is missing or altered.
    """

    def __init__(self, folder: Path, index: FeatureIndex) -> None:
        self.shape = (index.num_rows, *index.shape)
        self.dtype = index.dtype
        self._folder = folder
        self._index = index
        self._compared: set[str] = set()
        self._open: LRUCache[np.ndarray] = LRUCache(_MAX_OPEN)
        for name, expected in index.files.items():
            _compare(folder, name, expected, content=False)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """The features of rows [M], as an array [M, ...], or of one row.

        Raises:
            FeatureError: a file is missing or altered.
        """
        shards, positions = np.divmod(np.asarray(rows), self._index.rows_of_shard)
        if not shards.ndim:
            return np.array(self.open(shard_name(int(shards)))[positions])
        features = np.empty((len(shards), *self.shape[1:]), self.dtype)
        for shard in np.unique(shards).tolist():
            features[shards == shard] = self.open(shard_name(shard))[positions[shards == shard]]
        return features

    def open(self, name: str) -> np.ndarray:
        """The mapped array of a file."""
        array = self._open.get(name)
        if array is None:
            if name not in self._compared:
                _compare(self._folder, name, self._index.files.get(name))
                self._compared.add(name)
            with _telling(self._folder):
                array = np.load(self._folder / name, mmap_mode="r")
            self._open.put(name, array)
        return array


def _compare(folder: Path, name: str, expected: Any, content: bool = True) -> None:
    with _telling(folder):
        path = folder / name
        size = {"size": path.stat().st_size} if path.is_file() else None
        actual = fingerprint(path) if content and size else size
        if not isinstance(expected, dict) or actual != {key: expected.get(key) for key in actual or {"size"}}:
            state = "is altered" if size else "is missing"
            raise FeatureError(f"{path}: {state}; remove the folder and compute the features again")


class StoredFeatures:
    """The features of a folder, mapped into memory.

    Args:
        folder: that a `FeatureWriter` has completed.
        memory_bytes: features up to this size are read, and compared with their SHA-256, at once. It also
            brings them into the page cache. Of larger ones each file is compared when it is read first.

    Attributes:
        index: see `FeatureIndex`.
        features: float32 or float16 [rows, ...]; indexed by rows.
        labels: [rows] or [rows, num_classes].

    Raises:
        FeatureError: the features are missing, unfinished or altered.
    """

    def __init__(self, folder: str | Path, memory_bytes: int = MEMORY_BYTES) -> None:
        self.folder = Path(folder)
        index = FeatureIndex.read(self.folder)
        if index is None:
            raise FeatureError(
                f"{self.folder}: there are no features; compute them with  paddlevideo-fast features ... "
                f"--output {self.folder.parent}"
            )
        if not index.is_complete:
            raise FeatureError(
                f"{self.folder}: {index.num_done} of {index.num_rows} features are there; start "
                "paddlevideo-fast features  with the same arguments again, it goes on from there"
            )
        self.index = index
        self.features = Shards(self.folder, index)
        for number in range(index.num_shards) if self.num_bytes <= memory_bytes else ():
            self.features.open(shard_name(number))
        self.labels = self.features.open(_LABELS)

    @property
    def num_bytes(self) -> int:
        """Size of all features."""
        return self.index.num_rows * self.index.row_bytes

    def window(self, dataset: ClipDataset, memory_bytes: int) -> ShuffleWindow | None:
        """How an epoch of training mixes the features.

        Args:
            dataset: the records.
            memory_bytes: for the features that are in use at the same time.

        Returns:
            None where a copy of all clips fits, so that an epoch mixes all of them.
        """
        clip_bytes = self.index.row_bytes * dataset.num_crops
        if clip_bytes * len(dataset) <= memory_bytes:
            return None
        in_shard = max(1, self.index.rows_of_shard // dataset.num_crops)
        clips = [divmod(record, in_shard) for record in range(len(dataset))]
        return ShuffleWindow(clips, max(1, memory_bytes // clip_bytes))


@dataclass(eq=False)
class FeatureLoader:
    """Iterates over batches of stored features, as `ClipLoader` does over batches of clips.

    A clip that failed is told as an incident. In training another one takes its place, drawn from the same
    key as for videos that do not decode; in evaluation it is left out. Epochs take the copies in turn.

    Args:
        stored: the features.
        batch_sampler: says which make which batch; another one may take its place between two epochs.
        dataset: the records, and how often another one is drawn.
    """

    stored: StoredFeatures
    batch_sampler: ClipBatchSampler
    dataset: ClipDataset

    def __len__(self) -> int:
        return self.batch_sampler.num_batches

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from `start_batch` on; `clips` is float32 or float16 [N, ...]."""
        return map(self._batch, self.batch_sampler.batches(epoch, start_batch))

    def close(self) -> None:
        """There are no workers to end."""

    def _batch(self, requests: Sequence[ClipRequest]) -> Batch:
        entries: list[tuple[int, int, int]] = []  # row, record, view
        incidents: list[DecodeFailure] = []
        num_crops = self.dataset.num_crops
        for request in requests:
            for index in self.dataset.candidates(request):
                row = first_row(self.dataset, self.stored.index.num_copies, index, request)
                failure = self.stored.index.failed.get(row)
                if failure is None:
                    view = 0 if self.dataset.training else request.view
                    entries += [(row + crop, index, view * num_crops + crop) for crop in range(num_crops)]
                    break
                incidents.append(DecodeFailure(failure[0], "failed", failure[1]))
        rows, ids, views = np.array(entries, np.int64).reshape(-1, 3).T
        features, labels = (np.asarray(array[rows]) for array in (self.stored.features, self.stored.labels))
        return Batch(features, labels, ids, views, incidents)


def first_row(dataset: ClipDataset, num_copies: int, index: int, request: ClipRequest) -> int:
    """The row of a request's clip, or of its first crop; rows of further crops follow.

    Args:
        dataset: the records that the rows are of.
        num_copies: of each clip; in training the clips of epoch e are copy e modulo `num_copies`.
        index: of the record: the request's own, or another one that takes its place.
        request: for a clip.
    """
    num_records, training = len(dataset.records), dataset.training
    drawn = request.epoch * request.num_views + request.view + request.draw if training else 0
    view, num_views = (0, 1) if training else (request.view, dataset.num_views)
    record = drawn % num_copies * num_records + index
    return (record * num_views + view) * dataset.num_crops


@contextlib.contextmanager
def _telling(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FeatureError(
            f"{error.filename or folder}: {error.strerror or error}; what is computed stays, and the same "
            "command goes on from there"
        ) from error
    except ValueError as error:
        raise FeatureError(f"{folder}: {error}; remove the folder and compute the features again") from error

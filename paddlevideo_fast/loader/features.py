"""Stored features: what a backbone gives for each clip of a data set, computed once and read by training.

A folder holds the features of one part of the data:

    features.npy   float32, a row for each clip
    labels.npy     int64 [rows], or float32 [rows, num_classes] where a video has any number of classes
    index.json     what the features were computed from, how many rows are there, which clips failed, and,
                   once all rows are there, size and SHA-256 of both arrays

A data set of N records, each of V views with C crops, has N * V * C rows for each copy of its clips:

    row = ((copy * N + record) * V + view) * C + crop

Rows are written in this order. The index is written after the rows that it counts are on the disk, so that a
process which dies loses the rows since the last index and nothing else.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paddlevideo_fast.errors import FeatureError
from paddlevideo_fast.io.files import atomic_write, atomic_write_text, fingerprint, read_text
from paddlevideo_fast.loader.batches import ClipBatchSampler
from paddlevideo_fast.loader.collate import Batch
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.loader.incidents import DecodeFailure
from paddlevideo_fast.loader.request import ClipRequest

KIND = "kind"  # key of the recipe: what the rows are
Kind = Literal["features", "logits"]

_FORMAT = 1
_INDEX, _FEATURES, _LABELS = "index.json", "features.npy", "labels.npy"
_MAX_INDEX_BYTES = 2**28
_SAVE_SEC = 5.0


@dataclass
class FeatureIndex:
    """What `index.json` says.

    Attributes:
        recipe: JSON values that decide what the features are; see `assembly.features`. `KIND` is "features",
            which a head trains on, or "logits" of the whole network.
        num_rows: rows of all copies.
        num_copies: differently augmented copies of each clip.
        num_done: rows that are there, from the first on.
        failed: row → (path, cause) of clips that do not decode.
        files: name → size and SHA-256; empty until all rows are there.
    """

    recipe: dict[str, Any]
    num_rows: int
    num_copies: int = 1
    num_done: int = 0
    failed: dict[int, tuple[str, str]] = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether all rows are there."""
        return bool(self.files)

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
                raise ValueError("another format")
            failed = {int(row): (str(where), str(why)) for row, (where, why) in values.pop("failed").items()}
            index = cls(**values, failed=failed)
            numbers = (index.num_rows, index.num_copies, index.num_done)
            if not all(type(number) is int and number >= 0 for number in numbers) or not index.num_copies:
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
        self._arrays: dict[str, np.ndarray] = {}  # mapped files, by name
        self._saved = time.monotonic()

    def add(
        self, stop: int, rows: np.ndarray, features: np.ndarray, labels: np.ndarray, failed: Mapping[int, Any]
    ) -> None:
        """Adds the rows of a batch.

        Args:
            stop: all rows before this one are there now, or failed.
            rows: int64 [M].
            features: float32 [M, ...].
            labels: [M] or [M, num_classes].
            failed: see `FeatureIndex.failed`.

        Raises:
            FeatureError: a feature has another shape than the rows before it, or the disk is full.
        """
        with _telling(self.folder):
            for name, values in ((_FEATURES, features), (_LABELS, labels)) if len(rows) else ():
                array = self._array(name, values)
                shapes = list(array.shape[1:]), list(values.shape[1:])
                if shapes[0] != shapes[1]:
                    raise FeatureError(
                        f"{self.folder}: features of shapes {shapes[0]} and {shapes[1]}: end the transforms "
                        "with a crop to one size"
                    )
                array[rows] = values
            self.index.failed.update(failed)
            self.index.num_done = stop
            if time.monotonic() - self._saved > _SAVE_SEC:
                self.save()

    def save(self) -> None:
        """Puts what is there on the disk."""
        for array in self._arrays.values():
            array.flush()  # type: ignore[attr-defined]  # of a memmap
        self.folder.mkdir(parents=True, exist_ok=True)
        self.index.write(self.folder)
        self._saved = time.monotonic()

    def close(self) -> None:
        """Saves; marks the folder as complete where all rows are there.

        Raises:
            FeatureError: no clip decodes, or the disk is full.
        """
        with _telling(self.folder):
            self.save()
            self._arrays = {}
            if self.index.num_done == self.index.num_rows and not self.index.is_complete:
                if len(self.index.failed) == self.index.num_rows:
                    raise FeatureError(f"{self.folder}: no clip decodes, so there are no features")
                self.index.files = {name: fingerprint(self.folder / name) for name in (_FEATURES, _LABELS)}
                self.save()

    def _array(self, name: str, values: np.ndarray) -> np.ndarray:
        if name not in self._arrays:
            path = self.folder / name
            if not path.exists():
                with atomic_write(path) as partial:
                    shape = (self.index.num_rows, *values.shape[1:])
                    np.lib.format.open_memmap(partial, "w+", values.dtype, shape)
                    with open(partial, "r+b") as file:  # a full disk is an error here, and later a SIGBUS
                        os.posix_fallocate(file.fileno(), 0, os.path.getsize(partial))
            self._arrays[name] = np.load(path, mmap_mode="r+")
        return self._arrays[name]


class StoredFeatures:
    """The features of a folder, mapped into memory.

    Args:
        folder: that a `FeatureWriter` has completed.

    Attributes:
        index: see `FeatureIndex`.
        features: float32 [rows, ...].
        labels: [rows] or [rows, num_classes].

    Raises:
        FeatureError: the features are missing, unfinished or altered.
    """

    def __init__(self, folder: str | Path) -> None:
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
        with _telling(self.folder):
            for name, expected in index.files.items():
                if fingerprint(self.folder / name) != expected:
                    raise FeatureError(
                        f"{self.folder / name}: is altered; remove the folder and compute the features again"
                    )
            self.features, self.labels = (
                np.load(self.folder / name, mmap_mode="r") for name in (_FEATURES, _LABELS)
            )


@dataclass(eq=False)
class FeatureLoader:
    """Iterates over batches of stored features, as `ClipLoader` does over batches of clips.

    A clip that failed is told as an incident. In training another one takes its place, drawn from the same
    key as for videos that do not decode; in evaluation it is left out. Where there are K copies, epoch e
    takes copy e modulo K.

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
        """The batches of an epoch, from `start_batch` on; `clips` is float32 [N, ...]."""
        return map(self._batch, self.batch_sampler.batches(epoch, start_batch))

    def close(self) -> None:
        """There are no workers to end."""

    def _batch(self, requests: Sequence[ClipRequest]) -> Batch:
        found: list[tuple[int, int, int]] = []  # row, record, view
        incidents: list[DecodeFailure] = []
        num_crops = self.dataset.num_crops
        for request in requests:
            for index in self.dataset.candidates(request):
                row = first_row(self.dataset, self.stored.index.num_copies, index, request)
                failure = self.stored.index.failed.get(row)
                if failure is None:
                    view = 0 if self.dataset.training else request.view
                    found += [(row + crop, index, view * num_crops + crop) for crop in range(num_crops)]
                    break
                incidents.append(DecodeFailure(failure[0], "failed", failure[1]))
        rows, ids, views = np.array(found, np.int64).reshape(-1, 3).T
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

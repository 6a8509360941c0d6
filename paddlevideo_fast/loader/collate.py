"""Samples become batches: each clip is put into its place of the array of its batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from paddlevideo_fast.errors import LoaderError
from paddlevideo_fast.loader.annotations import VideoRecord
from paddlevideo_fast.loader.incidents import DecodeFailure
from paddlevideo_fast.loader.request import ClipRequest, group_by_video

Allocate = Callable[[tuple[int, ...]], np.ndarray]
_PRIVATE: Allocate = partial(np.empty, dtype=np.uint8)  # what nothing shares
Target = int | np.ndarray


@dataclass(frozen=True)
class Sample:
    """What a data set returns for a request.

    Attributes:
        clip: uint8 [V * T, H, W, 3]; None where nothing decoded.
        label: class of the clip: the record's, or the class of its mirror image; see `ClipDataset.target`.
        index: number of the record; in training it differs from the request's where that did not decode.
        view: the request's.
        incidents: the records that did not decode, and this one where some of its frames were replaced.
        num_crops: how many clips of the batch `clip` makes, one after the other; each is a view of its own.
    """

    clip: np.ndarray | None
    label: Target
    index: int
    view: int
    incidents: tuple[DecodeFailure, ...] = ()
    num_crops: int = 1


class ClipSource(Protocol):
    """What a loader asks of a data set; `ClipDataset` is one."""

    file_path: str
    on_record: Callable[[int], None] | None

    @property
    def records(self) -> Sequence[VideoRecord]:
        """The records that requests name by their index."""

    @property
    def is_remote(self) -> bool:
        """Whether records are read from a store by parts, which `fetch` brings into the cache."""

    def fetch(self, requests: Sequence[ClipRequest]) -> int:
        """Brings what requests for one record read into the cache; the number of bytes that came."""

    def load(
        self, requests: Sequence[ClipRequest], outs: Sequence[np.ndarray | None] | None = None
    ) -> list[Sample]:
        """The samples of requests for one record, each clip in its place of `outs` where it fits."""


@dataclass
class Batch:
    """Samples of one step.

    Attributes:
        clips: uint8 [N, V * T, H, W, 3]. A sample of several crops is several clips here, and samples without
            a clip are left out, so N may differ from the batch size; where none has one, the shape is
            [0, 0, 0, 0, 3]. A numpy array, or a tensor where DALI decodes on a GPU.
        labels: int64 [N]; float32 [N, num_classes] where a video has any number of classes, 1 for those.
        ids: int64 [N], numbers of the records in the dataset.
        views: int64 [N].
        incidents: the files that did not decode, as a whole or in parts.
    """

    clips: Any
    labels: np.ndarray
    ids: np.ndarray
    views: np.ndarray
    incidents: list[DecodeFailure] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def failures(self) -> list[tuple[str, str]]:
        """(path, cause) of each file that did not decode."""
        return [(incident.path, incident.cause) for incident in self.incidents if incident.kind == "failed"]


def make_batch(dataset: ClipSource, requests: Sequence[ClipRequest], allocate: Allocate = _PRIVATE) -> Batch:
    """Makes the samples of a batch, one record after the other, in place.

    Args:
        dataset: makes the samples of a record, and puts their clips in given places where it can.
        requests: the clips of the batch.
        allocate: gives the uint8 array of a shape, which the clips are written to.

    Raises:
        LoaderError: the clips have different shapes, or there is no memory for the batch.
    """
    try:
        return _make_batch(dataset, requests, allocate)
    except MemoryError as error:
        cause = str(error) or "out of memory"
        raise LoaderError(
            f"a batch of {len(requests)} clips of {dataset.file_path or 'the given files'} does not fit into "
            f"memory: take smaller batches, fewer views or smaller clips ({cause})"
        ) from error


def _make_batch(dataset: ClipSource, requests: Sequence[ClipRequest], allocate: Allocate) -> Batch:
    samples: dict[int, Sample] = {}
    incidents: list[DecodeFailure] = []
    clips: np.ndarray | None = None
    for slots in group_by_video(requests):
        outs = [None if clips is None else clips[slot] for slot in slots]
        loaded = dataset.load([requests[slot] for slot in slots], outs)
        for slot, out, sample in zip(slots, outs, loaded):
            incidents += sample.incidents
            if sample.clip is None:
                continue
            if clips is None:  # the first clip says how large they are
                clips = allocate((len(requests), *sample.clip.shape))
            if sample.clip.shape != clips.shape[1:]:
                raise LoaderError(
                    f"clips of different shapes {sorted({sample.clip.shape, clips.shape[1:]})} in one batch: "
                    "end the transforms with a crop to one size"
                )
            if sample.clip is not out:
                clips[slot] = sample.clip
            samples[slot] = sample
    if clips is None:
        return batch_of([], None, incidents)
    filled = sorted(samples)
    for target, slot in enumerate(filled):
        if target != slot:  # those before it have no clip
            clips[target] = clips[slot]
    return batch_of([samples[slot] for slot in filled], clips[: len(filled)], incidents)


def batch_of(samples: Sequence[Sample], clips: Any, incidents: list[DecodeFailure]) -> Batch:
    """The batch of samples whose clips lie in one array.

    Args:
        samples: those that have a clip; their `clip` is not looked at.
        clips: an array or a tensor [N, V * T, …], where a sample has its crops one after the other; None:
            there is no sample.
        incidents: of the batch.
    """
    num_crops = samples[0].num_crops if samples else 1
    if clips is None:
        clips = np.empty((0, 0, 0, 0, 3), np.uint8)
    num_clips, num_frames, *picture = clips.shape
    targets = [sample.label for sample in samples]
    kind = np.float32 if targets and isinstance(targets[0], np.ndarray) else np.int64
    views = [sample.view * num_crops + crop for sample in samples for crop in range(num_crops)]
    return Batch(
        clips=clips.reshape(num_clips * num_crops, num_frames // num_crops, *picture),
        labels=np.array(targets, kind).repeat(num_crops, axis=0),
        ids=np.array([sample.index for sample in samples], np.int64).repeat(num_crops),
        views=np.array(views, np.int64),
        incidents=incidents,
    )

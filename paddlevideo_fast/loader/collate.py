"""Samples become batches: each clip is put into its place of the batch's array."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from paddlevideo_fast.loader.dataset import Failure, Sample
from paddlevideo_fast.loader.errors import LoaderError
from paddlevideo_fast.loader.request import ClipRequest

Allocate = Callable[[Tuple[int, ...]], np.ndarray]


@dataclass
class Batch:
    """Samples of one step.

    Attributes:
        clips: uint8 [N, V * T, H, W, 3]. A sample of several crops is several clips here, and samples without
            a clip are left out, so N may differ from the batch size; where none has one, the shape is
            [0, 0, 0, 0, 3]. A loader that normalises by itself gives float32 as the network takes them.
        labels: int64 [N].
        ids: int64 [N], numbers of the records in the dataset.
        views: int64 [N].
        failures: (path, cause) of each file that did not decode.
        replaced: (path, frames) of each clip in which frames that do not decode were replaced by others.
    """

    clips: Any
    labels: np.ndarray
    ids: np.ndarray
    views: np.ndarray
    failures: List[Failure] = field(default_factory=list)
    replaced: List[Tuple[str, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_replaced(self) -> int:
        """Frames that do not decode and were replaced by others of their file."""
        return sum(count for _, count in self.replaced)


def private_array(shape: Tuple[int, ...]) -> np.ndarray:
    """A uint8 array that nothing shares."""
    return np.empty(shape, np.uint8)


def make_batch(dataset: Any, requests: Sequence[ClipRequest], allocate: Allocate = private_array) -> Batch:
    """Makes the samples of a batch one after the other, in place.

    Args:
        dataset: makes a sample of a request, and puts its clip in a given place where it can.
        requests: what the batch is made of.
        allocate: gives the uint8 array of a shape, which the clips are written to.

    Raises:
        LoaderError: the clips have different shapes.
    """
    samples: List[Sample] = []
    failures: List[Failure] = []
    clips: Optional[np.ndarray] = None
    for request in requests:
        place = None if clips is None else clips[len(samples)]
        sample = dataset.load(request, place)
        failures += sample.failures
        if sample.clip is None:
            continue
        if clips is None:  # the first clip says how large they are
            clips = allocate((len(requests), *sample.clip.shape))
        if sample.clip is not place:
            clips[len(samples)] = _checked(sample.clip, clips)
        samples.append(sample)
    replaced = [
        (dataset.records[sample.index].path, sample.num_replaced) for sample in samples if sample.num_replaced
    ]
    return batch_of(samples, None if clips is None else clips[: len(samples)], failures, replaced)


def batch_of(
    samples: Sequence[Sample],
    clips: Any,
    failures: List[Failure],
    replaced: Sequence[Tuple[str, int]] = (),
) -> Batch:
    """The batch of samples whose clips lie in one array.

    Args:
        samples: those that have a clip; their `clip` is not looked at.
        clips: an array or a tensor [N, V * T, …], where a sample has its crops one after the other; None:
            there is no sample.
        failures: of the batch.
        replaced: of the batch.
    """
    num_crops = samples[0].num_crops if samples else 1
    return Batch(
        clips=np.empty((0, 0, 0, 0, 3), np.uint8) if clips is None else _split(clips, num_crops),
        labels=np.array([sample.label for sample in samples], np.int64).repeat(num_crops),
        ids=np.array([sample.index for sample in samples], np.int64).repeat(num_crops),
        views=np.array(
            [sample.view * num_crops + crop for sample in samples for crop in range(num_crops)], np.int64
        ),
        failures=failures,
        replaced=list(replaced),
    )


def _checked(clip: np.ndarray, clips: np.ndarray) -> np.ndarray:
    if clip.shape != clips.shape[1:]:
        raise LoaderError(
            f"clips of different shapes {sorted({clip.shape, clips.shape[1:]})} in one batch: end the "
            "transforms with a crop to one size"
        )
    return clip


def _split(clips: Any, num_crops: int) -> Any:
    """Crops that lie one after the other in a clip [N, V * T, …] become clips of their own, [N * V, T, …]."""
    num_clips, num_frames, *picture = clips.shape
    return clips.reshape(num_clips * num_crops, num_frames // num_crops, *picture)

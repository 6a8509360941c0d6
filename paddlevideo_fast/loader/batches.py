"""Which samples make which batch: a pure function of (seed, epoch)."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import accumulate, cycle, takewhile
from typing import Any

import numpy as np

from paddlevideo_fast.errors import LoaderError
from paddlevideo_fast.loader.balance import RepeatCounts
from paddlevideo_fast.loader.request import ORDER, ClipRequest, generator


@dataclass(frozen=True)
class ShuffleWindow:
    """An order that goes through the shards one after the other, and mixes the samples on the way.

    The shards lie in a row, in a random order. Each sample moves to the right by a random distance below
    `size`; then the samples are taken from the left. Two shards of 4, and a window of 4:

        row      c0   c1   c2   c3 | a0   a1   a2   a3
        place    0    1    2    3    4    5    6    7
        moved    2.9  1.4  5.1  3.0  5.2  8.7  6.4  7.8
        order    c1   c0   c3   c2   a0   a2   a3   a1

    So a sample is taken at most about half a window before or after its place in the row, on average a
    quarter. Samples that lie next to each other are taken within `size` steps, so a cache that holds `size`
    samples reads each byte once an epoch.

    Args:
        positions: for each record, the number of its shard and its position in the shard.
        size: of the window, in samples, ≥ 1.
    """

    positions: Sequence[tuple[int, int]]
    size: int

    def order(self, records: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """int64 [len(records)]: the positions in `records`, in the order in which an epoch takes them.

        Args:
            records: the number of the record of each sample; a record may come more than once.
            rng: decides the order.
        """
        shards, positions = np.asarray(self.positions)[records].T
        numbers, which = np.unique(shards, return_inverse=True)
        row = np.lexsort((positions, rng.permutation(len(numbers))[which]))
        moved = np.arange(len(row)) + rng.uniform(0, self.size, len(row))
        return row[np.argsort(moved, kind="stable")]


@dataclass(frozen=True)
class BatchShape:
    """What a batch is made of.

    Attributes:
        batch_size: requests in it, on one rank.
        num_frames: of a clip; None: as configured.
        sampling_rate: see `ClipRequest`; None: as configured.
        crop_size: side of a clip in pixels; None: as configured.
    """

    batch_size: int
    num_frames: int | None = None
    sampling_rate: float | None = None
    crop_size: int | None = None


@dataclass(eq=False, repr=False)
class ClipBatchSampler:
    """Batches of requests, the share of one rank.

    Rank r takes the samples at slots r, r + world_size, … of the epoch's order, so the batches of all ranks
    at one step together make the batch that a single process would have.

    With `clips_per_video` K, each sample of the order stands for K clips, which are in one batch: first clip
    0 of all samples of the batch, then clip 1 of all, and so on. The order of N samples is shared out to K
    epochs, so that an epoch has about as many clips as without it, and K epochs together have K clips of each
    sample.

    Where samples are not shuffled, for evaluation, whole batches are dealt: those of a single process with
    the same `batch_size`, so that none is computed otherwise for the number of ranks. All views of a sample
    go to the same rank.

    Args:
        num_samples: records of the dataset.
        batch_size: requests in a batch on this rank, a multiple of `clips_per_video`; see `reshaped`, too.
        shuffle: a new order each epoch.
        drop_last: leave out the last batch where it is smaller.
        seed: of the order.
        rank: this process.
        world_size: processes.
        num_views: requests for each record, one after the other.
        pad: give every rank the same number of samples by starting the order again, so that no rank waits for
            another in training; default: where the samples are shuffled. Without it each sample is seen once,
            and a rank may have none.
        groups: for each record, the number of its group. The groups are dealt to the ranks once for all
            epochs, and a rank takes the samples of its own; None: any rank takes any.
        clips_per_video: requests for each sample whenever it is its turn, all in one batch.
        repeat_counts: how often an epoch has each record; None: once.
        window: what a shuffled epoch mixes, over all ranks together; None: all samples.

    Attributes:
        batch_size: requests in the largest batch.
        window: see above.

    Raises:
        LoaderError: there is no batch at all, or a rank would have no group to train on, or a batch would
            not hold all clips of a sample, or several ranks have `groups` and `repeat_counts`.

    Reference: Hoffer et al., "Augment your batch", arXiv 1901.09335 (several clips of a sample in a batch).
    """

    num_samples: int
    batch_size: int
    _: KW_ONLY
    shuffle: bool
    drop_last: bool
    seed: int
    rank: int = 0
    world_size: int = 1
    num_views: int = 1
    pad: bool | None = None
    groups: Sequence[int] | None = None
    clips_per_video: int = 1
    repeat_counts: RepeatCounts | None = None
    window: ShuffleWindow | None = None

    def __post_init__(self) -> None:
        if self.repeat_counts is not None and self.groups is not None and self.world_size > 1:
            raise LoaderError(
                "DATASET.train: with split_by: shard a process has the classes of its own shards only, so no "
                "sampler can balance them: set split_by: sample, or sampler: shuffle"
            )
        if self.pad is None:
            self.pad = self.shuffle
        # a single process may take records of all groups
        groups = self.groups if self.repeat_counts is None else None
        self._dealt = None if groups is None else _deal(groups, self.world_size, may_be_empty=not self.pad)
        self._set_shapes([BatchShape(self.batch_size)])

    def _set_shapes(self, shapes: Sequence[BatchShape]) -> None:
        sizes = [shape.batch_size for shape in shapes]
        if min(sizes) < 1:
            raise LoaderError(f"batch_size is {min(sizes)}, expected 1 or more")
        odd = [size for size in sizes if size % self.clips_per_video]
        if odd:
            raise LoaderError(
                f"batch_size is {odd[0]}, expected a multiple of clips_per_video {self.clips_per_video}: a "
                "batch holds all clips of a video"
            )
        self.batch_size = max(sizes)
        self._shapes = list(shapes)
        sizes = [size // self.clips_per_video for size in sizes]  # in slots from here on
        self._num_together = 1 if self.shuffle or self.pad else math.lcm(sum(sizes), self.num_views)
        total = self._num_slots()
        self._ends = list(takewhile(lambda end: end <= total, accumulate(cycle(sizes))))
        if not self.drop_last and total > (self._ends[-1] if self._ends else 0):
            self._ends.append(total)
        if self.drop_last and not self._ends:
            raise LoaderError(
                f"{self.num_samples} samples on {self.world_size} processes make no batch of "
                f"{shapes[0].batch_size}: lower batch_size in DATASET or add samples"
            )

    def reshaped(self, shapes: Sequence[BatchShape]) -> ClipBatchSampler:
        """The same samples in the same order, in batches of other shapes, which an epoch takes in turn.

        A sample is in one batch of an epoch, whatever the shapes are.

        Raises:
            LoaderError: there is no batch at all.
        """
        other = copy.copy(self)
        other._set_shapes(shapes)
        return other

    def mixing(self, window: ShuffleWindow | None) -> ClipBatchSampler:
        """The same samples in batches of the same shapes, mixed in another window."""
        other = copy.copy(self)
        other.window = window
        return other

    @property
    def num_batches(self) -> int:
        """Batches of an epoch on this rank."""
        return len(self._ends)

    def _num_slots(self) -> int:
        if self._dealt is not None:
            shares = [self._share_of_epoch(len(share) * self.num_views) for share in self._dealt]
            return max(shares) if self.pad else shares[self.rank]
        total = self._share_of_epoch(self.num_samples * self.num_views)
        if self.pad:
            return -(-total // self.world_size)
        together = self._num_together
        starts = range(self.rank * together, total, self.world_size * together)
        return len(starts) and (len(starts) - 1) * together + min(together, total - starts[-1])

    def batches(self, epoch: int, start_batch: int = 0) -> EpochBatches:
        """The epoch's batches on this rank, from `start_batch` on."""
        spans = list(zip([0, *self._ends], self._ends, cycle(self._shapes)))[start_batch:]
        return EpochBatches(self, epoch, self._slots(epoch), spans)

    def requests(self, epoch: int, slots: np.ndarray, shape: BatchShape) -> list[ClipRequest]:
        """The requests of a batch that has these slots of an epoch's order."""
        per_sample = self.clips_per_video
        num_views = self.num_views * per_sample
        samples, views = np.divmod(slots, self.num_views)
        draws, indices = np.divmod(samples, self.num_samples)
        drawn = list(zip(indices.tolist(), (views * per_sample).tolist(), draws.tolist()))
        wanted = shape.num_frames, shape.sampling_rate, shape.crop_size
        return [
            ClipRequest(index, epoch, view + clip, num_views, *wanted, draw)
            for clip in range(per_sample)
            for index, view, draw in drawn
        ]

    def _slots(self, epoch: int) -> np.ndarray:
        """This rank's part of the epoch's order.

        Sample s has the slots s * num_views + view, and the samples from num_samples on are further draws of
        the records: sample s is draw s // num_samples of record s % num_samples.
        """
        turn, part = divmod(epoch, self.clips_per_video)
        samples = self._samples(turn) if self._dealt is None else self._dealt[self.rank]
        order = (samples[:, None] * self.num_views + np.arange(self.num_views)).reshape(-1)
        if self.shuffle:
            own = () if self._dealt is None else (self.rank,)
            order = self._shuffled(order, generator(ORDER, self.seed, turn, *own))
        order = self._part(order, part)
        if self._dealt is not None:
            return np.resize(order, self._num_slots())
        if self.pad:
            order = np.resize(order, -(-len(order) // self.world_size) * self.world_size)
        return order[np.arange(len(order)) // self._num_together % self.world_size == self.rank]

    def _shuffled(self, slots: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if self.window is None:
            return rng.permutation(slots)
        window = self.window
        if self._dealt is not None:  # each rank has an order of its own
            window = replace(window, size=-(-window.size // self.world_size))
        return slots[window.order(slots // self.num_views % self.num_samples, rng)]

    def _samples(self, turn: int) -> np.ndarray:
        """The samples of an order, as many as there are records."""
        if self.repeat_counts is None:
            return np.arange(self.num_samples)
        counts = self.repeat_counts.counts(turn)
        records = np.repeat(np.arange(self.num_samples), counts)
        draws = np.arange(self.num_samples) - np.repeat(np.cumsum(counts) - counts, counts)
        return draws * self.num_samples + records

    def _share_of_epoch(self, num_slots: int) -> int:
        return -(-num_slots // self.clips_per_video)

    def _part(self, order: np.ndarray, part: int) -> np.ndarray:
        """The part of an order that one of `clips_per_video` epochs takes; where short, the order again."""
        size = self._share_of_epoch(len(order))
        return np.resize(order, size * self.clips_per_video)[part * size : (part + 1) * size]


@dataclass(frozen=True, eq=False)
class EpochBatches(Sequence[list[ClipRequest]]):
    """The requests of each batch of an epoch; those of a batch are made when it is asked for.

    So an epoch of millions of clips begins at once.

    Args:
        sampler: makes them.
        epoch: number of the epoch.
        slots: of the epoch's order, on this rank.
        spans: first slot, end and shape of each batch.
    """

    sampler: ClipBatchSampler
    epoch: int
    slots: np.ndarray
    spans: Sequence[tuple[int, int, BatchShape]]

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        start, end, shape = self.spans[number]
        return self.sampler.requests(self.epoch, self.slots[start:end], shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)


def _deal(groups: Sequence[int], world_size: int, may_be_empty: bool) -> list[np.ndarray]:
    """Samples of each rank, ascending: the largest group left goes to the rank that has the fewest samples.

    Raises:
        LoaderError: there are fewer groups than ranks, and none of these may be without.
    """
    numbers, sizes = np.unique(groups, return_counts=True)
    if len(numbers) < world_size and not may_be_empty:
        raise LoaderError(
            f"{len(numbers)} shards cannot be split over {world_size} processes: pack smaller shards, or set "
            "split_by: sample in DATASET"
        )
    owned: list[list[int]] = [[] for _ in range(world_size)]
    load = [0] * world_size
    for group in np.argsort(-sizes, kind="stable"):
        rank = load.index(min(load))
        owned[rank].append(int(numbers[group]))
        load[rank] += int(sizes[group])
    return [np.flatnonzero(np.isin(groups, own)) for own in owned]

"""The order of an epoch that goes through the shards and mixes within a window."""

from collections import Counter, OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddlevideo_fast.loader import BatchShape, ClipBatchSampler
from paddlevideo_fast.loader.balance import RepeatCounts
from paddlevideo_fast.loader.batches import ShuffleWindow
from paddlevideo_fast.loader.request import ORDER, generator

sizes = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def places_of(shard_sizes):
    return [(shard, place) for shard, size in enumerate(shard_sizes) for place in range(size)]


def flat(batches):
    return [(request.index, request.view, request.draw) for batch in batches for request in batch]


@pytest.mark.smoke
@given(sizes, st.integers(1, 40), st.integers(0, 9))
def test_a_sample_stays_within_the_window_of_its_place(shard_sizes, window, seed):
    places = places_of(shard_sizes)
    listed = np.random.default_rng(seed).permutation(len(places))  # a list need not have the order of a shard
    order = ShuffleWindow([places[number] for number in listed], window).order(
        np.arange(len(places)), generator(ORDER, seed)
    )
    assert sorted(order) == list(range(len(places)))
    # the same by hand
    rng = generator(ORDER, seed)
    turns = rng.permutation(len(shard_sizes)).tolist()
    row = sorted(range(len(places)), key=lambda at: (turns[places[listed[at]][0]], places[listed[at]][1]))
    moved = [
        (place + move, at) for place, (at, move) in enumerate(zip(row, rng.uniform(0, window, len(row))))
    ]
    assert order.tolist() == [at for _, at in sorted(moved)]
    assert all(abs(row.index(at) - taken) < window for taken, at in enumerate(order))
    if window == 1:
        assert order.tolist() == row


def sampler_of(shard_sizes, window=None, **options):
    places = places_of(shard_sizes)
    keys = {"batch_size": 4, "shuffle": True, "drop_last": False, "seed": 7, **options}
    window = None if window is None else ShuffleWindow(places, window)
    return ClipBatchSampler(len(places), window=window, **keys)


@pytest.mark.smoke
@given(sizes, st.integers(1, 30), st.integers(1, 4), st.integers(0, 5), st.integers(0, 9))
def test_ranks_together_take_the_order_of_one_process(shard_sizes, window, world_size, epoch, start):
    ranks = [sampler_of(shard_sizes, window, rank=rank, world_size=world_size) for rank in range(world_size)]
    alone = flat(sampler_of(shard_sizes, window).batches(epoch))
    shares = [flat(rank.batches(epoch)) for rank in ranks]
    dealt = [shares[place % world_size][place // world_size] for place in range(len(alone))]
    assert dealt == alone
    assert Counter(index for index, *_ in alone) == Counter(range(sum(shard_sizes)))
    for rank in ranks:
        assert rank.batches(epoch, start) == rank.batches(epoch)[start:]
    reshaped = ranks[0].reshaped([BatchShape(8, 4, 2.0, 14), BatchShape(2, 8)])
    assert flat(reshaped.batches(epoch)) == shares[0]


def test_a_window_with_draws_and_with_several_clips():
    rates = np.tile([0.5, 1.5], 32)
    draws = RepeatCounts(rates, np.zeros(64, np.int64), seed=3)
    seen = flat(sampler_of([16] * 4, 8, repeat_counts=draws).batches(1))
    counts = draws.counts(1)
    assert sorted(seen) == sorted((index, 0, draw) for index in range(64) for draw in range(counts[index]))
    assert len({index // 16 for index, *_ in seen[:8]}) == 1
    halves = [
        {index for index, *_ in flat(sampler_of([16] * 4, 8, clips_per_video=2).batches(epoch))}
        for epoch in (4, 5)
    ]
    assert halves[0] | halves[1] == set(range(64))
    assert [len({index // 16 for index in half}) for half in halves] in ([2, 3], [3, 2], [3, 3], [2, 2])


VIDEO_BYTES, BLOCK_BYTES = 700, 1000


def fetches(ranks, epoch, num_blocks):
    """How often each block is fetched by the ranks of a machine, whose cache has room for `num_blocks`."""
    cache, fetched = OrderedDict(), Counter()
    for batches in zip(*(rank.batches(epoch) for rank in ranks)):
        for request in (request for batch in batches for request in batch):
            shard, place = divmod(request.index, 64)
            first, last = place * VIDEO_BYTES // BLOCK_BYTES, ((place + 1) * VIDEO_BYTES - 1) // BLOCK_BYTES
            for block in ((shard, number) for number in range(first, last + 1)):
                if block not in cache:
                    fetched[block] += 1
                cache[block] = True
                cache.move_to_end(block)
                if len(cache) > num_blocks:
                    cache.popitem(last=False)
    return fetched


@pytest.mark.parametrize("split_by", ["sample", "shard"])
def test_a_machine_fetches_each_block_once_an_epoch(split_by):
    """Two machines with two ranks each; a cache of 96 of the set's 720 blocks, the window has 64 videos."""
    shard_sizes = [64] * 16
    options = {"groups": [shard for shard, _ in places_of(shard_sizes)]} if split_by == "shard" else {}
    ranks = [
        sampler_of(shard_sizes, 64, batch_size=2, rank=rank, world_size=4, pad=False, **options)
        for rank in range(4)
    ]
    machines = [fetches(ranks[:2], 3, 96), fetches(ranks[2:], 3, 96)]
    assert {count for machine in machines for count in machine.values()} == {1}
    if split_by == "shard":
        assert not set(machines[0]) & set(machines[1])  # and the two read different bytes


def test_classes_in_a_batch():
    """The table of docs/en/prepared_packed.md: 400 classes with 600 videos each, shards of 256."""
    num_classes, per_class = 400, 600
    total = num_classes * per_class
    places = np.stack(np.divmod(np.arange(total), 256), 1)
    by_class = np.repeat(np.arange(num_classes), per_class)
    orders = {
        size: ClipBatchSampler(
            total, 64, shuffle=True, drop_last=True, seed=1,
            window=None if size is None else ShuffleWindow(places, size),
        )._slots(0)
        for size in (1024, 4096, 16384, 65536, None)
    }  # fmt: skip

    def mean_classes(labels, order):
        batches = labels[order][: total // 64 * 64].reshape(-1, 64)[::10]
        return np.mean([len(np.unique(batch)) for batch in batches])

    found = {size: round(mean_classes(by_class, order)) for size, order in orders.items()}
    assert found == {1024: 6, 4096: 19, 16384: 42, 65536: 54, None: 59}
    shuffled = np.random.default_rng(0).permutation(by_class)
    assert round(mean_classes(shuffled, orders[1024])) == 59

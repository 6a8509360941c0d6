import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddlevideo_fast.loader import BatchShape, ClipBatchSampler, ClipRequest, LoaderError
from paddlevideo_fast.loader.request import group_by_video

sizes = st.tuples(st.integers(1, 60), st.integers(1, 9), st.integers(1, 5))


def flat(batches):
    return [(request.index, request.view) for batch in batches for request in batch]


@pytest.mark.smoke
@given(sizes, st.integers(1, 3), st.integers(0, 20))
def test_evaluation_deals_the_batches_of_one_process(size, num_views, start):
    num_samples, batch_size, world_size = size
    options = {"shuffle": False, "drop_last": False, "seed": 0, "num_views": num_views}
    alone = ClipBatchSampler(num_samples, batch_size, **options).batches(0)
    assert flat(alone) == [(index, view) for index in range(num_samples) for view in range(num_views)]
    dealt, owner = [], {}
    for rank in range(world_size):
        sampler = ClipBatchSampler(num_samples, batch_size, **options, rank=rank, world_size=world_size)
        batches = sampler.batches(0)
        assert len(batches) == sampler.num_batches  # none is no error
        assert sampler.batches(3, start) == sampler.batches(3)[start:]
        dealt += batches
        for index, _ in flat(batches):
            assert owner.setdefault(index, rank) == rank  # all views of a sample
    assert sorted(dealt, key=lambda batch: flat([batch])) == alone


@pytest.mark.smoke
@given(sizes, st.booleans(), st.integers(0, 5))
def test_training_ranks_are_in_step(size, drop_last, epoch):
    num_samples, batch_size, world_size = size
    if drop_last and num_samples < batch_size * world_size:
        return
    ranks = [
        ClipBatchSampler(
            num_samples,
            batch_size,
            shuffle=True,
            drop_last=drop_last,
            seed=7,
            rank=rank,
            world_size=world_size,
        )
        for rank in range(world_size)
    ]
    batches = [sampler.batches(epoch) for sampler in ranks]
    assert len({tuple(len(batch) for batch in share) for share in batches}) == 1
    seen = [index for share in batches for index, _ in flat(share)]
    if not drop_last:
        assert set(seen) == set(range(num_samples))
        assert len(seen) - num_samples < world_size
    # all ranks at one step are one batch of a single process
    if num_samples >= batch_size * world_size:
        alone = ClipBatchSampler(num_samples, batch_size * world_size, shuffle=True, drop_last=True, seed=7)
        for step, whole in enumerate(alone.batches(epoch)):
            together = {request.index for share in batches for request in share[step]}
            assert together == {request.index for request in whole}


def test_impossible_arguments():
    with pytest.raises(LoaderError, match="make no batch of 8"):
        ClipBatchSampler(7, 8, shuffle=True, drop_last=True, seed=0)
    with pytest.raises(LoaderError, match="batch_size is 0"):
        ClipBatchSampler(7, 0, shuffle=True, drop_last=True, seed=0)
    sampler = ClipBatchSampler(7, 1, shuffle=True, drop_last=True, seed=0)
    with pytest.raises(LoaderError, match="make no batch of 8"):
        sampler.reshaped([BatchShape(8), BatchShape(2)])
    assert sampler.num_batches == 7


shapes = st.lists(
    st.builds(
        BatchShape, st.integers(1, 9), st.just(8), st.floats(1, 4), st.sampled_from([14, 20, 28])
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip


@pytest.mark.smoke
@given(sizes, st.integers(1, 4), st.booleans(), st.integers(0, 3), st.integers(0, 20))
def test_several_clips_of_a_sample_are_in_one_batch(size, num_clips, drop_last, turn, start):
    num_samples, num_together, world_size = size
    batch_size = num_clips * num_together
    options = {"shuffle": True, "drop_last": drop_last, "seed": 7, "clips_per_video": num_clips}
    if drop_last and num_samples < batch_size * world_size:
        return
    ranks = [
        ClipBatchSampler(num_samples, batch_size, **options, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    seen = []
    for epoch in range(turn * num_clips, (turn + 1) * num_clips):
        shares = [sampler.batches(epoch) for sampler in ranks]
        for sampler, batches in zip(ranks, shares):
            assert len(batches) == sampler.num_batches
            assert sampler.batches(epoch, start) == batches[start:]
            for batch in batches:
                assert {(request.epoch, request.num_views) for request in batch} == {(epoch, num_clips)}
                # first clip 0 of each sample, then clip 1
                samples = [request.index for request in batch[: len(batch) // num_clips]]
                expected = [(index, clip) for clip in range(num_clips) for index in samples]
                assert flat([batch]) == expected
        assert len({tuple(len(batch) for batch in batches) for batches in shares}) == 1
        seen += flat(batch for batches in shares for batch in batches)
        if num_samples >= batch_size * world_size:
            alone = ClipBatchSampler(num_samples, batch_size * world_size, **{**options, "drop_last": True})
            for step, whole in enumerate(alone.batches(epoch)):
                assert sorted(flat(share[step] for share in shares)) == sorted(flat([whole]))
    if not drop_last:  # as many epochs as clips see each sample once, whatever fills up the last one aside
        assert set(seen) == {(index, clip) for index in range(num_samples) for clip in range(num_clips)}
        assert len(seen) < num_clips * (num_samples + num_clips * world_size)


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
@pytest.mark.parametrize(("num_views", "num_clips"), [(1, 1), (3, 1), (1, 2)])
def test_the_samples_of_a_shard_are_those_of_one_rank(world_size, num_views, num_clips):
    groups = [group for group in range(11) for _ in range(1 + group % 4)]
    options = {"shuffle": True, "drop_last": False, "seed": 1, "pad": False, "groups": groups}
    options.update(world_size=world_size, num_views=num_views, clips_per_video=num_clips)
    seen, sizes = [], []
    for rank in range(world_size):
        sampler = ClipBatchSampler(len(groups), 4, rank=rank, **options)
        epochs = [sampler.batches(epoch) for epoch in range(2 * num_clips)]
        assert {len(batches) for batches in epochs} == {sampler.num_batches}
        turns = [flat(itertools.chain(*epochs[turn : turn + num_clips])) for turn in (0, num_clips)]
        own, again = ({groups[index] for index, _ in turn} for turn in turns)
        assert own == again
        seen += turns[0]
        sizes.append(len({index for index, _ in turns[0]}))
    expected = [(index, view) for index in range(len(groups)) for view in range(num_views * num_clips)]
    assert sorted(set(seen)) == expected
    assert len(seen) - len(expected) <= (num_clips - 1) * num_clips * world_size  # what fills up an epoch
    assert max(sizes) - min(sizes) <= 2


def test_a_batch_that_would_split_the_clips_of_a_sample_is_an_error():
    options = {"shuffle": True, "drop_last": True, "seed": 0, "clips_per_video": 4}
    with pytest.raises(LoaderError, match="batch_size is 6, expected a multiple of clips_per_video 4"):
        ClipBatchSampler(50, 6, **options)
    with pytest.raises(LoaderError, match="batch_size is 10, expected a multiple"):
        ClipBatchSampler(50, 8, **options).reshaped([BatchShape(8), BatchShape(10)])


@pytest.mark.smoke
@given(st.integers(1, 60), shapes, st.integers(1, 3), st.integers(1, 3), st.booleans(), st.integers(0, 20))
def test_batches_take_shapes_in_turn(num_samples, cycle, num_clips, world_size, drop_last, start):
    """With several clips of a sample, too, which are all in one batch."""
    cycle = [replace(shape, batch_size=num_clips * shape.batch_size) for shape in cycle]
    num_turns = -(-num_samples // num_clips)  # of samples in an epoch
    if drop_last and num_clips * -(-num_turns // world_size) < cycle[0].batch_size:
        return
    options = {"shuffle": True, "drop_last": drop_last, "seed": 3, "clips_per_video": num_clips}
    ranks = []
    for rank in range(world_size):
        plain = ClipBatchSampler(num_samples, num_clips, **options, rank=rank, world_size=world_size)
        sampler = plain.reshaped(cycle)
        batches = sampler.batches(5)
        assert len(batches) == sampler.num_batches
        assert sampler.batches(5, start) == batches[start:]
        assert sampler.batch_size == max(shape.batch_size for shape in cycle)
        # the plain sampler's samples in its order, each once, cut where the shapes say
        order = [batch[0].index for batch in plain.batches(5)]
        seen = [request.index for batch in batches for request in batch[: len(batch) // num_clips]]
        assert seen == order[: len(seen)]
        for number, batch in enumerate(batches):
            shape = cycle[number % len(cycle)]
            whole = drop_last or number < len(batches) - 1
            assert len(batch) == shape.batch_size if whole else 0 < len(batch) <= shape.batch_size
            assert {(r.num_frames, r.sampling_rate, r.crop_size) for r in batch} == {
                (shape.num_frames, shape.sampling_rate, shape.crop_size)
            }
        left = num_clips * (len(order) - len(seen))
        assert left < cycle[len(batches) % len(cycle)].batch_size if drop_last else left == 0
        ranks.append([(len(batch), batch[0].crop_size) for batch in batches])
    assert all(rank == ranks[0] for rank in ranks)  # the same shape on all of them at a step


def test_what_one_pass_over_a_file_serves():
    """The clips of one draw of a record; a request that comes twice is read twice."""
    requests = [
        ClipRequest(index, 0, view, draw=draw)
        for index, view, draw in [(4, 0, 0), (4, 0, 0), (7, 0, 0), (4, 1, 0), (4, 0, 1), (7, 1, 0), (4, 1, 0)]
    ]
    assert group_by_video(requests) == [[0, 3], [1, 6], [2, 5], [4]]
    keys = {request.key for request in requests}
    assert len(keys) == len(set(requests)) == 5

"""How often an epoch draws each record, and what is done with the draws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddlevideo_fast.loader import BatchShape, ClipBatchSampler, LoaderError, VideoRecord
from paddlevideo_fast.loader.balance import RepeatCounts, class_counts, make_repeat_counts
from paddlevideo_fast.loader.request import CLIP, ORDER, ClipRequest, generator
from tests.loader.building import dataset_of

SIZES = [40, 17, 6, 1]


def records_of(sizes=SIZES, **more):
    return [
        VideoRecord(f"{label}.mp4", (label,), **more) for label, size in enumerate(sizes) for _ in range(size)
    ]


def labels_of(records):
    return np.array([record.label for record in records])


@pytest.mark.smoke
@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 5)), min_size=1, max_size=60), st.integers(0, 9))
def test_a_record_and_a_class_come_as_often_as_their_rates_say(rows, seed):
    classes = np.array([row[0] for row in rows])
    weights = np.array([row[1] for row in rows]) + 1e-3
    rates = weights * len(rows) / weights.sum()
    draws, total = RepeatCounts(rates, classes, seed), np.zeros(len(rows))
    for epoch in range(40):
        counts = draws.counts(epoch)
        assert counts.sum() == len(rows)
        assert (counts >= np.floor(rates - 1e-6)).all()
        assert (counts <= np.ceil(rates + 1e-6)).all()
        difference = np.bincount(classes, counts - rates, 5)
        assert np.abs(difference).max() < 1 + 1e-6
        np.testing.assert_array_equal(counts, RepeatCounts(rates, classes, seed).counts(epoch))
        total += counts
    assert np.abs(total - 40 * rates).max() < 3  # random draws would differ by up to 3 times sqrt(40 * rate)


def test_the_seed_decides_which_records_come_twice():
    rates, classes = np.tile([0.5, 1.5], 20), np.zeros(40, np.int64)
    one, other = RepeatCounts(rates, classes, 1), RepeatCounts(rates, classes, 2)
    assert (one.counts(0) != other.counts(0)).any()
    assert any((one.counts(0) != one.counts(epoch)).any() for epoch in (1, 2, 3))


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        ("balanced", [16, 16, 16, 16]),
        ("square_root", 64 * np.sqrt(SIZES) / np.sqrt(SIZES).sum()),
        ("weighted", SIZES),
    ],
)
def test_clips_of_each_class(sampler, expected):
    records = records_of()
    draws = make_repeat_counts(records, sampler, seed=3)
    np.testing.assert_allclose(class_counts(records, 4, draws.rates), expected)
    for epoch in range(5):
        counts = np.bincount(labels_of(records), draws.counts(epoch), 4)
        assert np.abs(counts - expected).max() < 1


def test_weights_of_the_list():
    records = [
        VideoRecord("a", (0,), weight=3.0),
        VideoRecord("b", (1,), weight=1.0),
        VideoRecord("c", (1,), weight=0),
    ]
    np.testing.assert_allclose(make_repeat_counts(records, "weighted", 0).rates, [9 / 4, 3 / 4, 0])
    with pytest.raises(LoaderError, match="train.list: every weight is 0"):
        make_repeat_counts(records_of(weight=0.0), "weighted", 0, "train.list")


def test_a_record_of_several_classes_counts_for_its_rarest():
    records = [
        *[VideoRecord("a", (0,))] * 6,
        *[VideoRecord("b", (0, 1))] * 2,
        *[VideoRecord("c", (0, 1, 2))] * 1,
        *[VideoRecord("d", ())] * 3,
    ]
    np.testing.assert_array_equal(class_counts(records, 4), [9, 3, 1, 0])
    of_each = np.array([1 / 9] * 6 + [1 / 3] * 2 + [1] + [1 / 3] * 3)  # 3 records have no class
    np.testing.assert_allclose(make_repeat_counts(records, "balanced", 0).rates, of_each * 12 / of_each.sum())
    np.testing.assert_allclose(
        make_repeat_counts(records, "square_root", 0).rates, of_each**0.5 * 12 / (of_each**0.5).sum()
    )


def flat(batches):
    return [(request.index, request.draw, request.view) for batch in batches for request in batch]


@pytest.mark.smoke
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 2), st.integers(0, 30))
def test_ranks_share_the_draws_of_one_process(batch_size, world_size, num_views, start):
    records = records_of()
    draws = make_repeat_counts(records, "balanced", seed=5)
    options = {"shuffle": True, "seed": 5, "repeat_counts": draws, "num_views": num_views}
    alone = ClipBatchSampler(64, batch_size * world_size, drop_last=True, **options)
    ranks = [
        ClipBatchSampler(64, batch_size, drop_last=False, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]
    for epoch in (0, 3):
        batches = [sampler.batches(epoch) for sampler in ranks]
        for step, whole in enumerate(alone.batches(epoch)):
            together = [request for share in batches for request in flat([share[step]])]
            assert sorted(together) == sorted(flat([whole]))
        assert ranks[0].batches(epoch, start) == batches[0][start:]
        # each draw of a record is another request, numbered from 0
        seen = set(flat(batch for share in batches for batch in share))
        counts = draws.counts(epoch)
        assert seen == {
            (index, draw, view)
            for index in range(64)
            for draw in range(counts[index])
            for view in range(num_views)
        }


def test_draws_have_the_shapes_of_multigrid():
    draws = make_repeat_counts(records_of(), "square_root", seed=5)
    plain = ClipBatchSampler(64, 4, shuffle=True, drop_last=True, seed=5, repeat_counts=draws)
    reshaped = plain.reshaped([BatchShape(8, 4, 2.0, 14), BatchShape(3, 8, 1.0, 20)])
    seen = flat(reshaped.batches(2))
    assert seen == flat(plain.batches(2))[: len(seen)]
    assert {request.crop_size for request in reshaped.batches(2)[1]} == {20}


def test_draws_with_several_clips_from_one_decode():
    draws = make_repeat_counts(records_of(), "balanced", seed=5)
    sampler = ClipBatchSampler(
        64, 8, shuffle=True, drop_last=True, seed=5, repeat_counts=draws, clips_per_video=2
    )
    for turn in range(2):  # two epochs share one order
        seen = flat(sampler.batches(2 * turn)) + flat(sampler.batches(2 * turn + 1))
        counts = draws.counts(turn)
        pairs = [(index, draw) for index in range(64) for draw in range(counts[index])]
        assert sorted(seen) == sorted((*pair, clip) for pair in pairs for clip in range(2))


def test_a_plain_run_has_the_order_and_the_clips_that_it_always_had():
    sampler = ClipBatchSampler(50, 5, shuffle=True, drop_last=True, seed=7, rank=1, world_size=2, num_views=2)
    order = generator(ORDER, 7, 3).permutation(100)[1::2]
    assert [2 * index + view for index, _, view in flat(sampler.batches(3))] == order.tolist()
    assert ClipRequest(4, 3, 1).key == (3, 4, 1)
    first, again = ClipRequest(4, 3).key, ClipRequest(4, 3, draw=1).key
    assert generator(CLIP, 7, *first).random() != generator(CLIP, 7, *again).random()


def test_shards_that_belong_to_ranks_cannot_be_balanced():
    groups = [index // 8 for index in range(64)]
    options = {"shuffle": True, "drop_last": True, "seed": 0, "groups": groups}
    draws = make_repeat_counts(records_of(), "balanced", seed=5)
    with pytest.raises(LoaderError, match="split_by: sample"):
        ClipBatchSampler(64, 4, rank=0, world_size=2, repeat_counts=draws, **options)
    alone = ClipBatchSampler(64, 4, repeat_counts=draws, **options)
    assert len(set(flat(alone.batches(0)))) == 64


@pytest.fixture
def dataset(motion_dataset, tmp_path, caplog):
    """A function from labels and options to a data set of so many videos, and to what was told."""
    names = [line.rsplit(None, 1)[0] for line in motion_dataset.train_list.read_text().splitlines()]

    def make(labels, training=True, **options):
        path = tmp_path / "videos.list"
        path.write_text("".join(f"{name} {label}\n" for name, label in zip(names, labels)))
        caplog.clear()
        crop = [{"RandomCrop": {"target_size": 24}}]
        prefix = str(motion_dataset.root)
        made = dataset_of(path, transform=crop, training=training, data_prefix=prefix, **options)
        return made, "\n".join(caplog.messages)

    return make


def test_a_record_that_comes_twice_is_two_clips(dataset):
    made, told = dataset([0, 0, 0, 1], sampler="balanced")
    assert "no effect" not in told
    np.testing.assert_allclose(made.repeat_counts.rates, [2 / 3, 2 / 3, 2 / 3, 2])
    clips = [made[ClipRequest(3, 0, draw=draw)].clip for draw in (0, 1, 1)]
    assert not np.array_equal(clips[0], clips[1])
    np.testing.assert_array_equal(clips[1], clips[2])
    plain, _ = dataset([0, 0, 0, 1])
    np.testing.assert_array_equal(plain[ClipRequest(3, 0)].clip, clips[0])


@pytest.mark.parametrize(
    ("labels", "training", "sampler", "why"),
    [
        ([0, 0, 0, 1], False, "balanced", "an evaluation has each record once"),
        ([0, 0, 1, 1], True, "square_root", "videos.list have equally many records"),
        ([0, 0, 0, 1], True, "weighted", "videos.list have the same weight"),
    ],
)
def test_a_sampler_without_effect_is_told(dataset, labels, training, sampler, why):
    made, told = dataset(labels, training, sampler=sampler)
    assert f"sampler: {sampler} has no effect: " in told
    assert why in told
    assert made.repeat_counts is None or (made.repeat_counts.counts(0) == 1).all()

from functools import partial

import numpy as np
import pytest

from paddlevideo_fast.errors import AnnotationError, ShardError
from paddlevideo_fast.loader import LoaderError
from tests.loader.building import dataset_of, loader_of

make = partial(dataset_of, transform=[{"CenterCrop": {"target_size": 32}}], format="PackedFrameDataset")


def test_a_folder_of_shards(packed_folder):
    dataset = make(packed_folder, data_prefix="of the videos, which has no effect")
    assert len(dataset) == 6
    assert [record.label for record in dataset.records] == [0, 1, 2, 0, 1, 2]
    assert dataset.records[3].path == f"{packed_folder}/00001.data:class0/clip3"


def test_a_list_gives_videos_and_labels(packed_folder, tmp_path, caplog):
    some = tmp_path / "some.list"
    some.write_text("class2/clip5 4\nclass0/clip0 12 9\nclass2/clip5 1\ngone 12 1\n")
    dataset = make(some, data_prefix=str(packed_folder))
    assert [record.label for record in dataset.records] == [4, 9, 1]
    assert [record.path.rpartition(":")[2] for record in dataset.records] == [
        "class2/clip5", "class0/clip0", "class2/clip5"
    ]  # fmt: skip
    assert "1 video left out" in caplog.text
    (first, second) = loader_of(dataset).epoch(0)
    assert first.labels.tolist() == [4, 9]
    np.testing.assert_array_equal(second.clips.shape, (1, 3, 32, 32, 3))


def test_wrong_inputs(packed_folder, tmp_path):
    listed = tmp_path / "some.list"
    listed.write_text("class2/clip5 4\nclass2/other 1\n")
    with pytest.raises(AnnotationError, match=r"some.list: is a list, so data_prefix must be"):
        make(listed)
    with pytest.raises(AnnotationError, match=r"some.list:2: 'class2/other' is not in the packed frames"):
        make(listed, data_prefix=str(packed_folder))
    with pytest.raises(AnnotationError, match="there is no such list"):
        make(tmp_path / "nowhere", data_prefix=str(packed_folder))
    listed.write_text("gone 1\n")
    with pytest.raises(AnnotationError, match="no video of it could be packed"):
        make(listed, data_prefix=str(packed_folder))
    with pytest.raises(ShardError, match="has no packed frames"):
        make(tmp_path)


def ids(loader, epoch, start_batch=0):
    return [batch.ids.tolist() for batch in loader.epoch(epoch, start_batch)]


def test_shards_split_over_ranks(packed_folder):
    dataset = make(packed_folder, split_by="shard")
    ranks = [loader_of(dataset, rank=rank, world_size=2) for rank in range(2)]
    assert [ids(loader, 0) for loader in ranks] == [[[0, 1], [4, 5]], [[2, 3]]]
    train = [loader_of(dataset, shuffle=True, rank=rank, world_size=2) for rank in range(2)]
    assert [len(loader) for loader in train] == [2, 2]
    for epoch in range(3):
        first, second = (np.concatenate(ids(loader, epoch)).tolist() for loader in train)
        assert sorted(first) == [0, 1, 4, 5]
        assert sorted(second) in ([2, 2, 3, 3],)  # as many as the first rank has
        assert ids(train[0], epoch, 1) == ids(train[0], epoch)[1:]
    assert ids(train[0], 0) != ids(train[0], 1)
    with pytest.raises(LoaderError, match="3 shards cannot be split over 4 processes"):
        loader_of(dataset, shuffle=True, rank=0, world_size=4)
    assert sorted(ids(loader_of(dataset, rank=rank, world_size=4), 0) for rank in range(4)) == [
        [],  # nothing to evaluate is no error
        [[0, 1]],
        [[2, 3]],
        [[4, 5]],
    ]


def test_a_window_of_the_shuffle(packed_folder, caplog):
    loader = loader_of(make(packed_folder, training=True, shuffle_window=1), shuffle=True, batch_size=1)
    seen = [[index for (index,) in ids(loader, epoch)] for epoch in range(8)]
    shards = [(0, 1), (2, 3), (4, 5)]
    assert all({tuple(order[start : start + 2]) for start in (0, 2, 4)} == set(shards) for order in seen)
    assert len(set(map(tuple, seen))) > 1
    plain = loader_of(make(packed_folder, training=True), shuffle=True, batch_size=1)
    text = "shuffle_window: {} has no effect: {}"
    for size, training, why in ((6, True, "mixes all 6 videos"), (2, False, "an evaluation takes")):
        dataset = make(packed_folder, training=training, shuffle_window=size)
        assert dataset.window is None
        assert text.format(size, "") in caplog.text
        assert why in caplog.text
    same = loader_of(make(packed_folder, training=True, shuffle_window=6), shuffle=True, batch_size=1)
    assert ids(same, 0) == ids(plain, 0)

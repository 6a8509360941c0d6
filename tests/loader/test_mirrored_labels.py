"""A clip whose mirror image is another class has that class as its label when it is mirrored."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paddlevideo_fast.assembly.checks import check_evaluation
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.loader import ClipRequest, LoaderError
from paddlevideo_fast.loader.transforms.crop import RandomFlip
from tests.loader.building import dataset_of

REPOSITORY = Path(__file__).resolve().parents[2]
PAIRS = [[0, 1], [2, 3]]


@pytest.fixture
def list_of_videos(motion_dataset, tmp_path):
    """One video of each of the classes left, right, up and a class that no pair has."""
    path = tmp_path / "videos.list"
    names = [line.rsplit(None, 1)[0] for line in motion_dataset.train_list.read_text().splitlines()]
    labels = (0, 1, 2, 7)
    path.write_text("".join(f"{motion_dataset.root / names[place]} {labels[place]}\n" for place in range(4)))
    return path


SAMPLE = {"name": "Sampler", "num_seg": 4, "seg_len": 1, "valid_mode": True}


@pytest.mark.smoke
def test_the_label_is_the_mirror_class_where_and_only_where_the_clip_is_mirrored(list_of_videos):
    plain = dataset_of(list_of_videos, SAMPLE, [], training=True)
    flip = {"RandomFlip": {"swapped_labels": PAIRS}}
    flipping = dataset_of(list_of_videos, SAMPLE, [flip], training=True)
    seen = set()
    for epoch in range(12):
        for index, (own, other) in enumerate([(0, 1), (1, 0), (2, 3), (7, 7)]):
            shown = plain[ClipRequest(index, epoch)].clip
            sample = flipping[ClipRequest(index, epoch)]
            mirrored = np.array_equal(sample.clip, shown[:, :, ::-1])
            assert mirrored != np.array_equal(sample.clip, shown)
            assert sample.label == (other if mirrored else own)
            seen.add((index, mirrored))
    assert len(seen) == 8, "each clip comes both ways"


def test_twice_mirrored_is_not_mirrored_and_validation_mirrors_nothing(list_of_videos):
    always = {"RandomFlip": {"p": 1.0, "swapped_labels": PAIRS}}
    twice = dataset_of(list_of_videos, SAMPLE, [always, always], training=True)
    assert [twice[ClipRequest(index, 0)].label for index in range(4)] == [0, 1, 2, 7]
    half = {"RandomFlip": {"swapped_labels": PAIRS}}
    valid = dataset_of(list_of_videos, SAMPLE, [half], training=False)
    assert [valid[ClipRequest(index, 0)].label for index in range(4)] == [0, 1, 2, 7]


def test_each_of_several_labels_is_mirrored(list_of_videos):
    always = {"RandomFlip": {"p": 1.0, "swapped_labels": PAIRS}}
    dataset = dataset_of(list_of_videos, SAMPLE, [always], training=True, num_classes=8)
    dataset.records = [
        replace(record, labels=labels)
        for record, labels in zip(dataset.records, [(0, 2, 7), (0, 1), (), (3,)])
    ]
    mirrored = [np.flatnonzero(dataset[ClipRequest(index, 0)].label).tolist() for index in range(4)]
    assert mirrored == [[1, 3, 7], [0, 1], [], [2]]


@pytest.mark.parametrize("pairs", [[[0, 1], [1, 2]], [[4, 4]]])
def test_a_class_has_one_mirror_image(pairs):
    with pytest.raises(LoaderError, match="a class has one mirror image, which is another class"):
        RandomFlip(swapped_labels=pairs)


def test_a_mirror_class_beyond_the_classes_of_the_head_is_an_error(list_of_videos):
    config = load_config(REPOSITORY / "configs" / "quickstart" / "tsm_motion.yaml")
    flip = {"RandomFlip": {"swapped_labels": [[0, 8]]}}
    config["DATASET"]["train"] = {"format": "VideoDataset", "file_path": str(list_of_videos)}
    config["PIPELINE"]["train"] = {"decode": {"name": "VideoDecoder"}, "sample": SAMPLE, "transform": [flip]}
    with pytest.raises(ConfigError, match=r"PIPELINE.train.transform: .* label 8 with num_classes 8"):
        check_evaluation(RunSpec.of(config), "train")

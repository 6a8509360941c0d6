"""Several views of a video, from the request to the metric, on decoded video."""

import json

import cv2
import numpy as np
import pytest

from paddlevideo_fast.config import Config, check_config
from paddlevideo_fast.config.sections import ROOT, Group
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.loader import ClipRequest, LoaderError, build_dataset
from tests.loader.building import dataset_of, loader_of

# PaddleVideo's slowfast.yaml, data paths aside
NORMALIZATION = [
    {"Image2Array": {"transpose": False}},
    {"Normalization": {"mean": [0.45] * 3, "std": [0.225] * 3, "tensor_shape": [1, 1, 1, 3]}},
    {"PackOutput": {"alpha": 8}},
]


def paddlevideo_config(file_path, target_size=224, min_size=256, max_size=320, num_frames=32):
    sampler = {"name": "DecodeSampler", "num_frames": num_frames, "sampling_rate": 2}
    training = {
        "decode_sampler": sampler,
        "transform": [
            {"JitterScale": {"min_size": min_size, "max_size": max_size}},
            {"MultiCrop": {"target_size": target_size}},
            {"RandomFlip": None},
            *NORMALIZATION,
        ],
    }
    test = {
        "decode_sampler": {**sampler, "test_mode": True},
        "transform": [
            {"JitterScale": {"min_size": min_size, "max_size": min_size}},
            {"MultiCrop": {"target_size": target_size, "test_mode": True}},
            *NORMALIZATION,
        ],
    }
    dataset = {"format": "SFVideoDataset", "file_path": str(file_path)}
    views = {"test_mode": True, "num_ensemble_views": 10, "num_spatial_crops": 3}
    config = {
        "DATASET": {"train": dataset, "valid": dataset, "test": {**dataset, **views}, "batch_size": 8},
        "PIPELINE": {"train": training, "valid": training, "test": test},
    }
    return Config(json.loads(json.dumps(config)))  # no part of it is another's


ONLY_DATA = Group({name: ROOT.members[name] for name in ("DATASET", "PIPELINE")})


@pytest.fixture(scope="module")
def small(tmp_path_factory, make_clip):
    """Three videos of 40 frames, 96×64, whose frames carry their numbers, and their list."""
    root = tmp_path_factory.mktemp("views")
    lines = []
    for number in range(3):
        path = make_clip(root / f"{number}.mp4", 40, size=(96, 64), fps=30)
        lines.append(f"{path} {number}\n")
    (root / "list.txt").write_text("".join(lines))
    config = paddlevideo_config(root / "list.txt", target_size=48, min_size=64, max_size=80, num_frames=4)
    check_config(config, ONLY_DATA)
    return config


def split_of(config, name):
    return build_dataset(config["DATASET"][name], config["PIPELINE"][name], training=name == "train", seed=3)


@pytest.mark.smoke
def test_ten_spans_of_three_crops(small, frame_number):
    dataset = split_of(small, "test")
    assert (dataset.num_views, dataset.num_crops, dataset.pipeline.normalization[0]) == (10, 3, (0.45,) * 3)
    loader = loader_of(dataset, batch_size=4)
    assert len(loader) == 8  # 30 spans
    batches = list(loader.epoch(0))
    assert [len(batch) for batch in batches] == [12] * 7 + [6]
    clips = np.concatenate([batch.clips for batch in batches])
    assert clips.shape == (90, 4, 48, 48, 3)
    ids = np.concatenate([batch.ids for batch in batches])
    views = np.concatenate([batch.views for batch in batches])
    assert ids.tolist() == np.repeat(np.arange(3), 30).tolist()
    assert views.tolist() == list(range(30)) * 3
    assert (np.concatenate([batch.labels for batch in batches]) == ids).all()

    # a span of 4 frames at rate 2 is 8 of 40: 32 frames of room, the start of span v at 3.2 v
    whole = dataset.open(dataset.records[1])
    for view in range(10):
        wanted = [int(3.2 * view + 7 * step / 3) for step in range(4)]
        frames = whole.read(wanted)
        assert [frame_number(frame) for frame in frames] == wanted
        for crop, left in enumerate((0, 24, 48)):
            expected = frames[:, 8:56, left : left + 48]
            np.testing.assert_array_equal(clips[30 + 3 * view + crop], expected)


@pytest.mark.smoke
def test_validation_is_the_centre_and_training_random(small):
    valid = split_of(small, "valid")
    (batch,) = loader_of(valid, 3).epoch(0)
    (again,) = loader_of(valid, 3).epoch(5)
    np.testing.assert_array_equal(batch.clips, again.clips)
    frames = valid.open(valid.records[0]).read([16, 18, 20, 23])
    # scaled to the middle of 64 and 80, then the middle 48 of it, not mirrored
    for ours, frame in zip(batch.clips[0], frames):
        scaled = cv2.resize(frame, (108, 72))[12:60, 30:78]
        assert np.abs(ours.astype(int) - scaled).mean() < 1
    clips = [next(loader_of(split_of(small, "train"), 3).epoch(epoch)).clips for epoch in range(3)]
    assert (clips[0] != clips[1]).any()
    assert (clips[1] != clips[2]).any()


@pytest.mark.smoke
def test_paddlevideos_sections_load_unchanged(small):
    config = paddlevideo_config(small["DATASET"]["train"]["file_path"])
    check_config(config, ONLY_DATA)
    for name in ("train", "valid", "test"):
        dataset = split_of(config, name)
        assert dataset.pipeline.sample.num_frames == 32
        assert dataset.num_views * dataset.num_crops == (30 if name == "test" else 1)
    sample = split_of(config, "train")[loader_of(split_of(config, "train"), 1).batch_sampler.batches(0)[0][0]]
    assert sample.clip.shape == (32, 224, 224, 3)


def test_decode_sampler_excludes_sample_and_decode():
    config = paddlevideo_config("list.txt")
    config["PIPELINE"]["train"]["sample"] = {"name": "Sampler", "num_seg": 8, "seg_len": 1}
    del config["PIPELINE"]["valid"]["decode_sampler"]
    config["PIPELINE"]["test"]["decode_sampler"]["num_frame"] = 8
    with pytest.raises(ConfigError) as caught:
        check_config(config, ONLY_DATA)
    text = str(caught.value)
    assert "PIPELINE.train.sample: decode_sampler stands for it; keep one of the two" in text
    assert "PIPELINE.valid.decode: this section is missing" in text
    assert "PIPELINE.valid.sample: this section is missing" in text
    assert "unknown key for DecodeSampler; did you mean 'num_frames'?" in text


@pytest.mark.parametrize(
    ("dataset", "sampler", "message"),
    [
        ({"num_spatial_crops": 1}, {}, "num_spatial_crops is 1, but the pipeline makes 3 crops"),
        ({}, {"test_mode": False}, "num_ensemble_views is 10, but the sampler takes the same frames"),
    ],
)
def test_views_that_do_not_fit(small, dataset, sampler, message):
    section = {**small["DATASET"]["test"], **dataset}
    pipeline = dict(small["PIPELINE"]["test"])
    pipeline["decode_sampler"] = {**pipeline["decode_sampler"], **sampler}
    with pytest.raises(LoaderError, match=message):
        build_dataset(section, pipeline, training=False, seed=0)


def test_folders_of_frames_have_views_too(rawframes_dataset):
    sample = {"name": "DecodeSampler", "num_frames": 4, "sampling_rate": 1, "test_mode": True}
    crops = [{"MultiCrop": {"target_size": 16, "test_mode": True}}]
    keys = {"num_ensemble_views": 2, "num_spatial_crops": 3, "data_prefix": str(rawframes_dataset.root)}
    dataset = dataset_of(rawframes_dataset.list_file, sample, crops, format="FrameDataset", **keys)
    batch = next(loader_of(dataset, batch_size=2).epoch(0))
    assert (batch.ids.tolist(), batch.views.tolist()) == ([0] * 6, list(range(6)))
    frames = dataset.open(dataset.records[0]).read([4, 5, 6, 7])  # the second span of 12 frames
    for crop, left in enumerate((0, 32, 64)):
        np.testing.assert_array_equal(batch.clips[3 + crop], frames[:, 16:32, left : left + 16])


def segments(num_frames, num_seg, view, num_views, sampler):
    """Start frames by the definition, one segment after the other."""
    if sampler.select_left:
        length = num_frames / num_seg
        return [int(length * (view + 0.5) / num_views + length * segment) for segment in range(num_seg)]
    step = num_frames // num_seg
    return [segment * step + int((step - 1) * (view + 0.5) / num_views) for segment in range(num_seg)]


@pytest.mark.parametrize(
    ("select_left", "crops", "num_crops"),
    [(True, {"TenCrop": {"target_size": 48}}, 10), (False, {"UniformCrop": {"target_size": 64}}, 3)],
)
def test_views_of_segments_show_the_frames_and_places_they_say(
    small, frame_number, select_left, crops, num_crops
):
    sampler = {"name": "Sampler", "num_seg": 3, "seg_len": 1, "valid_mode": True, "select_left": select_left}
    views = {"num_ensemble_views": 5, "num_spatial_crops": num_crops}
    dataset = dataset_of(small["DATASET"]["train"]["file_path"], sampler, [crops], **views)
    batches = list(loader_of(dataset, batch_size=2).epoch(0))
    clips = np.concatenate([batch.clips for batch in batches])
    side = clips.shape[2]
    assert clips.shape == (3 * 5 * num_crops, 3, side, side, 3)
    assert np.concatenate([batch.views for batch in batches]).tolist() == list(range(5 * num_crops)) * 3
    whole = dataset.open(dataset.records[2])
    for view in range(5):
        wanted = segments(40, 3, view, 5, dataset.pipeline.sample)
        frames = whole.read(wanted)
        assert [frame_number(frame) for frame in frames] == wanted
        if num_crops == 10:  # corners and centre of 96×64, each also mirrored
            places = [(x, y) for y in (0, 16) for x in (0, 48)] + [(24, 8)]
            expected = [frames[:, y : y + 48, x : x + 48] for x, y in places]
            expected = [mirrored for crop in expected for mirrored in (crop, crop[:, :, ::-1])]
        else:
            expected = [frames[:, :, x : x + 64] for x in (0, 32, 16)]
        first = (2 * 5 + view) * num_crops
        for crop, pixels in enumerate(expected):
            np.testing.assert_array_equal(clips[first + crop], pixels)


def test_one_view_of_segments_is_the_validation(small):
    file_path = small["DATASET"]["train"]["file_path"]
    for options in ({"select_left": True}, {}, {"frame_interval": 2}):
        sampler = {"name": "Sampler", "num_seg": 3, "seg_len": 2, "valid_mode": True, **options}
        sample = dataset_of(file_path, sampler).pipeline.sample
        whole = sample.sample(40, 30.0, ClipRequest(0, 0), np.random.default_rng(0))
        views = [
            sample.sample(40, 30.0, ClipRequest(0, 0, view, 3), np.random.default_rng(0)) for view in range(3)
        ]
        np.testing.assert_array_equal(views[1], whole)
        starts = [view[0] for view in views]
        assert starts == sorted(set(starts))

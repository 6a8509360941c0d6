"""`frame_draws` and `scaled_decode` of PIPELINE."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from paddlevideo_fast.decode import open_video
from paddlevideo_fast.decode.frames import decode_image
from paddlevideo_fast.loader import build_dataset
from paddlevideo_fast.loader.annotations import VideoRecord
from paddlevideo_fast.loader.request import ClipRequest, Middle
from tests.support.numbered_clips import draw

DENSE = {"name": "DecodeSampler", "num_frames": 4, "sampling_rate": 2}
SEGMENTS = {"name": "Sampler", "num_seg": 3, "seg_len": 1}


def dataset_of(path, tmp_path, training=True, sample=SEGMENTS, size=32, **keys):
    listed = tmp_path / "some.list"
    listed.write_text(f"{path} 0\n" if path.is_file() else f"{path} 20 0\n")
    pipeline = {
        "decode": {"name": "VideoDecoder" if path.is_file() else "FrameDecoder"},
        "sample": sample,
        "transform": [{"Scale": {"short_size": size}}, {"CenterCrop": {"target_size": size}}],
        **keys,
    }
    section = {"format": "VideoDataset" if path.is_file() else "FrameDataset", "file_path": str(listed)}
    return build_dataset(section, pipeline, training=training, seed=3)


@pytest.fixture(scope="module")
def video(tmp_path_factory, make_clip):
    return make_clip(tmp_path_factory.mktemp("draws") / "clip.mp4", 60, gop=20)


@pytest.mark.parametrize("sample", [SEGMENTS, DENSE])
def test_the_cheapest_draw_is_taken(video, tmp_path, sample):
    one, five = (dataset_of(video, tmp_path, sample=sample, frame_draws=k).pipeline for k in (1, 5))
    record, request = VideoRecord(str(video), (0,)), ClipRequest(0, 0)
    cheaper = 0
    with open_video(video) as reader:
        for seed in range(20):
            rng = np.random.default_rng(seed)
            drawn = [one.sample.sample(reader.num_frames, reader.avg_fps, request, rng) for _ in range(5)]
            costs = [reader.decoding_cost(frames) for frames in drawn]
            plan = five.plan(reader, record, request, np.random.default_rng(seed))
            assert plan.frames.tolist() == drawn[costs.index(min(costs))].tolist()
            alone = one.plan(reader, record, request, np.random.default_rng(seed))
            assert alone.frames.tolist() == drawn[0].tolist()
            cheaper += min(costs) < costs[0]
    assert cheaper > 5


def test_draws_without_effect_are_told(video, tmp_path, caplog):
    assert dataset_of(video, tmp_path, training=False, frame_draws=4).pipeline.frame_draws == 1
    assert "frame_draws has no effect on" in caplog.text
    assert dataset_of(video, tmp_path, scaled_decode=True).pipeline.scaled_decode is False
    assert "scaled_decode has no effect on" in caplog.text


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frames")
    for number in range(20):
        picture = np.ascontiguousarray(draw(number, 161, 131)[..., ::-1])
        cv2.imwrite(str(folder / f"img_{number + 1:05}.jpg"), picture, [cv2.IMWRITE_JPEG_QUALITY, 95])
    return folder


def distance_to_averages(dataset, size):
    """The mean distance of a clip's pixels from frames that were averaged down, and cut in the middle."""
    made = dataset[ClipRequest(0, 0)].clip
    numbers = dataset.pipeline.sample.sample(20, 0.0, ClipRequest(0, 0), Middle())
    wide = 161 * size // 131
    left = round((wide - size) / 2)
    expected = [
        cv2.resize(draw(int(i), 161, 131), (wide, size), interpolation=cv2.INTER_AREA) for i in numbers
    ]
    return np.abs(made.astype(int) - np.stack(expected)[:, :, left : left + size]).mean(), made


@pytest.mark.parametrize(("size", "is_scaled"), [(32, True), (60, True), (80, False)])
def test_jpeg_frames_that_shrink_are_decoded_smaller(frames, tmp_path, monkeypatch, size, is_scaled):
    modes = []
    decode = cv2.imdecode
    monkeypatch.setattr(cv2, "imdecode", lambda data, mode: modes.append(mode) or decode(data, mode))
    keys = {"training": False, "size": size, "sample": {**SEGMENTS, "valid_mode": True}}
    whole, clip = distance_to_averages(dataset_of(frames, tmp_path, **keys), size)
    assert set(modes) == {cv2.IMREAD_COLOR_RGB}
    scaled, other = distance_to_averages(dataset_of(frames, tmp_path, scaled_decode=True, **keys), size)
    assert (cv2.IMREAD_REDUCED_COLOR_2 in modes or cv2.IMREAD_REDUCED_COLOR_4 in modes) == is_scaled
    assert np.array_equal(clip, other) != is_scaled
    assert scaled < 1.1 * whole + 0.5


def test_a_picture_of_another_format_is_decoded_whole_and_averaged():
    picture = draw(7, 161, 131)
    data = cv2.imencode(".png", np.ascontiguousarray(picture[..., ::-1]))[1].tobytes()
    made = decode_image(data, "a picture", 4)
    assert np.array_equal(made, cv2.resize(picture, (41, 33), interpolation=cv2.INTER_AREA))

"""`resample: bilinear`: the pixels of PaddleVideo's and PaddleX's Scale and CenterCrop, written down here."""

import cv2
import numpy as np
import pytest

from paddlevideo_fast.decode import open_video
from paddlevideo_fast.loader import ClipRequest, VideoRecord
from paddlevideo_fast.loader.build import build_pipeline
from paddlevideo_fast.loader.request import MidpointGenerator


def section(short_size, target_size, **more):
    return {
        "sample": {"name": "Sampler", "num_seg": 4, "seg_len": 1, "valid_mode": True},
        "decode": {"name": "VideoDecoder"},
        "transform": [{"Scale": {"short_size": short_size}}, {"CenterCrop": {"target_size": target_size}}],
        **more,
    }


def paddlevideo(frame, short_size, target_size):
    """Scale with a fixed ratio of 4:3, and CenterCrop."""
    height, width = frame.shape[:2]
    if min(height, width) != short_size:
        long_size = int(short_size * 4.0 / 3.0)
        size = (short_size, long_size) if width <= height else (long_size, short_size)
        frame = cv2.resize(frame, size, interpolation=cv2.INTER_LINEAR)
    height, width = frame.shape[:2]
    left, top = int(round((width - target_size) / 2.0)), int(round((height - target_size) / 2.0))
    return frame[top : top + target_size, left : left + target_size]


@pytest.mark.parametrize("size", [(1280, 720), (340, 256), (90, 160), (258, 254), (320, 240)])
@pytest.mark.parametrize(("short_size", "target_size"), [(64, 56), (240, 224)])
def test_it_gives_the_bits_of_a_resize_of_the_whole_frame(make_clip, tmp_path, size, short_size, target_size):
    path = str(make_clip(tmp_path / "clip.mp4", 8, size=size))
    with open_video(path) as reader:
        numbers = [0, 2, 4, 6]
        expected = [paddlevideo(frame, short_size, target_size) for frame in reader.read(numbers)]
    with open_video(path) as reader:
        pipeline = build_pipeline(section(short_size, target_size, resample="bilinear"))
        (clip,) = pipeline(reader, VideoRecord(path, 0), [ClipRequest(0, 0)], [MidpointGenerator()])
    np.testing.assert_array_equal(clip.pixels, expected)


def test_the_default_averages_what_a_large_frame_loses(make_clip, tmp_path):
    path = str(make_clip(tmp_path / "clip.mp4", 8, size=(640, 480)))
    clips = {}
    for mode in (None, "antialias", "bilinear"):
        given = {} if mode is None else {"resample": mode}
        with open_video(path) as reader:
            pipeline = build_pipeline(section(64, 56, **given))
            (clip,) = pipeline(reader, VideoRecord(path, 0), [ClipRequest(0, 0)], [MidpointGenerator()])
            clips[mode] = clip.pixels
    np.testing.assert_array_equal(clips[None], clips["antialias"])
    assert (clips["antialias"] != clips["bilinear"]).any()

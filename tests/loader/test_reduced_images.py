"""JPEGs are decoded at a half or a quarter where the clip has so few pixels, and the clip looks the same."""

import av
import cv2
import numpy as np
import pytest

from paddlevideo_fast.decode import image_folder, open_frames
from paddlevideo_fast.loader import ClipRequest, Pipeline, Sampler, VideoRecord
from paddlevideo_fast.loader.transforms import crop
from paddlevideo_fast.loader.transforms.resample import Resample, View

SIDE = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory, real_clips_dir):
    """Four frames of a real clip, 683×515: no multiple of two or four."""
    folder = tmp_path_factory.mktemp("images")
    with av.open(str(real_clips_dir / "mma_demo.mp4")) as container:
        for number, frame in zip(range(1, 5), container.decode(video=0)):
            large = cv2.resize(frame.to_ndarray(format="bgr24"), (683, 515), interpolation=cv2.INTER_CUBIC)
            cv2.imwrite(str(folder / f"img_{number:05}.jpg"), large, [cv2.IMWRITE_JPEG_QUALITY, 95])
    return folder


def clip_of(folder, steps, mode="antialias", seed=0):
    record = VideoRecord(str(folder), (0,))
    with open_frames(folder) as reader:
        pipeline, rng = Pipeline(Sampler(4, 1), steps, mode), np.random.default_rng(seed)
        return pipeline(reader, record, [ClipRequest(0, 0)], [rng])[0].pixels


@pytest.fixture
def reductions(monkeypatch):
    """The reductions at which images were decoded."""
    used, decode = set(), image_folder.decode_image
    monkeypatch.setattr(
        image_folder, "decode_image", lambda *given: used.add((*given, 1)[2]) or decode(*given)
    )
    return used


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([crop.Scale(72, fixed_ratio=False), crop.CenterCrop(SIDE)], 4),
        ([crop.Scale(150, fixed_ratio=False), crop.UniformCrop((150, 150))], 2),
        (
            [
                crop.RandomCrop(257),
                crop.GroupResize(SIDE, SIDE),
                crop.RandomFlip(1.0),
            ],
            4,
        ),
        ([crop.RandomCrop(255), crop.GroupResize(SIDE, SIDE)], 2),
        ([crop.CenterCrop(256)], 1),
    ],
)
def test_a_smaller_decoding_shows_the_same(folder, reductions, monkeypatch, steps, expected):
    pixels = clip_of(folder, steps)
    assert reductions == {expected}
    monkeypatch.setattr(Resample, "_reduction_of", lambda self, frame: 1)
    whole = clip_of(folder, steps)
    distances = np.abs(pixels.astype(int) - whole)
    assert distances.mean() < 4  # of 255: another filter, half a pixel of the clip beside at most
    assert (distances.max() > 0) == (expected > 1)


def test_bilinear_clips_keep_the_bits_of_whole_images(folder, reductions):
    clip_of(folder, [crop.Scale(72, fixed_ratio=False), crop.CenterCrop(SIDE)], "bilinear")
    assert reductions == {1}


def test_a_smaller_decoding_is_not_moved():
    """A ramp of levels keeps its place, from any beginning of the crop."""
    ramp = np.repeat(np.linspace(0, 255, 256)[None, :, None].round().astype(np.uint8), 256, 0).repeat(3, 2)
    _, data = cv2.imencode(".jpg", ramp, [cv2.IMWRITE_JPEG_QUALITY, 100])
    for left in (0.0, 1.0, 33.0, 50.5):
        resample = Resample([View(left, 10.0, 160.0, 160.0)], 40, 40, 256, 256)
        clip = np.empty((1, 40, 40, 3), np.uint8)
        resample.draw(image_folder.open_image(data.tobytes(), "x.jpg"), clip, [0])
        expected = left + 4 * np.arange(40) + 1.5  # the mean of four levels
        assert np.abs(clip[0, 20, 1:-1, 0] - expected[1:-1]).max() <= 2  # half a pixel of the clip

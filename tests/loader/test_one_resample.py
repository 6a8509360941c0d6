"""The pipeline renders frames while it decodes: the pixels are those of frames that were read before."""

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddlevideo_fast.decode import colour, open_video
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.loader import ClipRequest, DecodeSampler, Pipeline, Sampler, VideoRecord
from paddlevideo_fast.loader.transforms import crop
from paddlevideo_fast.registry import TRANSFORMS


@pytest.fixture(scope="module", autouse=True)
def small_pictures_are_cut_too():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(colour, "_LEAST_SAVED", 0)
        yield


@pytest.fixture(scope="module")
def clip_file(tmp_path_factory, make_clip):
    """A video of 10 frames, 117×90: both sides are no multiples of the blocks that halving works on."""
    return str(make_clip(tmp_path_factory.mktemp("resample") / "clip.mp4", 10, size=(118, 90)))


def steps_of(size, short, spread, flips):
    """Pipelines over all geometric transforms; crops of `size` fit into every one of them."""
    return [
        [crop.MultiScaleCrop(size, allow_duplication=True), crop.RandomFlip(flips)],
        [crop.MultiScaleCrop(size, fix_crop=False)],
        [crop.RandomFlip(flips), crop.RandomCrop(size), crop.RandomFlip(flips)],
        [crop.Scale(short), crop.MultiScaleCrop(short), crop.RandomCrop(size)],
        [crop.Scale(short, fixed_ratio=False), crop.CenterCrop(size, do_round=False)],
        [crop.JitterScale(short, short + spread), crop.MultiCrop(size)],
        [crop.JitterScale(short, short), crop.MultiCrop(size, test_mode=True)],
        [crop.Scale(short, fixed_ratio=False, do_round=True), crop.TenCrop(size)],
        [crop.Scale(size, fixed_ratio=False), crop.UniformCrop(size)],
        [crop.GroupResize(short, short + spread), crop.GroupFullResSample(size, flip=True)],
        [crop.GroupResize(short, short), crop.MultiCenterCrop(size)],
        [crop.RandomResizedCrop(target_size=size), crop.RandomFlip(flips)],
        [crop.RandomResizedCrop((0.5, 1.0), target_size=short), crop.CenterCrop(size)],
        [],
    ]


NUM_RECIPES = len(steps_of(8, 8, 0, 0.5))


def both_ways(path, steps, request, seed):
    """The pipeline's clip, and the one rendered with the same draws from frames that were read before."""
    pipeline = Pipeline(Sampler(3, 1), steps)
    record = VideoRecord(path, 0)
    with open_video(path) as reader:
        ((pixels, num_replaced, _),) = pipeline(reader, record, [request], [np.random.default_rng(seed)])
    assert num_replaced == 0
    rng = np.random.default_rng(seed)
    with open_video(path) as reader:
        plan = pipeline.plan(reader, record, request, rng)
        frames, resample = reader.read(plan.frames.tolist()), plan.geometry.plan()
    expected = np.empty(resample.shape(len(frames)), np.uint8)
    for place, frame in enumerate(frames):
        resample.draw(frame, expected, [place])
    return pixels, expected


@pytest.mark.smoke
@settings(max_examples=15, deadline=None)
@pytest.mark.parametrize("recipe", range(NUM_RECIPES))
@given(
    size=st.integers(6, 56),
    room=st.integers(0, 120),  # with it frames are also enlarged; without, shrunk up to eight times
    spread=st.integers(0, 30),
    flips=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_frames_that_are_decoded_meanwhile_give_the_same_pixels(
    clip_file, recipe, size, room, spread, flips, seed
):
    steps = steps_of(size, size + room, spread, flips)[recipe]
    ours, expected = both_ways(clip_file, steps, ClipRequest(0, 0), seed)
    np.testing.assert_array_equal(ours, expected)


@given(crop_size=st.integers(7, 80), seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_so_it_is_at_the_crop_size_of_a_request(clip_file, crop_size, seed):
    steps = [crop.JitterScale(64, 80), crop.MultiCrop(56), crop.RandomFlip()]
    ours, expected = both_ways(clip_file, steps, ClipRequest(0, 0, crop_size=crop_size), seed)
    assert ours.shape[1:3] == (crop_size, crop_size)
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.smoke
@pytest.mark.annex
def test_the_clip_is_written_where_it_is_wanted(clip_file):
    colours = TRANSFORMS.get("ColorJitter")(0.5, p=1)
    steps = [crop.JitterScale(64, 80), crop.MultiCrop(56), crop.RandomFlip(), colours]
    pipeline = Pipeline(Sampler(3, 1), steps)

    def read(out=None):
        with open_video(clip_file) as reader:
            record, rng = VideoRecord(clip_file, 0), np.random.default_rng(7)
            (clip,) = pipeline(reader, record, [ClipRequest(0, 0)], [rng], [out])
            return clip.pixels

    alone = read()
    batch = np.full((2, 3, 56, 56, 3), 7, np.uint8)
    pixels = read(batch[1])
    assert np.shares_memory(pixels, batch)
    np.testing.assert_array_equal(batch[1], alone)
    assert (batch[0] == 7).all()
    # one of another shape stays as it is: the batch tells that its clips differ
    other = read(batch[:, 0])
    np.testing.assert_array_equal(other, alone)
    assert (batch[0] == 7).all()


@pytest.mark.parametrize(("odd_one", "view"), [(2, 0), (1, 1)])
def test_frames_of_two_sizes_are_an_error(tmp_path, odd_one, view):
    """Also where the size that all geometry starts from is that of a frame which is not read (view 1)."""
    for number in range(1, 7):
        size = (60, 80) if number == odd_one else (64, 96)
        cv2.imwrite(str(tmp_path / f"img_{number:05}.jpg"), np.full((*size, 3), 40 * number, np.uint8))
    sampler = DecodeSampler(num_frames=2, sampling_rate=1, test_mode=True)
    pipeline = Pipeline(sampler, [crop.CenterCrop(32)])
    record = VideoRecord(str(tmp_path), 0)
    with open_video(tmp_path) as reader, pytest.raises(VideoDecodeError, match="frame size changes"):
        pipeline(reader, record, [ClipRequest(0, 0, view, 2)], [np.random.default_rng(0)])

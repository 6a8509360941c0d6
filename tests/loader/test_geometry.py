"""The one resample against its steps, each run on pixels."""

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddlevideo_fast.loader import TransformError
from paddlevideo_fast.loader.transforms import ClipGeometry
from paddlevideo_fast.loader.transforms.crop import MultiScaleCrop


class Steps:
    """The same calls as `ClipGeometry`, on pixels at once."""

    def __init__(self, frames):
        self.frames = list(frames)

    def resize(self, width, height):
        self.frames = [cv2.resize(frame, (width, height)) for frame in self.frames]

    def crop(self, left, top, width, height):
        self.frames = [frame[top : top + height, left : left + width] for frame in self.frames]

    def flip(self):
        self.frames = [frame[:, ::-1] for frame in self.frames]


def rendered(geometry, frames):
    """The clip out of whole frames."""
    resample = geometry.plan()
    clip = np.empty(resample.shape(len(frames)), np.uint8)
    for place, frame in enumerate(frames):
        resample.draw(frame, clip, [place])
    return clip


def both(frames, *calls):
    geometry = ClipGeometry(frames.shape[2], frames.shape[1])
    steps = Steps(frames)
    for name, *arguments in calls:
        getattr(geometry, name)(*arguments)
        getattr(steps, name)(*arguments)
    return rendered(geometry, frames), np.stack(steps.frames)


@given(st.data())
@settings(max_examples=40)
def test_pure_crops_and_flips_are_exact(data):
    frames = np.random.default_rng(0).integers(0, 256, (2, 40, 50, 3), dtype=np.uint8)
    calls, width, height = [], 50, 40
    for _ in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):
            calls.append(("flip",))
            continue
        new_width, new_height = data.draw(st.integers(1, width)), data.draw(st.integers(1, height))
        left = data.draw(st.integers(0, width - new_width))
        top = data.draw(st.integers(0, height - new_height))
        calls.append(("crop", left, top, new_width, new_height))
        width, height = new_width, new_height
    ours, stepwise = both(frames, *calls)
    np.testing.assert_array_equal(ours, stepwise)


@pytest.mark.smoke
@pytest.mark.parametrize("short", [192, 240, 256, 288, 300, 320, 331])
@pytest.mark.parametrize("flip_first", [False, True])
def test_resize_and_crop_equal_the_steps(real_frames, short, flip_first):
    height, width = real_frames.shape[1:3]
    size = (width * short // height, short)
    left, top = (size[0] - 168) * 2 // 3, (size[1] - 168) // 3
    calls = [("resize", *size), ("crop", left, top, 168, 168)]
    ours, stepwise = both(real_frames, *([("flip",), *calls] if flip_first else [*calls, ("flip",)]))
    assert ours.shape == stepwise.shape
    difference = np.abs(ours.astype(int) - stepwise)
    assert difference.mean() < 0.6
    assert difference.max() <= 16  # of 255, at edges as sharp as one pixel: a shift of 1/16 of it


def test_crop_then_resize_is_one_plain_resize(real_frames):
    # cv2.resize to the half averages 2×2 pixels
    ours, stepwise = both(real_frames, ("crop", 31, 7, 100, 90), ("resize", 50, 45))
    assert np.abs(ours.astype(int) - stepwise).max() <= 1
    ours, stepwise = both(real_frames, ("crop", 31, 7, 100, 90), ("resize", 80, 60))
    np.testing.assert_array_equal(ours, stepwise)


def test_large_frames_are_averaged_down(real_frames):
    """A pattern finer than the output turns grey and does not flicker."""
    board = np.indices((480, 640)).sum(0) % 2 * 255
    frames = np.repeat(board[None, ..., None], 3, -1).astype(np.uint8)
    geometry = ClipGeometry(640, 480)
    geometry.resize(149, 112)
    clip = rendered(geometry, frames)
    assert clip.min() >= 120
    assert clip.max() <= 135


def test_a_box_is_in_source_pixels():
    geometry = ClipGeometry(340, 256)
    geometry.resize(425, 320)
    geometry.crop(100, 48, 224, 224)
    view = geometry.views[0]
    assert (view.left, view.top, view.width, view.height) == pytest.approx((80, 38.4, 179.2, 179.2))


def test_a_crop_that_does_not_fit():
    geometry = ClipGeometry(320, 180)
    with pytest.raises(TransformError, match="224×224 does not fit into a frame of 320×180"):
        geometry.crop(0, 0, 224, 224)
    with pytest.raises(TransformError, match="starts outside"):
        geometry.crop(-1, 0, 100, 100)


@pytest.mark.parametrize("size", [(1, 9), (9, 1), (30, 40), (47, 31)])
def test_multi_scale_crops_lie_inside_small_frames(size):
    for seed in range(60):
        geometry = ClipGeometry(*size)
        MultiScaleCrop(32).apply(geometry, np.random.default_rng(seed))
        (view,) = geometry.views
        assert 0 <= view.left < view.left + view.width <= size[0]
        assert 0 <= view.top < view.top + view.height <= size[1]

"""Transforms of colours, by their pixels."""

import numpy as np
import pytest

from paddlevideo_fast.extensions.augmentation import colours
from paddlevideo_fast.loader import LoaderError
from paddlevideo_fast.registry import TRANSFORMS
from tests.loader.conftest import real_frames  # noqa: F401


@pytest.mark.parametrize("keys", [{"hue": [-0.7, 0.1]}, {"brightness": -1}])
def test_impossible_strengths(keys):
    with pytest.raises(LoaderError):
        colours.ColorJitter(**keys)


@pytest.fixture
def clip(real_frames):  # noqa: F811
    return np.ascontiguousarray(real_frames[:, 50:106, 60:116])


def test_colour_adjustments(clip):
    def changed(adjust, value):
        copy = clip.copy()
        adjust(copy, value)
        return copy.astype(int)

    original = clip.astype(int)
    np.testing.assert_array_equal(changed(colours.adjust_brightness, 0.5), np.rint(original * 0.5))
    np.testing.assert_array_equal(changed(colours.adjust_brightness, 2), np.minimum(original * 2, 255))
    flat = changed(colours.adjust_contrast, 0)
    assert all(len(np.unique(frame)) == 1 for frame in flat)
    grey = changed(colours.adjust_saturation, 0)
    assert (grey == grey[..., :1]).all()
    for adjust in (colours.adjust_contrast, colours.adjust_saturation, colours.adjust_gamma):
        assert np.abs(changed(adjust, 1.0) - original).max() <= 1
    assert np.abs(changed(colours.adjust_hue, 0.0) - original).max() <= 6
    assert (
        changed(colours.adjust_gamma, 0.8).mean()
        > original.mean()
        > changed(colours.adjust_gamma, 1.2).mean()
    )
    red = np.zeros((1, 4, 4, 3), np.uint8) + np.array([200, 0, 0], np.uint8)
    colours.adjust_hue(red, 1 / 3)
    assert red[0, 0, 0].tolist() == pytest.approx([0, 200, 0], abs=6)


@pytest.mark.parametrize("name", ["RandomBrightness", "RandomSaturation", "RandomHue", "RandomGamma"])
def test_random_colours(name, clip):
    def run(p, seed):
        copy = clip.copy()
        TRANSFORMS.get(name)(p=p).apply(copy, np.random.default_rng(seed))
        return copy

    np.testing.assert_array_equal(run(0.0, 1), clip)
    assert (run(1.0, 1) != clip).any()
    np.testing.assert_array_equal(run(1.0, 1), run(1.0, 1))
    assert (run(1.0, 1) != run(1.0, 2)).any()


def test_colour_jitter_changes_all_frames_alike(clip):
    still = np.repeat(clip[:1], 4, axis=0)
    colours.ColorJitter(0.4, 0.4, 0.4, 0.1, p=1.0).apply(still, np.random.default_rng(0))
    assert (still == still[:1]).all()
    assert (still[0] != clip[0]).any()

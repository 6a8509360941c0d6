"""RandAugment's operations against PIL, its draws, and the rectangles of random erasing."""

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from paddlevideo_fast.errors import LoaderError
from paddlevideo_fast.extensions.augmentation.transforms import OPERATIONS, RandAugment, RandomErasing

FILL = (124, 116, 104)
rng = np.random.default_rng(4)
# smooth, so that the rounding of positions hardly matters, and not of the whole range
y, x = np.mgrid[0:40, 0:52]
SMOOTH = np.stack([60 + 2.5 * x, 200 - 3 * y, 90 + x + 1.5 * y], -1).astype(np.uint8)
NOISE = rng.integers(20, 230, (40, 52, 3)).astype(np.uint8)


def done(name, share, *frames):
    clip = np.stack(frames)
    OPERATIONS[name](clip, share, FILL)
    return clip


def moved(matrix):
    return lambda image: image.transform(
        image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR
    )


def enhanced(kind):
    return lambda share: lambda image: kind(image).enhance(1 + 0.9 * share)


BY_PIL = {  # share of the magnitude → what PIL does to an image
    "AutoContrast": lambda share: ImageOps.autocontrast,
    "Equalize": lambda share: ImageOps.equalize,
    "Invert": lambda share: ImageOps.invert,
    "Rotate": lambda share: lambda image: image.rotate(30 * share, Image.Resampling.BILINEAR),
    "Posterize": lambda share: lambda image: ImageOps.posterize(image, max(4 - int(4 * abs(share)), 1)),
    "Solarize": lambda share: lambda image: ImageOps.solarize(image, 256 - int(256 * abs(share))),
    "SolarizeAdd": lambda share: (
        lambda image: image.point(
            [value + int(110 * abs(share)) if value < 128 else value for value in range(256)] * 3
        )
    ),
    "Color": enhanced(ImageEnhance.Color),
    "Contrast": enhanced(ImageEnhance.Contrast),
    "Brightness": enhanced(ImageEnhance.Brightness),
    "Sharpness": enhanced(ImageEnhance.Sharpness),
    "ShearX": lambda share: moved((1, 0.3 * share, 0, 0, 1, 0)),
    "ShearY": lambda share: moved((1, 0, 0, 0.3 * share, 1, 0)),
    "TranslateX": lambda share: moved((1, 0, 0.45 * share * 52, 0, 1, 0)),
    "TranslateY": lambda share: moved((1, 0, 0, 0, 1, 0.45 * share * 40)),
}
EXACT = ("AutoContrast", "Equalize", "Invert", "Posterize", "Solarize", "SolarizeAdd")
MOVES = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")


@pytest.mark.parametrize("share", [-0.85, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_operations_are_pils(name, share):
    by_pil = BY_PIL[name](share)
    for frame in [SMOOTH] if name in MOVES else [SMOOTH, NOISE, np.full_like(NOISE, 77)]:
        ours = done(name, share, frame)[0].astype(int)
        theirs = np.asarray(by_pil(Image.fromarray(frame))).astype(int)
        shown = np.full(frame.shape, True)
        if name in MOVES:  # inside of what is shown; PIL and OpenCV differ in how the edge goes over
            cover = by_pil(Image.new("L", (52, 40), 255)).filter(ImageFilter.MinFilter(5))
            shown = np.repeat((np.asarray(cover) > 0)[..., None], 3, axis=-1)
            shown[[0, 1, -2, -1]] = shown[:, [0, 1, -2, -1]] = False
            gone = by_pil(Image.new("L", (52, 40), 255)).filter(ImageFilter.MaxFilter(5))
            assert (ours[np.asarray(gone) == 0] == FILL).all()
            assert shown.sum() > 1000
        assert np.abs(ours - theirs)[shown].max() <= (0 if name in EXACT else 2)


@pytest.mark.parametrize("name", OPERATIONS)
def test_all_frames_of_a_clip_change_alike(name):
    """Each frame as by itself; what an operation measures in a frame (its contrast) is that frame's."""
    together = done(name, 0.7, SMOOTH, NOISE, SMOOTH)
    np.testing.assert_array_equal(together[0], together[2])
    np.testing.assert_array_equal(together[1], done(name, 0.7, NOISE)[0])


def test_draws_of_rand_augment():
    step = RandAugment(num_ops=3, magnitude=6, magnitude_std=0.5, p=0.4)
    drawn = [step.draw(np.random.default_rng(seed)) for seed in range(800)]
    assert {len(steps) for steps in drawn} == {0, 1, 2, 3}
    flat = [item for steps in drawn for item in steps]
    assert len(flat) / 2400 == pytest.approx(0.4, abs=0.05)
    assert {name for name, _ in flat} == set(OPERATIONS)
    shares = np.array([share for _, share in flat])
    assert np.mean(shares < 0) == pytest.approx(0.5, abs=0.06)
    assert np.abs(shares).mean() == pytest.approx(0.6, abs=0.01)
    assert np.abs(shares).std() == pytest.approx(0.05, abs=0.01)
    assert np.abs([share for _, share in RandAugment(99, 10, 3.0, p=1.0).draw(rng)]).max() == 1.0
    clips = [np.stack([NOISE, NOISE]) for _ in range(2)]
    for clip in clips:
        RandAugment(p=1.0).apply(clip, np.random.default_rng(8))
    np.testing.assert_array_equal(clips[0], clips[1])
    assert (clips[0] != NOISE).any()


@pytest.mark.parametrize("mode", ["const", "pixel"])
def test_random_erasing(mode):
    step = RandomErasing(p=0.5, mode=mode, min_area=0.1, max_area=0.3, min_aspect=0.5)
    step.normalization = ((0.2, 0.4, 0.6), (0.1, 0.1, 0.1))
    erased, painted = 0, []
    for seed in range(120):
        clip = np.full((3, 40, 52, 3), 255, np.uint8)
        step.apply(clip, np.random.default_rng(seed))
        changed = (clip != 255).any((0, 3))
        if not changed.any():
            continue
        erased += 1
        rows, columns = changed.any(1).nonzero()[0], changed.any(0).nonzero()[0]
        box = clip[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        assert (box != 255).any(-1).all()  # whole, and the same in all frames
        assert 0.09 < box[0, ..., 0].size / (40 * 52) < 0.31
        assert 0.45 < box.shape[1] / box.shape[2] < 2.2
        painted.append(box.reshape(-1, 3))
    assert 40 < erased < 80
    pixels = np.concatenate(painted).astype(float)
    np.testing.assert_allclose(pixels.mean(0), [51, 102, 153], atol=0.5)
    np.testing.assert_allclose(pixels.std(0), 0 if mode == "const" else 25.5, atol=0.5)


def test_random_erasing_refuses_areas_that_do_not_rise():
    with pytest.raises(LoaderError, match=r"min_area 0.5 <= max_area 0.2"):
        RandomErasing(min_area=0.5, max_area=0.2)

"""Each transform by its geometry."""

import numpy as np
import pytest

from paddlevideo_fast.loader import ClipRequest, LoaderError, Pipeline, Sampler, TransformError, VideoRecord
from paddlevideo_fast.loader.transforms import ClipGeometry, color, crop


def after(step, width, height, seed=0, factor=1.0):
    geometry = ClipGeometry(width, height, factor)
    step.apply(geometry, np.random.default_rng(seed))
    return geometry


def boxes(geometry):
    return [(view.left, view.top, view.flip) for view in geometry.views]


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("arguments", "source", "expected"),
    [
        ({}, (340, 256), (320, 240)),
        ({}, (256, 340), (240, 320)),
        ({"fixed_ratio": False}, (641, 480), (320, 240)),
        ({"fixed_ratio": False, "do_round": True}, (641, 480), (321, 240)),
        ({"fixed_ratio": False, "keep_ratio": True}, (480, 641), (240, 320)),
        ({"fixed_ratio": False, "keep_ratio": False}, (640, 480), (240, 240)),
        ({}, (400, 240), (400, 240)),  # has the size already
    ],
)
def test_scale(arguments, source, expected):
    geometry = after(crop.Scale(240, **arguments), *source)
    assert (geometry.width, geometry.height) == expected


def test_jitter_scale():
    sizes = {after(crop.JitterScale(30, 34), 100, 60, seed).height for seed in range(60)}
    assert sizes == {30, 31, 32, 33, 34}
    geometry = after(crop.JitterScale(30, 30), 60, 100)
    assert (geometry.width, geometry.height) == (30, 50)


@pytest.mark.parametrize(("do_round", "left"), [(True, 2), (False, 1)])
def test_center_crop(do_round, left):
    geometry = after(crop.CenterCrop(57, do_round), 60, 57)
    assert boxes(geometry) == [(left, 0, False)]


def test_random_crop_reaches_all_places():
    seen = {boxes(after(crop.RandomCrop(30), 32, 31, seed))[0][:2] for seed in range(80)}
    assert seen == {(left, top) for left in range(3) for top in range(2)}


def test_random_flip():
    flips = [after(crop.RandomFlip(), 9, 9, seed).views[0].flip for seed in range(200)]
    assert 60 < sum(flips) < 140
    assert after(crop.RandomFlip(p=1.0), 9, 9).views[0].flip
    assert not after(crop.RandomFlip(p=0.0), 9, 9).views[0].flip


def test_multi_scale_crop():
    """Sizes are pairs of neighbouring scales."""
    sides = {index: int(100 * scale) for index, scale in enumerate([1, 0.875, 0.75, 0.66])}
    pairs = {(w, h) for i, w in sides.items() for j, h in sides.items() if abs(i - j) <= 1}
    seen = set()
    for seed in range(400):
        geometry = after(crop.MultiScaleCrop(56), 130, 100, seed)
        assert (geometry.width, geometry.height) == (56, 56)
        (view,) = geometry.views
        seen.add((view.width, view.height))
    assert seen == pairs


def test_settings_without_effect_are_told(caplog):
    color.Image2Array()
    Sampler(8, 1, dense_sample=True)
    assert caplog.messages == []
    color.Image2Array(transpose=False)
    Sampler(8, 1, select_left=True, dense_sample=True)
    Sampler(8, 1, frame_interval=2, linspace_sample=True, dense_sample=True)
    assert caplog.messages == [
        "Image2Array: transpose and data_format have no effect: the network says how its axes lie",
        "Sampler: dense_sample without effect: select_left comes first",
        "Sampler: linspace_sample and dense_sample without effect: frame_interval comes first",
    ]


def test_multi_scale_crop_places():
    few = crop.MultiScaleCrop(56, [1], more_fix_crop=False)
    assert {boxes(after(few, 96, 56, seed))[0][0] for seed in range(60)} == {0, 20, 40}
    corners = {(0, 0), (40, 0), (0, 20), (40, 20), (20, 10)}
    edges = {(20, 0), (20, 20), (0, 10), (40, 10)}
    between = {(10, 5), (30, 5), (10, 15), (30, 15)}
    for more, expected in ((False, corners), (True, corners | edges | between)):
        step = crop.MultiScaleCrop(56, [2 / 3], more_fix_crop=more)
        seen = {boxes(after(step, 80, 60, seed))[0][:2] for seed in range(200)}
        assert seen == expected
    free = crop.MultiScaleCrop(56, [1], fix_crop=False)
    assert {boxes(after(free, 60, 56, seed))[0][0] for seed in range(60)} == {0, 1, 2, 3, 4}
    # a side within 2 pixels of the target becomes the target: no resize
    near = after(crop.MultiScaleCrop(57, [1]), 80, 58)
    assert near.views[0].width == 57


def test_random_resized_crop():
    for seed in range(50):
        geometry = after(crop.RandomResizedCrop((0.1, 0.5), (0.5, 2.0), 56), 120, 90, seed)
        (view,) = geometry.views
        assert (geometry.width, geometry.height) == (56, 56)
        assert 0.08 < view.width * view.height / (120 * 90) < 0.52
        assert 0.45 < view.width / view.height < 2.2
    places = set()  # in a frame that leaves a pixel of room, or none
    for seed in range(80):
        (view,) = after(crop.RandomResizedCrop((0.82, 1.0), (1.0, 1.0), 8), 10, 10, seed).views
        places.add((view.width, view.left, view.top))
    assert places == {(10, 0, 0), *((9, left, top) for left in range(2) for top in range(2))}
    (view,) = after(crop.RandomResizedCrop((0.9, 1.0), (9.0, 9.0), 8), 30, 10).views  # none of the ten fits
    assert (view.left, view.top, view.width, view.height) == (10, 0, 10, 10)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (crop.TenCrop(40), [(x, y) for x, y in ((0, 0), (60, 0), (0, 20), (60, 20), (30, 10))] * 2),
        (crop.UniformCrop(60), [(0, 0), (40, 0), (20, 0)]),
        (crop.UniformCrop([100, 20]), [(0, 0), (0, 40), (0, 20)]),
        (crop.GroupFullResSample(40), [(0, 10), (60, 10), (30, 10)]),
        (crop.GroupFullResSample(40, flip=True), [(0, 10), (60, 10), (30, 10)] * 2),
        (crop.MultiCenterCrop(40), [(30, 10), (0, 10), (60, 10)]),
        (crop.MultiCrop(40, test_mode=True), [(0, 10), (30, 10), (60, 10)]),
    ],
)
def test_multi_view_crops(step, expected):
    geometry = after(step, 100, 60)
    assert len(geometry.views) == step.num_views == len(expected)
    assert sorted(box[:2] for box in boxes(geometry)) == sorted(expected)
    flips = sum(view.flip for view in geometry.views)
    assert flips == (step.num_views // 2 if step.num_views in (6, 10) else 0)


def test_uniform_crop_needs_a_filled_side():
    with pytest.raises(TransformError, match="short_size 40"):
        after(crop.UniformCrop(40), 100, 60)


def test_a_request_scales_all_sizes():
    class Video:
        num_frames, avg_fps, width, height = 9, 25.0, 80, 60
        square_size = (width, height)

    steps = [crop.JitterScale(64, 64), crop.RandomCrop(56)]
    pipeline = Pipeline(Sampler(1, 1), steps)
    request, rng = ClipRequest(0, 0, crop_size=28), np.random.default_rng(0)
    geometry = pipeline.plan(Video, VideoRecord("clip.mp4", 0), request, rng).geometry
    assert (geometry.width, geometry.height) == (28, 28)
    assert geometry.views[0].height == pytest.approx(60 * 28 / 32)


def test_normalization():
    step = color.Normalization([0.4, 0.5, 0.6], [0.2, 0.2, 0.2])
    assert step.mean == (0.4, 0.5, 0.6)
    in_bytes = color.Normalization([51, 102, 153], [51, 51, 51], inplace=True)
    assert in_bytes.mean == pytest.approx((0.2, 0.4, 0.6))
    assert in_bytes.std == pytest.approx((0.2, 0.2, 0.2))


@pytest.mark.parametrize(
    "make",
    [
        lambda: crop.Scale(240, keep_ratio=True),
        lambda: crop.JitterScale(320, 256),
        lambda: crop.RandomResizedCrop(area_range=(0.5, 1.5)),
        lambda: color.Normalization([0.5], [0.5]),
        lambda: color.Normalization([0.5] * 3, [0.0] * 3),
    ],
)
def test_impossible_arguments(make):
    with pytest.raises(LoaderError):
        make()

"""Clips through DALI beside those of the video loader, on decoded videos."""

import gc
import re
import threading
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from paddlevideo_fast.extensions.dali.graph import require_codec
from paddlevideo_fast.loader import ClipRequest, LoaderError, TransformError
from paddlevideo_fast.loader.pipeline import VideoFacts
from tests.loader import building
from tests.support.dali_codecs import MAKE, WHERE, HostLoader, clip_for_dali, encoder, no_dali

if reason := no_dali():
    pytest.skip(reason, allow_module_level=True)

NUM_CLIPS = 6
# Colour conversions differ by 2.5 levels on average in these clips, and DALI shrinks with a wider filter.
TOLERANCE = 4.0
SEGMENTS = {"name": "Sampler", "num_seg": 4, "seg_len": 1}
SPAN = {"name": "DecodeSampler", "num_frames": 4, "sampling_rate": 2}
CROPS = [{"MultiScaleCrop": {"target_size": 48}}, {"RandomFlip": None}]
NORMALIZATION = {"Normalization": {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}}


@pytest.fixture(scope="module")
def root(tmp_path_factory, make_clip):
    """Six clips of 20 to 25 frames, 96×64, and their list."""
    root = tmp_path_factory.mktemp("dali")
    for number in range(NUM_CLIPS):
        clip_for_dali(make_clip, root / f"{number}.mp4", 20 + number, size=(96, 64))
    (root / "clips.list").write_text("".join(f"{number}.mp4 {number % 3}\n" for number in range(NUM_CLIPS)))
    return root


def dataset_of(root, sample=SEGMENTS, transform=CROPS, training=True, name="clips.list", **more):
    steps = [*transform, NORMALIZATION]
    return building.dataset_of(root / name, sample, steps, training, seed=7, data_prefix=str(root), **more)


def loader_of(dataset, batch_size=4):
    return HostLoader(building.loader_of(dataset, batch_size, num_workers=2, make=MAKE))


def both(dataset, epoch=0):
    """The epoch's batches through DALI, and through our own reader."""
    return list(loader_of(dataset).epoch(epoch)), list(building.loader_of(dataset, 4).epoch(epoch))


def difference(one, other):
    return np.abs(one.clips.astype(int) - other.clips).mean()


def check_same(dataset, tolerance=TOLERANCE):
    dali, ours = both(dataset)
    assert [len(batch) for batch in dali] == [len(batch) for batch in ours]
    for one, other in zip(dali, ours):
        for name in ("labels", "ids", "views"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert (one.clips.shape, one.clips.dtype, one.failures) == (other.clips.shape, np.uint8, [])
        assert difference(one, other) < tolerance
    return dali, ours


def test_training_clips_are_those_of_the_video_loader(root):
    dali, ours = check_same(dataset_of(root))
    assert [len(batch) for batch in dali] == [4, 2]
    mirrored = type(ours[0])(ours[0].clips[:, :, :, ::-1], *(None,) * 3)
    later = next(iter(both(dataset_of(root), epoch=1)[1]))
    assert min(difference(dali[0], mirrored), difference(dali[0], later)) > 3 * TOLERANCE


def test_a_mirrored_clip_has_the_label_of_its_mirror_image(root):
    dataset = dataset_of(root, transform=[CROPS[0], {"RandomFlip": {"swapped_labels": [[0, 1]]}}])
    dali, _ = check_same(dataset)
    own = [dataset.records[index].label for batch in dali for index in batch.ids]
    given = [label for batch in dali for label in batch.labels]
    assert any(label != before for label, before in zip(given, own))
    assert all(label == before for label, before in zip(given, own) if before == 2)


@pytest.mark.parametrize(
    ("sample", "transform"),
    [
        ({**SEGMENTS, "seg_len": 2}, [{"RandomCrop": {"target_size": 40}}, {"RandomFlip": None}]),
        ({**SEGMENTS, "dense_sample": True}, CROPS),
        (SPAN, [{"RandomResizedCrop": {"target_size": 48}}]),
        (SEGMENTS, [{"JitterScale": {"min_size": 50, "max_size": 80}}, {"MultiCrop": {"target_size": 48}}]),
        (SEGMENTS, [{"Scale": {"short_size": 56}}, {"UniformCrop": {"target_size": 56}}]),
        (SEGMENTS, [{"TenCrop": {"target_size": 40}}]),
    ],
    ids=["tsn", "dense", "slowfast", "jitter-scale", "three views", "ten views"],
)  # fmt: skip
@pytest.mark.parametrize("training", [True, False])
def test_samplers_and_crops(root, sample, transform, training):
    if not training and sample["name"] == "Sampler":
        sample = {**sample, "valid_mode": True}
    check_same(dataset_of(root, sample, transform, training))


def test_the_frames_are_the_ones_drawn(root, frame_number):
    """Unscaled, so that the numbers can be read: DALI's frames are those that our sampler asked for."""
    dataset = dataset_of(root, transform=[])
    for batch in loader_of(dataset).epoch(2):
        for clip, index in zip(batch.clips, batch.ids):
            ([request], [rng]), *_ = dataset.attempts([ClipRequest(int(index), 2)])
            expected = dataset.pipeline.sample.sample(20 + index, 25.0, request, rng)
            assert [frame_number(frame) for frame in clip] == expected.tolist()


def test_an_epoch_resumed_in_the_middle_is_the_same_epoch(root):
    jitter = {"ColorJitter": {"brightness": 0.4, "hue": 0.2}}
    loader = loader_of(dataset_of(root, transform=[*CROPS, jitter]), batch_size=2)
    whole = list(loader.epoch(5))
    resumed = loader_of(loader.dataset, batch_size=2)
    first = next(resumed.epoch(5))  # left early, which an interrupted run does
    for one, other in zip([first, *resumed.epoch(5, start_batch=1)], whole):
        np.testing.assert_array_equal(one.clips, other.clips)
        np.testing.assert_array_equal(one.ids, other.ids)
    loader.close()


def test_no_pipeline_is_left_to_forked_workers(root, damaged):
    """Where one is collected, it waits for threads that only this process has."""
    from nvidia.dali.pipeline import Pipeline

    loader = loader_of(dataset_of(root, name="damaged.list"))
    list(loader.epoch(1))  # with one that failed
    next(loader.epoch(1))  # and one that is left early
    alive = [pipeline() for pipeline in Pipeline._pipes]
    assert len(alive) == 1
    loader.close()
    assert not Pipeline._pipes


def test_an_epoch_that_is_dropped_ends_at_once(root):
    """Not in the garbage collector, which runs in any thread and would wait there for the epoch's own."""
    list(loader_of(dataset_of(root)).epoch(0))  # on a GPU, the driver begins threads of its own
    gc.disable()
    try:
        before = threading.active_count()
        next(loader_of(dataset_of(root), batch_size=1).epoch(0))
        assert threading.active_count() == before
    finally:
        gc.enable()


def test_views_that_are_clips_of_their_own(root):
    """SlowFast's test: crops become samples of the batch, for a network that takes [N, C, T, H, W]."""
    dataset = dataset_of(
        root,
        {**SPAN, "test_mode": True},
        [{"MultiCrop": {"target_size": 64, "test_mode": True}}],
        training=False,
        format="SFVideoDataset",
        num_ensemble_views=2,
    )
    check_same(dataset)
    batch = next(loader_of(dataset).epoch(0))
    assert batch.clips.shape == (12, 4, 64, 64, 3)
    assert (batch.ids.tolist(), batch.views.tolist()) == ([0] * 6 + [1] * 6, [0, 1, 2, 3, 4, 5] * 2)


def jittered(root, **jitter):
    crop = [{"RandomCrop": {"target_size": 60}}]
    return dataset_of(root, transform=[*crop, {"ColorJitter": {**jitter, "p": 1.0}}] if jitter else crop)


@pytest.mark.parametrize(
    "jitter",
    [
        {"brightness": 0.5},
        {"contrast": 0.5},
        {"saturation": (0.0, 0.1)},
        {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4},
    ],
    ids="+".join,
)
def test_jitter(root, jitter):
    dali, _ = check_same(jittered(root, **jitter))
    plain, _ = both(jittered(root))
    assert max(difference(one, other) for one, other in zip(dali, plain)) > 2 * TOLERANCE


def test_hue(root):
    """DALI turns colours in YIQ, we in HSV: the angle is the same to some degrees, the strength is not."""

    def angles(batch):
        hsv = cv2.cvtColor(batch.clips.reshape(-1, 60, 3), cv2.COLOR_RGB2HSV_FULL).astype(int)
        return hsv[..., 0], hsv[..., 1] > 80

    dali, ours = both(jittered(root, hue=(0.2, 0.3)))
    plain, _ = both(jittered(root))
    for one, other, still in zip(dali, ours, plain):
        (hue, strong), (expected, _), (before, colourful) = map(angles, (one, other, still))
        seen = strong & colourful
        assert seen.sum() > 1000
        error, turn = ((hue - value + 128) % 256 - 128 for value in (expected, before))
        assert np.abs(error[seen]).mean() < 20
        assert 40 < turn[seen].mean() < 90


@pytest.fixture
def damaged(root, tmp_path):
    """A list whose third clip opens, and does not decode to its end; and the path of that clip."""
    data = bytearray((root / "2.mp4").read_bytes())
    start = data.index(b"mdat")
    size = int.from_bytes(data[start - 4 : start], "big")
    data[start + size // 2 : start + size - 4] = bytes(size - 4 - size // 2)
    (root / "damaged.mp4").write_bytes(data)
    lines = (root / "clips.list").read_text().replace("2.mp4", "damaged.mp4")
    (root / "damaged.list").write_text(lines)
    return str(root / "damaged.mp4")


def test_a_damaged_file_is_replaced_in_training(root, damaged):
    dataset = dataset_of(root, name="damaged.list")
    batches = list(loader_of(dataset).epoch(1))
    (failure,) = [failure for batch in batches for failure in batch.failures]
    assert failure[0] == damaged
    assert "DALI" in failure[1]
    assert "\n" not in failure[1]
    # the other samples are as they were, and the substitute is the one that every loader draws
    intact = list(loader_of(dataset_of(root)).epoch(1))
    _, ([substitute], _), *_ = dataset.attempts([ClipRequest(2, 1)])
    for one, other in zip(batches, intact):
        assert one.ids.tolist() == [substitute.index if i == 2 else i for i in other.ids.tolist()]
        kept = other.ids != 2
        np.testing.assert_array_equal(one.clips[kept], other.clips[kept])
    again = list(loader_of(dataset).epoch(1))
    assert all((one.clips == other.clips).all() for one, other in zip(batches, again))


def test_a_damaged_file_is_left_out_in_evaluation(root, damaged):
    dataset = dataset_of(root, {**SEGMENTS, "valid_mode": True}, training=False, name="damaged.list")
    batches = list(loader_of(dataset).epoch(0))
    assert [batch.ids.tolist() for batch in batches] == [[0, 1, 3], [4, 5]]
    assert [path for batch in batches for path, _ in batch.failures] == [damaged]


def test_nothing_decodes(root, damaged):
    (root / "all.list").write_text("damaged.mp4 0\ndamaged.mp4 1\n")
    (batch,) = loader_of(dataset_of(root, training=False, name="all.list")).epoch(0)
    assert (len(batch), len(batch.failures), batch.clips.shape) == (0, 2, (0, 0, 0, 0, 3))


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        (
            VideoFacts(num_frames=60, avg_fps=25.0, width=96, height=64, square_size=(96, 64)),
            "DALI: .*(out-of-bounds|must be between)",
        ),
        (
            VideoFacts(num_frames=20, avg_fps=25.0, width=64, height=96, square_size=(64, 96)),
            "decode to 96×64, not to the 64×96",
        ),
    ],
    ids=["count", "size"],
)
def test_a_decoder_that_sees_another_video_is_noticed(root, facts, cause):
    dataset = dataset_of(root, {**SEGMENTS, "valid_mode": True}, training=False)
    loader = loader_of(dataset)
    loader._planner._facts[dataset.records[1].path, None] = facts
    batch, _ = loader.epoch(0)
    assert batch.ids.tolist() == [0, 2, 3]
    ((path, text),) = batch.failures
    assert path == dataset.records[1].path
    assert re.search(cause, text)


def test_pixels_that_are_not_square(root, make_clip):
    for name in ("wide0", "wide1"):
        clip_for_dali(make_clip, root / f"{name}.mp4", 20, size=(96, 64), pixel_aspect="2")
    (root / "wide.list").write_text("wide0.mp4 0\nwide1.mp4 1\n")
    scale = [{"Scale": {"short_size": 56}}, {"CenterCrop": {"target_size": 56}}]
    check_same(dataset_of(root, {**SEGMENTS, "valid_mode": True}, scale, False, "wide.list"))


def test_a_turned_video_is_no_sample(root, make_clip):
    options = encoder()
    make_clip(root / "turned.mp4", 12, size=(96, 64), rotation=90, **options)
    (root / "turned.list").write_text("turned.mp4 0\n0.mp4 1\n")
    (batch,) = loader_of(dataset_of(root, training=False, name="turned.list")).epoch(0)
    assert batch.ids.tolist() == [1]
    assert "turned or mirrored" in batch.failures[0][1]


def test_a_codec_that_dali_does_not_decode(root, make_clip):
    codec, where = ("mpeg4", "a CPU, only .*on a GPU") if WHERE.device_id is None else ("mpeg2video", "a GPU")
    make_clip(root / "old.mp4", 12, size=(96, 64), codec=codec)
    (root / "old.list").write_text("0.mp4 0\nold.mp4 1\n")
    with pytest.raises(LoaderError, match=rf"old.mp4: DALI .* does not decode {codec} on {where}"):
        list(loader_of(dataset_of(root, training=False, name="old.list")).epoch(0))


@pytest.mark.parametrize(("version", "codec"), [("2.4.0", "mjpeg"), ("1.53.0", "mjpeg")])
def test_codecs_that_no_gpu_decodes(version, codec):
    with pytest.raises(
        LoaderError, match=rf"a\.mkv: DALI {version} does not decode {codec} on a GPU, only .*h264"
    ):
        require_codec(SimpleNamespace(__version__=version), "gpu", codec, "a.mkv")


def test_a_dali_that_is_too_old_is_refused():
    with pytest.raises(LoaderError, match=r"DALI 1\.34\.0 decodes whole videos only; install 1\.53 or newer"):
        require_codec(SimpleNamespace(__version__="1.34.0"), "gpu", "h264", "a.mkv")


def test_what_a_pipeline_cannot_ask_of_dali(root):
    with pytest.raises(LoaderError, match="RandomGamma cannot be done inside DALI"):
        loader_of(dataset_of(root, transform=[*CROPS, {"RandomGamma": None}]))
    dataset = dataset_of(root)
    dataset.decoder.on_corrupt = "nearest"
    with pytest.raises(LoaderError, match=r"decode\.on_corrupt is 'nearest'"):
        loader_of(dataset)
    dataset.decoder.backend = dataset.decoder.reader = "cv2"
    with pytest.raises(LoaderError, match=r"decode\.backend is 'cv2'"):
        loader_of(dataset)
    bilinear = dataset_of(root)
    bilinear.pipeline.resample = "bilinear"
    with pytest.raises(LoaderError, match="set it to antialias"):
        loader_of(bilinear)


def test_a_crop_that_does_not_fit_names_the_file(root):
    with pytest.raises(TransformError, match=r"\.mp4: RandomCrop: a crop of 99×99"):
        list(loader_of(dataset_of(root, transform=[{"RandomCrop": {"target_size": 99}}])).epoch(0))


def test_clips_of_different_shapes(root, make_clip):
    clip_for_dali(make_clip, root / "wide.mp4", 12, size=(112, 64))
    (root / "sizes.list").write_text("0.mp4 0\nwide.mp4 1\n")
    with pytest.raises(LoaderError, match="end the transforms with a crop"):
        list(loader_of(dataset_of(root, transform=[], name="sizes.list")).epoch(0))

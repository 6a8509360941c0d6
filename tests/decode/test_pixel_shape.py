"""Pixels that are not square: pictures are as wide as they are shown, on every path, with one resample."""

import base64
from fractions import Fraction

import cv2
import numpy as np
import pytest

from paddlevideo_fast.apps.data.encoding import Settings, prepare
from paddlevideo_fast.apps.data.facts import _facts_of
from paddlevideo_fast.apps.data.frames import extract
from paddlevideo_fast.apps.data.packing import pack
from paddlevideo_fast.apps.predict.live import LiveSource
from paddlevideo_fast.apps.serve.reading import UnusableError, VideoLimits
from paddlevideo_fast.decode import Span, open_frames, open_video
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.loader import VideoRecord
from paddlevideo_fast.loader.pipeline import Pipeline
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.loader.sampling import Sampler
from paddlevideo_fast.loader.transforms.crop import CenterCrop, Scale
from paddlevideo_fast.sources.frame_cache.frame_cache import FrameCache
from paddlevideo_fast.sources.packed.packed import open_shards
from tests.support.numbered_clips import draw, packets_of, write_clip

SIZE, NUM_FRAMES = (96, 64), 8
CLIPS = [
    ("a.mp4", "libx264", "2", {}),
    ("a.mkv", "libx264", "4/3", {}),
    ("a.ts", "libx264", "2", {}),  # in the bitstream alone
    ("a.mp4", "libx264", "1/2", {}),
    ("a.mov", "libx264", "2", {"rotation": 90}),
    ("a.avi", "mpeg4", "2", {}),
    ("a.mp4", "libx265", "16/11", {}),
    ("a.mp4", "libvpx-vp9", "2", {}),  # in the container alone
    ("a.mpg", "mpeg2video", "8/9", {}),
    ("a.mov", "mjpeg", "2", {"pix_fmt": "yuvj422p"}),
]
NAMES = [f"{codec} {name[2:]} {aspect}" for name, codec, aspect, _ in CLIPS]


def stretched(frame, size):
    return cv2.resize(frame, size, interpolation=cv2.INTER_LINEAR)


def clip_of(reader, steps):
    """The frames of one clip that a data set, prediction and server make."""
    pipeline = Pipeline(Sampler(3, 1), steps)
    ((pixels, _, _),) = pipeline(
        reader, VideoRecord(reader.path, 0), [ClipRequest(0, 0)], [np.random.default_rng(5)]
    )
    return pixels.astype(int)


@pytest.mark.parametrize(("name", "codec", "aspect", "options"), CLIPS, ids=NAMES)
def test_pictures_are_as_wide_as_they_are_shown(name, codec, aspect, options, tmp_path):
    path = tmp_path / name
    write_clip(path, NUM_FRAMES, SIZE, codec, gop=4, pixel_aspect=aspect, **options)
    shown, stored = (round(SIZE[0] * Fraction(aspect)), SIZE[1]), SIZE
    if options.get("rotation"):  # the height stays
        shown, stored = (round(SIZE[1] / Fraction(aspect)), SIZE[0]), SIZE[::-1]
    expected = [draw(number, *SIZE) for number in range(NUM_FRAMES)]
    turns = -options.get("rotation", 0) // 90
    expected = [stretched(np.ascontiguousarray(np.rot90(frame, turns)), shown) for frame in expected]

    def compare(frames, most):
        for frame, picture in zip(frames, expected, strict=True):
            assert frame.shape == picture.shape
            assert np.abs(frame.astype(int) - picture).mean() < most

    cache = FrameCache(tmp_path / "frames", 0.1)
    for keys in ({}, {"frames": cache}, {"frames": cache}, {"backend": "cv2"}):
        with open_video(path, **keys) as video:
            assert (video.width, video.height) == stored  # read as they are
            assert video.square_size == shown
            assert video.part(Span(2, 6)).square_size == shown
            compare([stretched(frame, shown) for frame in video], 12)
            width, height = min(shown), min(shown)
            clip = clip_of(video, [Scale(min(shown)), CenterCrop(min(shown))])
            left, top = round((shown[0] - width) / 2), round((shown[1] - height) / 2)
            wanted = Sampler(3, 1).sample(NUM_FRAMES, 25.0, ClipRequest(0, 0), np.random.default_rng(5))
            for frame, number in zip(clip, wanted.tolist(), strict=True):
                picture = expected[number][top : top + height, left : left + width]
                assert np.abs(frame - picture).mean() < 12
    prepare(str(path), tmp_path / "copy.mp4", Settings("intra", min(shown)))
    with open_video(tmp_path / "copy.mp4") as copy:
        assert (copy.pixel_aspect, copy.square_size) == (1, (copy.width, copy.height))
        expected = [stretched(frame, copy.square_size) for frame in expected]
        compare(list(copy), 14)
    with LiveSource(str(path), 100.0, "wait", num_reconnects=0) as source:
        source.wait_until((NUM_FRAMES - 1) / 25 - 0.01)
        window = source.take(0.0, 100.0)
        assert window.square_size == shown


def test_stored_frames_are_as_wide_as_they_are_shown(tmp_path):
    """Packed frames and folders of images have square pixels, also where nothing else changes their size."""
    write_clip(tmp_path / "videos" / "a.mp4", NUM_FRAMES, SIZE, gop=4, pixel_aspect="2")
    (tmp_path / "x.list").write_text("a.mp4 0\n")
    given = ["--list", str(tmp_path / "x.list"), "--data_prefix", str(tmp_path / "videos"), "--workers", "0"]
    for short_side, shown in ((0, (192, 64)), (48, (144, 48))):
        expected = [stretched(draw(number, *SIZE), shown).astype(int) for number in range(NUM_FRAMES)]
        size, name = ["--short_side", str(short_side)], str(short_side)
        assert extract([*given, *size, "--output", str(tmp_path / "images" / name)]) == 0
        assert pack([*given, *size, "--output", str(tmp_path / "packed" / name)]) == 0
        (shard,) = open_shards(tmp_path / "packed" / name)
        for video in (open_frames(tmp_path / "images" / name / "a"), shard.open(0)):
            frames = video.read(range(NUM_FRAMES)).astype(int)
            assert frames.shape[1:3] == shown[::-1]
            assert np.abs(frames - expected).mean() < 14


def test_reports_and_limits_count_pictures_as_they_are_shown(tmp_path):
    write_clip(tmp_path / "a.mp4", NUM_FRAMES, SIZE, pixel_aspect="2")
    with open_video(tmp_path / "a.mp4") as video:
        facts = _facts_of(video, with_sheet=True)
        assert (facts.width, facts.height) == (192, 64)
        sheet = cv2.imdecode(np.frombuffer(base64.b64decode(facts.sheet), np.uint8), cv2.IMREAD_COLOR)
        height, width = sheet.shape[:2]
        assert width % (3 * height) == 0  # pictures of 3:1 side by side
        VideoLimits(max_pixels=192 * 64).check(video)
        with pytest.raises(UnusableError, match="192×64"):
            VideoLimits(max_pixels=192 * 64 - 1).check(video)


@pytest.mark.parametrize("aspect", [(1000, 1), (1, 1000)])
def test_a_pixel_shape_beyond_all_measure_is_damage(aspect, tmp_path):
    write_clip(tmp_path / "a.mp4", 2, SIZE, pixel_aspect="2")
    data = (tmp_path / "a.mp4").read_bytes()
    box, wide = b"pasp" + (2).to_bytes(4, "big") + (1).to_bytes(4, "big"), b"pasp"
    assert data.count(box) == 1
    wide += b"".join(number.to_bytes(4, "big") for number in aspect)
    (tmp_path / "a.mp4").write_bytes(data.replace(box, wide))
    with open_video(tmp_path / "a.mp4") as video, pytest.raises(VideoDecodeError, match="times as wide as"):
        clip_of(video, [Scale(32), CenterCrop(32)])


@pytest.mark.parametrize(
    ("codec", "aspects"), [("libx264", "4/3 2"), ("libx265", "2 1"), ("mpeg2video", "1 8/9")]
)
def test_a_pixel_shape_that_changes_is_told(codec, aspects, tmp_path):
    """Two recordings, joined, as at the end of a broadcast film."""
    stream = b""
    for aspect in aspects.split():
        write_clip(tmp_path / "part.ts", 12, SIZE, codec, gop=6, pixel_aspect=aspect)
        stream += b"".join(bytes(packet) for packet in packets_of(tmp_path / "part.ts"))
    path = tmp_path / "a"
    path.write_bytes(stream)
    for wanted in ([20], [3, 20]):
        with open_video(path) as video:
            assert video.read([3]).shape == (1, *SIZE[::-1], 3)
            with pytest.raises(VideoDecodeError, match="shape of its pixels changes from"):
                video.read(wanted)

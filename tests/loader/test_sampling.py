"""The sampler against its definition, written out anew for single frames."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddlevideo_fast.errors import TransformError
from paddlevideo_fast.loader import (
    ClipRequest,
    DecodeSampler,
    LoaderError,
    Sampler,
    UniformSampler,
    VideoRecord,
    build_pipeline,
)
from paddlevideo_fast.loader.request import MidpointGenerator

lengths = st.integers(1, 400)
segments = st.integers(1, 32)
seg_lens = st.integers(1, 6)


def indices(sampler, num_frames, request=None, seed=0):
    result = sampler.sample(num_frames, 25.0, request or ClipRequest(0, 0), np.random.default_rng(seed))
    assert result.dtype == np.int64
    assert result.min() >= 0
    assert result.max() < num_frames
    return result.tolist()


@pytest.mark.smoke
@given(lengths, segments, seg_lens)
def test_middle_of_each_segment(num_frames, num_seg, seg_len):
    duration = num_frames // num_seg
    expected = []
    for segment in range(num_seg):
        if duration >= seg_len:
            first = segment * duration + (duration - 1) // 2
        elif duration >= 1:
            first = segment * duration
        else:
            first = segment
        expected += [(first + step) % num_frames for step in range(seg_len)]
    assert indices(Sampler(num_seg, seg_len, valid_mode=True), num_frames) == expected


@given(lengths, segments, seg_lens, st.integers(0, 99))
def test_random_place_in_each_segment(num_frames, num_seg, seg_len, seed):
    result = indices(Sampler(num_seg, seg_len), num_frames, seed=seed)
    duration = num_frames // num_seg
    for segment in range(num_seg):
        first, *rest = result[segment * seg_len : (segment + 1) * seg_len]
        assert rest == [(first + step) % num_frames for step in range(1, seg_len)]
        if duration >= seg_len:
            assert segment * duration <= first <= (segment + 1) * duration - seg_len
        else:
            assert first == (segment * duration if duration else segment) % num_frames


@pytest.mark.smoke
@given(lengths, segments)
def test_tsm_valid(num_frames, num_seg):
    length = num_frames / num_seg
    expected = [int(length / 2 + length * segment) for segment in range(num_seg)]
    if num_frames <= num_seg:
        expected = [0] * num_seg
    result = indices(Sampler(num_seg, 1, valid_mode=True, select_left=True), num_frames)
    assert result == expected == sorted(result)


@given(lengths, segments, st.integers(0, 99))
def test_tsm_train(num_frames, num_seg, seed):
    result = indices(Sampler(num_seg, 1, select_left=True), num_frames, seed=seed)
    duration = num_frames // num_seg
    assert len(result) == num_seg
    for segment, index in enumerate(result):
        if duration:
            assert segment * duration <= index < (segment + 1) * duration
        else:
            assert index == 0


@given(lengths, segments)
def test_linspace(num_frames, num_seg):
    expected = [int(value) for value in np.linspace(0, num_frames - 1, num_seg)]
    assert indices(Sampler(num_seg, 1, linspace_sample=True), num_frames) == expected


@pytest.mark.parametrize(("mode", "first"), [("train", None), ("valid", None), ("test", 0)])
def test_the_part_of_a_video_that_paddlevideos_decoder_takes(mode, first):
    """Of 300 frames at 25 a second, 8 frames 32/30 of a second apart lie in 213."""
    decode = {"name": "VideoDecoder", "backend": "pyav", "mode": mode, "num_seg": 8}
    sample = {"name": "Sampler", "num_seg": 8, "seg_len": 1, "linspace_sample": True}
    sampler = build_pipeline({"decode": decode, "sample": sample}).sample
    starts = set()
    for seed in range(60):
        found = sampler.sample(300, 25.0, ClipRequest(0, 0), np.random.default_rng(seed))
        span = 8 * 32 / 30 * 25 - 1
        np.testing.assert_allclose(found - found[0], np.linspace(0, span, 8), atol=1.01)
        starts.add(int(found[0]))
    assert starts == {0} if first == 0 else (len(starts) > 30 and max(starts) <= 300 - span)
    assert MidpointGenerator().uniform() == 0.5
    middle = sampler.sample(300, 25.0, ClipRequest(0, 0), MidpointGenerator())
    assert abs(middle[0] - (0 if first == 0 else 43)) <= 1
    short = sampler.sample(100, 25.0, ClipRequest(0, 0), np.random.default_rng(0))  # the last frame repeats
    np.testing.assert_array_equal(short, [0, 30, 60, 91, 99, 99, 99, 99])


@pytest.mark.parametrize("change", [{"backend": "decord"}, {"backend": "decord_library"}, {"mode": None}])
def test_without_pyav_and_a_mode_the_whole_video_counts(change, caplog):
    decode = {"name": "VideoDecoder", "backend": "pyav", "mode": "train", "num_seg": 4, **change}
    sample = {"name": "Sampler", "num_seg": 4, "seg_len": 1, "linspace_sample": True}
    sampler = build_pipeline({"decode": decode, "sample": sample}).sample
    assert indices(sampler, 100) == [0, 33, 66, 99]
    assert any("num_seg: no effect: the sampler decides which frames" in text for text in caplog.messages)


@given(lengths, st.sampled_from([8, 16]), st.integers(0, 99))
def test_dense(num_frames, num_seg, seed):
    stride = 64 // num_seg
    start, *rest = result = indices(Sampler(num_seg, 1, dense_sample=True), num_frames, seed=seed)
    assert start < max(1, num_frames - 64)
    assert rest == [(start + step * stride) % num_frames for step in range(1, num_seg)]

    sampler = Sampler(num_seg, 1, dense_sample=True, valid_mode=True)
    assert sampler.num_clips == 10
    result = indices(sampler, num_frames)
    starts = [int(value) for value in np.linspace(0, max(0, num_frames - 64), 10)]
    assert result == [(start + step * stride) % num_frames for start in starts for step in range(num_seg)]


@given(lengths, st.integers(1, 8), st.integers(1, 32), st.integers(1, 8))
def test_interval_valid(num_frames, num_seg, seg_len, interval):
    span = seg_len * interval
    room = (num_frames - span + 1) / num_seg
    firsts = [int(room / 2 + room * segment) if num_frames >= span else 0 for segment in range(num_seg)]
    expected = [(first + step * interval) % num_frames for first in firsts for step in range(seg_len)]
    sampler = Sampler(num_seg, seg_len, frame_interval=interval, valid_mode=True)
    assert indices(sampler, num_frames) == expected


@given(lengths, st.integers(1, 8), st.integers(1, 32), st.integers(1, 8), st.integers(0, 99))
def test_interval_train(num_frames, num_seg, seg_len, interval, seed):
    sampler = Sampler(num_seg, seg_len, frame_interval=interval)
    result = indices(sampler, num_frames, seed=seed)
    room = num_frames - seg_len * interval + 1
    firsts = result[::seg_len]
    for segment, first in enumerate(firsts):
        clip = result[segment * seg_len : (segment + 1) * seg_len]
        assert clip == [(first + step * interval) % num_frames for step in range(seg_len)]
    if room >= num_seg:
        step = room // num_seg
        assert all(part * step <= first < (part + 1) * step for part, first in enumerate(firsts))
    elif room > 0 and num_frames > num_seg:
        assert firsts == sorted(firsts)
        assert max(firsts) <= room
    else:
        assert set(firsts) == {0} or num_frames <= num_seg


@pytest.mark.parametrize("num_seg", [1, 3, 8, 16])
@pytest.mark.parametrize(
    "arguments",
    [
        {"seg_len": 1},
        {"seg_len": 1, "select_left": True},
        {"seg_len": 3},
        {"seg_len": 8, "frame_interval": 4},
        {"seg_len": 1, "dense_sample": True},
        {"seg_len": 1, "linspace_sample": True},
    ],
    ids=lambda arguments: [*arguments][-1],
)
def test_by_ratio_frames_rise_and_spread_over_any_video(num_seg, arguments):
    """Also over one with fewer frames than the clip has, where PaddleVideo shows frame 0, or goes back."""
    train = Sampler(num_seg, **arguments, by_ratio=True)
    valid = Sampler(num_seg, **arguments, by_ratio=True, valid_mode=True)
    is_whole = not {"dense_sample", "linspace_sample"} & {*arguments}  # each part of the video has its frames
    for num_frames in range(1, 201):
        clips = np.array(indices(valid, num_frames)).reshape(valid.num_clips, -1)
        for clip in (*clips, np.array(indices(train, num_frames, seed=num_frames))):
            assert (np.diff(clip) >= 0).all(), (num_frames, clip)
            assert len({*clip.tolist()}) >= min(num_frames, len(clip)) / 2, (num_frames, clip)
            for part, frames in enumerate(clip.reshape(num_seg, -1) if is_whole else ()):
                first, stop = num_frames * part / num_seg, num_frames * (part + 1) / num_seg
                assert int(first) <= frames[0] <= frames[-1] < max(stop, int(first) + 1), (num_frames, clip)
        if 1 < num_frames <= valid.num_frames:
            assert {*clips[0].tolist()} == {*range(num_frames)}


@given(lengths, segments)
def test_by_ratio_validation_is_as_of_tsm_and_of_the_uniform_sampler(num_frames, num_seg):
    ours = indices(Sampler(num_seg, 1, valid_mode=True, by_ratio=True), num_frames)
    if num_frames > num_seg:
        assert ours == indices(Sampler(num_seg, 1, valid_mode=True, select_left=True), num_frames)
    uniform = UniformSampler(num_seg).sample(num_frames, 25.0, ClipRequest(0, 0), MidpointGenerator())
    assert np.abs(uniform - ours).max() <= 1  # by rounding


@pytest.mark.parametrize(
    "sampler", [UniformSampler(8), DecodeSampler(8, 3), DecodeSampler(8, 3, test_mode=True)]
)
def test_frames_of_the_other_samplers_rise_and_are_no_still_picture(sampler):
    for num_frames in range(1, 201):
        clip = indices(sampler, num_frames, seed=num_frames)
        assert (np.diff(clip) >= 0).all()
        assert len(set(clip)) >= min(num_frames, 8) / 2 or clip[0] == 0
        assert len(set(clip)) > 1 or num_frames == 1


def test_request_changes_the_shape():
    assert len(indices(Sampler(8, 1), 100, ClipRequest(0, 0, num_frames=4))) == 4
    sampler = Sampler(1, 32, frame_interval=2, valid_mode=True)
    result = indices(sampler, 300, ClipRequest(0, 0, num_frames=8, sampling_rate=8))
    assert np.diff(result).tolist() == [8] * 7


class Fixed(np.random.Generator):
    """Draws the same share of every range."""

    def __init__(self, share):
        super().__init__(np.random.PCG64())
        self.share = share

    def uniform(self, low, high):
        return low + self.share * (high - low)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("num_frames", "fps", "share", "expected"),
    [
        # 4 frames at rate 2 of 30 a second last 8/30 s: 8 frames, from start to start + 7, 7/3 apart
        (28, 30, 0.0, [0, 2, 4, 7]),
        (28, 30, 0.5, [10, 12, 14, 17]),  # 20 frames of room
        (28, 30, 0.99, [19, 22, 24, 26]),  # from 19.8: 19.8, 22.1, 24.5, 26.8
        (28, 15, 0.5, [12, 13, 14, 15]),  # 4 frames of the same time, 24 of room
        (28, 60, 0.5, [6, 11, 16, 21]),  # 16 frames, 5 apart, 12 of room
        (28, 0, 0.5, [10, 12, 14, 17]),  # a folder of images is taken to have 30 a second
        (8, 30, 0.7, [0, 2, 4, 7]),  # just long enough
        (5, 30, 0.7, [0, 2, 4, 4]),  # shorter: the last frame again
        (1, 30, 0.7, [0, 0, 0, 0]),
        (28, 1, 0.5, [13, 13, 13, 13]),  # a span below a frame
        (28, 1, 1.0, [27, 27, 27, 27]),  # it takes the room of one, so the last frame can be drawn
    ],
)
def test_a_span_of_time(num_frames, fps, share, expected):
    sampler = DecodeSampler(num_frames=4, sampling_rate=2)
    result = sampler.sample(num_frames, fps, ClipRequest(0, 0), Fixed(share))
    assert result.tolist() == expected
    assert result.dtype == np.int64


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ("left", lambda view, room: room * view / 5),  # PySlowFast
        ("middle", lambda view, room: (room / 5) * view + room / 10),  # Video Swin, MMAction2
        ("ends", lambda view, room: view * (room / 4)),  # MViTv2 (offset sampling), VideoMAE
    ],
)
def test_views_start_where_the_authors_start_them(position, expected):
    sampler = DecodeSampler(num_frames=4, sampling_rate=2, test_mode=True, view_position=position)
    requests = [ClipRequest(0, 0, view, 5) for view in range(5)]
    starts = [sampler.sample(28, 30, request, np.random.default_rng(0))[0] for request in requests]
    assert starts == [int(expected(view, 20)) for view in range(5)]
    single = sampler.sample(28, 30, ClipRequest(0, 0), np.random.default_rng(0))[0]
    assert single == (0 if position == "left" else 10)


def test_the_two_views_of_videomae_on_something_something():
    """Its test sorts 2 × 16 places of the video and takes each second one."""
    sampler = Sampler(16, 1, valid_mode=True, select_left=True, view_position="left")
    for num_frames in (17, 40, 63, 117):
        tick = num_frames / 16
        places = sorted([int(tick / 2 + tick * x) for x in range(16)] + [int(tick * x) for x in range(16)])
        for view in (0, 1):
            found = sampler.sample(num_frames, 12, ClipRequest(0, 0, view, 2), np.random.default_rng(0))
            assert found.tolist() == places[view::2]


def test_evaluation_takes_the_middle_and_training_all_places():
    sampler = DecodeSampler(num_frames=4, sampling_rate=2)
    assert sampler.sample(28, 30, ClipRequest(0, 0), MidpointGenerator()).tolist() == [10, 12, 14, 17]
    starts = {int(sampler.sample(12, 30, ClipRequest(0, 0), np.random.default_rng(n))[0]) for n in range(99)}
    assert starts == {0, 1, 2, 3}


class Widest(np.random.Generator):
    """Draws the upper end of the first range, then as a generator of this seed."""

    def __init__(self, seed):
        super().__init__(np.random.PCG64(seed))
        self.drawn = 0

    def uniform(self, low, high):
        self.drawn += 1
        return high if self.drawn == 1 else super().uniform(low, high)


@given(st.integers(1, 500), st.sampled_from([10.0, 23.976, 25.0, 29.97, 60.0]), st.integers(0, 99))
def test_the_span_at_the_highest_rate_is_the_same_time_at_every_shape(num_frames, fps, seed):
    sampler = DecodeSampler(num_frames=32, sampling_rate=2)
    ends = []
    for count, rate in ((None, None), (16, 4.0), (8, 8.0)):
        request = ClipRequest(0, 0, num_frames=count, sampling_rate=rate)
        rng = np.random.default_rng(seed) if rate is None else Widest(seed)
        clip = sampler.sample(num_frames, fps, request, rng)
        assert len(clip) == (count or 32)
        assert (np.diff(clip) >= 0).all()
        assert 0 <= clip.min() <= clip.max() < num_frames
        ends.append((clip[0], clip[-1]))
    assert len(set(ends)) == 1


def test_a_random_clip_draws_a_rate_up_to_the_requests():
    sampler = DecodeSampler(num_frames=32, sampling_rate=2)
    request = ClipRequest(0, 0, num_frames=8, sampling_rate=8.0)
    clips = [sampler.sample(10_000, 30, request, np.random.default_rng(seed)) for seed in range(300)]
    spans = np.array([clip[-1] - clip[0] + 1 for clip in clips])
    assert 16 <= spans.min() < 20
    assert 60 < spans.max() <= 64
    assert abs(spans.mean() - 40) < 3
    again = sampler.sample(10_000, 30, request, np.random.default_rng(0))
    assert again.tolist() == clips[0].tolist()


@given(lengths, st.sampled_from([8, 32, 64]), st.integers(0, 99))
def test_one_frame_of_each_part_of_the_whole_video(num_frames, count, seed):
    result = indices(UniformSampler(count), num_frames, seed=seed)
    part = num_frames / count
    for number, index in enumerate(result):
        assert int(number * part) <= index <= (number + 1) * part
    assert indices(UniformSampler(64), num_frames, ClipRequest(0, 0, num_frames=count), seed) == result


@given(lengths, st.sampled_from([8, 32, 64]))
def test_validation_takes_the_middle_of_each_part_as_pyslowfast_does(num_frames, count):
    result = UniformSampler(count).sample(num_frames, 12.0, ClipRequest(0, 0), MidpointGenerator())
    edges = np.round(np.arange(count + 1) * ((num_frames - 1) / count)).astype(int)
    assert np.abs(result - (edges[:-1] + edges[1:]) // 2).max() <= 1


def test_a_clip_of_too_many_frames_is_refused_before_they_are_listed():
    Sampler(65_536, 1)
    with pytest.raises(LoaderError, match="num_seg 65536 times seg_len 65536 are more than 65536 frames"):
        Sampler(65_536, 65_536)


class _LargeVideo:
    """A video whose frames nobody may ask for."""

    num_frames, avg_fps, width, height, num_replaced = 300, 25.0, 7680, 4320, 0
    square_size = (width, height)

    def frames(self, *_, **options):
        raise AssertionError("frames are read")


def test_a_clip_that_needs_gigabytes_is_refused_before_it_is_read():
    section = {"decode": {"name": "VideoDecoder"}, "sample": {"name": "UniformSampler", "num_frames": 500}}
    crop = {"RandomCrop": {"target_size": 224}}
    small, large = ({**section, "transform": steps} for steps in ([crop], []))
    arguments = (_LargeVideo(), VideoRecord("a.mp4", 0), [ClipRequest(0, 0)], [np.random.default_rng(0)])
    with pytest.raises(AssertionError):
        build_pipeline(small)(*arguments)
    with pytest.raises(LoaderError, match=r"a\.mp4: a clip of 500 frames, .* GiB; at most 4 are allowed"):
        build_pipeline(large)(*arguments)


@pytest.mark.parametrize("method", ["normal", "beta", "shuffle", "standard_normal", "choice"])
def test_a_draw_without_a_middle_is_refused_in_evaluation(method):
    with pytest.raises(TransformError, match=f"draws by `{method}` in an evaluation"):
        getattr(MidpointGenerator(), method)

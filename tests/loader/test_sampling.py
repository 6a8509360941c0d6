"""The sampler against its definition, written out anew for single frames."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddlevideo_fast.loader import ClipRequest, LoaderError, Sampler

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


def test_request_changes_the_shape():
    assert len(indices(Sampler(8, 1), 100, ClipRequest(0, 0, num_frames=4))) == 4
    sampler = Sampler(1, 32, frame_interval=2, valid_mode=True)
    result = indices(sampler, 300, ClipRequest(0, 0, num_frames=8, sampling_rate=8))
    assert np.diff(result).tolist() == [8] * 7


@settings(max_examples=20)
@given(st.integers(0, 2**31))
def test_only_the_generator_is_random(seed):
    np.random.seed(seed % 7)
    assert indices(Sampler(8, 2), 100, seed=3) == indices(Sampler(8, 2), 100, seed=3)


def test_impossible_arguments():
    with pytest.raises(LoaderError, match="num_seg"):
        Sampler(0, 1)
    with pytest.raises(LoaderError, match="frame_interval"):
        Sampler(1, 1, frame_interval=0)

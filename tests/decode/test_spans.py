"""Spans of videos: their frames, by number and by time."""

import pytest

from paddlevideo_fast.decode import Span, open_video
from paddlevideo_fast.errors import VideoDecodeError
from tests.support.numbered_clips import read_number, write_clip


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    path = tmp_path_factory.mktemp("spans") / "clip.mp4"
    write_clip(path, 24, bframes=2)
    return str(path)


def _numbers(path, span):
    with open_video(path) as video:
        part = video.part(span)
        return [read_number(frame) for frame in part]


def test_frames_count_from_zero_and_the_end_is_not_part(clip):
    assert _numbers(clip, Span(3, 7)) == [3, 4, 5, 6]
    assert _numbers(clip, Span(20, None)) == [20, 21, 22, 23]


@pytest.mark.parametrize("span", [Span(24, None), Span(0, 25), Span(-1, 4)])
def test_a_span_outside_names_it_and_the_length(clip, span):
    with open_video(clip) as video, pytest.raises(VideoDecodeError) as caught:
        video.part(span)
    assert f"the span {span} is not inside the video, which lasts 24 frames" in str(caught.value)

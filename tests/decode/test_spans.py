"""Spans of videos: their frames, by number and by time."""

import cv2
import numpy as np
import pytest

from paddlevideo_fast.decode import Span, open_video
from paddlevideo_fast.decode.pyav_reader import PyAVReader
from paddlevideo_fast.errors import VideoDecodeError
from tests.support.exact_corpus import write_corpus_clip
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


def test_pictures_of_a_part_are_decoded_in_one_go_and_no_others(clip, monkeypatch):
    reader = PyAVReader(clip)
    asked, pictures = [], reader._decoder.pictures
    monkeypatch.setattr(reader._decoder, "pictures", lambda wanted: asked.append(wanted) or pictures(wanted))
    with reader:
        assert len(list(reader.pictures(20, 23))) == 3
        assert [len(wanted) for wanted in asked] == [3]
        assert len(list(reader.pictures())) == 24


@pytest.mark.parametrize("span", [Span(24, None), Span(0, 25), Span(-1, 4)])
def test_a_span_outside_names_it_and_the_length(clip, span):
    with open_video(clip) as video, pytest.raises(VideoDecodeError) as caught:
        video.part(span)
    assert f"the span {span} is not inside the video, which lasts 24 frames" in str(caught.value)


def test_a_span_of_seconds_has_the_frames_whose_time_is_in_it(clip):
    assert _numbers(clip, Span(0.12, 0.28, "sec")) == [3, 4, 5, 6]
    assert _numbers(clip, Span(0.1201, 0.2801, "sec")) == [3, 4, 5, 6]  # the lists' three decimals
    assert _numbers(clip, Span(0.13, 0.27, "sec")) == [4, 5, 6]
    assert _numbers(clip, Span(0.13, 0.14, "sec")) == [3]  # on display
    assert _numbers(clip, Span(0.9, 1.2, "sec")) == [23]  # 0.24 s after the end


@pytest.mark.parametrize(
    "name", ["h264_variable_rate.mp4", "h264_variable_rate.mkv", "mpeg4_variable_rate.avi"]
)
def test_a_variable_frame_rate(tmp_path, name):
    file = write_corpus_clip(tmp_path, name, 24)
    shown = [number + number * number // 8 for number in file.numbers]
    with open_video(str(file.path)) as video:
        np.testing.assert_allclose(video.times_sec() * 25, np.subtract(shown, shown[0]), atol=0.02)
    expected = [number for number, tick in zip(file.numbers, shown) if 10 <= tick - shown[0] < 40]
    assert _numbers(str(file.path), Span(0.4, 1.6, "sec")) == expected


@pytest.mark.parametrize("backend", ["cv2", "decord"])
def test_other_backends_know_the_times_too(tmp_path, backend):
    if backend == "decord":
        pytest.importorskip("decord")
    file = write_corpus_clip(tmp_path, "h264_variable_rate.mp4", 24)
    with open_video(str(file.path)) as video, open_video(str(file.path), backend) as other:
        np.testing.assert_allclose(other.times_sec(), video.times_sec(), atol=0.001)
        assert other.end_sec() == pytest.approx(video.end_sec(), abs=0.001)


def test_seconds_need_a_reader_that_knows_times(clip, tmp_path):
    with open_video(clip) as video, open_video(clip, "cv2") as other:
        assert [read_number(frame) for frame in other.part(Span(3, 5))] == [3, 4]
        for number, frame in enumerate(video.part(Span(0, 9)), 1):
            cv2.imwrite(str(tmp_path / f"img_{number:05}.jpg"), frame)
    with (
        open_video(tmp_path) as images,
        pytest.raises(VideoDecodeError, match="nothing says when its frames are shown; give spans in frames"),
    ):
        images.part(Span(0.1, 0.2, "sec"))


@pytest.mark.parametrize("ending", ["mp4", "mkv"])
def test_the_last_frame_lasts_as_long_as_those_before_it(tmp_path, ending):
    """The mean rate of a video at 10 frames a second and then 25 would end it late, and its parts too."""
    path = str(tmp_path / f"two_rates.{ending}")
    write_clip(path, 75, gop=1, arrange=lambda packets: packets[:50:5] + packets[50:])
    with open_video(path) as video:
        assert video.num_frames == 35
        assert video.end_sec() == pytest.approx(3.0, abs=0.002)
        assert video.part(Span(0.4, 1.0, "sec")).end_sec() == pytest.approx(0.6, abs=0.002)
        assert video.part(Span(2.0, None, "sec")).end_sec() == pytest.approx(1.0, abs=0.002)

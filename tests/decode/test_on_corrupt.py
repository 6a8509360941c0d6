"""What becomes of damage: an error, or the nearest frame that decodes, counted."""

from __future__ import annotations

import io

import numpy as np
import pytest

from paddlevideo_fast.decode import open_video
from paddlevideo_fast.decode.picture_decoder import PictureDecoder
from paddlevideo_fast.errors import PaddleVideoFastError, VideoDecodeError
from tests.support.numbered_clips import packets_of


def spoil(path, place: int) -> None:
    """Zeroes the data of one packet in the file, from its 12th byte on."""
    data, whole = bytes(packets_of(path)[place]), bytearray(path.read_bytes())
    assert whole.count(data) == 1
    at = whole.find(data)
    whole[at + 12 : at + len(data)] = bytes(len(data) - 12)
    path.write_bytes(whole)


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["clip.mp4", "clip.avi"])
def test_nearest(name, make_clip, frame_number, tmp_path):
    """A group of 10 is damaged from its fourth packet on: frames 13 to 19 have others in their place."""
    path = make_clip(tmp_path / name, 30, gop=10, codec="mpeg4" if name.endswith("avi") else "libx264")
    spoil(path, 13)
    numbers = [*range(13), 12, 12, 12, 12, 20, 20, 20, *range(20, 30)]
    with open_video(path, on_corrupt="nearest") as reader:
        assert reader.num_frames == 30
        assert [frame_number(frame) for frame in reader.read([25, 14, 3, 14, 18])] == [25, 12, 3, 12, 20]
        assert reader.num_replaced == 2
        assert [frame_number(frame) for frame in reader.read([12, 20])] == [12, 20]
        assert reader.num_replaced == 2
        assert [frame_number(frame) for frame in reader.read(range(30))] == numbers
        assert [frame_number(frame) for frame in reader] == numbers
        assert reader.num_replaced == 2 + 7 + 7
    with open_video(path) as reader:
        assert [frame_number(frame) for frame in reader.read([12, 20, 25])] == [12, 20, 25]
        for index in (13, 19):
            with pytest.raises(VideoDecodeError, match=f"frame {index} is damaged or missing"):
                reader.read([index])
        frames = iter(reader)
        assert [frame_number(next(frames)) for _ in range(13)] == list(range(13))
        with pytest.raises(VideoDecodeError, match="frame 13"):
            next(frames)
        assert reader.num_replaced == 0


def test_iterating_a_damaged_file_decodes_it_a_few_times(make_clip, tmp_path, monkeypatch):
    """It once was decoded from its beginning for each 16 frames."""
    path = make_clip(tmp_path / "clip.mp4", 200, gop=10)
    spoil(path, 13)
    decoded = 0
    pictures = PictureDecoder.pictures

    def counted(self, wanted=None):
        nonlocal decoded
        for picture in pictures(self, wanted):
            decoded += 1
            yield picture

    monkeypatch.setattr(PictureDecoder, "pictures", counted)
    with open_video(path, on_corrupt="nearest") as reader:
        assert sum(1 for _ in reader) == 200
    assert decoded < 3 * 200


def test_to_ask_for_the_size_replaces_nothing(make_clip, tmp_path):
    """Of a turned video a decoded frame tells the size, and here that one is damaged."""
    path = make_clip(tmp_path / "clip.mov", 20, gop=10, codec="mpeg4", rotation=90)
    spoil(path, 0)
    with open_video(path, on_corrupt="nearest") as reader:
        assert reader.height > reader.width
        assert reader.num_replaced == 0
        reader.read([0, 15])
        assert reader.num_replaced == 1


def test_a_damaged_frame_nobody_refers_to_harms_no_other(make_clip, frame_number, tmp_path):
    options = {"x264-params": "b-adapt=0:b-pyramid=none:scenecut=0"}
    path = make_clip(tmp_path / "clip.mp4", 31, gop=31, bframes=2, options=options)
    spoil(path, 5)  # I0 P3 B1 B2 P6 B4 B5 …
    with open_video(path, on_corrupt="nearest") as reader:
        numbers = [frame_number(frame) for frame in reader.read(range(31))]
        assert numbers == [0, 1, 2, 3, 3, *range(5, 31)]
        assert reader.num_replaced == 1


def test_nothing_left(make_clip, tmp_path):
    path = make_clip(tmp_path / "clip.mp4", 10, gop=10)
    spoil(path, 0)
    with pytest.raises(VideoDecodeError, match="damaged"), open_video(path, on_corrupt="nearest") as reader:
        reader.read([4])


@pytest.mark.annex
def test_only_the_default_backend_replaces(make_clip, tmp_path):
    path = make_clip(tmp_path / "clip.mp4", 3)
    with pytest.raises(PaddleVideoFastError, match="'cv2' cannot replace damaged frames; backend 'pyav' can"):
        open_video(path, "cv2", on_corrupt="nearest")
    with pytest.raises(PaddleVideoFastError, match="on_corrupt is one of raise, nearest, found 'skip'"):
        open_video(path, on_corrupt="skip")


def test_same_read_same_frames(make_clip, tmp_path):
    """Damage leaves nothing behind that changes what is read later."""
    path = make_clip(tmp_path / "clip.avi", 30, codec="mpeg4", bframes=2)
    with open_video(path) as reader:
        intact = reader.read(range(30))
    spoil(path, 4)
    with open_video(path, on_corrupt="nearest") as reader:
        first = reader.read(range(30))
        assert np.array_equal(reader.read(range(30)), first)
        assert np.array_equal(first[12:], intact[12:])
        for index in range(30):
            assert np.array_equal(reader.read([index])[0], first[index])


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.avi", "clip.ts"])
def test_of_a_file_object_that_fails_the_first_error_is_told_alone(name, make_clip, tmp_path, capfd):
    """PyAV prints a traceback for each error that follows one."""
    data = make_clip(tmp_path / name, 120, (320, 240)).read_bytes()

    class Failing(io.BytesIO):
        def readinto(self, buffer):
            if self.tell() + len(buffer) > len(data) // 2:
                raise OSError("the connection fails")
            return super().readinto(buffer)

        def read(self, size=-1):
            if self.tell() >= len(data) // 2:
                raise OSError("the connection fails")
            return super().read(size)

    with pytest.raises(VideoDecodeError, match="the connection fails"), open_video(Failing(data)) as reader:
        list(reader)
    assert capfd.readouterr().err == ""

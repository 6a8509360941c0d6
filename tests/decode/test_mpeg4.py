"""MPEG-4 part 2: packets that hold two pictures, and pictures that are not coded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlevideo_fast.decode import check_video, open_video
from tests.support.exact_corpus import (
    Edit,
    in_sequence,
    pack_as_xvid,
    pack_b_frames,
    set_edit_list,
    uncoded_vop,
    vop_type,
    with_data,
)
from tests.support.numbered_clips import packets_of, read_number, write_clip


def assert_frames(path: Path, numbers: list[int] | None = None) -> None:
    """Each frame alone and in sequence is what a decoder shows, and has its number."""
    expected = in_sequence(path)
    assert numbers is None or [read_number(frame) for frame in expected] == numbers
    with open_video(path) as reader:
        assert reader.num_frames == len(expected)
        for index in np.random.default_rng(0).permutation(len(expected)).tolist():
            assert np.array_equal(reader.read([index])[0], expected[index]), index
        assert all(np.array_equal(frame, right) for frame, right in zip(reader, expected))
    assert check_video(path) is None


@pytest.mark.parametrize("hold", [1, 9])
@pytest.mark.parametrize(("pack", "bframes"), [(pack_b_frames, 1), *((pack_as_xvid, n) for n in (1, 2, 4))])
def test_packets_of_two_pictures(pack, bframes, hold, tmp_path):
    """B pictures of a still video have as few bytes as pictures that are not coded, and are frames."""
    for name in ("clip.avi", "clip.mkv", "clip.mp4", "clip.ts"):
        path = tmp_path / name
        # the last row is whole: a row that is cut loses a frame in every decoder
        numbers = write_clip(path, 40, codec="mpeg4", bframes=bframes, gop=15, hold=hold, arrange=pack)
        sizes = [packet.size for packet in packets_of(path) if vop_type(bytes(packet)) == 2]
        assert (hold == 1 or bframes == 1) or min(sizes) < 19
        assert_frames(path, numbers)


def test_a_picture_that_is_not_coded_shows_nothing(tmp_path):
    """Nor does it move the frames around it, in number and in time."""

    def arrange(packets: list[Any]) -> list[Any]:
        arranged = list(packets)
        for place in (4, 9, 10, 13):
            data = bytes(packets[place])
            headers = data.split(b"\0\0\1\xb6")[0]
            arranged[place] = with_data(packets[place], headers + uncoded_vop(data))
        return arranged

    path = tmp_path / "clip.avi"
    write_clip(path, 30, codec="mpeg4", gop=10, hold=15, arrange=arrange)
    assert_frames(path, [0] * 11 + [1] * 15)
    with open_video(path) as reader:
        times = reader.times_sec() * 25
    assert times.round().tolist() == [n for n in range(30) if n not in (4, 9, 10, 13)]


@pytest.mark.parametrize("bframes", [0, 1, 2])
@pytest.mark.parametrize("uncoded", [[11], [10, 11], [6, 11]])
def test_the_last_picture_is_not_coded(uncoded, bframes, tmp_path):
    """At the end of a stream, libav shows the last picture in its place."""

    def arrange(packets: list[Any]) -> list[Any]:
        arranged = list(packets)
        for place in uncoded:
            arranged[place] = with_data(packets[place], uncoded_vop(bytes(packets[place])))
        return arranged

    path = tmp_path / "clip.avi"
    write_clip(path, 12, codec="mpeg4", bframes=bframes, gop=5, arrange=arrange)
    assert_frames(path)


def test_packets_of_two_pictures_behind_an_edit_list(tmp_path):
    path = tmp_path / "clip.mp4"
    write_clip(path, 40, codec="mpeg4", bframes=2, gop=12, arrange=pack_as_xvid)
    set_edit_list(path, [Edit(14, 20)])
    assert 0 < len(in_sequence(path)) < 40
    assert_frames(path)


@pytest.mark.parametrize(("left_out", "lost"), [(24, 23), (15, 14)])
def test_a_row_that_does_not_end(left_out, lost, tmp_path):
    """At the end of the file or at a new sequence, the B picture that waits is lost, as in a decoder."""

    def leave_out(packets: list[Any]) -> list[Any]:
        arranged = pack_as_xvid(packets)
        assert arranged.pop(left_out).size == 6
        return arranged

    path = tmp_path / "clip.avi"
    write_clip(path, 25, codec="mpeg4", bframes=2, gop=18, arrange=leave_out)
    assert left_out == 24 or bytes(packets_of(path)[left_out]).startswith(b"\0\0\1\xb0")
    assert_frames(path, [number for number in range(25) if number != lost])

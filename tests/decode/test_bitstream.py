"""Damage inside of packets, and packets displaced in a container that is whole: never another frame."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paddlevideo_fast.decode import check_video, open_video
from paddlevideo_fast.decode.bitstream import damage_test
from paddlevideo_fast.errors import VideoDecodeError
from tests.support.exact_corpus import with_data
from tests.support.numbered_clips import packets_of, read_number, write_clip

NUM_FRAMES = 36
X265 = {"x265-params": "log-level=error:bframes=2:b-adapt=0:open-gop=0"}
VP9: dict[str, Any] = {"codec": "libvpx-vp9", "options": {"lag-in-frames": "0"}}
MJPEG: dict[str, Any] = {"codec": "mjpeg", "pix_fmt": "yuvj420p"}
WRITTEN: dict[str, dict[str, Any]] = {
    "h264.mp4": {"bframes": 2},
    "h264.ts": {"bframes": 2},
    "hevc.mp4": {"codec": "libx265", "options": X265},
    "vp9.webm": VP9,
    "vp9.mp4": VP9,
    "mpeg4.avi": {"codec": "mpeg4"},
    "mpeg2.mpg": {"codec": "mpeg2video", "bframes": 2},
    "mjpeg.mov": MJPEG,
    "mjpeg.avi": MJPEG,
}


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bitstream")
    for name, options in WRITTEN.items():
        write_clip(folder / name, NUM_FRAMES, size=(160, 96), **options)
    return folder


def wrong_frames(path: Path, on_corrupt: str = "raise") -> list[Any]:
    """Number of each frame that is wrong, without a word, and what was read in its place."""
    wrong = []
    try:
        with open_video(path, on_corrupt=on_corrupt) as reader:
            for index in range(reader.num_frames):
                before = reader.num_replaced
                try:
                    number = read_number(reader.read([index])[0])
                except VideoDecodeError:
                    continue
                if number != index and reader.num_replaced == before:
                    wrong.append((index, number))
    except VideoDecodeError:
        pass
    return wrong


def with_zeros(data: bytes, first: int, num_bytes: int) -> bytes:
    return data[:first] + bytes(num_bytes) + data[first + num_bytes :]


@pytest.mark.parametrize("name", ["h264.mp4", "h264.ts", "hevc.mp4", "vp9.webm", "vp9.mp4", "mpeg2.mpg"])
def test_zeros_inside_of_a_picture(name, clips, tmp_path):
    """80 bytes, at ten places of the second key picture: most decoders show something, and say nothing."""
    data = (clips / name).read_bytes()
    key = next(bytes(packet) for packet in packets_of(clips / name)[1:] if packet.is_keyframe)
    # program and transport streams have headers of their own in the picture
    begin = max(data.find(key[at : at + 40]) for at in range(len(key) // 4, len(key) // 4 + 100, 20))
    assert begin > 0
    for first in range(begin, begin + 100, 10):
        path = tmp_path / name
        path.write_bytes(with_zeros(data, first, 80))
        assert check_video(path), first
        assert wrong_frames(path) == [], first


def escaped(payload: bytes) -> bytes:
    """The payload of a unit with the bytes in between that no start code gets into it."""
    found = bytearray()
    for byte in payload:
        if found[-2:] == b"\0\0" and byte <= 3:
            found.append(3)
        found.append(byte)
    return bytes(found)


@pytest.mark.smoke
@pytest.mark.parametrize("length", [0, 4])
def test_zeros_that_an_encoder_writes_are_no_damage(length):
    """Any payload in units as the standard says, with zeros behind units, and then with a part zeroed."""
    header = bytes.fromhex("01640029ffe1") if length else b""
    is_damaged = damage_test(SimpleNamespace(name="h264", extradata=header + bytes(8) if header else b""))
    rng = np.random.default_rng(0)
    for trial in range(200):
        units = [
            escaped(
                b"\x65" + (rng.integers(0, 256, 300) * rng.integers(0, 2, 300)).astype(np.uint8).tobytes()
            )
            + b"\x80\0\0\3\0\0\3"  # stop bit, and words of zero behind CABAC's
            for _ in range(int(rng.integers(1, 4)))
        ]
        padding = bytes(int(rng.integers(0, 4)))
        framed = [
            (len(unit + padding).to_bytes(4, "big") if length else b"\0\0\0\1") + unit + padding
            for unit in [b"\x06\5\0\0\0\0\0\0\x7f", *units]  # writers forget the rule in SEI
        ]
        assert not is_damaged(b"".join(framed)), trial
        middle = len(framed[-1]) // 2
        framed[-1] = with_zeros(framed[-1], middle - 40, 80)
        assert is_damaged(b"".join(framed)), trial


@pytest.mark.smoke
def test_zeros_in_other_codecs():
    for name in ("vp9", "libdav1d", "av1"):
        is_damaged = damage_test(SimpleNamespace(name=name, extradata=b""))
        # AV1: a frame of 200 bytes, with its length, and padding of 100
        begin, end = (b"\x82", b"") if name == "vp9" else (b"\x32\xc8\x01", b"\x7a\x64" + bytes(99) + b"\x80")
        assert not is_damaged(begin + b"\x55" * 90 + bytes(20) + b"\x55" * 90 + end)
        assert is_damaged(begin + b"\x55" * 50 + bytes(100) + b"\x55" * 50 + end)
        assert not is_damaged(begin + b"\x55" * 100 + bytes(100) + end)
    for name in ("vp8", "mjpeg", "rawvideo"):
        assert damage_test(SimpleNamespace(name=name, extradata=b"")) is None


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["mpeg2video", "vp9", "libdav1d"])
def test_padding_is_searched_in_linear_time(name):
    """A quadratic search through so many zeros behind a picture would take hours."""
    is_damaged = damage_test(SimpleNamespace(name=name, extradata=b""))
    picture = (b"\0\0\1\5" if name == "mpeg2video" else b"\x82") + b"\x55" * 50
    assert not is_damaged(picture + bytes(4_000_000))


@pytest.mark.parametrize("name", ["mjpeg.mov", "vp9.mp4", "hevc.mp4", "h264.mp4"])
def test_packets_that_changed_places(name, clips, tmp_path):
    """The table of an MP4 says where packets are; behind a swap they begin in the middle of pictures."""
    data, packets = (clips / name).read_bytes(), packets_of(clips / name)
    places = [place for place in range(14, 22) if packets[place].size != packets[place + 1].size]
    assert places
    for place in places:
        first, size = packets[place].pos, packets[place].size
        swapped = data[first + size : first + 2 * size] + data[first : first + size]
        damaged = data[:first] + swapped + data[first + 2 * size :]
        if name == "vp9.mp4" and all(damaged[packet.pos] >> 4 == 8 for packet in packets):
            continue  # by accident, for one byte in 16
        path = tmp_path / name
        path.write_bytes(damaged)
        assert check_video(path)
        for on_corrupt in ("raise", "nearest"):
            assert wrong_frames(path, on_corrupt) == []


def test_what_refers_to_a_picture_with_errors(clips, tmp_path):
    """H.264: where a decoder conceals errors of a key picture, no frame that refers to it is given."""
    name = "h264.mp4"
    data = (clips / name).read_bytes()
    key = next(packet for packet in packets_of(clips / name)[1:] if packet.is_keyframe)
    for first in range(key.pos + 100, key.pos + key.size - 200, 41):
        part = data[first : first + 160]
        path = tmp_path / name
        path.write_bytes(data[:first] + part[80:] + part[:80] + data[first + 160 :])
        with open_video(path) as reader:
            refused = []
            for index in range(12, 24):
                try:
                    reader.read([index])
                except VideoDecodeError:
                    refused.append(index)
        # the whole group, or nothing: a decoder may see no error at all
        assert len(refused) in (0, 12), (first, refused)


def test_motion_jpeg_with_padding_and_without_ends(clips, tmp_path):
    """Writers pad pictures, and some leave out the marker at their ends: always."""
    for change in (lambda data: data.ljust(len(data) + 7, b"\0"), lambda data: data[:-2] + b"\xff\xff"):

        def arrange(packets, change=change):
            return [with_data(packet, change(bytes(packet))) for packet in packets]

        numbers = write_clip(tmp_path / "clip.mov", 12, **MJPEG, arrange=arrange)
        with open_video(tmp_path / "clip.mov") as reader:
            assert [read_number(frame) for frame in reader] == numbers


def test_a_transport_stream_that_is_no_row_of_packets(clips, tmp_path):
    data = (clips / "h264.ts").read_bytes()
    path = tmp_path / "clip.ts"
    at = 188 * 3 + 22
    for damaged, cause in (
        (data[: at + 105] + data[at:], "no packet.? of MPEG-TS"),
        (data[:at] + data[at + 105 :], "no packet.? of MPEG-TS"),
        (data[:at] + with_zeros(data[at:], 0, 200), "no packet.? of MPEG-TS"),
        (data[at:], "no packets of MPEG-TS are at its beginning"),
        (data[:-30], "ends within a packet"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(VideoDecodeError, match=cause):
            open_video(path)
    packets = [data[at : at + 188] for at in range(0, len(data), 188)]
    for before, behind in ((b"", b""), (b"\1\2\3\4", b""), (b"", bytes(16))):
        path.write_bytes(b"".join(before + packet + behind for packet in packets))
        with open_video(path) as reader:
            assert [read_number(frame) for frame in reader] == list(range(NUM_FRAMES))


def test_a_program_stream_that_ends_within_a_pack(clips, tmp_path):
    data = (clips / "mpeg2.mpg").read_bytes()
    last = data.rindex(b"\0\0\1\xba")
    path = tmp_path / "clip.mpg"
    for num_bytes in (last + 12, last + 600):
        path.write_bytes(data[:num_bytes])
        with pytest.raises(VideoDecodeError, match="ends within a pack"):
            open_video(path)


def test_an_avi_whose_index_is_lost(clips, tmp_path):
    """Without its index, the chunks must be a row up to the last frame."""
    data = (clips / "mpeg4.avi").read_bytes()
    whole = data[: data.rindex(b"idx1")]
    size = len(whole) - 8
    path = tmp_path / "clip.avi"
    path.write_bytes(whole[:4] + size.to_bytes(4, "little") + whole[8:])
    with open_video(path) as reader:
        assert [read_number(frame) for frame in reader] == list(range(NUM_FRAMES))
    packets = packets_of(clips / "mpeg4.avi")
    first, stop = packets[14].pos - 108, packets[14].pos + 92
    for damaged in (data[:stop] + data[first:], data[:first] + data[stop:]):
        path.write_bytes(damaged)
        assert check_video(path)
        assert wrong_frames(path) == []


def test_zeros_that_fill_up_a_constant_bit_rate(tmp_path):
    """MPEG-2 at a rate that small pictures do not need: zeros stand behind the last slice of each."""
    rate = {"b": "800000", "minrate": "800000", "maxrate": "800000", "bufsize": "400000"}
    for name in ("clip.mpg", "clip.ts", "clip.mkv"):
        path = tmp_path / name
        write_clip(path, 20, codec="mpeg2video", gop=6, options=rate)
        assert max(len(data) - len(data.rstrip(b"\0")) for data in map(bytes, packets_of(path))) > 64
        assert check_video(path) is None, name
        with open_video(path) as reader:
            assert [read_number(frame) for frame in reader] == list(range(20))


@pytest.mark.parametrize("name", ["hevc.mp4", "h264.mp4"])
def test_zeros_from_one_picture_into_the_next(name, clips, tmp_path):
    """The picture before ends with zeros, as with padding; that the next one begins with them tells."""
    data, packets = (clips / name).read_bytes(), packets_of(clips / name)
    for place in (4, 13, 24):
        border = packets[place].pos
        assert packets[place - 1].pos + packets[place - 1].size == border
        for before in (20, 50):
            path = tmp_path / name
            path.write_bytes(with_zeros(data, border - before, before + 20))
            assert check_video(path)
            for on_corrupt in ("raise", "nearest"):
                assert wrong_frames(path, on_corrupt) == []


def test_a_frame_of_a_transport_stream_without_its_beginning(clips, tmp_path):
    """The demuxer leaves the frame out; the counters of the packets are those of a whole file."""
    data = (clips / "h264.ts").read_bytes()
    begins = [packet.pos for packet in packets_of(clips / "h264.ts")]
    path = tmp_path / "clip.ts"
    for begin in begins[3:20:4]:
        start = data.index(b"\0\0\1\xe0", begin)  # of the stream with video
        path.write_bytes(with_zeros(data, start, 6))
        with pytest.raises(
            VideoDecodeError, match=f"no frame begins in the packet of MPEG-TS at byte {begin}"
        ):
            open_video(path)


def test_what_only_a_check_sees(clips, tmp_path):
    """Bytes that changed places within pictures of VP9; libvpx counts what is left over of a picture."""
    data = (clips / "vp9.webm").read_bytes()
    key = packets_of(clips / "vp9.webm")[0]
    begin, path = data.index(bytes(key)[:40]), tmp_path / "vp9.webm"
    num_wrong = 0
    for first in range(begin + 30, begin + key.size - 100, 61):
        path.write_bytes(
            data[:first] + data[first + 40 : first + 80] + data[first : first + 40] + data[first + 80 :]
        )
        if wrong_frames(path):
            num_wrong += 1
            assert "libvpx refuses a picture" in str(check_video(path)), first
    assert num_wrong


@pytest.mark.parametrize("codec", ["libx264", "mjpeg"])
def test_checksums_of_matroska(codec, tmp_path):
    """Any other bit within a cluster is damage to `check_video`, whether pictures show it or not."""
    path = tmp_path / "clip.mkv"
    write_clip(path, 12, codec=codec, pix_fmt="yuvj420p" if codec == "mjpeg" else "yuv420p")
    assert check_video(path) is None
    data = path.read_bytes()
    causes = []
    for packet in packets_of(path):
        at = data.index(bytes(packet)) + packet.size // 2
        causes.append(check_video(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]))
    assert None not in causes
    cluster = data.index(b"\x1f\x43\xb6\x75")
    assert f"damaged: the checksum of the cluster at byte {cluster} is wrong" in causes

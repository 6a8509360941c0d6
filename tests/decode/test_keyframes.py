"""Decoding begins where pictures say that it can, whatever the container says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest

from paddlevideo_fast.decode import open_video
from paddlevideo_fast.decode.keyframes import keyframe_test
from tests.support.exact_corpus import OPEN_GOP, call_all_keyframes, in_sequence, with_data
from tests.support.numbered_clips import packets_of, read_number, write_clip

_OPEN_HEVC = {"x265-params": "log-level=error:bframes=3:b-adapt=0:open-gop=1"}
_CIF = {"size": (176, 144)}
# file name -> arguments of `write_clip`; the containers show each packet of these as a keyframe
KNOWN: dict[str, dict[str, Any]] = {
    "h264_open_gop.nut": {"bframes": 3, "options": OPEN_GOP},
    "h264_intra_refresh.nut": {"options": {"x264-params": "intra-refresh=1"}},
    "hevc.mp4": {"codec": "libx265"},
    "hevc_open_gop.mkv": {"codec": "libx265", "options": _OPEN_HEVC},
    "mpeg4.mp4": {"codec": "mpeg4"},
    "mpeg4_b_frames.3gp": {"codec": "mpeg4", "bframes": 2},
    "mpeg1.nut": {"codec": "mpeg1video", "bframes": 2},
    "mpeg2.mov": {"codec": "mpeg2video", "bframes": 2},
    "vp8.nut": {"codec": "libvpx"},
    "vp9.nut": {"codec": "libvpx-vp9"},
    "vp9_444.nut": {"codec": "libvpx-vp9", "pix_fmt": "yuv444p"},
    "av1.nut": {"codec": "libsvtav1", "size": (160, 96)},
    "ffv1.mp4": {"codec": "ffv1"},
}
UNKNOWN: dict[str, dict[str, Any]] = {
    "h263.avi": {"codec": "h263", **_CIF},
    "h263.3gp": {"codec": "h263", **_CIF},
    "h261.avi": {"codec": "h261", **_CIF},
    "flv1.flv": {"codec": "flv"},
    "wmv1.wmv": {"codec": "wmv1"},
    "wmv2.avi": {"codec": "wmv2"},
    "msmpeg4v2.avi": {"codec": "msmpeg4v2"},
    "msmpeg4v3.wmv": {"codec": "msmpeg4"},
    "cinepak.avi": {"codec": "cinepak", "pix_fmt": "rgb24"},
    "svq1.mov": {"codec": "svq1", "pix_fmt": "yuv410p"},
    "rv20.rm": {"codec": "rv20", **_CIF},
    "qtrle.mov": {"codec": "qtrle", "pix_fmt": "rgb24"},
    "msvideo1.avi": {"codec": "msvideo1", "pix_fmt": "rgb555le"},
    "flashsv.flv": {"codec": "flashsv", "pix_fmt": "bgr24"},
    "zmbv.avi": {"codec": "zmbv", "pix_fmt": "bgr0"},
}


@pytest.mark.parametrize("name", [*KNOWN, *UNKNOWN])
def test_each_frame_alone(name, tmp_path):
    path = tmp_path / name
    arguments = {**KNOWN, **UNKNOWN}[name]
    numbers = write_clip(path, 28, gop=8, **arguments, arrange=call_all_keyframes)
    num_claimed = sum(packet.is_keyframe for packet in packets_of(path))
    expected = in_sequence(path)
    assert [read_number(frame) for frame in expected] == numbers
    with open_video(path) as reader:
        points = reader._decoder._index.access_points
        assert len(points) < min(num_claimed, 8)
        assert (len(points) == 1) == (name in UNKNOWN)
        for index in np.random.default_rng(0).permutation(28).tolist():
            assert np.array_equal(reader.read([index])[0], expected[index]), index


@pytest.mark.smoke
@pytest.mark.parametrize("name", [*KNOWN, "h264.mp4", "mjpeg.avi", "prores.mov"])
def test_keyframes_are_those_of_the_encoder(name, tmp_path):
    """Of the known codecs all are found, so that reading them is no slower."""
    other: dict[str, dict[str, Any]] = {
        "mjpeg.avi": {"codec": "mjpeg", "pix_fmt": "yuvj420p"},
        "prores.mov": {"codec": "prores", "pix_fmt": "yuv422p10le"},
    }
    encoded: list[bool] = []

    def arrange(packets: list[Any]) -> list[Any]:
        encoded.extend(packet.is_keyframe for packet in packets)
        return packets

    path = tmp_path / name
    write_clip(path, 28, gop=8, **KNOWN.get(name, other.get(name, {})), arrange=arrange)
    with av.open(str(path)) as container:
        codec = container.streams.video[0].codec_context
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
        is_key = keyframe_test(codec, packets[0])
    assert is_key is not None
    assert [is_key(packet) for packet in packets] == encoded


def _h264(*units: str) -> bytes:
    return b"".join(b"\0\0\0\1" + bytes.fromhex(unit) for unit in units)


def _jpeg(*marks: str) -> bytes:
    return b"\xff\xd8" + b"".join(bytes.fromhex(f"ff {mark} 0003 00") for mark in marks) + b"\xff\xda\xff\xdb"


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("codec", "packet", "expected"),
    [
        ("h264", _h264("0910", "65b8"), True),
        ("h264", _h264("0910", "61e0"), False),
        ("h264", _h264("0601 01 00 06 01 c4 80", "61e0"), True),  # a recovery point behind another message
        ("h264", _h264("06 05 ff 01" + "55" * 256 + "06 01 c4 80", "61e0"), True),
        ("h264", _h264("06 06 01 48 80", "61e0"), False),  # right one picture later, but not exactly
        ("h264", _h264("06 06 01 58 80", "61e0"), True),
        ("h264", _h264("06 05 03 06 01 c4 80", "61e0"), False),
        ("h264", _h264("06 06", "61e0"), False),
        ("vp9", b"\x82", True),
        ("vp9", b"\x86", False),
        ("vp9", b"\x8a", False),  # shows another again
        ("vp9", b"\xb0", True),  # profile 3
        ("vp9", b"\xb2", False),
        ("vp9", b"\xb4", False),
        ("theora", b"\x00", True),
        ("theora", b"\x40", False),
        ("mjpeg", _jpeg("db", "c4"), True),
        ("mjpeg", _jpeg("db"), False),  # has the Huffman tables of another picture
        ("mjpeg", _jpeg("c4"), False),
    ],
)
def test_headers_of_pictures(codec, packet, expected):
    context = SimpleNamespace(name=codec, extradata=b"", pix_fmt="yuv420p")
    is_key = keyframe_test(context, _jpeg("db", "c4"))
    assert is_key is not None
    assert is_key(packet) == expected


def test_motion_jpeg_without_tables(tmp_path):
    """Some writers leave out tables that an earlier picture brought."""

    def arrange(packets: list[Any]) -> list[Any]:
        arranged = list(packets)
        for place in range(1, len(packets)):
            data = bytes(packets[place])
            at = data.index(b"\xff\xdb")
            length = int.from_bytes(data[at + 2 : at + 4], "big") + 2
            assert data[at : at + length] in bytes(packets[0])
            if place % 4:
                arranged[place] = with_data(packets[place], data[:at] + data[at + length :])
        return arranged

    path = tmp_path / "clip.mov"
    options = {"flags": "+qscale", "global_quality": "236"}
    numbers = write_clip(path, 12, codec="mjpeg", pix_fmt="yuvj420p", options=options, arrange=arrange)
    for index in (6, 11, 3):
        with open_video(path) as reader:
            assert read_number(reader.read([index])[0]) == numbers[index]
            assert reader._decoder._index.access_points == [0, 4, 8]

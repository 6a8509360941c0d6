"""Recordings that are unusual and whole: pauses, cuts of open groups, joined streams, empty edits.

They are read, and what is unusual is noted. Files that lost packets, and look alike, are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from paddlevideo_fast.decode import open_video
from paddlevideo_fast.errors import VideoDecodeError
from tests.support.exact_corpus import OPEN_GOP, Edit, set_edit_list
from tests.support.numbered_clips import read_number, write_clip

FRAGMENTS = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
LIVE = {"live": "1"}
X265 = {"x265-params": "log-level=error:bframes=3:b-adapt=0"}
PYRAMID = {"x264-params": "open-gop=1:bframes=3:b-adapt=1:b-pyramid=normal:ref=3:scenecut=0"}
REFRESH = {"x264-params": "intra-refresh=1"}


def assert_reads(path: Path, expected: list[Any], note: str = "") -> None:
    """All frames in order and some of them alone, strict and lenient."""
    for on_corrupt in ("raise", "nearest"):
        with open_video(path, on_corrupt=on_corrupt) as reader:
            assert [read_number(frame) for frame in reader] == expected, path
            alone = range(len(expected) - 1, 0, -7)
            assert [read_number(reader.read([index])[0]) for index in alone] == [expected[i] for i in alone]
            assert reader.num_replaced == 0
            times = reader.times_sec()
            assert len(times) == len(expected)
            assert (np.diff(times) > 0).all()
            assert bool(reader.notes) == bool(note)
            assert all(note in text for text in reader.notes)


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        ("clip.ts", {"codec": "libx264"}, {}),
        ("clip.ts", {"codec": "libx264", "bframes": 3}, {}),
        ("clip.ts", {"codec": "libx265", "options": X265}, {}),
        ("clip.ts", {"codec": "mpeg2video", "bframes": 2}, {}),
        ("clip.flv", {"codec": "libx264", "bframes": 3}, {}),
        ("clip.mp4", {"codec": "libx264", "bframes": 3}, FRAGMENTS),
        ("clip.mp4", {"codec": "libvpx-vp9"}, FRAGMENTS),
        ("clip.mkv", {"codec": "libx264"}, LIVE),
        ("clip.mkv", {"codec": "libvpx"}, LIVE),
        ("clip.mkv", {"codec": "mjpeg", "pix_fmt": "yuvj420p"}, LIVE),
    ],
)
def test_a_recording_pauses(name, codec, options, tmp_path):
    """Within a group of pictures, at its beginning, for half a second and for longer."""
    for gop, pause in ((25, (60, 12)), (25, (50, 12)), (30, (45, 50))):
        write_clip(tmp_path / name, 100, gop=gop, container_options=options, pause=pause, **codec)
        assert_reads(tmp_path / name, list(range(100)), "a pause: no frame for")


def test_a_pause_as_long_as_a_group_is_told_by_the_numbers_of_groups(tmp_path):
    for bframes, pause in ((0, (60, 12)), (3, (65, 12)), (0, (48, 36))):
        write_clip(tmp_path / "clip.flv", 100, gop=12, bframes=bframes, pause=pause)
        assert_reads(tmp_path / "clip.flv", list(range(100)), "a pause")


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        *(("clip.ts", codec) for codec in ("libx264", "libx265", "mpeg2video")),
        *(("clip.flv", "libx264"), ("clip.mkv", "libx264"), ("clip.mpg", "mpeg2video")),
    ],
)
def test_lost_packets_leave_a_hole_in_the_numbers_of_pictures(name, codec, tmp_path):
    """The muxer wrote what was left: nothing in the container is wrong."""
    options = {"options": X265} if codec == "libx265" else {"bframes": 2}
    for first, stop in ((30, 40), (21, 35), (51, 56)):

        def lose(packets: list[Any], first: int = first, stop: int = stop) -> list[Any]:
            return packets[:first] + packets[stop:]

        live = LIVE if name == "clip.mkv" else {}
        write_clip(tmp_path / name, 100, gop=25, codec=codec, container_options=live, arrange=lose, **options)
        for on_corrupt in ("raise", "nearest"):
            with pytest.raises(VideoDecodeError, match="damaged or cut off: no frame for"):
                open_video(tmp_path / name, on_corrupt=on_corrupt)


def cut(source: Path, target: Path, key: int, num_hidden: int = 0) -> None:
    """Copies what follows a key packet, as `ffmpeg -ss … -c copy` does; an MP4 hides its first frames."""
    with av.open(str(source)) as whole, av.open(str(target), "w") as part:
        stream = whole.streams.video[0]
        copy = part.add_stream_from_template(stream)
        packets = [packet for packet in whole.demux(stream) if packet.size]
        keys = [number for number, packet in enumerate(packets) if packet.is_keyframe]
        ticks = round(1 / (25 * stream.time_base))
        begin = packets[keys[key]].pts + num_hidden * ticks
        for packet in packets[keys[key] :]:
            packet.pts, packet.dts, packet.stream = packet.pts - begin, packet.dts - begin, copy
            part.mux(packet)


def as_played(path: Path) -> list[Any]:
    """The numbers of the frames that libav shows when nothing is asked of it."""
    frames = []
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        for packet in container.demux(video=0):
            try:
                frames += [frame.to_ndarray(format="rgb24") for frame in packet.decode()]
            except av.FFmpegError:
                continue
    return [read_number(frame) for frame in frames]


@pytest.mark.parametrize(
    ("codec", "options"),
    [("libx264", PYRAMID), ("libx264", OPEN_GOP), ("libx264", REFRESH), ("libx265", X265)],
)
def test_cuts_of_open_groups(codec, options, tmp_path):
    """What was cut away is missed by pictures that nobody shows, and released by some that are shown."""
    whole = tmp_path / "whole.mp4"
    write_clip(whole, 100, codec=codec, gop=20, options=options)
    for key, num_hidden in ((1, 0), (2, 0), (2, 7), (3, 3)):
        for name in ("cut.mp4", "cut.mkv"):
            cut(whole, tmp_path / name, key, num_hidden if name == "cut.mp4" else 0)
            expected = as_played(tmp_path / name)
            assert expected == list(range(100 - len(expected), 100))
            assert len(expected) > 100 - 20 * key - num_hidden - 20
            assert_reads(tmp_path / name, expected)


@pytest.mark.parametrize(("codec", "options"), [("libx264", OPEN_GOP), ("libx265", X265)])
def test_a_stream_that_was_recorded_from_its_middle_on(codec, options, tmp_path):
    """A transport stream that begins with pictures before the first key picture."""
    write_clip(tmp_path / "whole.ts", 120, codec=codec, gop=30, options=options)
    data, path = (tmp_path / "whole.ts").read_bytes(), tmp_path / "late.ts"
    path.write_bytes(data[: 188 * 3] + data[len(data) // 3 // 188 * 188 :])
    expected = as_played(path)
    assert expected == list(range(120 - len(expected), 120))
    assert len(expected) >= 60
    assert_reads(path, expected)


@pytest.mark.parametrize("audio", [False, True])
@pytest.mark.parametrize(
    ("codec", "options"), [("libx264", OPEN_GOP), ("libx265", X265), ("mpeg2video", {}), ("mpeg4", {})]
)
def test_joined_transport_streams(codec, options, audio, tmp_path):
    """`cat a.ts b.ts`: the second begins with its own tables, counters and times."""
    parts = {}
    for name, num_frames in (("a", 40), ("b", 61)):
        path = tmp_path / f"{name}.ts"
        write_clip(path, num_frames, codec=codec, options=options, audio=num_frames / 25 if audio else False)
        parts[name] = path.read_bytes(), list(range(num_frames))
    joined = tmp_path / "joined.ts"
    for names in ("ab", "ba", "aba"):
        joined.write_bytes(b"".join(parts[name][0] for name in names))
        numbers = [number for name in names for number in parts[name][1]]
        assert_reads(joined, numbers, "another recording begins at frame")
        with open_video(joined) as reader:
            assert np.allclose(reader.times_sec(), np.arange(len(numbers)) / 25, atol=0.01)


def lose_end(data: bytes) -> bytes:
    return data[: len(data) // 188 * 188 - 188]


def repeat_part(data: bytes) -> bytes:
    rows = len(data) // 188
    return data[: 188 * (rows // 2)] + data[188 * (rows // 4) : 188 * (rows // 2)]


def lose_middle(data: bytes) -> bytes:
    rows = len(data) // 188
    return data[: 188 * (rows // 2)] + data[188 * (rows // 2 + 20) :]


@pytest.mark.parametrize("spoil", [lose_end, repeat_part, lose_middle])
def test_joined_transport_streams_of_which_one_is_damaged(spoil: Callable[[bytes], bytes], tmp_path):
    write_clip(tmp_path / "a.ts", 60, (160, 96), bframes=2, options={"crf": "1"})
    data, joined = (tmp_path / "a.ts").read_bytes(), tmp_path / "joined.ts"
    for parts in ((spoil(data), data), (data, spoil(data), data)):
        joined.write_bytes(b"".join(parts))
        with pytest.raises(VideoDecodeError, match="damaged"):
            open_video(joined)


def test_empty_edits(tmp_path):
    """An MP4 that shows nothing for a while, in front of its frames, behind them and between."""
    path = tmp_path / "clip.mp4"
    for edits, num_frames in (
        ((Edit(None, 40), Edit(0, 30)), 30),
        ((Edit(None, 40), Edit(7, 31)), 31),
        ((Edit(0, 30), Edit(None, 40)), None),
        ((Edit(None, 40), Edit(7, 31), Edit(None, 25)), None),
        ((Edit(5, 10), Edit(None, 50), Edit(29, 20)), None),
    ):
        write_clip(path, 60, bframes=3)
        set_edit_list(path, edits)
        expected = as_played(path)
        assert num_frames in (None, len(expected))
        assert_reads(path, expected)


def test_an_animated_webp_is_refused_by_its_name(tmp_path):
    """FFmpeg reads the still ones only."""
    path = tmp_path / "clip.webp"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libwebp_anim", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for tick in range(4):
            frame = av.VideoFrame(64, 48, "yuv420p")
            frame.pts = tick
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(VideoDecodeError, match="is an animated WebP, which is not read; convert it"):
        open_video(path)

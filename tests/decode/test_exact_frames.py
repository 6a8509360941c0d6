"""Every frame equals, bit for bit, what decoding the whole file in sequence gives."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any, Dict, List

import av
import numpy as np
import pytest

from paddlevideo_fast.decode import open_video
from paddlevideo_fast.decode.colour import RgbConverter

_OPEN_GOP = {"x264-params": "open-gop=1:bframes=3:b-adapt=0:scenecut=0"}
CLIPS: Dict[str, Dict[str, Any]] = {
    "plain.mp4": {},
    "one_gop.mp4": {"gop": 250},
    "all_key.mp4": {"gop": 1},
    "b_frames.mp4": {"bframes": 3},
    "b_pyramid.mp4": {"bframes": 7, "gop": 250, "options": {"x264-params": "b-pyramid=normal:b-adapt=0"}},
    "open_gop.mp4": {"bframes": 3, "options": _OPEN_GOP},
    "open_gop.mkv": {"bframes": 3, "options": _OPEN_GOP},
    "open_gop.ts": {"bframes": 3, "options": _OPEN_GOP},
    "open_gop_hevc.mkv": {
        "codec": "libx265",
        "bframes": 3,
        "options": {"x265-params": "open-gop=1:log-level=0"},
    },
    "intra_refresh.mp4": {"gop": 15, "options": {"x264-params": "intra-refresh=1"}},
    "mpeg4.avi": {"codec": "mpeg4"},
    "mpeg4_b_frames.avi": {"codec": "mpeg4", "bframes": 2},
    "h264_b_frames.avi": {"bframes": 3},
    "motion_jpeg.avi": {"codec": "mjpeg", "pix_fmt": "yuvj420p"},
    "mpeg2.ts": {"codec": "mpeg2video", "bframes": 2},
    "variable_rate.mp4": {"bframes": 2, "variable_rate": True},
    "variable_rate.mkv": {"variable_rate": True},
    "odd_size.mkv": {"size": (83, 51), "pix_fmt": "yuv444p"},
    "full_range.mp4": {"pix_fmt": "yuvj420p"},
    "quarter_turn.mp4": {"rotation": 90},
    "half_turn.mov": {"rotation": 180},
    "hidden_frames.webm": {"codec": "libvpx", "options": {"lag-in-frames": "16", "auto-alt-ref": "1"}},
    "vp9.webm": {"codec": "libvpx-vp9"},
    "interlaced.mp4": {"options": {"x264-params": "tff=1"}},
    "with_sound.mp4": {"bframes": 2, "audio": True},
    "one_frame.mp4": {"num_frames": 1},
    "two_frames.avi": {"num_frames": 2, "codec": "mpeg4"},
}


def in_sequence(path: Path) -> List[np.ndarray]:
    to_rgb = RgbConverter()  # has tests of its own
    with av.open(str(path)) as container:
        return [to_rgb(frame).copy() for frame in container.decode(video=0)]


def assert_exact(path: Path, expected: List[np.ndarray], draws: int) -> None:
    rng = np.random.default_rng(len(expected))
    requests = [rng.integers(0, len(expected), 6) for _ in range(draws)]
    requests += [range(len(expected)), [len(expected) - 1], [0, 0], range(len(expected) - 1, -1, -7)]
    with open_video(path) as reader:
        assert reader.num_frames == len(expected)
        assert (reader.height, reader.width) == expected[0].shape[:2]
        for indices in requests:
            frames = reader.read(indices)
            assert frames.dtype == np.uint8
            assert np.array_equal(frames, np.stack([expected[index] for index in indices])), list(indices)


@pytest.mark.parametrize("name", CLIPS)
def test_generated_clip(name, make_clip, frame_number, tmp_path):
    path = make_clip(tmp_path / name, **{"num_frames": 34, **CLIPS[name]})
    expected = in_sequence(path)
    assert_exact(path, expected, draws=8)
    if "rotation" not in CLIPS[name]:
        with open_video(path) as reader:
            numbers = [frame_number(frame) for frame in reader.read(range(reader.num_frames))]
        assert numbers == list(range(CLIPS[name].get("num_frames", 34)))


@pytest.mark.parametrize("name", ["open_gop.mp4", "b_pyramid.mp4", "open_gop_hevc.mkv"])
def test_each_frame_alone(name, make_clip, tmp_path):
    path = make_clip(tmp_path / name, **{"num_frames": 40, **CLIPS[name]})
    expected = in_sequence(path)
    with open_video(path) as reader:
        for index, frame in enumerate(expected):
            assert np.array_equal(reader.read([index])[0], frame), index


@pytest.mark.smoke
def test_pairs_across_groups(make_clip, tmp_path):
    path = make_clip(tmp_path / "clip.mp4", 36, bframes=3, gop=9, options=_OPEN_GOP)
    expected = in_sequence(path)
    with open_video(path) as reader:
        for first in range(0, 36, 5):
            for second in range(35, -1, -3):
                frames = reader.read([first, second])
                assert np.array_equal(frames, np.stack([expected[first], expected[second]])), (first, second)


def test_edit_list_hides_frames(make_clip, frame_number, tmp_path):
    """An MP4 cut without re-encoding: its first frames are there for decoding only."""
    whole = make_clip(tmp_path / "whole.mp4", 40, bframes=2, gop=20)
    path = tmp_path / "cut.mp4"
    with av.open(str(whole)) as source, av.open(str(path), "w") as target:
        stream = source.streams.video[0]
        copy = target.add_stream_from_template(stream)
        frame_ticks = int(1 / (25 * stream.time_base))
        for packet in source.demux(stream):
            if packet.size:
                packet.pts -= 5 * frame_ticks
                packet.dts -= 5 * frame_ticks
                packet.stream = copy
                target.mux(packet)
    expected = in_sequence(path)
    assert [frame_number(frame) for frame in expected] == list(range(5, 40))
    assert_exact(path, expected, draws=10)


def test_stream_that_begins_inside_a_group(make_clip, tmp_path):
    """A transport stream joined late: what comes before its first key frame does not count."""
    whole = make_clip(tmp_path / "whole.ts", 60, bframes=3, gop=12, options=_OPEN_GOP)
    data = whole.read_bytes()
    path = tmp_path / "late.ts"
    path.write_bytes(data[: 188 * 3] + data[len(data) // 3 // 188 * 188 :])
    expected = in_sequence(path)
    assert 0 < len(expected) < 60
    assert_exact(path, expected, draws=4)


def test_real_clips(real_clips_dir):
    clips = [p for p in sorted(real_clips_dir.iterdir()) if p.suffix in (".mp4", ".avi", ".mkv", ".mov")]
    clips = [path for path in clips if path.stem != "corrupted"]
    assert len(clips) >= 4
    for path in clips:
        assert_exact(path, in_sequence(path), draws=3)


@pytest.mark.parametrize("name", ["open_gop.mp4", "mpeg4_b_frames.avi"])
@pytest.mark.parametrize("backend", ["pyav", "cv2"])
def test_iteration_gives_all_frames_in_order(name, backend, make_clip, frame_number, tmp_path):
    path = make_clip(tmp_path / name, **{"num_frames": 34, **CLIPS[name]})
    with open_video(path, backend) as reader:
        assert [frame_number(frame) for frame in reader] == list(range(34))
        assert frame_number(reader.read([20])[0]) == 20


def _read_one(path: str, shapes: Any) -> None:
    with open_video(path) as reader:
        shapes.put(reader.read([3]).shape)


@pytest.mark.smoke
def test_a_forked_process_reads_after_its_parent_did(make_clip, tmp_path):
    """Colour conversion of recent PyAV leaves threads in the parent that a child would wait for."""
    path = make_clip(tmp_path / "clip.mp4", 8, size=(320, 240))
    with av.open(str(path)) as container:
        next(container.decode(video=0)).to_ndarray(format="rgb24")
    with open_video(path) as reader:
        reader.read([0])
    fork = multiprocessing.get_context("fork")
    shapes = fork.Queue()
    child = fork.Process(target=_read_one, args=(str(path), shapes), daemon=True)
    child.start()
    try:
        assert shapes.get(timeout=20) == (1, 240, 320, 3)
    finally:
        child.kill()

"""Every frame equals, bit for bit, what decoding the whole file in sequence gives."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from paddlevideo_fast.decode import open_video
from paddlevideo_fast.decode.colour import RgbConverter
from tests.support.exact_corpus import CORPUS, OPEN_GOP, write_corpus_clip

CLIPS = [*((name, 34) for name in CORPUS), ("mpeg4.avi", 2)]  # name in the corpus, and frames


def in_sequence(path: Path) -> list[np.ndarray]:
    to_rgb = RgbConverter()  # has tests of its own
    with av.open(str(path)) as container:
        return [to_rgb(frame).copy() for frame in container.decode(video=0)]


def assert_exact(path: Path, expected: list[np.ndarray], draws: int) -> None:
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


@pytest.mark.parametrize(("name", "num_frames"), CLIPS)
def test_generated_clip(name, num_frames, tmp_path):
    path = write_corpus_clip(tmp_path, name, num_frames).path
    assert_exact(path, in_sequence(path), draws=8)


@pytest.mark.parametrize("name", ["h264_open_gop.mp4", "h264_b_pyramid_normal.mp4", "hevc_open_gop.mkv"])
def test_each_frame_alone(name, tmp_path):
    path = write_corpus_clip(tmp_path, name, num_frames=40).path
    expected = in_sequence(path)
    with open_video(path) as reader:
        for index, frame in enumerate(expected):
            assert np.array_equal(reader.read([index])[0], frame), index


@pytest.mark.smoke
def test_pairs_across_groups(make_clip, tmp_path):
    path = make_clip(tmp_path / "clip.mp4", 36, bframes=3, gop=9, options=OPEN_GOP)
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
    whole = make_clip(tmp_path / "whole.ts", 60, bframes=3, gop=12, options=OPEN_GOP)
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


@pytest.mark.parametrize("name", ["h264_open_gop.mp4", "mpeg4_b_frames.avi"])
@pytest.mark.parametrize("backend", ["pyav", "cv2"])
def test_iteration_gives_all_frames_in_order(name, backend, frame_number, tmp_path):
    path = write_corpus_clip(tmp_path, name, num_frames=34).path
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

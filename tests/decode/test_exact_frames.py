"""Every frame equals, bit for bit, what decoding the whole file in sequence gives, and carries its number.

The numbers come from how a file was written, not from a reader.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from paddlevideo_fast.decode import VideoReader, open_video
from paddlevideo_fast.decode.codecs import av1_units
from tests.support.exact_corpus import CORPUS, OPEN_GOP, Clip, in_sequence, write_corpus_clip
from tests.support.numbered_clips import draw, packets_of, read_number

# One of each way to find a frame: by timestamp, across open groups, through an edit list, by counting.
_WAYS = (
    "h264_b_pyramid_normal.mp4",
    "hevc_open_gop.mkv",
    "edit_list_two_parts.mp4",
    "h264_b_frames.avi",
    "mpeg2.mpg",
)


@pytest.fixture(scope="session")
def corpus_clip(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Clip]:
    """Function that gives a file of the corpus, which it writes once."""
    folder = tmp_path_factory.mktemp("corpus")
    written: dict[str, Clip] = {}

    def clip(name: str) -> Clip:
        if name not in written:
            written[name] = write_corpus_clip(folder, name)
        return written[name]

    return clip


def requests(num_frames: int, seed: int) -> list[list[int]]:
    """Frame numbers to ask for: all, reversed, random, sorted, spread, repeated and single ones."""
    rng = np.random.default_rng(seed)
    everything = list(range(num_frames))
    found = [everything, everything[::-1], [num_frames - 1] * 3]
    found += [rng.integers(0, num_frames, 8).tolist() for _ in range(6)]
    found += [sorted(rng.integers(0, num_frames, 8).tolist()) for _ in range(6)]
    found += [np.linspace(0, num_frames - 1, 8).astype(int).tolist()]
    found += [np.repeat(rng.integers(0, num_frames, 3), 2).tolist()]
    found += [[index] for index in rng.permutation(num_frames).tolist()[:20]]
    return found


def assert_exact(path: Path, expected: Sequence[np.ndarray], every: int = 1) -> None:
    with open_video(path) as reader:
        assert reader.num_frames == len(expected)
        assert (reader.height, reader.width) == expected[0].shape[:2]
        for indices in requests(reader.num_frames, len(expected))[::every]:
            frames = reader.read(indices)
            assert frames.dtype == np.uint8
            assert np.array_equal(frames, np.stack([expected[index] for index in indices])), indices


@pytest.mark.parametrize("name", CORPUS)
def test_a_file_of_the_corpus(name, corpus_clip):
    clip = corpus_clip(name)
    expected = in_sequence(clip.path)
    assert numbers(expected, clip.rotation) == clip.numbers
    assert_exact(clip.path, expected)


def test_a_file_of_two_frames(tmp_path):
    path = write_corpus_clip(tmp_path, "mpeg4.avi", 2).path
    assert_exact(path, in_sequence(path))


@pytest.mark.smoke
def test_pairs_across_groups(make_clip, tmp_path):
    path = make_clip(tmp_path / "clip.mp4", 36, bframes=3, gop=9, options=OPEN_GOP)
    expected = in_sequence(path)
    with open_video(path) as reader:
        for first in range(0, 36, 5):
            for second in range(35, -1, -3):
                frames = reader.read([first, second])
                assert np.array_equal(frames, np.stack([expected[first], expected[second]])), (first, second)


def test_real_clips(real_clips_dir):
    clips = [p for p in sorted(real_clips_dir.iterdir()) if p.suffix in (".mp4", ".avi", ".mkv", ".mov")]
    clips = [path for path in clips if path.stem != "corrupted"]
    assert len(clips) >= 4
    for path in clips:
        assert_exact(path, in_sequence(path), every=6)


@pytest.mark.parametrize("name", ["h264_open_gop.mp4", "mpeg4_b_frames.avi"])
@pytest.mark.parametrize("backend", ["pyav", "cv2"])
def test_iteration_gives_all_frames_in_order(name, backend, corpus_clip, frame_number):
    path = corpus_clip(name).path
    with open_video(path, backend) as reader:
        assert [frame_number(frame) for frame in reader] == list(range(60))
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


def mistakes(reader: VideoReader, clip: Clip, seed: int = 0) -> list[str]:
    """What `reader` gets wrong, in many reads."""
    if reader.num_frames != len(clip.numbers):
        return [f"{clip.path.name}: {reader.num_frames} frames, not {len(clip.numbers)}"]
    found = []
    for indices in requests(reader.num_frames, seed):
        read = numbers(reader.read(indices), clip.rotation)
        expected = [clip.numbers[index] for index in indices]
        if read != expected:
            found.append(f"{clip.path.name}: frames {indices} are {read}, not {expected}")
    return found


def numbers(frames: Sequence[np.ndarray], rotation: int) -> list[Any]:
    return [read_number(np.rot90(frame, rotation // 90)) for frame in frames]


def mistakes_in_files(clips: Sequence[Clip]) -> list[str]:
    found = []
    for clip in clips:
        with open_video(clip.path) as reader:
            found += mistakes(reader, clip)
    return found


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_frames_in_a_worker(method, corpus_clip):
    clips = [corpus_clip(name) for name in _WAYS]
    assert mistakes_in_files(clips) == []  # the parent has read before
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map_async(mistakes_in_files, [clips, clips[::-1]]).get(timeout=60) == [[], []]


def _continue(reader: VideoReader, clip: Clip, seed: int, found: Any) -> None:
    found.put(mistakes(reader, clip, seed))


@pytest.mark.parametrize("name", _WAYS)
def test_an_open_reader_is_shared_with_forked_workers(name, corpus_clip):
    """Parent and children read at the same time from a reader that was opened before the fork."""
    fork, clip = multiprocessing.get_context("fork"), corpus_clip(name)
    found = fork.Queue()
    with open_video(clip.path) as reader:
        reader.read([0])
        workers = [fork.Process(target=_continue, args=(reader, clip, seed, found)) for seed in (1, 2)]
        for worker in workers:
            worker.start()
        assert mistakes(reader, clip) == []
        assert [found.get(timeout=60) for _ in workers] == [[], []]
        for worker in workers:
            worker.join()


def test_readers_of_several_files_take_turns(corpus_clip):
    clips = [corpus_clip(name) for name in _WAYS]
    readers = [open_video(clip.path) for clip in clips]
    rng = np.random.default_rng(0)
    for turn in rng.integers(0, len(clips), 60):
        indices = rng.integers(0, len(clips[turn].numbers), 4).tolist()
        read = numbers(readers[turn].read(indices), clips[turn].rotation)
        assert read == [clips[turn].numbers[index] for index in indices]
    for reader in readers:
        reader.close()


def _open_groups(packets, frame, codec):
    keys = [place for place, packet in enumerate(packets) if packet.is_keyframe]
    return any(packets[key + 1].pts < packets[key].pts for key in keys[1:-1])


def _av1_frames(packet):
    """How many frames, shown or hidden, are in a packet."""
    data = bytes(packet)
    return sum(data[start] >> 3 & 15 == 6 for start, _ in av1_units(data))


# what makes a file of the corpus what its name says: packets, first frame, codec context -> bool
_MARKS: dict[str, Callable[..., bool]] = {
    "h264_open_gop.mp4": _open_groups,
    "h264_open_gop.ts": _open_groups,
    "hevc_open_gop.mkv": _open_groups,
    "h264_b_pyramid.avi": lambda packets, frame, codec: codec.has_b_frames,
    "h264_interlaced.mp4": lambda packets, frame, codec: frame.interlaced_frame,
    "h264_10_bit.mkv": lambda packets, frame, codec: codec.pix_fmt == "yuv420p10le",
    "h264_full_range.mp4": lambda packets, frame, codec: codec.color_range == 2,
    "h264_bt709.mp4": lambda packets, frame, codec: codec.colorspace == 1,
    "h264_negative_start.ts": lambda packets, frame, codec: packets[0].pts < 0,
    "h264_intra_refresh.mp4": lambda packets, frame, codec: sum(p.size > 500 for p in packets) == 1,
    "edit_list_start.mp4": lambda packets, frame, codec: packets[0].is_discard,
    "mpeg4_packed_b_frames.avi": lambda packets, frame, codec: min(p.size for p in packets) < 19,
    "mpeg2.mpg": lambda packets, frame, codec: codec.has_b_frames,
    "vp8_hidden.webm": lambda packets, frame, codec: any(not bytes(p)[0] >> 4 & 1 for p in packets),
    "vp9_hidden.webm": lambda packets, frame, codec: any(bytes(p)[-1] >> 5 == 6 for p in packets),
    "av1_hidden.mp4": lambda packets, frame, codec: max(map(_av1_frames, packets)) > 1,
}


@pytest.mark.parametrize("name", _MARKS)
def test_the_corpus_is_what_its_names_say(name, corpus_clip):
    path = corpus_clip(name).path
    with av.open(str(path)) as container:
        frame, codec = next(container.decode(video=0)), container.streams.video[0].codec_context
        assert _MARKS[name](packets_of(path), frame, codec)


@pytest.mark.parametrize(
    "name",
    [
        *("h264.mp4", "h264_10_bit.mkv", "h264_444.mp4", "h264_full_range.mp4", "h264_bt709.mp4"),
        *("mjpeg.mov", "prores.mov", "vp9.webm", "av1_hidden.mkv", "hevc_10_bit.mp4"),
    ],
)
def test_colors_are_those_drawn(name, corpus_clip):
    """Blocks of 8×8 pixels keep their mean. With the wrong matrix or range they differ by 4.2 and more."""
    clip = corpus_clip(name)
    with open_video(clip.path) as reader:
        frame = reader.read([30])[0]
    drawn = draw(30, frame.shape[1], frame.shape[0])
    frame, drawn = (
        picture.reshape(frame.shape[0] // 8, 8, frame.shape[1] // 8, 8, 3).mean((1, 3))
        for picture in (frame, drawn)
    )
    waves = slice(frame.shape[0] // 2 + 1, None)
    assert np.abs(frame - drawn)[waves].mean() < 3.3

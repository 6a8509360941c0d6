"""Every frame read is the one asked for, in whatever order, from files whose frames carry their numbers.

What is expected comes from how a file was written, not from a reader.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import av
import numpy as np
import pytest

from paddlevideo_fast.decode import VideoReader, open_video
from tests.support.exact_corpus import CORPUS, Clip, write_corpus_clip
from tests.support.numbered_clips import NUMBERS, draw, read_number

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


@pytest.mark.smoke
@pytest.mark.parametrize("size", [(80, 48), (40, 32), (83, 51)])
def test_a_picture_carries_its_number(size):
    for number in range(NUMBERS):
        assert read_number(draw(number, *size)) == number


def test_a_mixture_of_two_pictures_carries_no_number():
    rng = np.random.default_rng(0)
    for _ in range(300):
        first, second = (draw(number, 80, 48) for number in rng.choice(NUMBERS, 2, replace=False))
        row = int(rng.integers(7, 17))
        mixed = np.concatenate([first[:row], second[row:]])
        assert read_number(mixed) in (None, read_number(first), read_number(second))
    assert read_number(np.full((48, 80, 3), 128, np.uint8)) is None


@pytest.mark.parametrize("name", CORPUS)
def test_frames_are_those_asked_for(name, corpus_clip):
    assert mistakes_in_files([corpus_clip(name)]) == []


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


@contextmanager
def inside(clip: Clip) -> Iterator[Any]:
    with av.open(str(clip.path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        container.seek(0)
        yield packets, next(container.decode(video=0)), container.streams.video[0].codec_context


def _open_groups(packets, frame, codec):
    keys = [place for place, packet in enumerate(packets) if packet.is_keyframe]
    return any(packets[key + 1].pts < packets[key].pts for key in keys[1:-1])


def _av1_frames(packet):
    """How many frames, shown or hidden, are in a packet; each of its units says its length."""
    data, count, at = bytes(packet), 0, 0
    while at < len(data):
        kind, extended = data[at] >> 3 & 15, data[at] >> 2 & 1
        at, length, shift = at + 1 + extended, 0, 0
        while True:
            length |= (data[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 128:
                break
        count += kind == 6
        at += length
    return count


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
    with inside(corpus_clip(name)) as found:
        assert _MARKS[name](*found)


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

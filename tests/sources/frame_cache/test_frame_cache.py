"""Decoded frames that runs share: they are the frames that decoding gives, whatever happens to the folder."""

import contextlib
import errno
import os
import random
from pathlib import Path

import numpy as np
import pytest

from paddlevideo_fast.decode import open_video
from paddlevideo_fast.decode.pyav_reader import PyAVReader
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.sources.frame_cache import frame_cache
from paddlevideo_fast.sources.frame_cache.frame_cache import FrameCache
from tests.support.exact_corpus import write_corpus_clip
from tests.support.killed_readers import most_stored
from tests.support.numbered_clips import read_number, write_clip

CLIPS = (
    "h264_b_pyramid_normal.mp4",
    "h264_open_gop.mkv",
    "h264_interlaced.mp4",
    "h264_10_bit.mkv",
    "h264_444.mp4",
    "h264_full_range.mp4",
    "h264_bt709.mp4",
    "h264_odd_size.mkv",
    "h264_variable_rate.mkv",
    "h264_turned_90.mov",
    "h264_last_packets_lost.mkv",
    "hevc_open_gop.mkv",
    "vp9_hidden.webm",
    "mpeg4_packed_b_frames.avi",
    "mpeg2_interlaced.vob",
    "mjpeg.avi",
)
FACTS = ("num_frames", "avg_fps", "codec", "width", "height", "orientation", "pixel_aspect")
GB_OF_FRAME = 80 * 48 * 1.5 / 1e9


@pytest.fixture
def cache(tmp_path):
    return FrameCache(tmp_path / "frames", 1.0)


@pytest.fixture
def video(tmp_path):
    write_clip(tmp_path / "a.mp4", 48, gop=12, bframes=2)
    return str(tmp_path / "a.mp4")


def blocks_of(cache):
    """The files of the cache, without the count."""
    return sorted(path for path in Path(cache.blocks.folder).glob("*/*") if not path.name.endswith(".part"))


def stored_bytes(cache):
    total = 0
    for path in blocks_of(cache):
        with contextlib.suppress(FileNotFoundError):  # evicted meanwhile
            total += path.stat().st_size
    return total


def numbers(video, frames, cache):
    """What the frames carry, and whether the file was opened for them."""
    with open_video(video, frames=cache) as reader:
        return [read_number(frame) for frame in reader.read(frames)], reader._file is not None


@pytest.mark.parametrize("name", CLIPS)
def test_frames_and_facts_are_those_of_the_file(tmp_path, cache, name):
    path = str(write_corpus_clip(tmp_path, name, 30).path)
    rng = np.random.default_rng(0)
    with open_video(path) as plain:
        facts, times = [getattr(plain, fact) for fact in FACTS], plain.times_sec()
        expected = plain.read(range(plain.num_frames))
    for turn in range(4):
        wanted = rng.integers(0, len(expected), 3).tolist() if turn < 2 else range(len(expected))
        with open_video(path, frames=cache) as video:
            np.testing.assert_array_equal(video.read(wanted), expected[wanted])
            assert [getattr(video, fact) for fact in FACTS] == facts
            np.testing.assert_array_equal(video.times_sec(), times)
            is_open = video._file is not None
    assert not is_open  # all was there


def test_a_whole_group_is_kept(video, cache):
    assert numbers(video, [17], cache) == ([17], True)
    assert len(blocks_of(cache)) == 12 + 1  # and the facts
    assert numbers(video, [*range(12, 24)], cache) == ([*range(12, 24)], False)
    assert numbers(video, [40, 13], cache) == ([40, 13], True)
    assert len(blocks_of(cache)) == 24 + 1


def test_a_long_group_is_kept_up_to_a_limit(tmp_path, cache, monkeypatch):
    monkeypatch.setattr("paddlevideo_fast.decode.picture_decoder._MOST_BEYOND", 5)
    write_clip(tmp_path / "long.mp4", 40, gop=40)
    assert numbers(str(tmp_path / "long.mp4"), [10], cache) == ([10], True)
    assert len(blocks_of(cache)) == 11 + 5 + 1


def test_a_changed_file_is_decoded_anew(video, cache):
    assert numbers(video, [5], cache) == ([5], True)
    write_clip(video, 24)
    assert numbers(video, [5, 23], cache) == ([5, 23], True)
    os.utime(video, ns=(1, 1))
    assert [numbers(video, [5], cache)[1] for _ in range(2)] == [True, False]


def test_a_file_that_changes_while_it_is_opened_is_not_kept(video, cache, monkeypatch):
    opened = PyAVReader.__init__

    def changing(self, *args):
        os.utime(video, ns=(1, 1))
        opened(self, *args)

    monkeypatch.setattr(PyAVReader, "__init__", changing)
    assert numbers(video, [5], cache) == ([5], True)
    assert blocks_of(cache) == []


def failure(path, wanted, cache):
    with pytest.raises(VideoDecodeError) as caught, open_video(path, frames=cache) as reader:
        reader.read(range(reader.num_frames) if wanted is None else wanted)
    return str(caught.value)


def test_damage_is_reported_as_without_a_cache(broken_videos, cache):
    path = str(broken_videos["damaged"])
    rng = np.random.default_rng(0)
    for wanted in (None, [60, 3], *rng.integers(0, 40, (8, 3)).tolist()):
        try:
            with open_video(path) as plain:
                plain.read(range(plain.num_frames) if wanted is None else wanted)
        except VideoDecodeError:
            assert failure(path, wanted, cache) == failure(path, wanted, None)
    assert numbers(path, [*range(8)], cache)[0] == [*range(8)]
    for kind in ("missing", "folder", "empty", "text", "truncated"):
        path = str(broken_videos[kind])
        assert failure(path, [0], cache) == failure(path, [0], None)


def test_bytes_and_nearest_go_without(video, cache):
    with open(video, "rb") as file:
        content = file.read()
    assert isinstance(open_video(content, frames=cache), PyAVReader)
    assert isinstance(open_video(video, on_corrupt="nearest", frames=cache), PyAVReader)
    assert blocks_of(cache) == []


def test_altered_blocks_are_decoded_anew(video, tmp_path, cache, caplog):
    assert numbers(video, [0, 47], cache)[1]
    rng = np.random.default_rng(0)
    for path in blocks_of(cache):
        data = bytearray(path.read_bytes())
        data[rng.integers(len(data))] ^= 1
        path.write_bytes(data if rng.random() < 0.7 else data[: len(data) // 2])
    again = FrameCache(tmp_path / "frames", 1.0)
    assert numbers(video, [*range(48)], again) == ([*range(48)], True)
    assert caplog.text.count("holds altered blocks; they are decoded again") == 1
    assert numbers(video, [*range(48)], again) == ([*range(48)], False)


def test_the_bound_holds(tmp_path, video):
    small = FrameCache(tmp_path / "frames", 20 * GB_OF_FRAME)
    for seed in range(8):
        wanted = np.random.default_rng(seed).integers(0, 48, 3).tolist()
        assert numbers(video, wanted, small)[0] == wanted
        assert 0 < stored_bytes(small) <= small.blocks.max_bytes


def test_a_full_disk_is_told_once_and_only_wanted_frames_are_decoded(video, cache, monkeypatch, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    assert numbers(video, [5], cache) == ([5], True)
    monkeypatch.setattr(PyAVReader, "groups", None)
    assert [numbers(video, [frame], cache)[0] for frame in (5, 30)] == [[5], [30]]
    (warning,) = [record.message for record in caplog.records]
    assert "frames are decoded and not kept: No space left on device; free its disk, or choose" in warning
    assert blocks_of(cache) == []


def test_a_folder_that_cannot_be_written(tmp_path, video, caplog):
    (tmp_path / "file").write_text("")
    cache = FrameCache(tmp_path / "file" / "frames", 1.0)
    assert [numbers(video, [frame], cache)[0] for frame in (5, 30)] == [[5], [30]]
    assert len(caplog.records) == 1
    assert "another STORAGE.frames_cache" in caplog.text


def _reader(video, folder, seed):
    """Reads at random for ever; ends with 1 where a frame is wrong."""
    cache, rng = FrameCache(folder, 30 * GB_OF_FRAME), random.Random(seed)
    while True:
        wanted = [rng.randrange(48) for _ in range(3)]
        if numbers(video, wanted, cache)[0] != wanted:
            os._exit(1)


def test_three_processes_killed_at_random(tmp_path, video, monkeypatch):
    """The bound holds but for what is in flight, no frame is wrong, and the cache goes on."""
    folder = tmp_path / "frames"
    cache = FrameCache(folder, 30 * GB_OF_FRAME)
    most = most_stored(
        lambda seed: _reader(video, folder, seed),
        lambda: stored_bytes(cache),
        num_processes=3,
        num_kills=10,
    )
    assert 0 < most <= cache.blocks.max_bytes + 13 * GB_OF_FRAME * 2e9  # a block of each that was ever there
    monkeypatch.setattr("paddlevideo_fast.sources.remote.block_folder._PART_SEC", 0.0)
    assert numbers(video, [*range(48)], FrameCache(folder, 1.0))[0] == [*range(48)]
    cache.blocks.evict()
    assert not list(folder.glob("*/*.part"))


def test_a_cache_that_is_too_small_says_so_once(video, tmp_path, caplog):
    cache = FrameCache(tmp_path / "frames", 30 * GB_OF_FRAME)  # of 48 frames
    for _ in range(3):
        assert numbers(video, [*range(48)], cache)[0] == [*range(48)]
    (warning,) = [record.message for record in caplog.records]
    assert "frames: is full: frames are decoded again and again" in warning
    assert "raise STORAGE.frames_cache_gb (" in warning


def test_another_library_decodes_for_itself(video, cache, monkeypatch):
    assert numbers(video, [5], cache) == ([5], True)
    monkeypatch.setattr(frame_cache.av, "library_versions", {"libavcodec": (1, 0, 0)})
    assert numbers(video, [5], cache) == ([5], True)

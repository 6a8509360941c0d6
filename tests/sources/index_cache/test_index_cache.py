"""Indexes of videos that are kept on disk: the frames are the same, and a wrong index is made anew."""

import gc
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import av
import numpy as np
import pytest

from paddlevideo_fast.decode import Span, demux, open_video, picture_decoder, source, stored_index
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.sources.index_cache.index_cache import IndexCache
from tests.support.exact_corpus import in_sequence, write_corpus_clip
from tests.support.numbered_clips import read_number, write_clip

KEPT = (
    "h264.mp4",
    "h264_b_pyramid_normal.mp4",
    "h264_open_gop.mp4",
    "h264_open_gop.mkv",
    "h264_variable_rate.mkv",
    "h264_turned_90.mov",
    "h264_fragments.mp4",
    "h264_intra_refresh.mp4",
    "h264_late_start.mkv",
    "h264_long_audio.mp4",
    "hevc_open_gop.mkv",
    "vp9.webm",
    "edit_list_start.mp4",
    "edit_list_both_ends.mp4",
)
NOT_KEPT = ("h264_open_gop.ts", "mpeg4_b_frames.mp4", "mpeg4.avi")


@pytest.fixture(autouse=True)
def short_videos_too(monkeypatch):
    monkeypatch.setattr(picture_decoder, "_MIN_STORED", 10)


def _kept(path, cache):
    """Opens a file and says whether its index was loaded."""
    with open_video(str(path), cache=cache) as video:
        return video._decoder.is_from_cache


@pytest.mark.parametrize("name", [*KEPT, *NOT_KEPT])
def test_frames_and_times_are_the_same(tmp_path, name):
    clip = write_corpus_clip(tmp_path, name, 40)
    cache = IndexCache(str(tmp_path / "cache"))
    assert not _kept(clip.path, cache)
    with open_video(str(clip.path), cache=cache) as video, open_video(str(clip.path)) as plain:
        is_kept = video._decoder.is_from_cache
        np.testing.assert_array_equal(video.times_sec(), plain.times_sec())
        assert (video.num_frames, video.avg_fps, video.width) == (
            plain.num_frames,
            plain.avg_fps,
            plain.width,
        )
        rng = np.random.default_rng(0)
        for _ in range(6):
            wanted = rng.integers(0, plain.num_frames, 3).tolist()
            np.testing.assert_array_equal(video.read(wanted), plain.read(wanted))
        numbers = [read_number(np.rot90(frame, clip.rotation // 90)) for frame in video]
        assert numbers == clip.numbers
    assert is_kept == (name in KEPT)


@pytest.fixture
def video(tmp_path):
    write_clip(tmp_path / "a.mp4", 60, bframes=2)
    return str(tmp_path / "a.mp4")


def test_a_changed_file_is_read_anew(tmp_path, video):
    cache = IndexCache(str(tmp_path / "cache"))
    assert [_kept(video, cache) for _ in range(3)] == [False, True, True]
    write_clip(video, 48)
    assert [_kept(video, cache) for _ in range(2)] == [False, True]
    os.utime(video, ns=(1, 1))
    assert [_kept(video, cache) for _ in range(2)] == [False, True]
    with open_video(video, cache=cache) as reader:
        assert [read_number(frame) for frame in reader.part(Span(30, None))] == list(range(30, 48))


def test_a_damaged_index_is_told_once_and_made_anew(tmp_path, video, caplog):
    folder = tmp_path / "cache"
    assert not _kept(video, IndexCache(str(folder)))
    (file,) = folder.iterdir()
    good = file.read_bytes()
    rng = np.random.default_rng(0)
    damaged = [good[:300], b"", b"no index"]
    for place in rng.integers(0, len(good), 30).tolist():
        damaged.append(good[:place] + bytes([good[place] ^ 255]) + good[place + 1 :])
    for data in damaged:
        stored_index.decoder_pool.clear()
        file.write_bytes(data)
        with open_video(video, cache=IndexCache(str(folder))) as reader:
            assert [read_number(frame) for frame in reader.read([50, 7])] == [50, 7]
    assert len([text for text in caplog.messages if "is damaged and is made anew" in text]) >= 1
    assert len(set(caplog.messages)) == len(caplog.messages)


def test_an_index_of_another_file_does_not_pass(tmp_path, video):
    folder = tmp_path / "cache"
    assert not _kept(video, IndexCache(str(folder)))
    (file,) = folder.iterdir()
    with np.load(file) as content:
        parts = dict(content)
    parts["sizes"] = parts["sizes"] + 1
    np.savez(file, **parts)
    stored_index.decoder_pool.clear()
    wrong = pytest.raises(VideoDecodeError, match="has changed since its index was made")
    with open_video(video, cache=IndexCache(str(folder))) as reader, wrong:
        reader.read([3])


def _numbers(task):
    path, folder, seed = task
    picture_decoder._MIN_STORED = 10
    rng = np.random.default_rng(seed)
    for _ in range(5):
        with open_video(path, cache=IndexCache(folder)) as reader:
            wanted = rng.integers(0, 60, 4).tolist()
            if [read_number(frame) for frame in reader.read(wanted)] != wanted:
                return False
    return True


def test_forked_processes_read_at_the_same_time(tmp_path, video):
    folder = str(tmp_path / "cache")
    open_readers = [open_video(video, cache=IndexCache(folder)) for _ in range(2)]
    assert _kept(video, IndexCache(folder))  # waits in the pool of this process
    with ProcessPoolExecutor(3, get_context("fork")) as pool:
        assert all(pool.map(_numbers, [(video, folder, seed) for seed in range(6)]))
    for reader in open_readers:
        assert [read_number(frame) for frame in reader.read([9])] == [9]
        reader.close()


def test_a_folder_that_cannot_be_written_is_told(tmp_path, video, caplog):
    (tmp_path / "file").write_text("")
    assert not _kept(video, IndexCache(str(tmp_path / "file")))
    assert not _kept(video, IndexCache(str(tmp_path / "file")))
    assert sum("indexes cannot be written" in text for text in caplog.messages) == 1


@pytest.fixture
def all_are_large(monkeypatch):
    """Every file counts as large, and is read a packet at a time."""
    monkeypatch.setattr(source, "_LARGE_BYTES", 1)
    monkeypatch.setattr(demux, "BATCH_BYTES", 1)


LARGE = (
    *("h264_b_frames.mp4", "h264_open_gop.mkv", "h264_open_gop.ts", "h264_open_gop.flv", "hevc_open_gop.ts"),
    *("edit_list_start.mp4", "vp9.webm", "h264_turned_90.mov", "h264_b_frames.avi"),
    *("mpeg4_packed_b_frames.avi", "mjpeg.avi", "mpeg2.mpg", "wmv2.wmv"),
)


@pytest.mark.parametrize("on_corrupt", ["raise", "nearest"])
@pytest.mark.parametrize("name", LARGE)
def test_a_large_file_is_never_whole_in_memory(name, on_corrupt, tmp_path, all_are_large):
    path = write_corpus_clip(tmp_path, name).path
    expected = in_sequence(path)
    with open_video(path, on_corrupt=on_corrupt) as reader:
        assert np.array_equal(reader.read(range(60)[: len(expected)]), np.stack(expected))
        for index in (50, 3, 31, 30, 7):
            if index < len(expected):
                assert np.array_equal(reader.read([index])[0], expected[index]), index
        reader.verify()
        assert sum(isinstance(each, av.Packet) for each in gc.get_objects()) < 10


def test_a_large_file_that_is_damaged_is_refused(tmp_path, all_are_large):
    for name, spoil in (
        ("h264.mp4", lambda data: data[:-2000]),
        ("h264_b_frames.mp4", lambda data: data[:600] + data[1200:]),
        ("h264_open_gop.ts", lambda data: data[: 188 * 20] + data[188 * 23 :]),
        ("vp9.webm", lambda data: data[:-2000]),
    ):
        path = write_corpus_clip(tmp_path, name).path
        path.write_bytes(spoil(path.read_bytes()))
        with pytest.raises(VideoDecodeError, match="cut off|damaged"), open_video(path) as reader:
            reader.verify()


@pytest.fixture
def num_decodings(monkeypatch):
    """Counts how often a whole video is decoded to index it."""
    numbers, learn = [], picture_decoder.PictureDecoder._learn_index
    monkeypatch.setattr(
        picture_decoder.PictureDecoder,
        "_learn_index",
        lambda self, *given: numbers.append(1) or learn(self, *given),
    )
    stored_index.learned_indexes.clear()
    yield numbers
    stored_index.learned_indexes.clear()


# Only decoding says the order of their pictures.
DECODED = (
    *("mpeg1.mpg", "mpeg2.mpg", "mpeg2.ts", "mpeg2_interlaced.vob"),
    *("h264_interlaced.mp4", "h264_interlaced.ts"),
)


@pytest.mark.parametrize("name", DECODED)
def test_a_video_is_decoded_once_to_index_it(name, tmp_path, num_decodings):
    path = write_corpus_clip(tmp_path, name).path
    expected = in_sequence(path)
    cache, rng = IndexCache(str(tmp_path / "cache")), np.random.default_rng(0)
    for store in (None, None, cache, cache):
        stored_index.decoder_pool.clear()
        with open_video(path, cache=store) as reader:
            assert reader.num_frames == len(expected)
            for index in (*rng.integers(0, len(expected), 6).tolist(), 0, len(expected) - 1):
                assert np.array_equal(reader.read([index])[0], expected[index]), index
            assert np.array_equal(np.stack(list(reader)), np.stack(expected))
    assert len(num_decodings) == 1

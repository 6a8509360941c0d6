"""Videos and folders of frames by URL have the frames of local ones, of the bytes that these need."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from paddlevideo_fast.decode import open_frames, open_video, source, stored_index
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.sources.index_cache.index_cache import IndexCache
from paddlevideo_fast.sources.remote import block_cache, frame_index
from tests.support.exact_corpus import call_all_keyframes, write_corpus_clip
from tests.support.joined_clips import JOINED, write_joined_clip
from tests.support.numbered_clips import packets_of, read_number, write_clip
from tests.support.stores import Store


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise that moves, in groups of 24 pictures: 240 frames, about 3 MB."""
    root = tmp_path_factory.mktemp("clips")
    noise = np.random.default_rng(0).integers(0, 255, (96, 128, 3), np.uint8)
    for name, options in (("first.mp4", {"movflags": "faststart"}), ("last.mov", {}), ("walk.mkv", {})):
        with av.open(str(root / name), "w", options=options) as output:
            stream = output.add_stream("libx264", rate=25, options={"preset": "ultrafast", "crf": "16"})
            stream.width, stream.height, stream.pix_fmt = 128, 96, "yuv420p"
            stream.codec_context.gop_size, stream.codec_context.max_b_frames = 24, 2
            for number in range(240):
                picture = av.VideoFrame.from_ndarray(np.roll(noise, 5 * number, axis=1), format="rgb24")
                output.mux(stream.encode(picture))
            output.mux(stream.encode())
    return root


@pytest.fixture(autouse=True)
def _of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_index, "_LEAST_BYTES", 1000)


def _equal(url: str, path: Path, frames: Any, cache: Any = None) -> None:
    with open_video(url, cache=cache) as there, open_video(str(path)) as here:
        assert there.num_frames == here.num_frames
        assert np.array_equal(there.times_sec(), here.times_sec())
        assert np.array_equal(there.read(frames), here.read(frames))
        assert there.path == url


@pytest.mark.parametrize("name", ["first.mp4", "last.mov"])
def test_only_the_groups_that_are_needed_are_read(http_store: Store, clips: Path, name: str) -> None:
    url = http_store.publish(clips) + name
    _equal(url, clips / name, [100, 103])
    size = os.path.getsize(clips / name)
    assert http_store.num_bytes < size / 3, f"{http_store.num_bytes} of {size} bytes"


def test_other_containers_are_read_whole(http_store: Store, clips: Path) -> None:
    _equal(http_store.publish(clips) + "walk.mkv", clips / "walk.mkv", [3, 200])


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in JOINED if name.endswith(".mp4") and name.startswith("h264")),
        *("h264_open_gop.mp4", "h264_variable_rate.mp4", "h264_turned_90.mov", "h264_interlaced.mp4"),
        *("hevc_10_bit.mp4", "edit_list_pause.mp4"),
    ],
)
def test_each_kind_of_file_has_the_frames_of_a_local_one(
    http_store: Store, tmp_path: Path, name: str
) -> None:
    path = (write_joined_clip if name in JOINED else write_corpus_clip)(tmp_path, name).path
    url = http_store.publish(tmp_path) + name
    for frame in (40, 26, 3):  # each alone: a decoder keeps what earlier packets brought
        _equal(url, path, [frame])


def test_a_table_that_calls_all_packets_keyframes(http_store: Store, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    write_clip(path, 40, codec="libx265", gop=12, arrange=call_all_keyframes)
    assert all(packet.is_keyframe for packet in packets_of(path))
    url = http_store.publish(tmp_path) + path.name
    for frame in (30, 23, 3):
        _equal(url, path, [frame])
        with open_video(url) as reader:
            assert read_number(reader.read([frame])[0]) == frame


def test_an_index_is_kept_for_a_version(
    http_store: Store, clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = IndexCache(str(tmp_path / "indexes"))
    url = http_store.publish(clips) + "first.mp4"
    _equal(url, clips / "first.mp4", [30], cache)
    assert len(list((tmp_path / "indexes").iterdir())) == 1
    stored_index.decoder_pool.clear()  # nothing of it is open any more
    http_store.reset()
    with open_video(url, cache=cache) as again:
        assert again._decoder.is_from_cache  # type: ignore[attr-defined]
        again.read([200])
    assert all(request["num_bytes"] != frame_index._HEAD_BYTES for request in http_store.requests)
    other = tmp_path / "other"
    other.mkdir()
    (other / "x.mp4").write_bytes((clips / "first.mp4").read_bytes())
    changing = http_store.publish(other) + "x.mp4"
    _equal(changing, other / "x.mp4", [30], cache)
    (other / "x.mp4").write_bytes((clips / "last.mov").read_bytes())
    _equal(changing, other / "x.mp4", [30, 200], cache)


def test_frames_by_url(s3_store: Store, rawframes_dataset: Any) -> None:
    url = s3_store.publish(rawframes_dataset.root)
    here = rawframes_dataset.root / "class0" / "clip0"
    for there in (open_frames(f"{url}class0/clip0"), open_video(f"{url}class0/clip0", backend="frames")):
        with there, open_frames(here) as local:
            assert there.num_frames == local.num_frames
            assert np.array_equal(there.read([0, 7]), local.read([0, 7]))
    with pytest.raises(
        VideoDecodeError, match="nowhere: cannot be decoded: cannot be listed: there is no such object"
    ):
        open_frames(f"{url}class0/nowhere")


def test_what_is_no_video_is_told_as_of_a_file(http_store: Store, broken_videos: Any) -> None:
    url = http_store.publish(broken_videos["text"].parent)
    for name in ("empty", "text", "truncated", "missing"):
        with pytest.raises(VideoDecodeError, match=f"{name}.mp4: cannot be decoded"):
            open_video(f"{url}{name}.mp4").verify()


@pytest.mark.parametrize("name", ["clip.ts", "clip.mkv", "clip.flv", "clip.mpg", "clip.avi"])
def test_a_file_that_is_needed_whole_comes_once(
    name, make_clip, frame_number, http_store, tmp_path, monkeypatch
):
    """Also where it is larger than what is kept of remote files in memory; then it came up to three times."""
    monkeypatch.setattr(block_cache, "_memory", block_cache.MemoryBlocks(2**16, 4))
    options = {"codec": "mpeg2video"} if name.endswith("mpg") else {}
    (tmp_path / "served").mkdir()
    path = make_clip(tmp_path / "served" / name, 300, (640, 480), **options)
    url = http_store.publish(tmp_path / "served") + name
    http_store.reset()
    with open_video(url) as reader:
        assert [frame_number(frame) for frame in reader.read([3, 50, 200])] == [3, 50, 200]
    size = path.stat().st_size
    assert size > 6 * 2**16
    assert size <= http_store.num_bytes <= size + 2**16


@pytest.mark.parametrize("name", ["clip.avi", "clip.mkv"])
def test_a_large_file_comes_once_and_not_into_memory(
    name, make_clip, frame_number, http_store, tmp_path, monkeypatch
):
    monkeypatch.setattr(source, "_LARGE_BYTES", 1)
    (tmp_path / "served").mkdir()
    path = make_clip(tmp_path / "served" / name, 300, (640, 480))
    with open_video(http_store.publish(tmp_path / "served") + name) as reader:
        assert reader._decoder._source._held is None
        assert [frame_number(frame) for frame in reader.read([3, 50, 200])] == [3, 50, 200]
    assert http_store.num_bytes <= path.stat().st_size + 2**16
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(VideoDecodeError, match="its copy in .*nowhere .TMPDIR. cannot be written"):
        open_video(http_store.publish(tmp_path / "served") + name)


@pytest.mark.parametrize(("ending", "options"), [("mkv", {"live": "1"}), ("ts", {}), ("flv", {})])
def test_an_index_serves_files_without_one_of_their_own(ending, options, http_store, tmp_path, monkeypatch):
    """The second opening reads the beginning of the file and the group of pictures that it needs."""
    monkeypatch.setattr(source, "_LARGE_BYTES", 1)
    monkeypatch.setattr(block_cache, "_memory", block_cache.MemoryBlocks(2**12, 4))
    (tmp_path / "served").mkdir()
    path = tmp_path / "served" / f"clip.{ending}"
    write_clip(path, 400, (320, 240), gop=20, bframes=2, container_options=options)
    url, cache = http_store.publish(tmp_path / "served") + path.name, IndexCache(str(tmp_path / "indexes"))
    with open_video(url, cache=cache) as reader:
        assert [read_number(frame) for frame in reader.read([330, 7])] == [330, 7]
    stored_index.decoder_pool.clear()
    http_store.reset()
    with open_video(url, cache=cache) as reader:
        assert [read_number(frame) for frame in reader.read([330])] == [330]
    if ending == "mkv":  # libav looks at the first megabytes of others to learn what they hold
        assert http_store.num_bytes < path.stat().st_size / 2
    with open_video(url, cache=cache) as reader:  # from the pool
        assert [read_number(frame) for frame in reader.read([7, 399, 210])] == [7, 399, 210]
        assert reader._decoder._packets._offsets  # else it was read from its beginning

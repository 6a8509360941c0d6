"""Where a video is read from: paths, bytes, file objects; and what is known without decoding."""

import builtins
import gc
import io
import os
import weakref

import av
import numpy as np
import pytest

from paddlevideo_fast.decode import open_video
from paddlevideo_fast.decode.picture_decoder import PictureDecoder
from paddlevideo_fast.decode.pyav_reader import PyAVReader
from paddlevideo_fast.decode.source import VideoSource
from paddlevideo_fast.errors import PaddleVideoFastError, VideoDecodeError


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.avi", "clip.ts"])
def test_bytes_and_file_objects_read_as_the_path_does(name, make_clip, tmp_path):
    path = make_clip(tmp_path / name, 30, bframes=2)
    with open_video(path) as reader:
        expected = reader.read([29, 0, 13])
    data = path.read_bytes()
    with path.open("rb") as file:
        file.read(100)
        for source in (data, bytearray(data), memoryview(data), io.BytesIO(data), file, str(path)):
            with open_video(source) as reader:
                assert np.array_equal(reader.read([29, 0, 13]), expected)
        assert not file.closed


def test_messages_name_the_source(make_clip, tmp_path):
    path = make_clip(tmp_path / "clip.mp4", 8)
    text = tmp_path / "text.mp4"
    text.write_text("no video " * 50)
    with text.open("rb") as file, pytest.raises(VideoDecodeError) as caught:
        open_video(file)
    assert caught.value.path == str(text)
    for source, name in (
        (b"no video " * 50, "<bytes>"),
        (b"", "<bytes>"),
        (io.BytesIO(b"x" * 99), "<BytesIO>"),
    ):
        with pytest.raises(VideoDecodeError) as caught:
            open_video(source)
        assert caught.value.path == name
    with open_video(path.read_bytes()) as reader, pytest.raises(VideoDecodeError, match="<bytes>.*frame 8"):
        reader.read([8])


@pytest.mark.annex
def test_what_is_no_source_is_refused(make_clip, tmp_path):
    path = make_clip(tmp_path / "clip.mp4", 2)
    pipe = io.BytesIO(path.read_bytes())
    pipe.seekable = lambda: False  # type: ignore[method-assign]
    closed = path.open("rb")
    closed.close()
    for source, message in (
        (3, "found int"),
        (io.StringIO("x"), "open it with 'rb'"),
        (pipe, "cannot seek|can seek"),
        (closed, "BufferedReader is closed"),
        (path.open("ab"), "BufferedWriter only writes"),
    ):
        with pytest.raises(PaddleVideoFastError, match=message):
            open_video(source)
    for backend in ("cv2", "decord", "frames"):
        with pytest.raises(PaddleVideoFastError, match=f"'{backend}' reads from a path only"):
            open_video(path.read_bytes(), backend)


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.avi", "clip.ts", "mpeg4.avi"])
def test_the_size_is_known_without_decoding(name, make_clip, tmp_path, monkeypatch):
    codec = "mpeg4" if name.startswith("mpeg4") else "libx264"
    path = make_clip(tmp_path / name, 12, (84, 50), codec=codec)

    def no_decoding(*args):
        raise AssertionError("something is decoded")

    monkeypatch.setattr(PictureDecoder, "pictures", no_decoding)
    with open_video(path) as reader:
        assert (reader.width, reader.height, reader.num_frames) == (84, 50, 12)
        assert reader.avg_fps == pytest.approx(25, rel=1e-2)


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.avi"])
def test_a_file_is_looked_at_twice_and_its_headers_take_one_handle(name, make_clip, tmp_path, monkeypatch):
    path = str(make_clip(tmp_path / name, 12))
    handles, looks = [], []
    opened, looked = builtins.open, os.stat

    def open_counted(*args, **kwargs):
        handles.append(opened(*args, **kwargs))
        return handles[-1]

    monkeypatch.setattr(builtins, "open", open_counted)
    monkeypatch.setattr(os, "stat", lambda *args, **kwargs: looks.append(args) or looked(*args, **kwargs))
    reader = PyAVReader(path)
    monkeypatch.undo()
    assert [args for args in looks if args[0] == path] == [(path,)] * 2  # has it changed, and is it a file
    assert [handle.closed for handle in handles] == [True]
    assert (reader.width, reader.num_frames) == (80, 12)
    reader.close()


def test_packets_nobody_needs_do_not_reach_the_decoder(make_clip, tmp_path, monkeypatch):
    fed = []
    needed = PictureDecoder._needed

    def spy(self, span, wanted):
        places = list(needed(self, span, wanted))
        fed.extend(places)
        return iter(places)

    monkeypatch.setattr(PictureDecoder, "_needed", spy)
    for name, options in (("clip.mp4", {"bframes": 2}), ("clip.avi", {"bframes": 2, "codec": "mpeg4"})):
        options.setdefault(
            "options", {"x264-params": "b-pyramid=none:b-adapt=0"} if name == "clip.mp4" else {}
        )
        path = make_clip(tmp_path / name, 36, gop=36, **options)
        fed.clear()
        with open_video(path) as reader:
            reader.read([35])
        assert 12 <= len(fed) <= 16, name  # every third, and the last group whole


def test_pictures_that_nobody_needs_are_left_out_of_hevc(make_clip, tmp_path):
    """Libavcodec leaves them out, so fewer pictures come out; the frames asked for are the same."""
    options = {"x265-params": "log-level=none:temporal-layers=2:b-adapt=0"}
    path = make_clip(tmp_path / "clip.mp4", 36, gop=36, codec="libx265", bframes=3, options=options)
    with open_video(path) as reader:
        whole = np.stack(list(reader))
    decoder = PictureDecoder(VideoSource(str(path)), allow_cut=False)
    for wanted in ([35], [3, 30], [17, 18, 19]):
        given = [picture.pts for picture in decoder.pictures({decoder.shown[index] for index in wanted})]
        assert {decoder.shown[index] for index in wanted} <= set(given)
        assert len(given) < 0.8 * len(
            list(decoder.pictures({decoder.shown[index] for index in range(max(wanted))}))
        )
        with open_video(path) as reader:
            assert np.array_equal(reader.read(wanted), whole[wanted])
            assert np.array_equal(np.stack(list(reader)), whole)  # and nothing is left out of a whole pass
    left = decoder.pictures({decoder.shown[35]})
    next(left)  # while frames are left out
    left.close()
    assert len(list(decoder.pictures())) == 36
    decoder.close()


def test_hevc_layers_whose_pictures_only_higher_layers_need(make_clip, tmp_path):
    """Libavcodec takes them for non-reference frames; leaving them out is noticed, and frames stay exact."""
    tsa_n, tsa_r, middle = 2, 3, 2
    options = {"x265-params": "log-level=none:temporal-layers=3:b-adapt=0"}
    path = make_clip(tmp_path / "clip.mp4", 36, gop=36, codec="libx265", bframes=7, options=options)
    data, num_changed = bytearray(path.read_bytes()), 0
    with av.open(str(path)) as container:
        for packet in container.demux(video=0):
            unit, at = bytes(packet), 0
            while at + 5 < len(unit):
                if unit[at + 4] >> 1 == tsa_r and unit[at + 5] & 7 == middle:
                    data[packet.pos + at + 4] = tsa_n << 1
                    num_changed += 1
                at += 4 + int.from_bytes(unit[at : at + 4], "big")
    path.write_bytes(data)
    assert num_changed
    with open_video(path) as reader:
        whole = np.stack(list(reader))
        for index in range(36):
            assert np.array_equal(reader.read([index])[0], whole[index])
        assert reader.num_replaced == 0


def test_frees_its_file_without_being_closed(make_clip, tmp_path):
    """No cycle of references keeps containers alive until the collector runs."""
    path = make_clip(tmp_path / "clip.mp4", 12)
    gc.collect()
    gc.disable()
    try:
        reader = PyAVReader(path)
        reader.read([3])
        next(iter(reader))
        held = weakref.ref(reader._decoder)
        del reader
        assert held() is None
    finally:
        gc.enable()


def test_reading_while_iterating_is_refused(make_clip, tmp_path):
    with open_video(make_clip(tmp_path / "clip.mp4", 30)) as reader:
        frames = iter(reader)
        next(frames)
        reader.read([20])
        with pytest.raises(RuntimeError, match="iterated"):
            list(frames)

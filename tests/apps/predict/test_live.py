"""Live input: streams whose frames carry their number, through pipes and sockets."""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest

from paddlevideo_fast.apps.export.export import ExportOptions
from paddlevideo_fast.apps.predict import live
from paddlevideo_fast.apps.predict.addresses import is_live
from paddlevideo_fast.apps.predict.live import LiveSource, predict_live
from paddlevideo_fast.apps.predict.predictor import Windowing
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.errors import VideoDecodeError

ROOT = Path(__file__).resolve().parents[3]
FPS = 25


def stream(num_frames, first=0):
    """An MPEG-TS stream; the grey of a frame is its number."""
    file = io.BytesIO()
    with av.open(file, "w", format="mpegts") as out:
        video = out.add_stream("mpeg2video", rate=FPS)
        video.width, video.height, video.pix_fmt, video.bit_rate = 96, 80, "yuv420p", 4_000_000
        for number in range(first, first + num_frames):
            frame = av.VideoFrame.from_ndarray(np.full((80, 96, 3), number, np.uint8), format="rgb24")
            frame.pts = number
            out.mux(video.encode(frame))
        out.mux(video.encode(None))
    return file.getvalue()


class Seer:
    """A predictor that tells the numbers of a window's frames once `may_go_on`, and keeps their times."""

    def __init__(self, may_go_on=lambda: True):
        self.may_go_on = may_go_on
        self.times = set()

    def predict_open(self, video):
        while not self.may_go_on():
            time.sleep(0.01)
        self.times |= {frame.time_sec for frame in video.shown}
        return video.read(range(video.num_frames)).mean(axis=(1, 2, 3)).round().astype(int).tolist()


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "camera"
    os.mkfifo(path)
    return path


@contextlib.contextmanager
def fed(path, data, chunk=None, pause_sec=0.0):
    """Writes a stream into a pipe, all at once or a chunk at a time."""

    def write():
        with contextlib.suppress(BrokenPipeError), open(path, "wb", buffering=0) as file:
            for start in range(0, len(data), chunk or len(data)):
                file.write(data[start : start + (chunk or len(data))])
                time.sleep(pause_sec)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    yield
    thread.join(10)


@pytest.mark.parametrize(
    ("stride_sec", "starts"), [(0.5, [0, 12, 25, 37, 50, 62]), (2.0, [0, 50]), (None, [0, 25, 50])]
)
def test_windows_of_a_pipe_hold_their_frames(pipe, stride_sec, starts):
    data = stream(100)
    with fed(pipe, data), LiveSource(str(pipe), 3.0) as source:
        found = list(predict_live(Seer(), source, Windowing(1.0, stride_sec)))
    assert source.when_slow == "wait"
    assert source.num_frames == 100
    assert len(found) == len(starts) + 1
    for result, start in zip(found, [*starts, 75]):  # the last one ends with the stream
        assert np.abs(np.array(result.prediction) - np.arange(start, start + 25)).max() <= 1
    assert (found[-1].start_sec, found[-1].end_sec) == pytest.approx((3.0, 4.0))
    assert source.num_dropped == source.num_restarts == source.num_corrupt == 0


def windows_by_path(path, windowing):
    with open_video(path) as video:
        pictures = video.read(range(video.num_frames)).mean(axis=(1, 2, 3))
        return [
            (window.start_sec, window.end_sec, video.avg_fps, pictures[window.first : window.stop].tolist())
            for window in windowing.cut(video)
        ]


class Noting:
    """A predictor that tells the frame rate and the pictures' means of a window."""

    def predict_open(self, video):
        return video.avg_fps, video.read(range(video.num_frames)).mean(axis=(1, 2, 3)).tolist()


@pytest.mark.parametrize("fps", [25, 30])
@pytest.mark.parametrize(
    ("name", "codec", "bframes"),
    [
        ("mpeg4.avi", "mpeg4", 2),
        ("h264.avi", "libx264", 2),
        ("mpeg2.avi", "mpeg2video", 2),
        ("mjpeg.avi", "mjpeg", 0),
        ("h264.asf", "libx264", 2),
        ("h264.ts", "libx264", 2),
        ("h264.mkv", "libx264", 2),
        ("vp8.webm", "libvpx", 0),
        ("h264.flv", "libx264", 2),
        ("bare.h264", "libx264", 2),
        ("bare.hevc", "libx265", 2),
        ("bare.m4v", "mpeg4", 2),
        ("bare.m2v", "mpeg2video", 2),
        ("bare.mjpeg", "mjpeg", 0),
    ],
)
def test_a_piped_file_has_the_windows_of_the_file(
    make_clip, tmp_path, monkeypatch, caplog, name, codec, bframes, fps
):
    """AVI and ASF say when packets are decoded, and bare streams say nothing: libav's times are guesses."""
    pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    path = make_clip(tmp_path / name, 70, (64, 48), codec=codec, bframes=bframes, fps=fps, pix_fmt=pix_fmt)
    if name == "bare.mjpeg":
        fps = 25  # it says no rate
    for windowing in (Windowing(1), Windowing(0.5, 0.25), Windowing(0.3, 0.7)):
        with open(path, "rb", buffering=0) as file, monkeypatch.context() as patch:
            patch.setattr(live, "_STDIN", file.fileno())
            with LiveSource("-", 2.0) as source:
                found = list(predict_live(Noting(), source, windowing))
        assert (source.num_frames, source.num_restarts, source.num_corrupt) == (70, 0, 0)
        expected = windows_by_path(path, windowing)
        assert expected[-1][1] == pytest.approx(70 / fps, abs=0.002)
        assert [(*one.prediction,) for one in found] == [(rate, means) for *_, rate, means in expected]
        spans = [(one.start_sec, one.end_sec) for one in found]
        np.testing.assert_allclose(spans, [window[:2] for window in expected], atol=0.0011)
    says_no_rate = any("says no frame rate; 25 frames a second are taken" in text for text in caplog.messages)
    assert says_no_rate == (name == "bare.mjpeg")


@pytest.mark.parametrize("times", [1, 2, 3])
def test_files_that_are_piped_one_after_the_other_are_one_film(make_clip, tmp_path, monkeypatch, times):
    """Also program streams, of whose small pictures libav guesses times that go back."""
    for name, codec in (("a.ts", "libx264"), ("a.mpg", "mpeg2video"), ("a.h264", "libx264")):
        clip = make_clip(tmp_path / name, 50, (64, 48), codec=codec, bframes=2)
        (tmp_path / "input").write_bytes(clip.read_bytes() * times)
        with open(tmp_path / "input", "rb", buffering=0) as file, monkeypatch.context() as patch:
            patch.setattr(live, "_STDIN", file.fileno())
            with LiveSource("-", 2.0) as source:
                found = [one.prediction for one in predict_live(Noting(), source, Windowing(1.0))]
        assert [len(means) for _, means in found] == [25] * 2 * times
        assert (source.num_frames, source.num_dropped, source.num_restarts) == (50 * times, 0, 0)


@pytest.mark.parametrize(("ending", "codec"), [("avi", "mpeg4"), ("avi", "libx264"), ("asf", "libx264")])
def test_a_piped_file_with_pauses_between_reordered_frames(make_clip, tmp_path, monkeypatch, ending, codec):
    """These formats say when packets are decoded; of pictures that change places libav guesses the times."""

    def with_pause(packets):
        for packet in packets[24:]:
            packet.dts, packet.pts = packet.dts + 50, packet.pts + 50
        return packets

    path = make_clip(tmp_path / f"x.{ending}", 48, (64, 48), codec, gop=24, bframes=2, arrange=with_pause)
    with open_video(path) as video:
        pauses = np.diff(video.times_sec())
        assert np.sort(pauses)[:-1] == pytest.approx(0.04, abs=0.0011)
        assert pauses.max() == pytest.approx(2.04, abs=0.0011)
        assert video.end_sec() == pytest.approx(98 / 25, abs=0.002)
    with open(path, "rb", buffering=0) as file:
        monkeypatch.setattr(live, "_STDIN", file.fileno())
        with LiveSource("-", 1.0) as source:
            found = [one.prediction for one in predict_live(Noting(), source, Windowing(0.5))]
    expected = windows_by_path(path, Windowing(0.5))
    assert [means for _, means in found] == [window[3] for window in expected]
    assert min(len(means) for _, means in found) == 1
    assert source.num_dropped == source.num_restarts == 0


@pytest.mark.parametrize("ending", ["mkv", "ts"])
def test_a_pause_in_a_piped_file_is_windows_of_the_frame_on_display(make_clip, tmp_path, monkeypatch, ending):
    """Of the pause from 0.52 s to 14 s, which is no new beginning of the stream."""
    kept = [*range(13), *range(350, 375)]
    film = make_clip(
        tmp_path / f"film.{ending}", 375, (64, 48), gop=1, arrange=lambda packets: [packets[n] for n in kept]
    )
    with open(film, "rb", buffering=0) as file:
        monkeypatch.setattr(live, "_STDIN", file.fileno())
        with LiveSource("-", 4.0) as source:
            found = [one.prediction for one in predict_live(Noting(), source, Windowing(2.0))]
    assert [len(means) for _, means in found] == [13, 1, 1, 1, 1, 1, 1, 25]
    if ending == "mkv":
        assert [means for _, means in found] == [
            window[3] for window in windows_by_path(film, Windowing(2.0))
        ]
    assert source.num_dropped == source.num_restarts == 0


def test_a_slow_network_drops_and_stays_close_behind(pipe):
    data = stream(125)
    with fed(pipe, data, len(data) // 125), LiveSource(str(pipe), 1.5, "drop") as source:
        seer = Seer(lambda: source.num_frames >= 100)
        found = list(predict_live(seer, source, Windowing(1.0, 0.5)))
    assert found[-1].num_skipped > 0
    assert source.num_dropped == source.num_frames - len(seer.times)
    assert source.num_dropped > 10
    assert len(source._frames) <= 1.5 * FPS + 2


@contextlib.contextmanager
def server(*answers):
    """Answers each connection with the next bytes and closes it; then it refuses. Gives the address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        for data in answers:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(data)
        listener.close()

    threading.Thread(target=serve, daemon=True).start()
    yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"


def test_a_stream_that_breaks_off_is_connected_again(monkeypatch, caplog):
    """Its times go on, and no window reaches over the new beginning."""
    monkeypatch.setattr(live, "_LONGEST_PAUSE_SEC", 0.05)
    results = []
    caplog.set_level("WARNING")
    with (
        server(stream(60), stream(60, 100)) as address,
        LiveSource(address, 2.0, "wait", num_reconnects=2) as source,
    ):
        found = predict_live(Seer(), source, Windowing(1.0))
        with pytest.raises(VideoDecodeError, match="refused, also after 2 reconnections"):
            results.extend(found)
    seen = [result.prediction for result in results]
    assert all(max(window) < 70 or min(window) > 90 for window in seen)
    assert {max(window) < 70 for window in seen} == {True, False}
    ends = [result.end_sec for result in results]
    assert ends == sorted(ends)
    assert source.num_restarts == 1
    assert source.num_frames >= 118
    assert sum("connecting again" in text for text in caplog.messages) == 3


def test_a_source_that_stalls_is_told(pipe, caplog):
    data = stream(40)
    caplog.set_level("WARNING")
    with fed(pipe, data, len(data) - 400, 0.6), LiveSource(str(pipe), 2.0, stall_sec=0.2) as source:
        found = list(predict_live(Seer(), source, Windowing(0.5)))
    assert any("no frame for 0.2 s; waiting" in text for text in caplog.messages)
    assert len(found) >= 3


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("tcp://user:secret@127.0.0.1:9", "127.0.0.1:9: cannot be decoded"),
        ("nothing://x", "Protocol not found"),
    ],
)
def test_a_source_that_cannot_be_opened_is_one_error(address, told):
    with pytest.raises(VideoDecodeError, match=told) as caught, LiveSource(address, 1.0):
        pass
    assert "secret" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_any_error_of_the_source_reaches_who_waits(pipe, monkeypatch):
    """An IndexError of libav once left the reader waiting for ever."""

    def broken(self, container):
        raise IndexError("of libav")
        yield

    monkeypatch.setattr(LiveSource, "_pictures", broken)
    with (
        fed(pipe, stream(5)),
        LiveSource(str(pipe), 1.0) as source,
        pytest.raises(VideoDecodeError, match="of libav"),
    ):
        source.wait_until(10.0)
    monkeypatch.setattr(LiveSource, "_read_all", lambda self: 1 // 0)
    with pytest.raises(VideoDecodeError, match="ZeroDivisionError"), LiveSource("tcp://x", 1.0):
        pass


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "the input is empty"),
        ("mp4", "an MP4 or MOV is read from its end, and a pipe cannot go back"),
        (b"noise " * 4000, "is no video that libav knows"),
        (b"ffconcat version 1.0\nfile /etc/hosts\n", "the format concat is not read"),
    ],
    ids=["empty", "mp4", "noise", "names of files"],
)
def test_what_the_standard_input_lacks(data, told, make_clip, tmp_path, monkeypatch):
    if data == "mp4":
        data = make_clip(tmp_path / "clip.mp4", 24).read_bytes()
        data = data[: len(data) // 2]  # the table of the pictures is behind them
    (tmp_path / "input").write_bytes(data)
    with open(tmp_path / "input", "rb", buffering=0) as file:
        monkeypatch.setattr(live, "_STDIN", file.fileno())
        with pytest.raises(VideoDecodeError, match=told), LiveSource("-", 1.0):
            pass


def test_what_is_live(tmp_path, pipe, monkeypatch):
    video = tmp_path / "a.mp4"
    video.write_bytes(b"x")
    (tmp_path / "a:").mkdir()
    (tmp_path / "a:" / "b.mp4").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    streams = [
        "-",
        "rtsp://a/b.mp4",
        "http://a/b.m3u8",
        "http://h/x.ts",
        "https://h:8080/stream",
        "udp://@:1",
    ]
    files = [
        "missing.mp4",
        "file://x.mp4",
        "a:b.mp4",
        "a://b.mp4",
        "s3://b/x.mp4",
        "gs://b/x",
        "bos://b/x.avi",
    ]
    assert all(map(is_live, [*streams, str(pipe), "/dev/null"]))
    assert not any(map(is_live, [*files, str(video), str(tmp_path), "https://h/a/x.MKV?token=1"]))


def test_the_command_prints_a_line_a_window(exported):
    program = exported("tsm", ExportOptions()).program
    command = [sys.executable, ROOT / "tools/predict.py", "-i", "-", "--model_file", program, "--json"]
    done = subprocess.run(
        [*map(str, command), "--window_sec", "1", "--top_k", "2"], input=stream(60), capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    assert [entry["start_sec"] for entry in entries[:2]] == [0, 1]
    assert all(len(entry["top"]) == 2 and entry["num_dropped"] == 0 for entry in entries)
    assert b"0 frames dropped, 0 packets corrupt" in done.stderr


def test_windows_that_do_not_decode_are_told_and_the_next_go_on(pipe):
    """A pipeline that a window does not fit is an error of this window alone."""

    def refuse(video):
        raise VideoDecodeError(video.path, "too small")

    with fed(pipe, stream(60)), LiveSource(str(pipe), 2.0) as source:
        found = list(predict_live(SimpleNamespace(predict_open=refuse), source, Windowing(1.0)))
    assert len(found) >= 2
    assert all(result.entry(1)["error"].endswith("too small") for result in found)

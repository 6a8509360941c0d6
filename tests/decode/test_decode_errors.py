"""What does not decode says so: one type of error, with the path and a cause that a person understands."""

import pickle

import av
import cv2
import numpy as np
import pytest

from paddlevideo_fast.decode import check_video, open_frames, open_video
from paddlevideo_fast.errors import PaddleVideoFastError, VideoDecodeError
from tests.support.numbered_clips import zero_packets

CAUSES = {
    "missing": "no such file",
    "folder": "is a folder",
    "empty": "empty",
    "text": "not a video",
    "truncated": "cut off",
    "picture_jpg": "is a still image, not a video",
    "picture_png": "is a still image, not a video",
    "audio_only": "no video stream",
}


@pytest.mark.parametrize("backend", ["pyav", pytest.param("cv2", marks=pytest.mark.annex)])
@pytest.mark.parametrize("kind", CAUSES)
def test_broken_file(kind, backend, broken_videos):
    with (
        pytest.raises(VideoDecodeError, match=CAUSES[kind]) as caught,
        open_video(broken_videos[kind], backend) as reader,
    ):
        reader.read(range(reader.num_frames))
    assert caught.value.path == str(broken_videos[kind])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "text"])
def test_broken_file_in_decord(kind, broken_videos):
    with pytest.raises(PaddleVideoFastError):
        open_video(broken_videos[kind], "decord")


def test_damage_spares_the_frames_before_it(broken_videos, frame_number):
    with open_video(broken_videos["damaged"]) as reader:
        frames = reader.read(range(8))
        assert [frame_number(frame) for frame in frames] == list(range(8))
        with pytest.raises(VideoDecodeError, match="damaged"):
            reader.read(range(reader.num_frames))
        assert np.array_equal(reader.read(range(8)), frames)


@pytest.mark.parametrize("crf", range(12, 28))
def test_damage_takes_the_same_frames_however_large_packets_are(crf, make_clip, tmp_path):
    path = make_clip(tmp_path / "clip.mp4", 40, options={"crf": str(crf)})
    path.write_bytes(zero_packets(path, 26, 31))
    lost = []
    with open_video(path) as reader:
        for index in range(reader.num_frames):
            try:
                reader.read([index])
            except VideoDecodeError:
                lost.append(index)
    assert lost == list(range(26, 36))  # up to the next keyframe


def test_real_damage_is_never_silent(real_clips_dir):
    assert check_video(str(real_clips_dir / "corrupted.mp4")) is not None


@pytest.mark.parametrize("name", ["clip.mp4", "clip.avi"])
def test_no_cut_or_flip_escapes_as_another_error(name, make_clip, tmp_path):
    path = make_clip(tmp_path / name, 20, codec="mpeg4" if name.endswith("avi") else "libx264")
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 30)):
            damaged[place] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged[: int(rng.integers(1, len(data) + 1))])
        check_video(str(path))  # an intact-looking result is fine; any error but VideoDecodeError is not


def test_index_out_of_range(make_clip, tmp_path):
    path = make_clip(tmp_path / "clip.mp4", 10)
    with open_video(path) as reader:
        for bad in ([10], [0, -1], [3, 99]):
            with pytest.raises(VideoDecodeError, match="out of range: the video has frames 0 to 9"):
                reader.read(bad)
        assert reader.read([]).shape == (0, 48, 80, 3)


def test_unknown_backend(broken_videos):
    with pytest.raises(PaddleVideoFastError, match="did you mean 'pyav'"):
        open_video(broken_videos["one_frame"], "pyaw")


@pytest.mark.annex
def test_decord_missing(monkeypatch, broken_videos):
    monkeypatch.setitem(__import__("sys").modules, "decord", None)
    with pytest.raises(PaddleVideoFastError, match="pip install decord"):
        open_video(broken_videos["one_frame"], "decord")


def test_error_crosses_processes():
    error = pickle.loads(pickle.dumps(VideoDecodeError("a b.mp4", "empty")))
    assert (error.path, error.cause) == ("a b.mp4", "empty")


def test_nothing_on_stderr(broken_videos, capfd):
    for path in broken_videos.values():
        check_video(str(path), "pyav")
    assert capfd.readouterr() == ("", "")


def test_frame_folder_errors(tmp_path, rawframes_dataset):
    with pytest.raises(VideoDecodeError, match="no such folder"):
        open_frames(str(tmp_path / "none"))
    with pytest.raises(VideoDecodeError, match="has no frame 'img_00001.jpg'"):
        open_frames(str(tmp_path))
    folder = rawframes_dataset.root / "class0" / "clip0"
    with pytest.raises(VideoDecodeError, match=r"img_00013\.jpg.*cannot be read"):
        open_frames(str(folder), num_frames=20).read([3, 12])
    with pytest.raises(VideoDecodeError, match="out of range"):
        open_frames(str(folder)).read([12])
    (tmp_path / "img_00001.jpg").write_bytes(b"not a jpeg")
    with pytest.raises(VideoDecodeError, match=r"img_00001\.jpg.*not an image"):
        open_frames(str(tmp_path)).read([0])


def test_a_frame_folder_that_goes_while_it_is_opened(tmp_path, monkeypatch):
    """As another machine moves it away at this moment; a folder of another user fails in the same place."""
    monkeypatch.setattr("os.path.isdir", lambda path: True)
    with pytest.raises(VideoDecodeError, match="cannot be listed: No such file"):
        open_frames(str(tmp_path / "gone"))


NAMES_OTHERS = {
    "list.ffconcat": "ffconcat version 1.0\nfile clip.ts\n",
    "list.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:1,\nclip.ts\n#EXT-X-ENDLIST\n",
    "list.mpd": '<?xml version="1.0"?>\n<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period>'
    '<AdaptationSet contentType="video"><Representation id="0"><BaseURL>clip.ts</BaseURL></Representation>'
    "</AdaptationSet></Period></MPD>",
    "list.sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 9 RTP/AVP 33\n",
    "list.idx": "# VobSub index file, v7\nid: en, index: 0\ntimestamp: 00:00:01:000, filepos: 000000000\n",
}


@pytest.mark.annex
@pytest.mark.parametrize("suffix", ["", ".mp4"])
@pytest.mark.parametrize("name", NAMES_OTHERS)
def test_no_file_names_further_files(name, suffix, make_clip, tmp_path):
    make_clip(tmp_path / "clip.ts", 9)
    path = tmp_path / f"{name}{suffix}"
    path.write_text(NAMES_OTHERS[name])
    for source in (path, path.read_bytes()):
        with pytest.raises(VideoDecodeError, match="not a video") as caught:
            open_video(source)
        assert "mpegts" not in str(caught.value)
    for backend in ("cv2", "decord"):
        with pytest.raises(PaddleVideoFastError, match="not a video|not installed"):
            open_video(path, backend)


def test_a_name_with_a_number_means_one_file(tmp_path):
    for number in range(3):
        path = tmp_path / f"{number:03d}.png"
        path.write_bytes(cv2.imencode(".png", np.zeros((48, 48, 3), np.uint8))[1].tobytes())
    (tmp_path / "%03d.png").write_bytes(path.read_bytes())
    with pytest.raises(VideoDecodeError, match=r"is a still image, not a video \((image2|png_pipe)\)"):
        open_video(tmp_path / "%03d.png")


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        *[(f"clip.{ending}", "mpeg4") for ending in ("avi", "mkv", "mov", "mp4", "nut")],
        *[(f"clip.{ending}", "mpeg2video") for ending in ("ts", "mpg", "vob", "m2v", "mxf", "gxf", "wtv")],
        *[(f"clip.{ending}", "flv") for ending in ("flv", "swf")],
        *[
            ("clip.webm", "libvpx"),
            ("clip.ivf", "libvpx-vp9"),
            ("clip.h264", "libx264"),
            ("clip.wmv", "wmv2"),
        ],
        *[("clip.rm", "rv20"), ("clip.gif", "gif"), ("clip.mjpeg", "mjpeg"), ("clip.3gp", "h263")],
        *[("clip.y4m", "rawvideo"), ("clip.apng", "apng")],
    ],
)
def test_the_formats_of_videos_are_read(name, codec, tmp_path):
    path = tmp_path / name
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=25)
        stream.width, stream.height = (352, 288) if codec in ("h263", "rv20") else (720, 576)
        stream.pix_fmt = (stream.codec.video_formats or [av.VideoFormat("yuv420p")])[0].name
        for number in range(6):
            pixels = np.full((stream.height, stream.width, 3), 40 * number, np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        out.mux(stream.encode())
    with open_video(path) as reader:
        assert reader.num_frames >= 5

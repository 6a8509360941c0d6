"""The reader "nvdec" gives the frames of the default reader; NVDEC's part is rehearsed in software."""

from __future__ import annotations

import io
import logging
from functools import partial

import av
import numpy as np
import pytest

from paddlevideo_fast.decode import open_video
from paddlevideo_fast.decode.source import VideoSource
from paddlevideo_fast.errors import LoaderError, PaddleVideoFastError, VideoDecodeError
from paddlevideo_fast.loader.dataset import VideoDecoder
from paddlevideo_fast.machine import installed_gpus
from paddlevideo_fast.sources.readers import nvdec
from tests.loader import building
from tests.support.exact_corpus import CORPUS, write_corpus_clip
from tests.support.joined_clips import JOINED, write_joined_clip
from tests.support.software_gpu import SoftwareGpu, open_in_software

OPEN_ON_GPU = nvdec.open_on_gpu
NVDEC = {"name": "VideoDecoder", "backend": "nvdec"}
# One of each way to find and to convert a frame; the others take long.
SOME = (
    *("h264_b_pyramid_normal.mp4", "h264_open_gop.ts", "h264_intra_refresh.mp4", "h264_interlaced.mp4"),
    *("h264_10_bit.mkv", "h264_full_range.mp4", "h264_turned_90.mov", "h264_last_packets_lost.avi"),
    *("edit_list_two_parts.mp4", "hevc_open_gop.mkv", "vp9_odd_size.webm", "mpeg2.ts"),
)
JOINED_FILES = [next(name for name in JOINED if name.startswith(codec)) for codec in ("h264", "hevc")]
FILES = [
    pytest.param(name, marks=() if name in SOME else pytest.mark.slow)
    for name in CORPUS
    if name in SOME or name.startswith(("h264", "hevc", "vp9", "edit_list"))
]


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """NVDEC in software, with no decoder and no format from another test."""
    for name in ("num_opened", "num_pictures"):
        monkeypatch.setattr(SoftwareGpu, name, 0)
    monkeypatch.setattr(nvdec, "open_on_gpu", open_in_software)
    monkeypatch.setattr(nvdec, "PYAV", 18)
    monkeypatch.setattr(nvdec, "_refused", {})
    nvdec._idle.clear()
    yield
    nvdec._idle.clear()


@pytest.fixture
def notes(caplog, monkeypatch):
    """The messages of the log."""
    monkeypatch.setattr("paddlevideo_fast.log._warned", set())
    monkeypatch.setattr(logging.getLogger("paddlevideo_fast"), "propagate", True)
    return lambda: [record.getMessage() for record in caplog.records]


def assert_same_frames(path):
    """Dense, sparse, single and repeated frames, also backwards; returns how many came from the GPU."""
    before, rng = SoftwareGpu.num_pictures, np.random.default_rng(0)
    with open_video(path) as software, open_video(path, "nvdec") as reader:
        assert reader.num_frames == software.num_frames
        assert np.array_equal(reader.times_sec(), software.times_sec())
        every = np.stack(list(software))
        last = len(every) - 1
        wanted = [range(len(every)), np.linspace(0, last, 8).astype(int), [last], [last, 0, 0, last // 2]]
        wanted += [rng.integers(0, last + 1, 4) for _ in range(3)]
        for indices in wanted:
            assert np.array_equal(reader.read(indices), every[list(indices)]), list(indices)
        assert all(map(np.array_equal, reader, every))
    return SoftwareGpu.num_pictures - before


@pytest.mark.parametrize("name", FILES)
def test_frames_are_those_of_the_default_reader(name, tmp_path):
    assert_same_frames(write_corpus_clip(tmp_path, name, 40).path)


@pytest.mark.parametrize(
    ("codec", "keys"),
    [
        ("libx264", {"bframes": 2}),
        ("libx264", {"pix_fmt": "yuvj420p"}),
        ("libx265", {"bframes": 2}),
        ("libvpx-vp9", {}),
    ],
)
def test_the_gpu_decodes_them(codec, keys, make_clip, tmp_path):
    assert assert_same_frames(make_clip(tmp_path / "clip.mp4", 30, codec=codec, **keys)) > 30


@pytest.mark.slow
def test_real_clips(real_clips_dir):
    names = ("mma_demo.mp4", "pancake.mkv", "rot90.mov")
    more = [name for name in ("nasa.mp4", "h265.mp4") if (real_clips_dir / name).exists()]
    for name in (*names, *more):
        assert assert_same_frames(real_clips_dir / name) > 0, name


@pytest.mark.parametrize("make", [lambda path: path.read_bytes(), lambda path: io.BytesIO(path.read_bytes())])
def test_bytes_and_file_objects(make, make_clip, tmp_path):
    path = make_clip(tmp_path / "clip.mp4", 30, bframes=2)
    with open_video(path) as software, open_video(make(path), "nvdec") as reader:
        assert np.array_equal(reader.read([29, 3, 3]), software.read([29, 3, 3]))
    assert SoftwareGpu.num_pictures > 0


def test_a_decoder_serves_all_videos_of_a_format(make_clip, tmp_path):
    paths = [make_clip(tmp_path / f"{name}.mp4", name, gop=6) for name in (20, 30)]
    for path in [*paths, *paths]:
        assert assert_same_frames(path) > 0
    assert SoftwareGpu.num_opened == 1
    assert_same_frames(make_clip(tmp_path / "wide.mp4", 20, size=(96, 48)))
    assert SoftwareGpu.num_opened == 2
    with open_video(paths[0], "nvdec") as one, open_video(paths[1], "nvdec") as other:  # each has its own
        assert np.array_equal(one.read([7]), other.read([7]))
    assert SoftwareGpu.num_opened == 3


@pytest.mark.parametrize(
    ("ending", "codec", "keys", "reason"),
    [
        ("avi", "mpeg4", {}, "mpeg4 is not decoded on a GPU"),
        ("mkv", "libsvtav1", {"size": (96, 64)}, "libdav1d is not decoded on a GPU"),
        ("mp4", "libx265", {"pix_fmt": "yuv420p10le"}, "with 8 bits and 4:2:0 only, not as yuv420p10le"),
        ("mp4", "libx264", {"pix_fmt": "yuv444p"}, "with 8 bits and 4:2:0 only, not as yuv444p"),
    ],
)
def test_other_videos_are_decoded_in_software(ending, codec, keys, reason, make_clip, tmp_path, notes):
    path = make_clip(tmp_path / f"clip.{ending}", 20, codec=codec, **keys)
    assert [assert_same_frames(path), assert_same_frames(path)] == [0, 0]
    (note,) = notes()
    assert reason in note
    assert note.endswith("such videos are decoded in software")


@pytest.mark.parametrize("name", JOINED_FILES)
def test_headers_that_change_within_a_video(name, tmp_path, notes):
    assert assert_same_frames(write_joined_clip(tmp_path, name).path) == 0
    (note,) = notes()
    assert "the headers change within a video" in note


def fail(pictures):
    raise av.error.ExternalError(1, "the GPU is lost")


def darken(pictures):
    for picture in pictures:
        np.frombuffer(picture.planes[0], np.uint8)[:] = 0
    return pictures


@pytest.mark.parametrize("spoil", [fail, darken])
def test_a_gpu_that_gives_something_else(spoil, make_clip, tmp_path, notes, monkeypatch):
    """Only a comparison shows that: an old card refuses a format, and crops at the left are not applied."""
    monkeypatch.setattr(nvdec, "open_on_gpu", partial(open_in_software, spoil=spoil))
    path = make_clip(tmp_path / "clip.mp4", 20)
    with open_video(path, "nvdec") as reader:
        assert not reader._decoder.damage
    for _ in range(2):
        assert_same_frames(path)
    assert SoftwareGpu.num_opened == 1
    (note,) = notes()
    assert "the GPU does not decode h264 with 80×48 pixels (yuv420p) as software does" in note
    assert ("the GPU is lost" in note) == (spoil is fail)


def test_a_gpu_that_fails_later(make_clip, tmp_path, monkeypatch):
    """The rest of the video is decoded in software, and the decoder is not used again."""

    def fail_later(pictures):
        return fail(pictures) if SoftwareGpu.num_pictures > 8 else pictures

    monkeypatch.setattr(nvdec, "open_on_gpu", partial(open_in_software, spoil=fail_later))
    path = make_clip(tmp_path / "clip.mp4", 20)
    assert_same_frames(path)
    assert SoftwareGpu.num_pictures > 8
    open_video(path, "nvdec").close()
    assert SoftwareGpu.num_opened == 2


def test_damage_is_an_error(broken_videos):
    with (
        pytest.raises(VideoDecodeError, match="damaged"),
        open_video(broken_videos["damaged"], "nvdec") as reader,
    ):
        reader.verify()


def test_verify_decodes_in_software(make_clip, tmp_path):
    with open_video(make_clip(tmp_path / "clip.mp4", 20), "nvdec") as reader:
        before = SoftwareGpu.num_pictures
        reader.verify()
    assert SoftwareGpu.num_pictures == before


def without(monkeypatch, error):
    """Lets PyAV refuse to decode on a GPU."""
    pyav_open = av.open

    def open_in_cpu(*args, hwaccel=None, **keys):
        if hwaccel is not None:
            raise error
        return pyav_open(*args, **keys)

    monkeypatch.setattr(nvdec, "open_on_gpu", OPEN_ON_GPU)
    monkeypatch.setattr(av, "open", open_in_cpu)


@pytest.mark.parametrize(
    "error",
    [av.error.PermissionError(1, "Operation not permitted"), RuntimeError("no stream is compatible")],
)
def test_no_gpu(error, make_clip, tmp_path, monkeypatch):
    without(monkeypatch, error)
    with pytest.raises(PaddleVideoFastError) as refusal:
        open_video(make_clip(tmp_path / "clip.mp4", 10), "nvdec")
    cause = error.strerror if isinstance(error, OSError) else str(error)
    assert str(refusal.value) == (
        f"backend 'nvdec' needs an NVIDIA GPU with its driver, and PyAV can use none ({cause}): "
        "choose backend 'pyav'"
    )


def test_an_old_pyav(make_clip, tmp_path, monkeypatch):
    monkeypatch.setattr(nvdec, "PYAV", 17)
    with pytest.raises(PaddleVideoFastError, match="needs PyAV 18 or newer, found .* pip install 'av>=18'"):
        open_video(make_clip(tmp_path / "clip.mp4", 10), "nvdec")


@pytest.mark.skipif(bool(installed_gpus()), reason="this machine has a GPU")
def test_what_pyav_says_where_there_is_no_gpu(make_clip, tmp_path):
    with pytest.raises(PaddleVideoFastError, match="needs an NVIDIA GPU"):
        OPEN_ON_GPU(VideoSource(make_clip(tmp_path / "clip.mp4", 10)))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_loader_workers(num_workers, make_clip, tmp_path, monkeypatch):
    """They are forks, and CUDA does not work in a fork of a process that uses it."""
    make_clip(tmp_path / "clip.mp4", 20)
    (tmp_path / "clips.list").write_text("clip.mp4 0\n")
    sample = {"name": "Sampler", "num_seg": 2, "seg_len": 1}
    dataset = building.dataset_of(
        tmp_path / "clips.list", sample, [], False, decode=NVDEC, data_prefix=str(tmp_path)
    )
    if not num_workers:
        (batch,) = building.loader_of(dataset, batch_size=1).epoch(0)
        assert batch.failures == []
        assert SoftwareGpu.num_pictures > 0
        return
    without(monkeypatch, av.error.ExternalError(1, "Generic error in an external library"))
    with pytest.raises(
        PaddleVideoFastError, match="a loader worker cannot use the GPU .* set num_workers: 0"
    ):
        list(building.loader_of(dataset, batch_size=1, num_workers=1).epoch(0))


def test_what_it_does_not_take(tmp_path):
    with pytest.raises(LoaderError, match="on_corrupt: nearest needs backend: pyav, not nvdec"):
        VideoDecoder("nvdec", on_corrupt="nearest")
    with pytest.raises(VideoDecodeError, match="is a folder, not a video file"):
        open_video(tmp_path, "nvdec")

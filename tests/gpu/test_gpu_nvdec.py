"""The decoder of the GPU gives the frames of the default reader, to the last bit.

NVDEC decodes no HEVC and VP9 below 144×144 pixels, so the clips are larger than in other tests.
"""

import logging
import time

import numpy as np
import pytest

from paddlevideo_fast.decode import open_video
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.sources.readers import nvdec
from tests.loader import building
from tests.support.exact_corpus import OPEN_GOP
from tests.support.software_gpu import open_in_software

HEVC = "log-level=error:keyint=12:min-keyint=12:bframes=3:open-gop="
CLIPS = {
    "h264.mp4": {"bframes": 3},
    "h264_open_gop.mkv": {"bframes": 3, "options": OPEN_GOP},
    "h264_no_b_frames.ts": {},
    "h264_slices.mp4": {"bframes": 2, "options": {"x264-params": "slices=3"}},
    "h264_interlaced.mp4": {"bframes": 2, "options": {"flags": "+ildct+ilme", "x264-params": "tff=1"}},
    "h264_full_range.mp4": {"bframes": 2, "pix_fmt": "yuvj420p"},
    "h264_bt709.mp4": {"bframes": 2, "matrix": "ITU709"},
    "h264_turned.mov": {"bframes": 2, "rotation": 90},
    "h264_cropped.mp4": {"bframes": 2, "size": (250, 186)},
    "h264_long_group.avi": {"bframes": 3, "gop": 250},
    "hevc.mp4": {"codec": "libx265", "options": {"x265-params": f"{HEVC}0"}},
    "hevc_open_gop.mkv": {"codec": "libx265", "options": {"x265-params": f"{HEVC}1"}},
    "hevc_cropped.mp4": {"codec": "libx265", "size": (250, 186)},
    "vp9.webm": {"codec": "libvpx-vp9"},
}


@pytest.fixture(autouse=True)
def decoder(device, monkeypatch):
    """NVDEC, and in the rehearsal its double; no format is refused before."""
    monkeypatch.setattr(nvdec, "_refused", {})
    monkeypatch.setattr("paddlevideo_fast.log._warned", set())
    monkeypatch.setattr(logging.getLogger("paddlevideo_fast"), "propagate", True)
    if device == "cpu":
        monkeypatch.setattr(nvdec, "open_on_gpu", open_in_software)
        monkeypatch.setattr(nvdec, "PYAV", 18)
    nvdec._idle.clear()
    yield
    nvdec._idle.clear()


@pytest.mark.parametrize("name", CLIPS)
def test_frames_are_those_of_the_reader(name, make_clip, tmp_path, caplog):
    path = make_clip(tmp_path / name, 50, **{"size": (256, 192), **CLIPS[name]})
    rng = np.random.default_rng(0)
    requests = [np.linspace(0, 49, 8).astype(int), [49], *(rng.integers(0, 50, 4) for _ in range(20))]
    for _ in range(2):  # the second time with the decoder of the first
        with open_video(path) as software, open_video(path, "nvdec") as reader:
            every = np.stack(list(software))
            assert all(map(np.array_equal, every, reader))
            for indices in requests:
                assert np.array_equal(reader.read(indices), every[indices]), indices
            assert not reader._decoder.damage
    assert not caplog.messages, "it was decoded in software"


def test_time_of_a_frame(make_clip, tmp_path, figure):
    path = make_clip(tmp_path / "clip.mp4", 48, (640, 360), bframes=3, gop=24)
    for backend in ("pyav", "nvdec"):
        with open_video(path, backend) as reader:
            next(iter(reader))
            began = time.perf_counter()
            assert sum(1 for _ in reader.frames(range(48), whole=False)) == 48
            figure(f"{backend}, ms a frame without RGB", 1000 * (time.perf_counter() - began) / 48)


def test_a_loader_worker_says_that_it_cannot(device, make_clip, tmp_path):
    if device == "cpu":
        pytest.skip("needs a GPU; tests/sources/readers/test_nvdec.py has the message")
    open_video(make_clip(tmp_path / "clip.mp4", 20, (256, 192)), "nvdec").close()
    (tmp_path / "clips.list").write_text("clip.mp4 0\n")
    sample, decode = (
        {"name": "Sampler", "num_seg": 2, "seg_len": 1},
        {"name": "VideoDecoder", "backend": "nvdec"},
    )
    dataset = building.dataset_of(
        tmp_path / "clips.list", sample, [], decode=decode, data_prefix=str(tmp_path)
    )
    with pytest.raises(PaddleVideoFastError, match="set num_workers: 0"):
        list(building.loader_of(dataset, batch_size=1, num_workers=1).epoch(0))

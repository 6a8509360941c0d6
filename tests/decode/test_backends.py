"""The backends agree where all of them are right, and frame folders read as videos do."""

import importlib.util

import cv2
import numpy as np
import pytest

from paddlevideo_fast.decode import VideoReader, check_video, open_frames, open_video
from paddlevideo_fast.errors import VideoDecodeError
from tests.support.isolated import call_isolated, resident_bytes

HAS_DECORD = importlib.util.find_spec("decord") is not None
OTHERS = [
    pytest.param(name, marks=pytest.mark.annex) for name in ("cv2", *(["decord"] if HAS_DECORD else []))
]


class Forgetful(VideoReader):
    """A backend that does not give some of the frames it is asked for."""

    path, num_frames, avg_fps = "clip.mp4", 5, 25.0

    def __init__(self, given):
        self.given = given

    def _decode(self, wanted):
        return ((index, np.full((4, 6, 3), index, np.uint8)) for index in wanted if index in self.given)


@pytest.mark.smoke
def test_a_frame_that_does_not_come_is_an_error_and_no_stale_memory():
    whole = Forgetful({0, 1, 2, 3, 4}).read([3, 0, 3, 2])
    assert whole[:, 0, 0, 0].tolist() == [3, 0, 3, 2]
    with pytest.raises(VideoDecodeError, match="frame 2 is missing: the decoder does not give it"):
        Forgetful({0, 3}).read([3, 0, 3, 2])
    with pytest.raises(VideoDecodeError, match="frame 1 is missing"):
        Forgetful({0}).read([1, 2])


@pytest.mark.smoke
@pytest.mark.parametrize("backend", OTHERS)
def test_agreement(backend, make_clip, frame_number, tmp_path):
    path = make_clip(tmp_path / "clip.mp4", 30, bframes=2)
    indices = [29, 0, 7, 7, 13]
    with open_video(path) as reference, open_video(path, backend) as reader:
        assert (reader.num_frames, reader.width, reader.height) == (30, 80, 48)
        assert reader.avg_fps == pytest.approx(reference.avg_fps, rel=1e-3)
        frames = reader.read(indices)
        difference = np.abs(frames.astype(int) - reference.read(indices))
    assert [frame_number(frame) for frame in frames] == indices
    assert difference.mean() < 2  # the conversion to RGB rounds differently


@pytest.mark.annex
def test_cv2_agrees_on_real_clips(real_clips_dir):
    for name in ("ucf_example.avi", "mma_demo.mp4", "pancake.mkv", "rot90.mov"):
        with (
            open_video(real_clips_dir / name) as reference,
            open_video(real_clips_dir / name, "cv2") as reader,
        ):
            assert reader.num_frames == reference.num_frames
            indices = np.linspace(0, reader.num_frames - 1, 4).astype(int)
            difference = np.abs(reader.read(indices).astype(int) - reference.read(indices))
            assert difference.mean() < 2, name


@pytest.mark.annex
def test_cv2_reports_the_end_of_a_damaged_file(broken_videos):
    assert check_video(str(broken_videos["damaged"]), "cv2") is not None


def test_frame_folder(rawframes_dataset, frame_number):
    folder = rawframes_dataset.root / "class1" / "clip4"
    with open_video(folder) as reader:
        assert (reader.num_frames, reader.width, reader.height) == (12, 80, 48)
        frames = reader.read([11, 0, 5, 5])
        assert frames.dtype == np.uint8
        assert [frame_number(frame) for frame in frames] == [11, 0, 5, 5]
    bgr = cv2.imread(str(folder / "img_00012.jpg"))
    assert np.array_equal(frames[0], bgr[..., ::-1])


@pytest.mark.parametrize("suffix", ["image_{:03}.png", "{:06d}.jpg", "img_{}.jpeg"])
def test_frame_folder_names(suffix, tmp_path):
    for number in range(1, 4):
        assert cv2.imwrite(str(tmp_path / suffix.format(number)), np.full((8, 8, 3), 40 * number, np.uint8))
    with open_frames(str(tmp_path), suffix) as reader:
        assert reader.num_frames == 3
        assert reader.read([2])[0].mean() == pytest.approx(120, abs=1)
    assert open_video(tmp_path).num_frames == 3


@pytest.mark.parametrize("suffix", ["img_{:05}.jpg", "{}.png"])
def test_frame_folder_from_zero(suffix, tmp_path):
    for number in range(4):
        assert cv2.imwrite(str(tmp_path / suffix.format(number)), np.full((8, 8, 3), 40 * number, np.uint8))
    for reader in (
        open_frames(str(tmp_path), suffix),
        open_frames(str(tmp_path), suffix, 4),
        open_video(tmp_path),
    ):
        assert reader.num_frames == 4
        assert [round(frame.mean()) // 10 for frame in reader] == [0, 4, 8, 12]
    for number in range(1, 4):
        (tmp_path / suffix.format(number)).unlink()
    assert open_video(tmp_path).num_frames == 1


def growth_bytes(path, keeps_open):
    """Growth of memory over ninety reads, after thirty more."""
    readers = []
    for read_no in range(120):
        reader = open_video(path)
        reader.read([0, 29])
        if keeps_open:
            readers.append(reader)
        else:
            reader.close()
        if read_no == 30:
            before = resident_bytes()
    return resident_bytes() - before


@pytest.mark.parametrize("keeps_open", [False, True])
def test_memory_does_not_grow(keeps_open, make_clip, tmp_path):
    """Readers free what they hold. Ninety open readers take more than ten times what is allowed."""
    growth = call_isolated(growth_bytes, make_clip(tmp_path / "clip.mp4", 30, (320, 240)), keeps_open)
    assert growth > 40 * 2**20 if keeps_open else growth < 4 * 2**20


@pytest.mark.parametrize("backend", ["pyav", *OTHERS, "frames"])
def test_a_closed_reader_says_so(backend, make_clip, rawframes_dataset, tmp_path):
    folder = rawframes_dataset.root / "class1" / "clip1"
    path = folder if backend == "frames" else make_clip(tmp_path / "clip.mp4", 4)
    with open_video(path, backend) as reader:
        with pytest.raises(TypeError, match=r"frame numbers are integers, found 1\.7"):
            reader.read([0, 1.7])
        assert reader.read(np.array([1], np.int32)).shape == (1, reader.height, reader.width, 3)
    for use in (lambda: reader.read([0]), lambda: reader.width, lambda: next(iter(reader))):
        with pytest.raises(VideoDecodeError, match="the reader is closed"):
            use()
    reader.close()


def test_a_reader_that_is_closed_while_it_is_iterated_says_so(make_clip, tmp_path):
    reader = open_video(make_clip(tmp_path / "clip.mp4", 12))
    frames = iter(reader)
    next(frames)
    reader.close()
    with pytest.raises(VideoDecodeError, match="the reader is closed"):
        next(frames)

"""Which tokens repeat, by brute force on decoded videos."""

import itertools

import numpy as np
import paddle
import pytest

from paddlevideo_fast.decode import open_video
from paddlevideo_fast.extensions.run_length.rule import differences, first_of_runs, run_lengths
from paddlevideo_fast.modeling import Preprocess

PREPROCESS = Preprocess(layout="NCTHW")


def decoded(path, num_frames=16, side=64):
    """Normalised clips [1, 3, T, H, W] of the first frames, cut out of the middle."""
    with open_video(str(path)) as video:
        frames = video.read(range(num_frames))
    top, left = ((size - side) // 2 for size in frames.shape[1:3])
    return PREPROCESS(frames[None, :, top : top + side, left : left + side])


def by_brute_force(clips, tubelet_size, patch_size, threshold):
    """The rule, square by square."""
    pixels = clips.numpy().astype("float64")
    num_clips, _, num_frames, height, width = pixels.shape
    times, rows, columns = num_frames // tubelet_size, height // patch_size, width // patch_size
    stays = np.ones((num_clips, times, rows * columns), bool)
    for clip, time, row, column in itertools.product(
        range(num_clips), range(times - 1), range(rows), range(columns)
    ):
        of_square = pixels[clip, :, :, row * patch_size : (row + 1) * patch_size][
            ..., column * patch_size : (column + 1) * patch_size
        ]
        last_of_next, first = of_square[:, (time + 2) * tubelet_size - 1], of_square[:, time * tubelet_size]
        stays[clip, time + 1, row * columns + column] = np.abs(last_of_next - first).mean() > threshold
    return stays


@pytest.mark.parametrize("name", ["ucf_example.avi", "mma_demo.mp4", "pancake.mkv"])
@pytest.mark.parametrize(("tubelet_size", "patch_size"), [(2, 16), (4, 8), (1, 32)])
def test_the_tokens_of_real_clips_are_those_of_the_rule(real_clips_dir, name, tubelet_size, patch_size):
    clips = decoded(real_clips_dir / name)
    shares = []
    for threshold in (0.0, 0.05, 0.1, 0.4):
        stays = first_of_runs(clips, tubelet_size, patch_size, threshold).numpy()
        np.testing.assert_array_equal(stays, by_brute_force(clips, tubelet_size, patch_size, threshold))
        shares.append(stays.mean())
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 1


def test_a_still_video_keeps_its_first_tubelet(make_clip, tmp_path):
    clips = decoded(make_clip(tmp_path / "still.mp4", 16, (64, 64), hold=16))
    stays = first_of_runs(clips, 2, 16, 0.1).numpy()
    assert stays[:, 0].all()
    assert not stays[:, 1:].any()


def test_a_threshold_of_0_keeps_all_that_differ(real_clips_dir):
    clips = decoded(real_clips_dir / "mma_demo.mp4").numpy()
    clips[:, :, 4:8, :32] = clips[:, :, 2:3, :32]  # the upper half stands still for a while
    stays = first_of_runs(paddle.to_tensor(clips), 2, 16, 0.0).numpy().reshape(8, 4, 4)
    assert not stays[2:4, :2].any()
    different = differences(paddle.to_tensor(clips), 2, 16).numpy().reshape(7, 4, 4) > 0
    np.testing.assert_array_equal(stays[1:], different)


def test_what_is_not_a_number_stays():
    clips = paddle.zeros([1, 3, 4, 8, 8])
    clips[0, 0, 3, 0, 0] = float("nan")
    assert first_of_runs(clips, 2, 8, 0.1).numpy().all()


def test_one_tubelet_in_time_stays():
    assert first_of_runs(paddle.zeros([2, 3, 2, 8, 16]), 2, 8, 0.1).numpy().tolist() == [[[True] * 2]] * 2


def test_runs_are_counted():
    stays = paddle.to_tensor([[[1, 1], [0, 1], [0, 0], [1, 0], [0, 1]]], dtype="bool")
    lengths = run_lengths(stays).numpy()[0]
    assert [lengths[time, 0] for time in (0, 3)] == [3, 2]
    assert [lengths[time, 1] for time in (0, 1, 4)] == [1, 3, 1]

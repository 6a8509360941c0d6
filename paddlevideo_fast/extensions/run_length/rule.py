"""Which tokens of a clip repeat the token before them, and how long each run of repeated tokens is.

A tubelet is a few frames of a square of pixels. Tubelet i + 1 repeats tubelet i of the same square where the
mean over channels and pixels of |last frame of tubelet i + 1 - first frame of tubelet i| is at most a
threshold. The pixels are those that the network takes, normalised. The first tubelet of a square stays.

Reference: Choudhury et al., "Don't Look Twice: Faster Video Transformers with Run-Length Tokenization", arXiv
2411.05222, section 3.
"""

import paddle


def differences(clips: paddle.Tensor, tubelet_size: int, patch_size: int) -> paddle.Tensor:
    """By how much each tubelet but the first differs from the one before it.

    Args:
        clips: normalised float [N, 3, T, H, W].
        tubelet_size: frames of a tubelet; divides T.
        patch_size: side of a tubelet in pixels; divides H and W.

    Returns:
        float32 [N, T / tubelet_size - 1, squares], squares by row, then column.
    """
    num_frames, height, width = clips.shape[2:]
    rows, columns = height // patch_size, width // patch_size
    # whole frames are copied: Paddle is slow at a difference of slices with a step
    later = paddle.arange(2 * tubelet_size - 1, num_frames, tubelet_size)
    earlier = paddle.arange(0, num_frames - tubelet_size, tubelet_size)
    change = paddle.index_select(clips, later, axis=2) - paddle.index_select(clips, earlier, axis=2)
    of_pixels = change.astype("float32").abs().mean(axis=1)
    num_later = num_frames // tubelet_size - 1
    squares = of_pixels.reshape([-1, num_later * rows, patch_size, columns, patch_size]).mean(axis=[2, 4])
    return squares.reshape([-1, num_later, rows * columns])


def first_of_runs(
    clips: paddle.Tensor, tubelet_size: int, patch_size: int, threshold: float
) -> paddle.Tensor:
    """Which tubelets stay, bool [N, tubelets in time, squares]; see `differences`."""
    num_squares = clips.shape[3] // patch_size * (clips.shape[4] // patch_size)
    first = paddle.ones_like(clips[:, 0, :1].flatten(1)[:, :num_squares]).astype("bool").unsqueeze(1)
    if clips.shape[2] == tubelet_size:
        return first
    repeats = differences(clips, tubelet_size, patch_size) <= threshold  # not of a NaN, which must be seen
    return paddle.concat([first, paddle.logical_not(repeats)], axis=1)


def run_lengths(stays: paddle.Tensor) -> paddle.Tensor:
    """For each tubelet that begins a run, how many tubelets in time the run has.

    Args:
        stays: bool [N, tubelets in time, squares], as `first_of_runs` gives it.

    Returns:
        int64 of the same shape; for other tubelets, how many are left of their run.
    """
    end = paddle.full_like(stays[:, 0], stays.shape[1], dtype="int64")
    lengths = []
    for time in reversed(range(stays.shape[1])):
        lengths.append(end - time)
        end = paddle.where(stays[:, time], paddle.full_like(end, time), end)
    return paddle.stack(lengths[::-1], axis=1)

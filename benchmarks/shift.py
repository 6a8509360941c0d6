"""The temporal shift, ours and Paddle's fused operator, against the one composed of pad, slice and concat."""

import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import paddle
import paddle.nn.functional as F

from benchmarks.measuring import Natural, Positive, compared, time_in_turn
from paddlevideo_fast.modeling.layers.operators import temporal_shift


def temporal_shift_composed(frames: paddle.Tensor, num_seg: int, shift_ratio: float) -> paddle.Tensor:
    """The shift from reshape, pad, slice and concat; frames [N*T, C, H, W]."""
    channels = frames.shape[1]
    first, second = int(channels * shift_ratio), int(channels * 2 * shift_ratio)
    clips = frames.reshape([-1, num_seg, *frames.shape[1:]])
    padded = F.pad(clips, [0, 0, 1, 1, 0, 0, 0, 0, 0, 0])
    parts = ((0, 0, first), (2, first, second), (1, second, channels))
    pieces = [padded[:, start : start + num_seg, low:high] for start, low, high in parts]
    return paddle.concat(pieces, axis=2).reshape(frames.shape)


SHAPES: Sequence[tuple[int, int, int, int]] = ((32, 16, 32, 32), (128, 64, 128, 128))
# ours is Paddle's operator on a GPU, and block copies on a CPU
_SIDES = {
    "ours": temporal_shift,
    "paddle": paddle.nn.functional.temporal_shift,
    "composed": temporal_shift_composed,
}


def run(
    shape: Sequence[Sequence[int]] = SHAPES, num_seg: Positive = 8, repeats: Natural = 0
) -> dict[str, Any]:
    """Measures forward and forward with backward, of all sides in turn.

    Args:
        shape: shapes of the input, [N*T, C, H, W]; N*T a multiple of `num_seg`.
        num_seg: T, frames of a clip.
        repeats: timed calls a side; 0: as many as take about 3 seconds.

    Returns:
        "rows": one a shape, pass and side, with "ms" (the median), "speedup" (the composed side's time over
        this one's, the median over neighbouring pairs) and "mib", the peak of extra memory: what Paddle's
        allocator counts and what numpy allocates, added (None where this Paddle cannot reset its count).
    """
    kinds = product(shape, ("forward", "forward+backward"))
    return {"rows": [row for size, passes in kinds for row in _compare(size, passes, num_seg, repeats)]}


def _compare(shape: Sequence[int], passes: str, num_seg: int, repeats: int) -> list[dict[str, Any]]:
    frames = paddle.randn(shape)
    frames.stop_gradient = passes == "forward"
    gradient = paddle.randn(shape)

    def call(side: Callable[..., paddle.Tensor], turn: int = 0) -> None:
        out = side(frames, num_seg, 0.125)
        if not frames.stop_gradient:
            paddle.autograd.backward([out], [gradient])
            frames.clear_gradient()
        if paddle.get_device() != "cpu":
            paddle.device.synchronize()

    memory = {name: _peak_mib(partial(call, side)) for name, side in _SIDES.items()}
    began = time.perf_counter()
    call(temporal_shift_composed)
    rounds = repeats or min(max(int(3 / (time.perf_counter() - began)), 5), 300)
    seconds = time_in_turn({name: partial(call, side) for name, side in _SIDES.items()}, rounds)
    about = {"shape": list(shape), "pass": passes}
    return [
        {**about, "side": side, "ms": row["ms"], "speedup": row["ratio"], "mib": memory[side]}
        for side, row in compared(seconds, "composed").items()
    ]


def _peak_mib(call: Callable[[], None]) -> float | None:
    """Peak of memory above what was there before the call, which is made twice: the first warms up."""
    call()
    core, kind = paddle.base.core, "host" if paddle.get_device() == "cpu" else "device"
    current, reset, peak = (
        getattr(core, f"{kind}_memory_stat_{name}_value", None) for name in ("current", "reset_peak", "peak")
    )
    if current is None or reset is None or peak is None:
        return None
    before = current("Allocated", 0)
    reset("Allocated", 0)
    tracemalloc.start()
    call()
    numpy_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return (peak("Allocated", 0) - before + numpy_peak) / 2**20

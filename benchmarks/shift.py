"""The temporal shift, ours and Paddle's fused operator, against the one composed of pad, slice and concat."""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import paddle
import paddle.nn.functional as F

from benchmarks.measuring import add_output_arguments, in_turn, show
from paddlevideo_fast.modeling.layers import temporal_shift


def temporal_shift_composed(
    frames: paddle.Tensor, num_seg: int, shift_ratio: float = 0.125, data_format: str = "NCHW"
) -> paddle.Tensor:
    """The shift from reshape, pad, slice and concat."""
    shape = frames.shape
    axis = 2 if data_format == "NCHW" else 4
    channels = shape[axis - 1]
    first, second = int(channels * shift_ratio), int(channels * 2 * shift_ratio)
    clips = frames.reshape([-1, num_seg, *shape[1:]])
    padded = F.pad(clips, [0, 0, 1, 1, 0, 0, 0, 0, 0, 0])
    pieces = []
    for start, low, high in ((0, 0, first), (2, first, second), (1, second, channels)):
        if high > low and data_format == "NCHW":
            pieces.append(padded[:, start : start + num_seg, low:high])
        elif high > low:
            pieces.append(padded[:, start : start + num_seg, :, :, low:high])
    return paddle.concat(pieces, axis=axis).reshape(shape)


SHAPES: Sequence[tuple[int, int, int, int]] = ((32, 16, 32, 32), (128, 64, 128, 128))
# ours is Paddle's operator on a GPU, and block copies on a CPU
_SIDES = {
    "ours": temporal_shift,
    "paddle": paddle.nn.functional.temporal_shift,
    "composed": temporal_shift_composed,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument("--shape", type=int, nargs=4, action="append", metavar=("NT", "C", "H", "W"))
    parser.add_argument("--num-seg", type=int, default=8, help="frames of a clip")
    parser.add_argument("--repeats", type=int, default=0, help="timed calls a side; 0: as many as take 3 s")
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    shapes = [tuple(shape) for shape in args.shape] if args.shape else SHAPES
    result = run(shapes, num_seg=args.num_seg, repeats=args.repeats)
    show(result, args, table)


def run(
    shapes: Sequence[Sequence[int]] = SHAPES, num_seg: int = 8, shift_ratio: float = 0.125, repeats: int = 0
) -> dict[str, Any]:
    """Measures forward and forward with backward, of all sides in turn.

    Args:
        shapes: of the input, [N*T, C, H, W]; N*T a multiple of `num_seg`.
        num_seg: T.
        shift_ratio: share of the channels in each fold.
        repeats: timed calls a side; 0: as many as take about 3 seconds.

    Returns:
        "device", "paddle", "num_seg", and "rows": one a shape, pass and side, with "ms" (the median),
        "speedup" (the composed side's time over this one's) and "mib", the peak of extra memory: what
        Paddle's allocator counts and what numpy allocates, added (None where this Paddle cannot reset its
        count).
    """
    rows = [
        row
        for shape in shapes
        for passes in ("forward", "forward+backward")
        for row in _compare(tuple(shape), passes, num_seg, shift_ratio, repeats)
    ]
    return {
        "device": paddle.get_device(),
        "paddle": paddle.__version__,
        "num_seg": num_seg,
        "rows": rows,
    }


def table(result: dict[str, Any]) -> str:
    """The result of `run` as text."""
    lines = [
        f"temporal shift on {result['device']}, Paddle {result['paddle']}, {result['num_seg']} frames a clip",
        f"{'shape':<20}{'pass':<18}{'side':<10}{'ms':>10}{'speed-up':>10}{'MiB':>9}",
    ]
    for row in result["rows"]:
        shape = "x".join(map(str, row["shape"]))
        lines.append(
            f"{shape:<20}{row['pass']:<18}{row['side']:<10}{row['ms']:>10.3f}{row['speedup']:>9.1f}x"
            f"{_text(row['mib']):>9}"
        )
    return "\n".join(lines)


def _compare(
    shape: tuple[int, ...], passes: str, num_seg: int, shift_ratio: float, repeats: int
) -> list[dict[str, Any]]:
    frames = paddle.randn(shape)
    frames.stop_gradient = passes == "forward"
    gradient = paddle.randn(shape)

    def call(side: Callable[..., paddle.Tensor]) -> None:
        out = side(frames, num_seg, shift_ratio)
        if not frames.stop_gradient:
            paddle.autograd.backward([out], [gradient])
            frames.clear_gradient()

    seconds: dict[str, list[float]] = {name: [] for name in _SIDES}
    memory = {name: _peak_mib(lambda side=side: call(side)) for name, side in _SIDES.items()}  # type: ignore[misc]
    warm = max(_seconds(lambda: call(temporal_shift_composed)), 1e-5)
    for _, name in in_turn(_SIDES, repeats or min(max(int(3 / warm), 5), 300)):
        seconds[name].append(_seconds(lambda side=_SIDES[name]: call(side)))  # type: ignore[misc]
    milliseconds = {name: statistics.median(values) * 1e3 for name, values in seconds.items()}
    return [
        {
            "shape": list(shape),
            "pass": passes,
            "side": name,
            "ms": milliseconds[name],
            "speedup": milliseconds["composed"] / milliseconds[name],
            "mib": memory[name],
        }
        for name in _SIDES
    ]


def _seconds(call: Callable[[], None]) -> float:
    _wait()
    began = time.perf_counter()
    call()
    _wait()
    return time.perf_counter() - began


def _wait() -> None:
    if paddle.is_compiled_with_cuda() and paddle.get_device() != "cpu":
        paddle.device.synchronize()


def _peak_mib(call: Callable[[], None]) -> float | None:
    """Peak of memory above what was there before the call, which is made twice: the first warms up."""
    call()
    _wait()
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
    _wait()
    numpy_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return (peak("Allocated", 0) - before + numpy_peak) / 2**20


def _text(mib: float | None) -> str:
    return "-" if mib is None else f"{mib:.1f}"

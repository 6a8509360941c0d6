"""The fused temporal shift against the one composed of reshape, pad, slice and concat."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import paddle

from paddlevideo_fast.modeling.layers import temporal_shift, temporal_shift_composed

SHAPES: Sequence[Tuple[int, int, int, int]] = ((32, 16, 32, 32), (128, 64, 128, 128))
_SIDES = {"fused": temporal_shift, "composed": temporal_shift_composed}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument("--shape", type=int, nargs=4, action="append", metavar=("NT", "C", "H", "W"))
    parser.add_argument("--num-seg", type=int, default=8, help="frames of a clip")
    parser.add_argument("--repeats", type=int, default=0, help="timed calls a side; 0: as many as take 3 s")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def main(args: argparse.Namespace) -> int:
    """Runs the benchmark and prints it."""
    shapes = [tuple(shape) for shape in args.shape] if args.shape else SHAPES
    result = run(shapes, num_seg=args.num_seg, repeats=args.repeats)
    print(json.dumps(result, indent=1) if args.json else table(result))
    return 0


def run(
    shapes: Sequence[Sequence[int]] = SHAPES, num_seg: int = 8, shift_ratio: float = 0.125, repeats: int = 0
) -> Dict[str, Any]:
    """Measures forward and forward with backward, of both sides in turn.

    Args:
        shapes: of the input, [N*T, C, H, W]; N*T a multiple of `num_seg`.
        num_seg: T.
        shift_ratio: share of the channels in each fold.
        repeats: timed calls a side; 0: as many as take about 3 seconds.

    Returns:
        "device", "paddle", "num_seg", and "rows": one a shape and pass, with each side's median milliseconds,
        "speedup" (composed over fused), and each side's peak of extra tensor memory in MiB, as Paddle's
        allocator counts it (None where this Paddle cannot reset the count).
    """
    rows = [
        _compare(tuple(shape), passes, num_seg, shift_ratio, repeats)
        for shape in shapes
        for passes in ("forward", "forward+backward")
    ]
    return {
        "device": paddle.get_device(),
        "paddle": paddle.__version__,
        "num_seg": num_seg,
        "rows": rows,
    }


def table(result: Dict[str, Any]) -> str:
    """`run`'s result as text."""
    lines = [
        f"temporal shift on {result['device']}, Paddle {result['paddle']}, {result['num_seg']} frames a clip",
        f"{'shape':<20}{'pass':<18}{'fused ms':>10}{'composed ms':>13}{'speed-up':>10}"
        f"{'fused MiB':>11}{'composed MiB':>14}",
    ]
    for row in result["rows"]:
        shape = "x".join(map(str, row["shape"]))
        lines.append(
            f"{shape:<20}{row['pass']:<18}{row['fused_ms']:>10.3f}{row['composed_ms']:>13.3f}"
            f"{row['speedup']:>9.1f}x{_text(row['fused_mib']):>11}{_text(row['composed_mib']):>14}"
        )
    return "\n".join(lines)


def _compare(
    shape: Tuple[int, ...], passes: str, num_seg: int, shift_ratio: float, repeats: int
) -> Dict[str, Any]:
    frames = paddle.randn(shape)
    frames.stop_gradient = passes == "forward"
    gradient = paddle.randn(shape)

    def call(side: Callable[..., paddle.Tensor]) -> None:
        out = side(frames, num_seg, shift_ratio)
        if not frames.stop_gradient:
            paddle.autograd.backward([out], [gradient])
            frames.clear_gradient()

    seconds: Dict[str, List[float]] = {name: [] for name in _SIDES}
    memory = {name: _peak_mib(lambda side=side: call(side)) for name, side in _SIDES.items()}  # type: ignore[misc]
    warm = max(_seconds(lambda: call(temporal_shift_composed)), 1e-5)
    for _ in range(repeats or min(max(int(3 / warm), 5), 300)):
        for name, side in _SIDES.items():  # in turn: both see the same machine
            seconds[name].append(_seconds(lambda side=side: call(side)))  # type: ignore[misc]
    fused, composed = (statistics.median(seconds[name]) * 1e3 for name in ("fused", "composed"))
    return {
        "shape": list(shape),
        "pass": passes,
        "fused_ms": fused,
        "composed_ms": composed,
        "speedup": composed / fused,
        "fused_mib": memory["fused"],
        "composed_mib": memory["composed"],
    }


def _seconds(call: Callable[[], None]) -> float:
    _wait()
    began = time.perf_counter()
    call()
    _wait()
    return time.perf_counter() - began


def _wait() -> None:
    if paddle.is_compiled_with_cuda() and paddle.get_device() != "cpu":
        paddle.device.synchronize()


def _peak_mib(call: Callable[[], None]) -> Optional[float]:
    """Peak of tensor memory above what was there before the call, which is made twice: the first warms up."""
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
    call()
    _wait()
    return (peak("Allocated", 0) - before) / 2**20


def _text(mib: Optional[float]) -> str:
    return "-" if mib is None else f"{mib:.1f}"

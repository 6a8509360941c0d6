"""Runs a script of PaddleVideo, or ours with the same flags, and notes the time after each optimizer step.

    python -m benchmarks.paddlevideo_child RESULT ROOT SCRIPT FLAG ...

Writes to RESULT: "steps", CPU and wall seconds since the start of the process after each step; "cpu_sec" and
"wall_sec" of the whole process with its children, and "mib", the most memory that it has had.
"""

import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import paddle

from benchmarks.cpu_child import peak_mib


def _cpu_sec() -> float:
    return sum(os.times()[:4])


def main() -> None:
    """Runs the script as `python SCRIPT` does, on the CPU: PaddleVideo asks for a GPU in any case."""
    result, root, script, *flags = sys.argv[1:]
    ticks = os.sysconf("SC_CLK_TCK")
    began = int(Path("/proc/self/stat").read_text(encoding="ascii").rsplit(") ", 1)[1].split()[19]) / ticks
    steps: list[tuple[float, float]] = []
    set_device, clear_grad = paddle.set_device, paddle.optimizer.Optimizer.clear_grad

    def noted(*args: Any, **options: Any) -> None:
        clear_grad(*args, **options)
        steps.append((_cpu_sec(), time.clock_gettime(time.CLOCK_BOOTTIME) - began))

    paddle.set_device = lambda device: set_device("cpu")
    paddle.optimizer.Optimizer.clear_grad = noted
    path = str(Path(root, script))
    sys.argv, sys.path[:0] = [path, *flags], [root]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    wall_sec = time.clock_gettime(time.CLOCK_BOOTTIME) - began
    measured = {"steps": steps, "cpu_sec": _cpu_sec(), "wall_sec": wall_sec, "mib": peak_mib()}
    Path(result).write_text(json.dumps(measured), encoding="utf-8")


if __name__ == "__main__":
    main()

"""What this process may use of the machine; needs no Paddle, which reads some of it at its import."""

from __future__ import annotations

import os
from typing import List, Optional


def available_cores() -> List[int]:
    """Numbers of the CPU cores that this process may use, in rising order."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return list(range(os.cpu_count() or 1))


def num_cores() -> int:
    """How many CPU cores this process may use."""
    return len(available_cores())


def gpu_number(device: str) -> Optional[int]:
    """The number in a device such as "gpu:0", as `paddle.get_device` tells it; None for the CPU."""
    kind, _, number = device.partition(":")
    return int(number) if kind == "gpu" else None

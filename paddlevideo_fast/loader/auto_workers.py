"""How many workers are of use: `num_workers: auto`."""

from __future__ import annotations

import itertools
import time
from typing import Any, Dict, Iterable, List, Sequence

from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.loader.workers import WorkerOptions, WorkerPool
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.machine import num_cores

_ENOUGH = 0.95  # share of the best rate that a smaller number of workers has to reach
_MEASURE_SEC = 0.7
_MAX_SEC = 3.0
_MAX_CLIPS = 4096


def choose_num_workers(dataset: Any, batches: Sequence[List[ClipRequest]], options: WorkerOptions) -> int:
    """The smallest number of workers whose rate comes within 5 % of the best one measured.

    Measured are 1, 2, 4, … workers up to the cores that this process may use, each for 0.7 to 3 seconds, on
    the first clips of the epoch; each number gets clips that those before it have not read, as long as there
    are any. The clips are thrown away: what an epoch yields does not depend on the choice.

    Args:
        dataset: makes the samples.
        batches: those of the epoch.
        options: how the workers are run.
    """
    requests = itertools.cycle([[request] for requests in batches for request in requests])
    most = num_cores()
    counts = [2**power for power in range(most.bit_length()) if 2**power < most] + [most]
    rates = {count: _clips_per_sec(dataset, requests, count, options) for count in counts}
    chosen = smallest_sufficient(rates)
    measured = ", ".join(f"{count}: {rate:.1f}" for count, rate in rates.items())
    get_logger().info(f"num_workers auto: {chosen} chosen; clips a second by number of workers: {measured}")
    return chosen


def smallest_sufficient(rates: Dict[int, float]) -> int:
    """The smallest number of workers that is nearly as fast as the fastest; number → rate."""
    return min(count for count, rate in rates.items() if rate >= _ENOUGH * max(rates.values()))


def _clips_per_sec(
    dataset: Any, requests: Iterable[List[ClipRequest]], num_workers: int, options: WorkerOptions
) -> float:
    pool = WorkerPool(dataset, num_workers, options)
    try:
        clips = pool.run(list(itertools.islice(requests, _MAX_CLIPS)))
        for _ in range(num_workers):  # all have begun
            next(clips)
        began = time.perf_counter()
        for count, _ in enumerate(clips, start=1):
            seconds = time.perf_counter() - began
            if seconds >= _MAX_SEC or (seconds >= _MEASURE_SEC and count >= 2 * num_workers):
                break
        return count / seconds
    finally:
        pool.close()

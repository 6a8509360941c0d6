"""Measures the store that a run reads from, and says what the run needs of it."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import statistics
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Dict, Iterable, List, Optional, Sequence, Set

from paddlevideo_fast import blocks, storage
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.loader import ClipRequest
from paddlevideo_fast.loader.dataset import PackedFrameDataset
from paddlevideo_fast.loader.fetching import NUM_THREADS
from paddlevideo_fast.loader.worker_process import become_child

_NUM_PINGS = 9
_FETCH_SEC, _MAX_BYTES = 4.0, 2**29
_CACHE_GB = 1.0


@dataclass(frozen=True)
class StoreSpeed:
    """What a store gives one process.

    Attributes:
        latency_sec: of a request for one byte, median.
        bytes_per_sec: with as many requests at a time as the prefetch makes.
        clips_per_sec: likewise; what their frames are read from.
        set_bytes: of the whole set.
    """

    latency_sec: float
    bytes_per_sec: float
    clips_per_sec: float
    set_bytes: int

    @property
    def clip_bytes(self) -> float:
        """Bytes that a clip fetches while the cache is empty."""
        return self.bytes_per_sec / self.clips_per_sec


def needs_of(
    speed: StoreSpeed, run_clips_per_sec: float, cache_gb: Optional[float]
) -> Dict[str, Optional[float]]:
    """What a run takes from the store, and how fast it is with it; the values of `store` in doctor.json.

    Args:
        speed: of the store.
        run_clips_per_sec: of the run without waiting for the store.
        cache_gb: size of the cache in 10^9 bytes; None: there is none.
    """
    with_store = min(run_clips_per_sec, speed.clips_per_sec)
    holds_set = cache_gb is not None and speed.set_bytes <= cache_gb * 1e9
    return {
        "latency_ms": speed.latency_sec * 1e3,
        "mb_per_sec": speed.bytes_per_sec / 1e6,
        "clips_per_sec": speed.clips_per_sec,
        "mb_per_clip": speed.clip_bytes / 1e6,
        "set_gb": speed.set_bytes / 1e9,
        "cache_gb": cache_gb,
        "needed_mb_per_sec": run_clips_per_sec * speed.clip_bytes / 1e6,
        "first_epoch_clips_per_sec": with_store,
        "later_epochs_clips_per_sec": run_clips_per_sec if holds_set else with_store,
    }


def time_store(
    dataset: PackedFrameDataset,
    videos: Sequence[List[ClipRequest]],
    block_bytes: int = blocks.BLOCK_BYTES,
) -> StoreSpeed:
    """Fetches what clips are read from into an empty cache of its own, for a few seconds.

    A process does that as the prefetch of a run does. The cache of the run stays as it is.

    Args:
        dataset: in a store.
        videos: the clips of each video, in the order of an epoch.
        block_bytes: of a block of the cache.

    Raises:
        PaddleVideoFastError: the store does not give them.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    args = dataset, videos, block_bytes, theirs, os.getpid()
    process: Any = context.Process(target=_measure, args=args, daemon=True)
    process.start()
    theirs.close()
    try:
        found: Any = ours.recv()
    except EOFError:
        raise PaddleVideoFastError("the process that measures the store has ended") from None
    finally:
        process.kill()
        process.join()
    if isinstance(found, PaddleVideoFastError):
        raise found
    latency_sec, bytes_per_sec, clips_per_sec = found
    set_bytes = sum(shard.directory.data_size for shard in dataset.shards)
    return StoreSpeed(latency_sec, bytes_per_sec, clips_per_sec, set_bytes)


def _measure(
    dataset: PackedFrameDataset,
    videos: Sequence[List[ClipRequest]],
    block_bytes: int,
    pipe: Connection,
    parent: int,
) -> None:
    become_child(parent)
    found: Any
    with tempfile.TemporaryDirectory() as folder:
        try:
            blocks.use_cache(folder, _CACHE_GB, block_bytes)
            found = (_latency_sec(dataset.shards[0].path), *_rates(dataset, videos))
        except PaddleVideoFastError as error:
            found = error
    pipe.send(found)  # then the parent ends this process


def _latency_sec(url: str) -> float:
    times = []
    for _ in range(_NUM_PINGS):
        began = time.perf_counter()
        storage.read_range(url, 0, 1)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])  # the first one connects


def _rates(dataset: PackedFrameDataset, videos: Iterable[List[ClipRequest]]) -> List[float]:
    """Bytes and clips a second."""
    at_once = NUM_THREADS
    num_bytes = num_clips = 0
    sizes: Dict[Future[int], int] = {}
    coming = iter(videos)
    began = time.perf_counter()
    with ThreadPoolExecutor(at_once) as threads:
        while time.perf_counter() - began < _FETCH_SEC and num_bytes < _MAX_BYTES:
            for requests in itertools.islice(coming, at_once - len(sizes)):
                sizes[threads.submit(dataset.fetch, requests)] = len(requests)
            if not sizes:
                break
            done: Set[Future[int]] = wait(sizes, return_when=FIRST_COMPLETED).done
            for each in done:
                num_clips += sizes.pop(each)
                num_bytes += each.result()
        sec = time.perf_counter() - began
        for each in sizes:
            each.cancel()
    return [num_bytes / sec, num_clips / sec]

"""Clips a second from packed shards in a store, with and without prefetch, and from a local disk."""

import contextlib
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import cv2
import numpy as np

from benchmarks.measuring import Natural, Positive, compared_rates, in_turn, tsm_pipeline
from paddlevideo_fast.command_line import count
from paddlevideo_fast.loader import ClipBatchSampler, ClipLoader, WorkerOptions, build_dataset
from paddlevideo_fast.sources.packed.packed_format import PackSettings, ShardWriter
from paddlevideo_fast.sources.remote import block_cache
from tests.support.stores import http_store

_NUM_FRAMES, _SIZE, _QUALITY = 100, (170, 128), 90
_VIDEOS_OF_SHARD = 32
_CACHE_GB = 20.0
LOCAL, AHEAD, ASKED, AGAIN = "local", "prefetch", "no prefetch", "second epoch"
SIDES = (LOCAL, AHEAD, ASKED, AGAIN)


def run(
    delay_ms: Natural = 20,
    step_ms: Natural = 180,
    workers: Sequence[Natural] = (0, 2),
    batch_size: Positive = 8,
    videos: Annotated[int, count(8)] = 192,
    block_kb: Annotated[int, count(4)] = 256,
    rounds: Positive = 5,
) -> dict[str, Any]:
    """Reads an epoch of the same shards on all sides in turn, as fast as a simulated device takes batches.

    The device takes a fixed time for a batch and no CPU time. The sides: "local" reads shards on this
    machine; "prefetch" reads them from the store into an empty cache, with what the next batches read fetched
    ahead; "no prefetch" does so without; "second epoch" is the epoch after "prefetch", with its cache.

    Args:
        delay_ms: of each request.
        step_ms: of a device's step.
        workers: of the loader.
        batch_size: clips of 8 x 112 x 112.
        videos: of 100 frames.
        block_kb: of the cache.
        rounds: of each side.

    Returns:
        "mb" of the set, and "rows", one a number of workers and side, with medians over the
        rounds: "clips_per_sec" from the fifth batch on, "spread", its lowest and highest, "ratio" to "local",
        of the same round, "start_sec" until the first batch, "mb_fetched", "num_requests".
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = stack.enter_context(http_store())
        stack.enter_context(mock.patch.dict(os.environ, store.environment))
        num_bytes = _write_set(folder / "set", videos)
        url = store.publish(folder / "set")

        def epoch(side: str, turn: int, num_workers: int) -> dict[str, float]:
            cache = folder / f"cache {num_workers} {turn} {AHEAD if side == AGAIN else side}"
            block_cache.use_cache(cache if side != LOCAL else None, _CACHE_GB, block_kb * 2**10)
            store.reset()
            store.delay_sec = delay_ms / 1e3
            section = {"format": "PackedFrameDataset", "file_path": folder / "set" if side == LOCAL else url}
            dataset = build_dataset(section, tsm_pipeline(112), training=True, seed=turn)
            sampler = ClipBatchSampler(len(dataset), batch_size, shuffle=True, drop_last=True, seed=turn)
            options = WorkerOptions() if side != ASKED else WorkerOptions(prefetch=0)
            times = []
            with contextlib.closing(ClipLoader(dataset, sampler, num_workers, options)) as loader:
                began = time.perf_counter()
                for _ in loader.epoch(int(side == AGAIN)):
                    times.append(time.perf_counter())
                    time.sleep(step_ms / 1e3)
            first = min(4, len(times) - 2)
            return {
                "clips_per_sec": (len(times) - 1 - first) * batch_size / (times[-1] - times[first]),
                "start_sec": times[0] - began,
                "mb_fetched": store.num_bytes / 1e6,
                "num_requests": store.num_requests,
            }

        rows = []
        for number in workers:
            found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
            for turn, side in in_turn((LOCAL, AHEAD, ASKED), rounds):
                found[side].append(epoch(side, turn, number))
                if side == AHEAD:  # its cache is there now
                    found[AGAIN].append(epoch(AGAIN, turn, number))
            rows += [{"workers": number, **row} for row in compared_rates(found, "clips_per_sec", LOCAL)]
    return {"mb": num_bytes / 1e6, "rows": rows}


def _write_set(folder: Path, num_videos: int) -> int:
    """Packs videos of a texture that moves; the bytes of the shards."""
    rng = np.random.default_rng(0)
    texture = cv2.resize(rng.integers(0, 256, (32, 43, 3), np.uint8), _SIZE, interpolation=cv2.INTER_CUBIC)
    options = [cv2.IMWRITE_JPEG_QUALITY, _QUALITY]
    frames = [
        cv2.imencode(".jpg", np.roll(texture, (at, 2 * at), (0, 1)), options)[1].tobytes()
        for at in range(_NUM_FRAMES)
    ]
    num_shards = -(-num_videos // _VIDEOS_OF_SHARD)
    for shard in range(num_shards):
        with ShardWriter(folder, PackSettings(shard, num_shards, _SIZE[1], _QUALITY, bytes(16))) as writer:
            for number in range(num_videos)[shard * _VIDEOS_OF_SHARD :][:_VIDEOS_OF_SHARD]:
                at = number % _NUM_FRAMES
                writer.add(f"{number}.mp4", number % 10, 25.0, _SIZE, frames[at:] + frames[:at])
    return sum(path.stat().st_size for path in folder.iterdir())

"""Clips a second from packed shards in a store, with and without prefetch, and from a local disk."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import cv2
import numpy as np

from benchmarks.measuring import add_output_arguments, in_turn, show
from paddlevideo_fast.cli import count
from paddlevideo_fast.decode import PackedReader
from paddlevideo_fast.decode.packed_format import FRAME, PackSettings, ShardWriter
from paddlevideo_fast.io import block_cache
from paddlevideo_fast.loader import ClipBatchSampler, ClipLoader, ClipRequest, WorkerOptions, build_dataset
from paddlevideo_fast.loader.dataset import PackedFrameDataset
from paddlevideo_fast.loader.request import group_by_video
from tests.support.stores import Store, http_store, s3_store

PIPELINE: dict[str, Any] = {
    "decode": {"name": "VideoDecoder"},
    "sample": {"name": "Sampler", "num_seg": 8, "seg_len": 1},
    "transform": [
        {"Scale": {"short_size": 128}},
        {"MultiScaleCrop": {"target_size": 112}},
        {"RandomFlip": None},
        {"Normalization": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}},
    ],
}
_NUM_FRAMES, _SIZE, _QUALITY = 100, (170, 128), 90
_VIDEOS_OF_SHARD = 32
_CACHE_GB = 20.0
LOCAL, AHEAD, ASKED, AGAIN = "local", "prefetch", "no prefetch", "second epoch"
SIDES = (LOCAL, AHEAD, ASKED, AGAIN)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument("--kind", choices=("http", "s3"), default="http", help="of store (default http)")
    parser.add_argument("--delay-ms", type=count(0), default=20, help="of each request (default 20)")
    parser.add_argument("--step-ms", type=count(0), default=180, help="of a device's step (default 180)")
    parser.add_argument("--workers", type=count(0), nargs="+", default=(0, 2), help="of the loader (0 2)")
    parser.add_argument("--batch-size", type=count(1), default=8, help="clips of 8 × 112 × 112 (default 8)")
    parser.add_argument("--videos", type=count(8), default=192, help="of 100 frames (default 192)")
    parser.add_argument("--block-kb", type=count(4), default=256, help="of the cache (default 256)")
    parser.add_argument("--rounds", type=count(1), default=5, help="rounds of each side (default 5)")
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    sizes = args.batch_size, args.videos, args.rounds, args.block_kb
    show(run(args.kind, args.delay_ms / 1e3, args.step_ms / 1e3, args.workers, *sizes), args, table)


def run(
    kind: str = "http",
    delay_sec: float = 0.02,
    step_sec: float = 0.18,
    workers: Sequence[int] = (0, 2),
    batch_size: int = 8,
    num_videos: int = 192,
    rounds: int = 5,
    block_kb: int = 256,
) -> dict[str, Any]:
    """Reads an epoch of the same shards on all sides in turn, as fast as a simulated device takes batches.

    The device takes a fixed time for a batch and no CPU time. The sides: "local" reads shards on this
    machine; "prefetch" reads them from the store into an empty cache, with what the next batches read fetched
    ahead; "no prefetch" does so without; "second epoch" is the epoch after "prefetch", with its cache.

    Returns:
        The arguments, "mb" of the set, and "rows", one a number of workers and side, with medians over the
        rounds: "clips_per_sec" from the fifth batch on, "spread", its lowest and highest, "ratio" to "local",
        of the same round, "start_sec" until the first batch, "mb_needed" (frames of the clips, and what
        describes them), "mb_fetched", "num_requests".
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = stack.enter_context(http_store() if kind == "http" else s3_store())
        stack.enter_context(mock.patch.dict(os.environ, store.environment))
        num_bytes = _write_set(folder / "set", num_videos)
        url = store.publish(folder / "set")
        trial = _Trial(store, folder, url, delay_sec, step_sec, batch_size, block_kb * 2**10)
        rows = [row for num_workers in workers for row in trial.rows(num_workers, rounds)]
    return {
        "kind": kind,
        "delay_ms": delay_sec * 1e3,
        "step_ms": step_sec * 1e3,
        "batch_size": batch_size,
        "num_videos": num_videos,
        "rounds": rounds,
        "block_kb": block_kb,
        "mb": num_bytes / 1e6,
        "rows": rows,
    }


def table(result: dict[str, Any]) -> str:
    """The result of `run` as text."""
    lines = [
        f"{result['num_videos']} packed videos ({result['mb']:.0f} MB) in a store ({result['kind']}), "
        f"{result['delay_ms']:.0f} ms a request; batches of {result['batch_size']} clips of 8 frames, "
        f"{result['step_ms']:.0f} ms a step, blocks of {result['block_kb']} KiB, {result['rounds']} rounds",
        f"{'workers':>8}  {'side':<14}{'clips/s':>9}{'spread':>16}{'ratio':>8}{'first s':>9}{'MB needed':>11}"
        f"{'MB fetched':>12}{'requests':>10}",
    ]
    for row in result["rows"]:
        spread = "{:.1f} to {:.1f}".format(*row["spread"])
        lines.append(
            f"{row['workers']:>8}  {row['side']:<14}{row['clips_per_sec']:>9.1f}{spread:>16}"
            f"{row['ratio']:>7.2f}x{row['start_sec']:>9.2f}{row['mb_needed']:>11.1f}{row['mb_fetched']:>12.1f}"
            f"{row['num_requests']:>10.0f}"
        )
    return "\n".join(lines)


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
            for number in range(shard * _VIDEOS_OF_SHARD, min((shard + 1) * _VIDEOS_OF_SHARD, num_videos)):
                at = number % _NUM_FRAMES
                writer.add(f"{number}.mp4", number % 10, 25.0, _SIZE, frames[at:] + frames[:at])
    return sum(path.stat().st_size for path in folder.iterdir())


class _Trial:
    """Times epochs of one set.

    Args:
        store: has the set.
        folder: has the set in `set`, and gets the caches.
        url: of the set.
        delay_sec: of each request.
        step_sec: in which the device takes a batch.
        batch_size: clips of a batch.
        block_bytes: of a block of the cache.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        url: str,
        delay_sec: float,
        step_sec: float,
        batch_size: int,
        block_bytes: int,
    ) -> None:
        self._block_bytes = block_bytes
        self._store, self._folder, self._url, self._delay_sec = store, folder, url, delay_sec
        self._step_sec, self._batch_size = step_sec, batch_size
        self._num_caches = 0

    def rows(self, num_workers: int, rounds: int) -> list[dict[str, Any]]:
        """A row for each side."""
        found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for turn, side in in_turn((LOCAL, AHEAD, ASKED), rounds):
            found[side].append(self._epoch(side, turn, num_workers))
            if side == AHEAD:  # its cache is there now
                found[AGAIN].append(self._epoch(AGAIN, turn, num_workers))
        rows = []
        for side in SIDES:
            rates = [each["clips_per_sec"] for each in found[side]]
            row = {name: statistics.median(each[name] for each in found[side]) for name in found[side][0]}
            ratios = [mine / local["clips_per_sec"] for mine, local in zip(rates, found[LOCAL])]
            told = {"ratio": statistics.median(ratios), "spread": [min(rates), max(rates)]}
            rows.append({"workers": num_workers, "side": side, **row, **told})
        return rows

    def _epoch(self, side: str, turn: int, num_workers: int) -> dict[str, float]:
        if side != AGAIN:
            self._num_caches += 1
        cache = self._folder / f"cache{self._num_caches}"
        block_cache.use_cache(cache if side != LOCAL else None, _CACHE_GB, self._block_bytes)
        self._store.reset()
        self._store.delay_sec = self._delay_sec
        path = str(self._folder / "set") if side == LOCAL else self._url
        section = {"format": "PackedFrameDataset", "file_path": path}
        dataset = build_dataset(section, PIPELINE, training=True, seed=turn)
        sampler = ClipBatchSampler(len(dataset), self._batch_size, shuffle=True, drop_last=True, seed=turn)
        options = WorkerOptions() if side != ASKED else WorkerOptions(prefetch=0)
        epoch = int(side == AGAIN)
        times = []
        with contextlib.closing(ClipLoader(dataset, sampler, num_workers, options)) as loader:
            began = time.perf_counter()
            for _ in loader.epoch(epoch):
                times.append(time.perf_counter())
                time.sleep(self._step_sec)
        first = min(4, len(times) - 2)
        return {
            "clips_per_sec": (len(times) - 1 - first) * self._batch_size / (times[-1] - times[first]),
            "start_sec": times[0] - began,
            "mb_needed": self._bytes_needed(sampler.batches(epoch), turn) / 1e6,
            "mb_fetched": self._store.num_bytes / 1e6,
            "num_requests": self._store.num_requests,
        }

    def _bytes_needed(self, batches: Sequence[list[ClipRequest]], seed: int) -> int:
        """Of the frames that clips show, of their entries in the frame tables, and of the directories."""
        section = {"format": "PackedFrameDataset", "file_path": str(self._folder / "set")}
        dataset = build_dataset(section, PIPELINE, training=True, seed=seed)
        assert isinstance(dataset, PackedFrameDataset)
        sizes = [shard.directory.frames_offset for shard in dataset.shards]

        def note(reader: PackedReader, frames: Sequence[int]) -> int:
            images = reader._shard.images(reader._video, list(frames))
            sizes.extend(len(image) + FRAME.itemsize for image in images)
            return 0

        with mock.patch.object(PackedReader, "fetch", note):
            for requests in batches:
                for places in group_by_video(requests):
                    dataset.fetch([requests[place] for place in places])
        return sum(sizes)

"""What preparing a list would take and bring, from a sample that is prepared in a temporary folder."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import geometric_mean, median
from typing import List, NamedTuple, Sequence

import av
from _common import ScriptError, duration, progress, run_parallel
from _encoding import Settings, prepare
from _storing import PrepareError

from paddlevideo_fast.decode import open_video
from paddlevideo_fast.errors import VideoDecodeError

_NUM_REPEATS = 3


class Trial(NamedTuple):
    """A video of the sample: `cause` says why it could not be prepared, and the rest is 0 then."""

    source: str
    cause: str
    cpu_sec: float
    bytes_after: int
    psnr_db: float
    sparse_gain: float
    dense_gain: float


class _Task(NamedTuple):
    source: str
    target: str
    settings: Settings


def estimate(sources: Sequence[str], output: Path, settings: Settings, args: argparse.Namespace) -> int:
    """Prints the prediction; returns the exit code.

    Args:
        sources: the videos of the list.
        output: where the prepared videos would go; not written to.
        settings: what they would be made with.
        args: uses `estimate`, the size of the sample, and `workers`.

    Raises:
        ScriptError: no video of the sample can be prepared.
    """
    size = min(args.estimate, len(sources))
    sample = [sources[(2 * place + 1) * len(sources) // (2 * size)] for place in range(size)]
    with tempfile.TemporaryDirectory(prefix="prepare-") as folder:
        tasks = [_Task(path, f"{folder}/{place}.mp4", settings) for place, path in enumerate(sample)]
        trials = list(progress(run_parallel(_try, tasks, args.workers), size, "sample"))
    for trial in trials:
        if trial.cause:
            print(f"failed: {trial.source}: {trial.cause}", file=sys.stderr)
    good = [trial for trial in trials if not trial.cause]
    if not good:
        raise ScriptError("no video of the sample can be prepared")
    for line in _report(good, sources, output, args.workers):
        print(line)
    return 1 if len(good) < size else 0


def _report(good: Sequence[Trial], sources: Sequence[str], output: Path, workers: int) -> List[str]:
    sizes = {source: os.path.getsize(source) for source in sources if os.path.isfile(source)}
    before = sum(sizes.values())
    ratio = sum(trial.bytes_after for trial in good) / sum(sizes[trial.source] for trial in good)
    cpu_sec = sum(trial.cpu_sec for trial in good) / len(good) * len(sizes)
    parent = output.absolute()
    while not parent.exists():
        parent = parent.parent
    free = shutil.disk_usage(parent).free
    sparse_gain = geometric_mean([trial.sparse_gain for trial in good])
    dense_gain = geometric_mean([trial.dense_gain for trial in good])
    lines = [
        f"from a sample of {len(good)} of {len(sources)} videos:",
        f"bytes: {before} before, about {round(ratio * before)} after ({ratio:.2f}); {free} are free",
        f"time: about {duration(cpu_sec / workers)} with {workers} workers ({duration(cpu_sec)} of CPU time)",
        f"PSNR: {min(trial.psnr_db for trial in good):.2f} dB or more",
        f"reading 8 sparse frames: {sparse_gain:.1f} times as fast",
        f"reading 32 frames, every second: {dense_gain:.1f} times as fast",
    ]
    if ratio * before > free:
        lines.append(f"warning: that does not fit on the disk of {output}")
    return lines


def _try(task: _Task) -> Trial:
    began_sec = time.process_time()
    try:
        prepared = prepare(task.source, Path(task.target), task.settings)
    except VideoDecodeError as error:
        return Trial(task.source, error.cause, 0, 0, 0, 0, 0)
    except (PrepareError, av.FFmpegError, ValueError) as error:
        return Trial(task.source, str(error), 0, 0, 0, 0, 0)
    cpu_sec = time.process_time() - began_sec
    count = prepared.num_frames
    sparse = [(2 * place + 1) * count // 16 for place in range(8)]
    first = max(0, (count - 64) // 2)
    dense = list(range(first, min(first + 64, count), 2))
    gains = [_read_sec(task.source, frames) / _read_sec(task.target, frames) for frames in (sparse, dense)]
    return Trial(task.source, "", cpu_sec, prepared.bytes_after, prepared.psnr_db, *gains)


def _read_sec(path: str, frames: Sequence[int]) -> float:
    """CPU time to open a video and read frames of it, in seconds."""
    spent_sec = []
    for _ in range(_NUM_REPEATS):
        began_sec = time.process_time()
        with open_video(path) as reader:
            reader.read(frames)
        spent_sec.append(time.process_time() - began_sec)
    return max(median(spent_sec), 1e-9)

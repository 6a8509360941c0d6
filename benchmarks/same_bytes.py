"""Prepared videos: which settings of x264 give the same bytes whatever was in memory, and what each costs.

glibc fills new memory with a byte that MALLOC_PERTURB_ chooses. An encoder whose result differs between two
such bytes reads memory that it has not written, and so may give other bytes in another run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
import time
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import Any, Dict, List, NamedTuple, Sequence, Union
from unittest import mock

from benchmarks.isolated import Lost, map_isolated
from benchmarks.measuring import add_output_arguments, in_turn, show, write_clips
from paddlevideo_fast.cli import count
from paddlevideo_fast.decode import VIDEO_EXTENSIONS
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.preparation import encoding

OURS = "cpu-independent=1"
BASELINE = "x264's choice"
SIDES = (BASELINE, OURS, "asm=AVX2", "mbtree=0")
PRESETS = ("sparse", "dense")
_FILLINGS = ("1", "85", "170")
_SHORT_SIDE_PX = 256
_TARGET_DB = 37.0
_LIMIT_SEC = 600


class _Task(NamedTuple):
    """A clip to prepare: `side` is what x264 is told in place of our setting."""

    clip: str
    preset: str
    side: str


class _Result(NamedTuple):
    """What came of a task."""

    cpu_sec: float
    num_bytes: int
    psnr_db: float
    digest: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument("--clips", help="folder of videos (default: three generated ones)")
    parser.add_argument("--rounds", type=count(1), default=5, help="how often each clip is prepared")
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    with tempfile.TemporaryDirectory() as folder:
        clips = _videos(Path(args.clips)) if args.clips else write_clips(Path(folder))
        result = run(clips, args.rounds)
    show(result, args, table)


def run(clips: Sequence[Path], rounds: int = 5, presets: Sequence[str] = PRESETS) -> Dict[str, Any]:
    """Prepares every clip with every setting in turn, then with memory that is filled with other bytes.

    Args:
        clips: video files.
        rounds: how often each is timed.
        presets: of `data/prepare_videos.py`.

    Returns:
        `clips`, `presets`, `rounds`, `avx512` (whether this CPU has it) and `rows`: for each setting the
        ratios `cpu` and `bytes` against x264's choice, the mean `psnr_db`, and `differing`, the number of
        pairs of clip and preset, of `pairs`, whose bytes depend on what was in memory.
    """
    pairs = [(str(clip), preset) for clip in clips for preset in presets]
    plan = [_Task(*pair, side) for _, side in in_turn(SIDES, rounds) for pair in pairs]
    timed = list(zip(plan, _prepare_all(plan)))
    once = [_Task(*pair, side) for pair in pairs for side in SIDES]
    digests: Dict[_Task, set] = {task: set() for task in once}
    for task, result in timed:
        digests[task].add(result.digest)
    for filling in _FILLINGS:
        with mock.patch.dict(os.environ, MALLOC_PERTURB_=filling):  # glibc reads it at the start of a process
            for task, result in zip(once, _prepare_all(once)):
                digests[task].add(result.digest)
    of: Dict[_Task, List[_Result]] = {task: [] for task in once}
    for task, result in timed:
        of[task].append(result)
    rows = []
    for side in SIDES:
        cpu, size = [], []
        for pair in pairs:
            ours, base = of[_Task(*pair, side)], of[_Task(*pair, BASELINE)]
            cpu.append(median(one.cpu_sec / other.cpu_sec for one, other in zip(ours, base)))
            size.append(median(one.num_bytes for one in ours) / median(one.num_bytes for one in base))
        rows.append(
            {
                "side": side,
                "cpu": geometric_mean(cpu),
                "bytes": geometric_mean(size),
                "psnr_db": mean(one.psnr_db for pair in pairs for one in of[_Task(*pair, side)]),
                "differing": sum(len(digests[_Task(*pair, side)]) > 1 for pair in pairs),
            }
        )
    return {
        "clips": [clip.name for clip in clips],
        "presets": list(presets),
        "rounds": rounds,
        "avx512": "avx512f" in Path("/proc/cpuinfo").read_text(encoding="utf-8"),
        "pairs": len(pairs),
        "rows": rows,
    }


def table(result: Dict[str, Any]) -> str:
    """The result as text."""
    lines = [
        f"{', '.join(result['clips'])}; {', '.join(result['presets'])}; {result['rounds']} rounds; "
        f"{'with' if result['avx512'] else 'without'} AVX-512",
        f"{'x264':<20}{'CPU time':>10}{'bytes':>8}{'PSNR':>8}  results that depend on memory",
    ]
    for row in result["rows"]:
        lines.append(
            f"{row['side']:<20}{row['cpu']:>10.3f}{row['bytes']:>8.3f}{row['psnr_db']:>8.2f}  "
            f"{row['differing']} of {result['pairs']}"
        )
    return "\n".join(lines)


def _videos(folder: Path) -> List[Path]:
    videos = [path for path in sorted(folder.glob("*")) if path.suffix.lower() in VIDEO_EXTENSIONS]
    if not videos:
        raise PaddleVideoFastError(f"{folder}: no videos")
    return videos


def _prepare_all(tasks: Sequence[_Task]) -> List[_Result]:
    """Prepares clips in a process of their own.

    Raises:
        PaddleVideoFastError: a clip cannot be prepared.
    """
    results = []
    for task, result in zip(tasks, map_isolated(_prepare, tasks, _LIMIT_SEC)):
        if not isinstance(result, _Result):
            raise PaddleVideoFastError(f"{task.clip}: {result.cause if isinstance(result, Lost) else result}")
        results.append(result)
    return results


def _prepare(task: _Task) -> Union[_Result, str]:
    params = encoding._X264["x264-params"].replace(f":{OURS}", "")
    settings = encoding.Settings(task.preset, _SHORT_SIDE_PX, _TARGET_DB)
    told = params if task.side == BASELINE else f"{params}:{task.side}"
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(encoding._X264, {"x264-params": told}):
        target = Path(folder, "prepared.mp4")
        began_sec = time.process_time()
        try:
            done = encoding.prepare(task.clip, target, settings)
        except PaddleVideoFastError as error:
            return str(error)
        cpu_sec = time.process_time() - began_sec
        digest = hashlib.sha256(target.read_bytes()).hexdigest()
    return _Result(cpu_sec, done.bytes_after, done.psnr_db, digest)

"""CPU time to open a video and read 8 sparse frames: this tree against another checkout of the repository."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

import numpy as np

from benchmarks.measuring import ROOT, add_output_arguments, in_turn, show, write_clips
from paddlevideo_fast.cli import count
from paddlevideo_fast.decode import VIDEO_EXTENSIONS, check_video, open_video
from paddlevideo_fast.errors import PaddleVideoFastError

_MEASURE_SEC = 0.1  # of CPU time, for one measurement
_TURNS = 3  # of each tree, with each clip, in a round

# Runs in the tree that it measures: for a line with file, frames and repetitions, prints seconds of CPU time
# of the fastest. Others share the machine: what they cost is in all repetitions but the fastest.
_WORKER = """
import json, sys, time
from paddlevideo_fast.decode import open_video
for line in sys.stdin:
    path, indices, repeats = json.loads(line)
    took = []
    for _ in range(repeats):
        began = time.process_time()
        with open_video(path) as reader:
            reader.read(indices)
        took.append(time.process_time() - began)
    print(min(took), flush=True)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument(
        "--baseline",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="checkout to compare with (git worktree add)",
    )
    parser.add_argument("--clips", help="folder of videos (default: three generated ones)")
    parser.add_argument("--rounds", type=count(1), default=21, help="processes of each tree")
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    with tempfile.TemporaryDirectory() as folder:
        files = sorted(Path(args.clips).glob("*")) if args.clips else write_clips(Path(folder))
        clips = [file for file in files if file.suffix in VIDEO_EXTENSIONS and check_video(file) is None]
        if not clips:
            raise PaddleVideoFastError(f"{args.clips}: has no video that decodes")
        show(run(clips, args.baseline, args.rounds), args, table)


def run(clips: Sequence[Path], baseline: Path, rounds: int = 21) -> Dict[str, Any]:
    """Measures both trees in turn, each round in new processes.

    The same code takes up to 3 % more or less in another process, by where the system puts its memory; so
    many short processes tell more than a long one.

    Args:
        clips: video files.
        baseline: root of the other checkout.
        rounds: processes of each tree.

    Returns:
        "baseline" (its revision), "rounds", "mean" (geometric, of the ratios) and "rows": for each clip "ms"
        of this tree, "ratio" to the baseline (the median of the rounds), its quartiles "spread", and
        "fastest", the ratio of the fastest of all rounds.

    Raises:
        PaddleVideoFastError: the baseline is no checkout, or a tree cannot read a clip.
    """
    if not (baseline / "paddlevideo_fast").is_dir():
        raise PaddleVideoFastError(f"{baseline}: is no checkout of the repository")
    roots = {"this": ROOT, "baseline": baseline}
    indices, repeats = {}, {}
    for clip in clips:
        with open_video(clip) as reader:
            indices[clip] = [int((place + 0.5) * reader.num_frames / 8) for place in range(8)]
            began = time.process_time()
            reader.read(indices[clip])
        repeats[clip] = max(round(_MEASURE_SEC / _TURNS / (time.process_time() - began)), 1)
    found: Dict[Path, Dict[str, List[float]]] = {clip: {name: [] for name in roots} for clip in clips}
    for _ in range(rounds):
        trees = {name: Tree(root) for name, root in roots.items()}
        for clip in clips:
            took: Dict[str, List[float]] = {name: [] for name in roots}
            for _, name in in_turn(trees, _TURNS, 0):
                took[name].append(trees[name].seconds(clip, indices[clip], repeats[clip]))
            for name in roots:
                found[clip][name].append(min(took[name]))
        for tree in trees.values():
            tree.close()
    rows = [{"clip": clip.name, **_compared(**found[clip])} for clip in clips]
    git = ["git", "-C", str(baseline), "describe", "--always", "--dirty"]
    return {
        "baseline": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
        "rounds": rounds,
        "rows": rows,
        "mean": statistics.geometric_mean(row["ratio"] for row in rows),
    }


def _compared(this: Sequence[float], baseline: Sequence[float]) -> Dict[str, Any]:
    ratios = [one / other for one, other in zip(this, baseline)]
    return {
        "ms": statistics.median(this) * 1e3,
        "ratio": statistics.median(ratios),
        "spread": [float(value) for value in np.quantile(ratios, (0.25, 0.75))],
        "fastest": min(this) / min(baseline),
    }


def table(result: Dict[str, Any]) -> str:
    """The result of `run` as text."""
    lines = [
        f"CPU time of opening and reading 8 frames against {result['baseline']}, {result['rounds']} rounds",
        f"{'clip':<26}{'ms':>8}{'ratio':>8}{'quartiles':>16}{'fastest':>10}",
    ]
    for row in result["rows"]:
        spread = "{:.3f}-{:.3f}".format(*row["spread"])
        lines.append(
            f"{row['clip']:<26}{row['ms']:>8.2f}{row['ratio']:>8.3f}{spread:>16}{row['fastest']:>10.3f}"
        )
    lines.append(f"{'geometric mean':<34}{result['mean']:>8.3f}")
    return "\n".join(lines)


class Tree:
    """A process that reads videos with the code of one checkout."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
        )

    def seconds(self, clip: Path, indices: Sequence[int], repeats: int) -> float:
        """CPU time of opening the clip and reading frames: the fastest of so many times."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(clip.resolve()), list(indices), repeats]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise PaddleVideoFastError(f"{self._root}: its reader fails on {clip}")
        return float(line)

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()

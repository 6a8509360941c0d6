"""How far the host is ahead of a simulated device, here and in another revision; see fake_device.py."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import paddle

from benchmarks.measuring import ROOT, add_output_arguments, in_turn, show
from paddlevideo_fast.cli import count
from paddlevideo_fast.errors import PaddleVideoFastError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument("--against", metavar="REV", help="a revision of this repository to measure as well")
    parser.add_argument("--ranks", type=count(1), nargs="+", default=[1, 2], help="numbers of ranks")
    parser.add_argument("--steps", type=count(1), default=24, help="of a run, without a log line")
    parser.add_argument("--rounds", type=count(1), default=3, help="runs of each kind")
    parser.add_argument("--device-ms", type=float, default=200.0, help="time of the device, a step")
    parser.add_argument("--host-ms", type=float, default=20.0, help="time of the host, a step")
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    with tempfile.TemporaryDirectory() as folder:
        roots = {"this tree": ROOT}
        if args.against:
            roots[args.against] = _checkout(args.against, Path(folder) / "other")
        result = run(Path(folder), roots, args.ranks, args.steps, args.rounds, args.device_ms, args.host_ms)
    show(result, args, table)


def run(
    folder: Path,
    roots: Dict[str, Path],
    num_ranks: Sequence[int],
    steps: int,
    rounds: int,
    device_ms: float,
    host_ms: float,
) -> Dict[str, Any]:
    """Trains in each tree, on each number of ranks.

    Returns:
        "rows": for each tree and number of ranks "lead", the median number of steps that the device still
        has to do when the host hands over the next one, over the second half of all runs and the ranks; its
        "least"; and "step_ms", the median over the runs.
    """
    sides: Dict[str, Tuple[str, int]] = {
        f"{name}, {ranks} ranks": (name, ranks) for name in roots for ranks in num_ranks
    }
    leads: Dict[str, List[int]] = {side: [] for side in sides}
    times: Dict[str, List[float]] = {side: [] for side in sides}
    for turn, side in in_turn(sides, rounds):
        name, ranks = sides[side]
        report = folder / f"{turn}-{len(times[side])}-{ranks}-{list(roots).index(name)}"
        for found in _train(roots[name], report, ranks, steps, device_ms, host_ms):
            leads[side] += found["leads"][steps // 2 :]
            times[side].append(1000 * found["seconds"] / steps)
    rows = [
        {
            "tree": name,
            "ranks": ranks,
            "lead": statistics.median(leads[side]),
            "least": min(leads[side]),
            "step_ms": statistics.median(times[side]),
        }
        for side, (name, ranks) in sides.items()
    ]
    versions = {"paddle": paddle.__version__, "steps": steps, "rounds": rounds}
    return {**versions, "device_ms": device_ms, "host_ms": host_ms, "rows": rows}


def _train(
    root: Path, report: Path, ranks: int, steps: int, device_ms: float, host_ms: float
) -> List[Dict[str, Any]]:
    """What each rank of a run in a tree reports."""
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(ranks)]
    script = ROOT / "benchmarks" / "fake_device.py"
    words = [sys.executable, script, report, steps, device_ms / 1000, host_ms / 1000]
    base = {name: value for name, value in os.environ.items() if not name.startswith("PADDLE_T")}
    processes = []
    for rank, address in enumerate(addresses):
        place = {
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_TRAINERS_NUM": str(ranks),
            "PADDLE_TRAINER_ENDPOINTS": ",".join(addresses),
            "PADDLE_CURRENT_ENDPOINT": address,
        }
        environment = {**base, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", **place}
        processes.append(
            subprocess.Popen(
                list(map(str, words)), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        )
    for process in processes:
        errors = process.communicate()[1].decode(errors="replace")
        if process.returncode:
            raise PaddleVideoFastError(f"a rank of '{root}' ended with code {process.returncode}:\n{errors}")
    return [json.loads(Path(f"{report}.{rank}").read_text()) for rank in range(ranks)]


def _free_ports(count: int) -> List[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _checkout(revision: str, folder: Path) -> Path:
    folder.mkdir()
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", revision], capture_output=True, check=False)
    if archive.returncode:
        raise PaddleVideoFastError(f"{revision}: {archive.stderr.decode(errors='replace').strip()}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def table(result: Dict[str, Any]) -> str:
    """The result of `run` as text."""
    head = (
        f"a simulated device takes {result['device_ms']:g} ms a step and the host {result['host_ms']:g} ms, "
        f"Paddle {result['paddle']}, {result['rounds']} runs of {result['steps']} steps\n"
        f"  {'tree':<14}{'ranks':>6}{'steps ahead':>13}{'least':>7}{'ms a step':>11}\n"
    )
    return head + "\n".join(
        f"  {row['tree'][:12]:<14}{row['ranks']:>6}{row['lead']:>13g}{row['least']:>7}{row['step_ms']:>11.1f}"
        for row in result["rows"]
    )

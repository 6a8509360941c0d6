"""What a short task costs on a Dask cluster on this machine, against a pool of processes."""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

from benchmarks.measuring import add_output_arguments, in_turn, show
from paddlevideo_fast.cli import count
from paddlevideo_fast.preparation import executor
from paddlevideo_fast.preparation.executor import Engine, located, run_all
from paddlevideo_fast.preparation.lists import check
from paddlevideo_fast.preparation.motion import make

_WORKERS = 2
_NUM_VIDEOS = 20
_POOL, _DASK, _SINGLE = "process pool", "Dask", "Dask, one task a message"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument("--tasks", type=count(1), default=1000, help="a run")
    parser.add_argument("--rounds", type=count(1), default=5, help="runs of each side")
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    from distributed import LocalCluster

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        options = {"n_workers": _WORKERS, "threads_per_worker": 1, "dashboard_address": None}
        cluster = stack.enter_context(
            LocalCluster(
                host="127.0.0.1", protocol="tcp://", silence_logs=50, local_directory=folder, **options
            )
        )
        address = cluster.scheduler_address
        engines = {_POOL: Engine(_WORKERS), _DASK: Engine(1, address), _SINGLE: Engine(1, address)}
        videos = _make_videos(Path(folder, "videos"), args.tasks)
        works: Dict[str, Callable[[Engine], Any]] = {
            "nothing": lambda engine: list(run_all(located, ["x"] * args.tasks, engine, "tasks")),
            "a video of 4 frames is checked": lambda engine: _check(videos, engine),
        }
        rows = [_compare(name, work, engines, args.rounds) for name, work in works.items()]
    versions = {name: metadata.version(name) for name in ("distributed", "dask")}
    show(
        {"tasks": args.tasks, "rounds": args.rounds, "workers": _WORKERS, **versions, "rows": rows},
        args,
        table,
    )


def _make_videos(folder: Path, count: int) -> Path:
    """A folder with `count` names of a few videos, and their list."""
    flags = {"output": folder, "train": _NUM_VIDEOS, "valid": 0, "size": 32, "frames": 4}
    with contextlib.redirect_stdout(io.StringIO()):
        make([f"--{name}={value}" for name, value in flags.items()])
    for place in range(count):
        Path(folder, f"{place}.mp4").symlink_to(f"train/{place % _NUM_VIDEOS:06d}.mp4")
    Path(folder, "all.list").write_text("".join(f"{place}.mp4 0\n" for place in range(count)))
    return folder


def _check(videos: Path, engine: Engine) -> None:
    place = [f"--workers={engine.workers}"] if engine.scheduler == "local" else []
    words = [f"--list={videos / 'all.list'}", f"--data_prefix={videos}", *place]
    if check([*words, f"--scheduler={engine.scheduler}"]):
        raise RuntimeError("a video does not decode")


def _compare(
    name: str, work: Callable[[Engine], Any], engines: Dict[str, Engine], rounds: int
) -> Dict[str, Any]:
    """Medians of the seconds of each side, and of the ratios to the pool in each round."""
    spent: Dict[str, List[float]] = {side: [] for side in engines}
    usual = executor._BATCH_SEC, executor._LEAST_BATCH_SEC
    for _, side in in_turn(engines, rounds):
        executor._BATCH_SEC, executor._LEAST_BATCH_SEC = (0, 0) if side == _SINGLE else usual
        began_sec = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            work(engines[side])
        spent[side].append(time.perf_counter() - began_sec)
    executor._BATCH_SEC, executor._LEAST_BATCH_SEC = usual
    sides = {
        side: {"sec": statistics.median(values), "ratio": _ratio(values, spent[_POOL])}
        for side, values in spent.items()
    }
    return {"task": name, "sides": sides}


def _ratio(values: Sequence[float], baseline: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(values, baseline))


def table(result: Dict[str, Any]) -> str:
    """The result of `main` as text."""
    lines = [f"{result['tasks']} tasks, {result['workers']} workers; medians of {result['rounds']} rounds"]
    for row in result["rows"]:
        lines.append(f"task: {row['task']}")
        for side, found in row["sides"].items():
            each_ms = 1000 * found["sec"] / result["tasks"]
            lines.append(f"  {side:<26}{found['sec']:7.2f} s {each_ms:7.2f} ms a task {found['ratio']:7.2f}")
    return "\n".join(lines)

"""What a tool would take for all videos, from a few of them that it does in a temporary folder."""

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from paddlevideo_fast.jobs.executor import Engine, run_all
from paddlevideo_fast.jobs.run import duration, report_failures, spread
from paddlevideo_fast.jobs.work import Task

Video = TypeVar("Video")


class _Trial(NamedTuple):
    """What a video took; `cause` says why it failed."""

    cpu_sec: float
    num_bytes: int
    cause: str


def estimate(
    videos: Sequence[Video],
    task_in: Callable[[Video, str], Task],
    count: int,
    output: Path | None,
    workers: int,
) -> int:
    """Does some of the videos, prints what all would take, and returns the exit code.

    Args:
        videos: all.
        task_in: the task of a video that writes to a folder, which is there and empty.
        count: how many to do; they lie evenly over the list.
        output: the folder for all.
        workers: processes.
    """
    with tempfile.TemporaryDirectory(prefix="estimate-") as root:
        tasks = [
            (task_in(video, folder), folder)
            for video in spread(videos, count)
            if (folder := tempfile.mkdtemp(dir=root))
        ]
        trials = list(run_all(_try, tasks, Engine(workers), "sample"))
    good = [trial for trial in trials if not trial.cause]
    if good:
        factor, workers = len(videos) / len(good), max(workers, 1)
        num_bytes = round(sum(trial.num_bytes for trial in good) * factor)
        cpu_sec = sum(trial.cpu_sec for trial in good) * factor
        free = _free_bytes(output)
        print(f"estimate from {len(good)} of {len(videos)} videos:")
        print(f"bytes: about {num_bytes}{'' if free is None else f'; {free} are free'}")
        in_all = f"{duration(cpu_sec)} of CPU time"
        print(f"time: about {duration(cpu_sec / workers)} with {workers} workers ({in_all})")
        if free is not None and num_bytes > free:
            print(f"warning: that does not fit on the disk of {output}")
    failures = [(task.sources[0], trial.cause) for (task, _), trial in zip(tasks, trials) if trial.cause]
    return report_failures(failures, len(trials))


def _try(trial: tuple[Task, str]) -> _Trial:
    task, folder = trial
    began_sec = time.process_time()
    cause = task.do().cause
    cpu_sec = time.process_time() - began_sec
    return _Trial(cpu_sec, sum(file.stat().st_size for file in Path(folder).iterdir()), cause or "")


def _free_bytes(output: Path | None) -> int | None:
    """What is free on the disk of a folder that need not be there; None in a store."""
    if not isinstance(output, Path):
        return None
    parent = output.absolute()
    while not parent.exists():
        parent = parent.parent
    return shutil.disk_usage(parent).free

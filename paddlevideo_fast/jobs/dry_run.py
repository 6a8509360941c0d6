"""What a tool would read, write and take: `--dry_run`.

Some frames of a few videos are done in a temporary folder, which is removed. Time and bytes of these videos
are scaled to all by the sizes of the files, or by the lengths of the spans where only spans are stored.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from paddlevideo_fast.cli.command import print_result
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.io.urls import scheme_of
from paddlevideo_fast.jobs.executor import LOCAL, Executor, common_folder
from paddlevideo_fast.jobs.run import duration, size_text, spread
from paddlevideo_fast.log import counted, printable
from paddlevideo_fast.machine import num_cores

if TYPE_CHECKING:
    from paddlevideo_fast.jobs.work import Task

NOTHING_WRITTEN = "dry run: nothing was written"

_NUM_VIDEOS = 3
_NUM_FRAMES = 300  # of a video, so that a film does not take an hour

Result = TypeVar("Result")


class Fact(NamedTuple):
    """Something that a command would read, write or take: JSON values, and a text that says them."""

    values: dict[str, Any]
    text: str


class Trial(NamedTuple):
    """Some frames of a video.

    Attributes:
        task: does them.
        num_frames: how many they are.
        of_frames: how many frames of the video the tool would do.
    """

    task: "Task"
    num_frames: int
    of_frames: int


# gives the trial of a source of a task, by the task, the number of the source, the folder to write to,
# and the most frames
MakeTrial = Callable[[Any, int, str, int], Trial]


class _Cost(NamedTuple):
    """What a video takes."""

    wall_sec: float
    cpu_sec: float
    num_bytes: float
    num_frames: float


def estimate(
    tasks: Sequence["Task"],
    num_done: int,
    what: str,
    output: Any,
    executor: Executor,
    trial: MakeTrial,
) -> dict[str, Fact]:
    """What tasks would read, write and take.

    Args:
        tasks: that are still to be done.
        num_done: number of tasks that are done already.
        what: name of the tasks, such as "videos".
        output: folder of the results.
        executor: where the tasks would be done.
        trial: see `MakeTrial`.
    """
    facts, num_all = {}, num_done + len(tasks)
    if num_done:
        values = {"num_done": num_done, "num_all": num_all, "kind": what}
        facts["done already"] = Fact(values, f"{num_done} of {num_all} {what}")
    numbered = [(task, *source) for task in tasks for source in enumerate(task.sources)]
    videos, paths = [each[:2] for each in numbered], [path for *_, path in numbered]
    sizes = {path: _size_of(path) for path in dict.fromkeys(paths)}
    facts["to read"] = _reading(paths, sizes)
    weights = _weights(tasks, paths, sizes)
    chosen = spread(sorted(range(len(videos)), key=weights.__getitem__), _NUM_VIDEOS)
    if chosen:
        print(f"trying {len(chosen)} of {counted(len(videos), 'video')}", file=sys.stderr, flush=True)
    costs = {number: cost for number in chosen if (cost := _cost_of(partial(trial, *videos[number])))}
    if costs:
        factor = sum(weights) / sum(weights[number] for number in costs)
        total = _Cost(*(factor * sum(values) for values in zip(*costs.values())))
        parts = f" in {len(tasks)} {what}" if what != "videos" else ""
        facts["to write"] = _writing(output, total, len(videos), parts)
        facts["time"] = _time(total, len(tasks), executor, len(costs))
    else:
        why = f"unknown, as none of {len(chosen)} videos that were tried decodes"
        values = {"folder": output, "num_bytes": None if chosen else 0}
        facts["to write"] = Fact(values, f"{output}: {why if chosen else 'nothing but lists and notes'}")
    return facts


def _weights(tasks: Sequence[Any], paths: Sequence[str], sizes: dict[str, int | None]) -> list[float]:
    """What each source counts for: the length of its span, where all have one; else the size of its file.

    URLs are not asked for their sizes; there all count alike.
    """
    spans = [span for task in tasks for span in task.spans if span is not None and span.end is not None]
    if len(spans) == len(paths) and len({span.unit for span in spans}) == 1:
        return [span.end - span.start for span in spans]
    return [sizes[path] or 0 for path in paths] if None not in sizes.values() else [1] * len(paths)


def print_dry_run(facts: Mapping[str, Fact], json: bool) -> None:
    """Prints what a command would do, by name: with `json` one object, else a line for each."""
    lines = [f"{name}: {fact.text}" for name, fact in facts.items()]
    text = "\n".join([*lines, NOTHING_WRITTEN])
    result = {name.replace(" ", "_"): fact.values for name, fact in facts.items()}
    print_result(result, json, lambda result: text)


def free_bytes(folder: Any) -> int | None:
    """What is free on the disk of a folder that need not be there; None for a URL."""
    if not isinstance(folder, Path):
        return None
    parent = folder.absolute()
    while not parent.exists():
        parent = parent.parent
    return shutil.disk_usage(parent).free


def _reading(paths: Sequence[str], sizes: dict[str, int | None]) -> Fact:
    """How many files tasks read, their size, and where they are."""
    known = [size for size in sizes.values() if size is not None]
    num_bytes = sum(known) if len(known) == len(sizes) else None
    folders, missing = common_folder(paths), known.count(0)
    is_folder = bool(paths) and os.path.isdir(paths[0])
    parts = f"{len(paths)} parts of " if len(paths) > len(sizes) else ""
    text = parts + counted(len(sizes), "folder" if is_folder else "video") + " of frames" * is_folder
    if num_bytes is not None:
        text += f", {size_text(num_bytes)}"
    text += "".join(f", from {folder}" for folder in folders)
    if missing:
        text += f"; {missing} of them are missing or empty"
    counts = {"num_parts": len(paths), "num_files": len(sizes), "num_missing": missing}
    kind = "folders of frames" if is_folder else "videos"
    return Fact({**counts, "kind": kind, "num_bytes": num_bytes, "folders": folders}, text)


def _size_of(path: str) -> int | None:
    """Size of a file, or of the files in a folder; 0 where there is none, None for a URL."""
    if scheme_of(path):
        return None
    try:
        if not os.path.isdir(path):
            return os.stat(path).st_size
        with os.scandir(path) as entries:
            return sum(entry.stat().st_size for entry in entries)
    except OSError:
        return 0


def _cost_of(trial: Callable[[str, int], Trial]) -> _Cost | None:
    """What a video takes, from some of its frames; None where it cannot be done, which stderr then says."""
    with tempfile.TemporaryDirectory(prefix="dry-run-") as folder:
        try:
            first_sec, first_cpu_sec, made = _timed(partial(trial, folder, _NUM_FRAMES))
        except VideoDecodeError as error:
            print(f"failed: {error}", file=sys.stderr)
            return None
        # to open a video takes its time once, and each frame takes its own; now the file is in memory
        open_sec, open_cpu_sec, _ = _timed(partial(trial, folder, _NUM_FRAMES))
        wall_sec, cpu_sec, outcome = _timed(made.task.do)
        if outcome.cause:
            print(f"failed: {printable(made.task.sources[0])}: {printable(outcome.cause)}", file=sys.stderr)
            return None
        num_bytes = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    factor = made.of_frames / made.num_frames
    return _Cost(
        first_sec + factor * max(wall_sec - open_sec, 0),
        first_cpu_sec + factor * max(cpu_sec - open_cpu_sec, 0),
        factor * num_bytes,
        made.of_frames,
    )


def _timed(function: Callable[[], Result]) -> tuple[float, float, Result]:
    """Seconds and CPU seconds of a call, and its result."""
    began_sec, began_cpu_sec = time.perf_counter(), time.process_time()
    result = function()
    return time.perf_counter() - began_sec, time.process_time() - began_cpu_sec, result


def _writing(output: Any, total: _Cost, num_videos: int, parts: str) -> Fact:
    """What the results take. Where the disk does not suffice, stderr says so."""
    num_bytes, num_frames, free = round(total.num_bytes), round(total.num_frames), free_bytes(output)
    what = f"{counted(num_frames, 'frame')} of {counted(num_videos, 'video')}{parts}"
    text = f"{output}: about {what}, {size_text(num_bytes)}"
    if free is not None:
        text += f"; free there: {size_text(free)}"
        if num_bytes > free:
            print(f"warning: {output}: the disk is too small for that", file=sys.stderr)
    counts = {"num_videos": num_videos, "num_frames": num_frames}
    return Fact({"folder": output, **counts, "num_bytes": num_bytes, "free_bytes": free}, text)


def _time(total: _Cost, num_tasks: int, executor: Executor, num_tried: int) -> Fact:
    if executor.scheduler != LOCAL:
        processes, seconds = 1, total.wall_sec
        text = f"about {duration(seconds)} of one process of this machine"
    else:
        processes = max(min(executor.workers, num_tasks), 1)
        rounds = -(-num_tasks // processes)
        seconds = max(total.wall_sec * rounds / num_tasks, total.cpu_sec / num_cores())
        text = f"about {duration(seconds)} with {counted(processes, 'process')}"
    values = {"seconds": seconds, "num_processes": processes, "num_tried": num_tried}
    return Fact(values, f"{text}, by {num_tried} of the videos")

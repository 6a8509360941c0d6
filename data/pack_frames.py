"""Packs the frames of videos, or folders of frames, as JPEG into shards that PackedFrameDataset reads.

A shard is a data file and an index (00000.data, 00000.index). It counts when both are complete; running the
same command again packs the shards that are missing. Frames are made smaller where their short side is longer
than --short_side, never larger. JPEG files of a folder that have the size already are copied byte for byte.

Videos that do not decode are left out. They are listed with the cause in OUTPUT/failures.txt, and the exit
code is 1. Where shards were packed from another list or with other options, --overwrite is needed.

--estimate packs a few videos in memory and says what all of them would take. --verify reads every frame of a
packed folder and compares the checksums.

Example:
    python data/pack_frames.py --list train.list --kind video --data_prefix videos --output packed/train
    python data/pack_frames.py --verify packed/train
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

from _common import (
    ScriptError,
    only_run,
    progress,
    run_main,
    run_parallel,
    write_lines,
)
from _packing import Packed, Source, Task, attempt, contents, find_faults, pack

from paddlevideo_fast.decode import PackedShard, open_shards
from paddlevideo_fast.decode.frames import DEFAULT_SUFFIX
from paddlevideo_fast.decode.packed import data_path, index_path, shard_numbers
from paddlevideo_fast.decode.packed_format import VERSION, PackSettings
from paddlevideo_fast.errors import ShardError
from paddlevideo_fast.loader.annotations import read_frame_list, read_video_list
from paddlevideo_fast.machine import num_cores


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """The command line; see --help."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--list", help="annotation list")
    add("--kind", choices=("video", "frames"), default="video", help="video: lines `path label` (default); "
        "frames: lines `folder num_frames label`")  # fmt: skip
    add("--data_prefix", "--data-prefix", help="folder that relative paths start from")
    add("--suffix", help=f"video: ending to add to paths; frames: default {DEFAULT_SUFFIX}")
    add("--output", type=Path, help="folder of the shards, one for each list")
    add("--short_side", "--short-side", type=int, default=256, help="longest short side of a stored frame in "
        "pixels (default 256); 0: as the source")  # fmt: skip
    add("--quality", type=int, default=90, help="JPEG quality, 1 to 100 (default 90)")
    add("--shard_size", "--shard-size", type=int, default=256, help="videos in a shard (default 256)")
    add("--workers", type=int, default=num_cores(), help="processes (default: all CPUs)")
    add("--overwrite", action="store_true", help="pack again what is there already")
    add("--estimate", type=int, nargs="?", const=20, metavar="VIDEOS", help="write nothing: say what all "
        "would take, from this many (default 20)")  # fmt: skip
    add("--verify", type=Path, metavar="FOLDER", help="write nothing: check every frame of these shards")
    args = parser.parse_args(argv)
    if args.verify is None:
        check_args(args)
    return args


def check_args(args: argparse.Namespace) -> None:
    """Raises `ScriptError` where the arguments cannot work."""
    if args.list is None:
        raise ScriptError("--list is missing: the annotation list of the videos")
    if args.output is None and args.estimate is None:
        raise ScriptError("--output is missing: the folder for the shards")
    if not 1 <= args.quality <= 100:
        raise ScriptError(f"--quality: {args.quality}; must be 1 to 100")
    if args.data_prefix and not os.path.isdir(args.data_prefix):
        raise ScriptError(f"--data_prefix: {args.data_prefix}; no such folder")
    if args.short_side < 0:
        raise ScriptError(f"--short_side: {args.short_side}; must be 0 or more")
    for name in ("shard_size", "workers", "estimate"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ScriptError(f"--{name}: {value}; must be 1 or more")


def read_sources(args: argparse.Namespace) -> List[Source]:
    """The videos of the list; raises `AnnotationError` where it is missing, empty or malformed."""
    if args.kind == "frames":
        records = read_frame_list(args.list, None, args.suffix or DEFAULT_SUFFIX)
    else:
        records = read_video_list(args.list)
    ending = args.suffix or "" if args.kind == "video" else ""
    return [
        Source(
            record.path,
            os.path.join(args.data_prefix or "", record.path)
            + ("" if record.path.endswith(ending) else ending),
            record.label,
            record.num_frames,
            record.frames_suffix,
        )
        for record in records
    ]


def make_tasks(args: argparse.Namespace, sources: Sequence[Source]) -> List[Task]:
    """The shards, each with a digest of what it is made from."""
    firsts = range(0, len(sources), args.shard_size)
    tasks = []
    for shard, first in enumerate(firsts):
        part = list(sources[first : first + args.shard_size])
        asked = [[source._replace(path="") for source in part], VERSION, args.short_side, args.quality]
        plan = hashlib.blake2b(json.dumps(asked).encode(), digest_size=16).digest()
        settings = PackSettings(shard, len(firsts), args.short_side, args.quality, plan)
        tasks.append(Task(str(args.output), settings, part))
    return tasks


def split_done(tasks: Sequence[Task], overwrite: bool) -> Tuple[List[Packed], List[Task]]:
    """What is packed already, and the shards that are still to do.

    Raises:
        ScriptError: there are shards of something else, and `overwrite` is not set.
    """
    folder = tasks[0].folder
    present = set(shard_numbers(folder))
    if overwrite:
        for number in present:  # the index first: a data file alone is no shard
            Path(index_path(folder, number)).unlink()
            Path(data_path(folder, number)).unlink(missing_ok=True)
        return [], list(tasks)
    done, todo, settings = [], [], {task.settings.shard: task.settings for task in tasks}
    for number in sorted(present):
        try:
            shard = PackedShard(folder, number)
        except ShardError as error:
            print(f"warning: packed again: {error}", file=sys.stderr)
            continue
        if settings.get(number) != shard.directory.settings:
            raise ScriptError(
                f"{shard.path}: was packed from another list or with other options: give --overwrite to "
                "pack all of this folder anew, or another --output"
            )
        done.append(contents(shard))
        del settings[number]
    todo = [task for task in tasks if task.settings.shard in settings]
    return done, todo


def report(output: Path, packed: Sequence[Packed]) -> int:
    """Prints the summary, writes failures.txt, and returns the exit code."""
    num_videos = sum(shard.num_videos for shard in packed)
    num_frames = sum(shard.num_frames for shard in packed)
    num_bytes = sum(shard.num_bytes for shard in packed)
    each = f", {num_bytes / num_frames / 1000:.1f} kB a frame" if num_frames else ""
    print(
        f"{output}: {num_videos} videos, {num_frames} frames in {len(packed)} shards; "
        f"{num_bytes / 1e6:.1f} MB{each}"
    )
    failures = [failure for shard in packed for failure in shard.failures]
    file = output / "failures.txt"
    if not failures:
        file.unlink(missing_ok=True)
        return 0
    write_lines(file, [f"{name}\t{cause}" for name, cause in failures])
    for name, cause in failures[:20]:
        print(f"failed: {name}: {cause}", file=sys.stderr)
    total = num_videos + len(failures)
    print(
        f"error: {len(failures)} of {total} videos are left out; all are listed in {file}; "
        "to try them again, delete the .index of their shards, or give --overwrite",
        file=sys.stderr,
    )
    return 1


def estimate(args: argparse.Namespace, sources: Sequence[Source]) -> int:
    """Says what packing all would take, from videos that lie evenly over the list."""
    count = min(args.estimate, len(sources))
    picked = [sources[place * len(sources) // count] for place in range(count)]
    tasks = [(source, args.short_side, args.quality) for source in picked]
    trials = list(progress(run_parallel(attempt, tasks, args.workers), count, "tried"))
    good = [trial for trial in trials if trial.num_frames]
    if not good:
        raise ScriptError(f"{args.list}: none of the {count} videos that were tried decodes")
    num_bytes = sum(trial.num_bytes for trial in good)
    num_frames = sum(trial.num_frames for trial in good)
    source_bytes = sum(trial.source_bytes for trial in good)
    factor = len(sources) / count
    minutes = sum(trial.cpu_sec for trial in good) * factor / args.workers / 60
    print(
        f"estimate from {len(good)} of {len(sources)} videos: {num_bytes * factor / 1e6:.1f} MB, "
        f"{num_bytes / num_frames / 1000:.1f} kB a frame, {num_bytes / source_bytes:.1f} times the source's "
        f"bytes; {minutes:.1f} min with {args.workers} workers"
    )
    if len(good) < count:
        print(f"{count - len(good)} of the {count} videos that were tried do not decode", file=sys.stderr)
    return 0


def verify(folder: Path, workers: int) -> int:
    """Checks all frames of a packed folder, prints what is wrong, and returns the exit code."""
    numbers = shard_numbers(folder)
    tasks = [(str(folder), number) for number in numbers]
    faults = [
        fault
        for found in progress(run_parallel(find_faults, tasks, workers), len(tasks), "verified")
        for fault in found
    ]
    for fault in faults:
        print(f"bad: {fault}")
    if not faults:
        open_shards(folder)  # that none is missing
        print(f"{folder}: {len(numbers)} shards are intact")
        return 0
    print(
        f"error: {folder}: {len(faults)} faults; delete the .index of a bad shard, and pack again",
        file=sys.stderr,
    )
    return 1


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the script; returns the exit code."""
    args = parse_args(argv)
    if args.verify is not None:
        return verify(args.verify, args.workers)
    sources = read_sources(args)
    if args.estimate is not None:
        return estimate(args, sources)
    tasks = make_tasks(args, sources)
    with only_run(args.output):
        done, todo = split_done(tasks, args.overwrite)
        if done:
            print(f"{len(done)} of {len(tasks)} shards are there already")
        packed = list(progress(run_parallel(pack, todo, args.workers), len(todo), "shards"))
        return report(args.output, done + packed)


if __name__ == "__main__":
    run_main(main)

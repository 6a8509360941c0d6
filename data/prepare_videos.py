"""Re-encodes the videos of a list once, so that training reads them several times faster.

Every frame is kept, in order, with its time; sound is dropped. The short side is scaled down to --short_side
(never up), rotation goes into the pixels, and the rate factor of H.264 is searched for each video until the
PSNR is --target_psnr. The original files are not touched.

Presets say which pictures depend on which: `sparse` for a few frames from all over a video (TSN, TSM),
`dense` for windows of neighbouring frames (SlowFast, I3D), `intra` for any single frame.

A list `x.list` gives, in the folder --output:
    the videos, at their paths below --data_prefix, ending in .mp4
    x.list          the same lines with the new paths; the config's data_prefix is then --output
    x.failures.txt  what could not be prepared, and why; those lines are not in the new list
    prepared.jsonl  what each video was made from, its bytes, PSNR and rate factor

Running the same command again does what is missing, and what has changed. --estimate prepares a sample in a
temporary folder and says what all of it would take and bring; it writes nothing to --output.

The exit code is 1 where a video failed. Frame folders are not for this tool.

Example:
    python data/prepare_videos.py --list train.list --data_prefix videos --output prepared --preset sparse
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import mean, median
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import av
from _common import (
    ScriptError,
    disk_error,
    only_run,
    progress,
    run_main,
    run_parallel,
    write_lines,
)
from _encoding import PRESETS, Prepared, Settings, prepare
from _estimate import estimate
from _storing import PrepareError

from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.loader.annotations import VideoRecord, read_video_list
from paddlevideo_fast.machine import num_cores
from paddlevideo_fast.registry import did_you_mean

_MANIFEST = "prepared.jsonl"


class Task(NamedTuple):
    """One video to prepare, from `source` to `name` below `output`."""

    source: str
    output: str
    name: str
    settings: Settings


class Result(NamedTuple):
    """What came of a task: `cause` says why there is no video."""

    prepared: Optional[Prepared]
    cause: Optional[str]


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """The command line; see --help."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--list", type=Path, required=True, help="annotation list with lines `path label`")
    add("--data_prefix", "--data-prefix", default="", help="folder that the list's paths start from")
    add("--suffix", default="", help="ending to add to paths that lack it, such as .avi")
    add("--output", type=Path, required=True, help="folder for the prepared videos and the new list")
    add("--preset", default="sparse", help=f"{', '.join(PRESETS)} (default sparse)")
    add("--short_side", "--short-side", type=int, default=256, help="pixels, even (default 256)")
    add("--target_psnr", "--target-psnr", type=float, default=37.0, help="dB, RGB (default 37)")
    add("--workers", type=int, default=num_cores(), help="processes (default: all CPUs)")
    add("--estimate", type=int, nargs="?", const=8, metavar="N", help="only a sample of N videos (8)")
    return parser.parse_args(argv)


def check_args(args: argparse.Namespace) -> None:
    """Raises `ScriptError` where the arguments cannot work."""
    if args.preset not in PRESETS:
        hint = did_you_mean(args.preset, tuple(PRESETS))
        raise ScriptError(f"--preset {args.preset}: unknown{hint}; known are {', '.join(PRESETS)}")
    if args.short_side < 16 or args.short_side % 2:
        raise ScriptError(f"--short_side {args.short_side}: must be an even number, 16 or more")
    if not 30 <= args.target_psnr <= 50:
        raise ScriptError(f"--target_psnr {args.target_psnr:g}: must be 30 to 50 dB")
    if args.workers < 1 or (args.estimate is not None and args.estimate < 1):
        raise ScriptError("--workers and --estimate must be 1 or more")
    if args.data_prefix and not os.path.isdir(args.data_prefix):
        raise ScriptError(f"--data_prefix {args.data_prefix}: no such folder")
    if os.path.realpath(args.list) == os.path.realpath(args.output / args.list.name):
        raise ScriptError(
            f"--output {args.output}: the new list would replace {args.list}; choose another folder"
        )
    if "libx264" not in av.codecs_available:
        raise ScriptError("this build of PyAV has no libx264; install PyAV from PyPI: pip install av")


def new_names(records: Sequence[VideoRecord], args: argparse.Namespace) -> List[str]:
    """Where below --output the video of each record goes.

    Raises:
        ScriptError: a video lies outside --data_prefix, two would go to one file, or --output lies among the
            sources.
    """
    root = os.path.abspath(args.data_prefix)
    output = os.path.realpath(args.output)
    folders = {os.path.dirname(os.path.realpath(record.path)) for record in records}
    common = os.path.commonpath(folders)
    if os.path.commonpath([common, output]) == common:
        raise ScriptError(
            f"--output {args.output} lies in {common}, among the videos; choose a folder outside"
        )
    sources: Dict[str, str] = {os.path.realpath(record.path): "" for record in records}
    names = []
    for record in records:
        source = os.path.abspath(record.path)
        name = Path(os.path.relpath(source, root)).with_suffix(".mp4").as_posix()
        if name.startswith("../"):
            raise ScriptError(
                f"{args.list}:{record.line}: {record.path} lies outside {root}; give the folder above all "
                "videos as --data_prefix"
            )
        target = os.path.join(output, name)
        if sources.setdefault(target, source) != source:
            other = sources[target] or "itself a video of the list"
            raise ScriptError(
                f"{args.list}:{record.line}: {record.path} would be written to {name}, as would {other}; "
                "rename one, or choose another --output"
            )
        names.append(name)
    return names


def source_state(task: Task) -> Dict[str, Any]:
    """What a prepared video depends on: its source as it is now, and the settings."""
    status = os.stat(task.source)
    state = {"source": os.path.abspath(task.source), "bytes_before": status.st_size}
    return {**state, "mtime_ns": status.st_mtime_ns, **task.settings._asdict()}


def read_manifest(path: Path) -> Dict[str, Dict[str, Any]]:
    """Output name -> its last entry. A line that a killed run left unfinished is passed over."""
    if not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    if not text.endswith("\n"):
        with path.open("a", encoding="utf-8") as file:
            file.write("\n")
    entries = {}
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            entries[entry["name"]] = entry
        except (ValueError, TypeError, KeyError):
            continue  # its video is prepared anew
    return entries


def done_before(task: Task, entry: Optional[Dict[str, Any]]) -> Optional[Prepared]:
    """The numbers of an earlier run, where its video is there and still what this one would make."""
    target = Path(task.output, task.name)
    try:
        current = source_state(task).items()
        if entry and current <= entry.items() and target.stat().st_size == entry["bytes_after"]:
            return Prepared(*(entry[field] for field in Prepared._fields))
    except (OSError, KeyError):
        pass
    return None


def work(task: Task) -> Result:
    """Prepares one video and notes it in the manifest.

    Raises:
        ScriptError: the output folder cannot be written to.
    """
    target = Path(task.output, task.name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        prepared = prepare(task.source, target, task.settings)
        entry = {"name": task.name, **source_state(task), **prepared._asdict()}
        with open(Path(task.output, _MANIFEST), "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")  # one write, so that processes do not mix their lines
    except VideoDecodeError as error:
        return Result(None, error.cause)
    except PrepareError as error:
        return Result(None, str(error))
    except (OSError, av.FFmpegError, ValueError) as error:
        full = disk_error(target, error)
        if full:
            raise full from error
        return Result(None, f"cannot be encoded: {error}")
    return Result(prepared, None)


def summary(done: Sequence[Prepared], output: Path, num_new: int) -> str:
    """What all prepared videos came to."""
    before, after = sum(one.bytes_before for one in done), sum(one.bytes_after for one in done)
    crfs = sorted(one.crf for one in done)
    psnrs = [one.psnr_db for one in done]
    return (
        f"{output}: {len(done)} videos, {num_new} of them new\n"
        f"bytes: {before} before, {after} after ({after / before:.2f})\n"
        f"PSNR: mean {mean(psnrs):.2f} dB, lowest of a video {min(psnrs):.2f}, "
        f"lowest of a frame {min(one.min_psnr_db for one in done):.2f}\n"
        f"rate factor: {crfs[0]:.1f} to {crfs[-1]:.1f}, median {median(crfs):.1f}"
    )


def report_failures(failures: Dict[str, str], path: Path) -> None:
    """Writes the list of failures, and the first of them to stderr; no failures, no file."""
    if not failures:
        path.unlink(missing_ok=True)
        return
    write_lines(path, [f"{source}\t{cause}" for source, cause in failures.items()])
    for source, cause in list(failures.items())[:20]:
        print(f"failed: {source}: {cause}", file=sys.stderr)
    print(f"error: {len(failures)} videos failed; all are listed in {path}", file=sys.stderr)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the script; returns the exit code."""
    args = parse_args(argv)
    check_args(args)
    records = read_video_list(str(args.list), args.data_prefix, args.suffix)
    names = new_names(records, args)
    settings = Settings(args.preset, args.short_side, args.target_psnr)
    tasks = {
        name: Task(record.path, str(args.output), name, settings) for name, record in zip(names, records)
    }
    if args.estimate:
        return estimate([task.source for task in tasks.values()], args.output, settings, args)
    with only_run(args.output):
        return prepare_all(args, records, names, tasks)


def prepare_all(
    args: argparse.Namespace, records: Sequence[VideoRecord], names: Sequence[str], tasks: Dict[str, Task]
) -> int:
    """Prepares what is missing, and writes the new list.

    Args:
        args: the command line.
        records: the lines of the list.
        names: of their prepared videos.
        tasks: by name.

    Returns:
        The exit code.
    """
    manifest = read_manifest(args.output / _MANIFEST)
    done = {name: done_before(task, manifest.get(name)) for name, task in tasks.items()}
    missing = [task for name, task in tasks.items() if done[name] is None]
    results = progress(run_parallel(work, missing, args.workers), len(missing), "videos")
    failures = {}
    for result, task in zip(results, missing):  # in this order progress gets to its end
        done[task.name] = result.prepared
        if result.cause:
            failures[task.source] = result.cause
    lines = [f"{name} {record.label}" for name, record in zip(names, records) if done[name]]
    write_lines(args.output / args.list.name, lines)
    report_failures(failures, args.output / f"{args.list.stem}.failures.txt")
    good = [prepared for prepared in done.values() if prepared]
    if good:
        print(summary(good, args.output, len(missing) - len(failures)))
    return 1 if failures else 0


if __name__ == "__main__":
    run_main(main)

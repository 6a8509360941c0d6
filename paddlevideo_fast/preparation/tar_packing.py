"""Videos as they are in tar shards with their labels: `paddlevideo-fast data pack --format webdataset`."""

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from paddlevideo_fast.decode import VIDEO_EXTENSIONS
from paddlevideo_fast.decode.source import VideoSource
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.io.files import as_path, atomic_write
from paddlevideo_fast.io.urls import bare_url
from paddlevideo_fast.preparation.executor import located
from paddlevideo_fast.preparation.lists import read_records
from paddlevideo_fast.preparation.run import (
    Provenance,
    ToolError,
    crc32_of,
    json_lines,
    report_failures,
    stop_if_disk_fails,
    write_lines,
)
from paddlevideo_fast.preparation.work import Work

_MANIFEST = "shards.jsonl"


class Written(NamedTuple):
    """What a shard holds, and path and cause of each video that could not be read."""

    num_videos: int
    num_bytes: int
    failures: list[tuple[str, str]]

    @property
    def cause(self) -> str:
        """How many videos are not in the shard."""
        return f"{len(self.failures)} videos failed" if self.failures else ""


class _Video(NamedTuple):
    """A video to store under a name without its ending, with its classes."""

    key: str
    path: str
    labels: tuple[int, ...]


class Task(NamedTuple):
    """A shard to write: its file in a folder, the videos, and a digest of what they are."""

    folder: str
    file: str
    plan: str
    videos: list[_Video]

    @property
    def name(self) -> str:
        """See `work.Task`."""
        return f"{self.file} {self.plan}"

    @property
    def sources(self) -> Sequence[str]:
        """See `work.Task`."""
        return [video.path for video in self.videos]

    @property
    def target(self) -> Any:
        """The shard."""
        return as_path(self.folder) / self.file

    def do(self) -> Written:
        """Writes the shard.

        Raises:
            ToolError: the folder cannot be written to.
        """
        failures = []
        try:
            with atomic_write(self.target) as partial:
                with (
                    open(partial, "wb") as file,
                    tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
                ):
                    for video in self.videos:
                        try:
                            _add(tar, file, video)
                        except VideoDecodeError as error:
                            failures.append((video.path, error.cause_in(video.path)))
                num_bytes = partial.stat().st_size
        except OSError as error:
            stop_if_disk_fails(self.target, error)
            raise
        return Written(len(self.videos) - len(failures), num_bytes, failures)

    def restored(self, value: Any) -> Written | None:
        """See `work.Task`; None where the shard is gone or has another size."""
        num_videos, num_bytes, failures = value
        with contextlib.suppress(OSError):
            if self.target.stat().st_size == num_bytes:
                return Written(num_videos, num_bytes, [(path, cause) for path, cause in failures])
        return None


def _add(tar: tarfile.TarFile, written: BinaryIO, video: _Video) -> None:
    """Adds a video and its labels to a tar and its file; the same bytes in each run.

    Raises:
        VideoDecodeError: the video cannot be read; nothing of it stays.
    """
    ending = PurePosixPath(bare_url(video.path)).suffix.lower()
    if ending not in VIDEO_EXTENSIONS:
        raise VideoDecodeError(video.path, f"its name ends in none of {', '.join(VIDEO_EXTENSIONS)}")
    source = VideoSource(video.path)
    info = tarfile.TarInfo(video.key + ending)
    info.size = source.check()
    begin, opened = tar.offset, source.open()
    try:
        with open(opened, "rb") if isinstance(opened, str) else io.BufferedReader(opened) as file:
            tar.addfile(info, file)
    except (VideoDecodeError, OSError) as error:
        if getattr(error, "errno", None):  # of the disk; a file that ends early has none
            raise
        written.seek(begin)
        written.truncate()
        tar.offset = begin
        raise VideoDecodeError(video.path, f"changed while it was read: {error}") from None
    finally:
        source.release()
    is_single = len(video.labels) == 1
    text = str(video.labels[0]) if is_single else json.dumps({"labels": video.labels})
    label = tarfile.TarInfo(f"{video.key}.{'cls' if is_single else 'json'}")
    label.size = len(text)
    tar.addfile(label, io.BytesIO(text.encode()))


def pack_videos(args: argparse.Namespace, job: Work) -> int:
    """Does what `data pack --format webdataset` says; returns the exit code."""
    tasks = _tasks(args)
    made = Provenance(
        "pack_videos",
        {"suffix": args.suffix, "shard_size": args.shard_size},
        crc32_of(args.list),
        str(args.data_prefix or ""),
    )
    with job.writing(args.output, made.tool, folders=[args.output]):
        mine = job.mine(tasks)
        manifest = {entry.pop("file"): entry for entry in json_lines(args.output / _MANIFEST)}
        if args.overwrite and not job.merges:
            _remove(args.output, None if job.is_whole else {task.file for task in mine})
            manifest = {}
        done = _find_done(tasks, mine, manifest, args.output)
        with made.kept_in(args.output, job.is_whole):
            written = job.results(mine, "shards", done)
            if written is None:
                return 0
            lines = [
                json.dumps({"file": task.file, "plan": task.plan, **one._asdict()})
                for task, one in zip(tasks, written)
            ]
            write_lines(args.output / _MANIFEST, lines)
            return _report(args.output, written)


def _tasks(args: argparse.Namespace) -> list[Task]:
    """The shards of a list.

    Raises:
        AnnotationError: the list is missing or malformed.
        ToolError: it has spans.
    """
    records = read_records(args.list, "video", args.data_prefix, args.suffix, args.classes)
    for record in records:
        if record.span is not None:
            raise ToolError(
                f"{args.list}:{record.line}: has a span, and videos are stored as they are; make videos of "
                "the spans with  paddlevideo-fast data prepare"
            )
    if any(record.weight != 1 or record.group for record in records):
        print(f"warning: {args.list}: shards hold no weights and no groups", file=sys.stderr)
    names = [one.path for one in read_records(args.list, "video", None, args.suffix, args.classes)]
    videos = [
        _Video(_key(number, name), located(record.path), record.labels)
        for number, (name, record) in enumerate(zip(names, records))
    ]
    firsts = range(0, len(videos), args.shard_size)
    tasks = []
    for shard, first in enumerate(firsts):
        part = videos[first : first + args.shard_size]
        asked = [(bare_url(name), video.key, video.labels) for name, video in zip(names[first:], part)]
        plan = hashlib.blake2b(json.dumps(asked).encode(), digest_size=16).hexdigest()
        tasks.append(Task(located(args.output), f"{shard:05}-of-{len(firsts):05}.tar", plan, part))
    return tasks


def _key(number: int, name: str) -> str:
    """The name of a video in its shard: unique, and without a dot, at which readers would cut it."""
    stem = os.path.splitext(bare_url(name).rpartition("/")[2])[0]
    return f"{number:08}_{re.sub(r'[^A-Za-z0-9_-]+', '_', stem)[:64]}"


def _remove(output: Any, files: set[str] | None) -> None:
    """Removes shards: these, or all."""
    for path in list(output.glob("*.tar")) if output.is_dir() else ():
        if files is None or path.name in files:
            path.unlink()


def _find_done(
    tasks: Sequence[Task], mine: Sequence[Task], manifest: Mapping[str, Any], output: Path
) -> dict[str, Written]:
    """What earlier runs have finished, by the name of its task.

    Raises:
        ToolError: there are shards of something else.
    """
    plans = {task.file: task.plan for task in tasks}
    for path in sorted(output.glob("*.tar")) if output.is_dir() else ():
        if manifest.get(path.name, {}).get("plan", plans.get(path.name)) != plans.get(path.name, ""):
            raise ToolError(
                f"{path}: was packed from another list or with other options: give --overwrite to pack all "
                "of this folder anew, or another --output"
            )
    done = {}
    for task in mine:
        entry = manifest.get(task.file)
        if entry and (found := task.restored([entry[name] for name in Written._fields])):
            done[task.name] = found
    return done


def _report(output: Path, written: Sequence[Written]) -> int:
    num_videos, num_bytes = (sum(getattr(one, name) for one in written) for name in Written._fields[:2])
    print(f"{output}: {num_videos} videos in {len(written)} shards; {num_bytes / 1e6:.1f} MB")
    failures = [failure for one in written for failure in one.failures]
    hint = "; to try them again, delete their shards, or give --overwrite"
    return report_failures(failures, num_videos + len(failures), output / "failures.txt", hint)

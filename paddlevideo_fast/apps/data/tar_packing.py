"""Videos as they are in tar shards with their labels: `paddlevideo-fast data pack --format webdataset`."""

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from paddlevideo_fast.apps.data.lists import read_records
from paddlevideo_fast.decode import VIDEO_EXTENSIONS
from paddlevideo_fast.decode.source import VideoSource
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.extras import needing
from paddlevideo_fast.io.files import as_path, atomic_write
from paddlevideo_fast.io.urls import bare_url
from paddlevideo_fast.jobs.executor import located
from paddlevideo_fast.jobs.run import (
    Provenance,
    ToolError,
    crc32_of,
    digest_of,
    json_lines,
    report_failures,
    stop_if_disk_fails,
)
from paddlevideo_fast.jobs.work import Work

_MANIFEST = "shards.jsonl"


class Written(NamedTuple):
    """What a shard holds, and path and cause of each video that could not be read."""

    num_videos: int
    num_bytes: int
    failures: list[tuple[str, str]]

    @property
    def cause(self) -> str:
        """See `work.Outcome`: the shard is there, without the videos that failed."""
        return ""


class _Video(NamedTuple):
    """A video to store under a name without its ending, with its classes."""

    key: str
    path: str
    labels: tuple[int, ...]

    def sample(self) -> dict[str, Any]:
        """The video and its labels, as webdataset names them.

        Raises:
            VideoDecodeError: the video cannot be read.
        """
        ending = PurePosixPath(bare_url(self.path)).suffix.lower()
        if ending not in VIDEO_EXTENSIONS:
            raise VideoDecodeError(self.path, f"its name ends in none of {', '.join(VIDEO_EXTENSIONS)}")
        source = VideoSource(self.path)
        try:
            size = source.check()
            data = source.read_at(0, size)
        finally:
            source.release()
        if len(data) < size:
            raise VideoDecodeError(self.path, "changed while it was read: unexpected end of data")
        is_single = len(self.labels) == 1
        text = str(self.labels[0]) if is_single else json.dumps({"labels": self.labels})
        return {"__key__": self.key, ending[1:]: data, "cls" if is_single else "json": text.encode()}


class Task(NamedTuple):
    """A shard to write: its file in a folder, the videos, and a digest of what they are."""

    folder: str
    file: str
    plan: str
    videos: tuple[_Video, ...]

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
                    # the same bytes in each run
                    _library().TarWriter(file, user="", group="", mode=0o644, mtime=0, encoder=False) as tar,
                ):
                    for video in self.videos:
                        try:
                            tar.write(video.sample())
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


def _library() -> Any:
    with needing("webdataset", "data pack --format webdataset"):
        import webdataset
    return webdataset


def pack_videos(args: argparse.Namespace, job: Work) -> int:
    """Does what `data pack --format webdataset` says; returns the exit code."""
    tasks = _tasks(args)
    made = Provenance(
        "pack_videos",
        {"suffix": args.suffix, "shard_size": args.shard_size},
        crc32_of(args.list),
        str(args.data_prefix or ""),
    )
    _library()
    with job.writing(args.output, made.tool, folders=[args.output]):
        _check_shards(args, job, tasks)
        with made.kept_in(args.output, job.is_whole):
            written = job.remembered(tasks, "shards", args.output / _MANIFEST)
            return 0 if written is None else _report(args.output, list(written.values()))


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
        part = tuple(videos[first : first + args.shard_size])
        asked = [(bare_url(name), video.key, video.labels) for name, video in zip(names[first:], part)]
        plan = digest_of(asked)
        tasks.append(Task(located(args.output), f"{shard:05}-of-{len(firsts):05}.tar", plan, part))
    return tasks


def _key(number: int, name: str) -> str:
    """The name of a video in its shard: unique, and without a dot, at which readers would cut it."""
    stem = os.path.splitext(bare_url(name).rpartition("/")[2])[0]
    return f"{number:08}_{re.sub(r'[^A-Za-z0-9_-]+', '_', stem)[:64]}"


def _check_shards(args: argparse.Namespace, job: Work, tasks: Sequence[Task]) -> None:
    """Removes the shards that are there, where asked.

    Raises:
        ToolError: there are shards of something else.
    """
    known = {name.split()[0]: name for name, _ in json_lines(args.output / _MANIFEST)}
    wanted, mine = {task.file: task.name for task in tasks}, {task.file for task in job.mine(tasks)}
    for path in sorted(args.output.glob("*.tar")) if args.output.is_dir() else ():
        if not args.overwrite:
            if known.get(path.name, wanted.get(path.name)) != wanted.get(path.name, ""):
                raise ToolError(
                    f"{path}: was packed from another list or with other options: give --overwrite to pack "
                    "all of this folder anew, or another --output"
                )
        elif not job.merges and (job.is_whole or path.name in mine):
            path.unlink()
    if args.overwrite and not job.merges and known:
        (args.output / _MANIFEST).unlink(missing_ok=True)


def _report(output: Path, written: Sequence[Written]) -> int:
    num_videos, num_bytes = (sum(getattr(one, name) for one in written) for name in Written._fields[:2])
    print(f"{output}: {num_videos} videos in {len(written)} shards; {num_bytes / 1e6:.1f} MB")
    failures = [failure for one in written for failure in one.failures]
    hint = "; to try them again, delete their shards, or give --overwrite"
    return report_failures(failures, num_videos + len(failures), output / "failures.txt", hint)

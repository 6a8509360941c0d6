"""Frames of videos, or folders of frames, as JPEG files in shards: `paddlevideo-fast data pack`."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paddlevideo_fast.apps.data.clips import open_clip
from paddlevideo_fast.apps.data.frames import encode_image, stored_size
from paddlevideo_fast.apps.data.lists import read_records
from paddlevideo_fast.apps.data.sets import of_sets
from paddlevideo_fast.apps.data.spans import (
    OutputList,
    Part,
    Stored,
    middle_of,
    open_part,
    part_name,
    refuse_boxes,
)
from paddlevideo_fast.cli.command import print_result
from paddlevideo_fast.command_line import CommandParser, count
from paddlevideo_fast.decode import FrameFolderReader, Span, VideoReader
from paddlevideo_fast.decode.image_folder import DEFAULT_SUFFIX, decode_image, is_jpeg, read_image
from paddlevideo_fast.decode.reader import VideoPart
from paddlevideo_fast.errors import ShardError, VideoDecodeError
from paddlevideo_fast.io.files import as_path
from paddlevideo_fast.io.urls import bare_url
from paddlevideo_fast.jobs.dry_run import Trial
from paddlevideo_fast.jobs.executor import located
from paddlevideo_fast.jobs.flags import add_work, share, tool_parser
from paddlevideo_fast.jobs.run import (
    Provenance,
    ToolError,
    crc32_of,
    digest_of,
    list_text,
    report_failures,
    stop_if_disk_fails,
)
from paddlevideo_fast.jobs.work import Work
from paddlevideo_fast.loader.annotations import VideoRecord
from paddlevideo_fast.loader.tables import is_table
from paddlevideo_fast.log import counted
from paddlevideo_fast.sources.packed.packed import PackedShard, open_shards, shard_numbers
from paddlevideo_fast.sources.packed.packed_format import (
    VERSION,
    PackSettings,
    ShardWriter,
    data_path,
    index_path,
)

_SAME_SEC = 1e-4


class _Packed(NamedTuple):
    """What a shard holds."""

    num_videos: int
    num_frames: int
    num_bytes: int
    failures: list[tuple[str, str]]

    @property
    def cause(self) -> str:
        """Why the first video that failed is not in the shard; "" where all are in it."""
        return self.failures[0][1] if self.failures else ""

    @classmethod
    def of(cls, shard: PackedShard) -> "_Packed":
        """What a complete shard holds."""
        directory = shard.directory
        return cls(len(shard), directory.num_frames, directory.data_size, directory.failures)


class Source(NamedTuple):
    """A video to pack, or part of one.

    Attributes:
        name: of what is stored.
        path: of the video or folder.
        label: number of its class; -1: only the list says it, see `_label_of`.
        num_frames: of a folder of frames; else None.
        suffix: of a folder of frames; else None.
        part: what to store; None: all.
    """

    name: str
    path: str
    label: int
    num_frames: int | None
    suffix: str | None
    part: Part | None = None

    def open(self) -> VideoReader:
        """A reader of the video or of the folder of frames; raises `VideoDecodeError`."""
        return open_clip(self.path, self.num_frames, self.suffix or DEFAULT_SUFFIX)


class Task(NamedTuple):
    """A shard to pack."""

    folder: str
    settings: PackSettings
    videos: list[Source]

    @property
    def name(self) -> str:
        """See `work.Task`."""
        return str(self.settings.shard)

    @property
    def sources(self) -> Sequence[str]:
        """See `work.Task`."""
        return [video.path for video in self.videos]

    @property
    def spans(self) -> Sequence[Span | None]:
        """What is stored of each of them; None: all."""
        return [video.part and video.part.span for video in self.videos]

    def do(self) -> _Packed:
        """Writes the shard.

        Raises:
            ToolError: the folder cannot be written to.
        """
        settings = self.settings
        try:
            with ShardWriter(self.folder, settings) as writer:
                for source in self.videos:
                    try:
                        with source.open() as reader:
                            part, _ = open_part(reader, source.part)
                            size = stored_size(*reader.square_size, settings.short_side)
                            images = _encoded(part, size, settings.quality)
                            fps, times_usec = reader.avg_fps, _times_usec(part)
                            writer.add(source.name, source.label, fps, size, images, times_usec)
                    except VideoDecodeError as error:
                        writer.add_failure(source.name, error.cause_in(source.path))
        except OSError as error:
            stop_if_disk_fails(as_path(data_path(self.folder, settings.shard)), error)
            raise
        return _Packed.of(PackedShard(self.folder, settings.shard))

    def restored(self, value: Any) -> None:
        """See `work.Task`: a shard that is done is there."""

    def trial(self, number: int, folder: str, most_frames: int) -> Trial:
        """See `MakeTrial`."""
        source = self.videos[number]
        with source.open() as reader:
            part, *counts = middle_of(reader, source.part, most_frames)
        return Trial(self._replace(folder=folder, videos=[source._replace(part=part)]), *counts)


def pack(argv: Sequence[str] | None = None) -> int:
    """Packs the frames of videos, or folders of frames, as JPEG into shards that PackedFrameDataset reads.

    A shard is a data file and an index (00000.data, 00000.index). It counts when both are complete; running
    the same command again packs the shards that are missing. Frames are made smaller where their short side
    is longer than --short_side, never larger. JPEG files of a folder that have the size already are copied
    byte for byte.

    Videos that do not decode are left out. They are listed with the cause in OUTPUT/failures.txt, and the
    exit code is 1. Where shards were packed from another list or with other options, --overwrite is needed.

    Of a list with spans (.jsonl, .csv), only the spans are packed, with --margin frames around each. For such
    a list, the command writes OUTPUT/x.jsonl: names and labels of the packed spans, counted in packed frames.

    Example:
        paddlevideo-fast data pack train.list --kind video --data_prefix videos --output packed/train
        paddlevideo-fast data pack train_frames.list --kind frames --data_prefix frames --output packed
    """
    (args,) = of_sets(pack_parser().parse_args(argv), "list")
    job = Work.of(args)
    records, sources = _read_sources(args)
    keys = ("kind", "suffix", "short_side", "quality", "shard_size", *(["margin"] if args.margin else []))
    options = {key: getattr(args, key) for key in keys}
    made = Provenance("pack_frames", options, crc32_of(args.list), str(args.data_prefix or ""))
    tasks = job.mine(_make_tasks(args, sources))
    with job.writing(args.output, made.tool, folders=[args.output]):
        overwrite = args.overwrite and not job.merges
        is_new = job.is_dry and (overwrite or not args.output.exists())
        done = {} if is_new else _find_done(args.output, tasks, overwrite, job.is_whole)
        with job.recording(made):
            packed = job.results(tasks, "shards", done, Task.trial)
            if packed is None:
                return 0
            if is_table(args.list):
                listed = OutputList(args.list, records, [one.name for one in sources], args.output)
                num_lines = listed.write(_stored(args, sources))
                print_result({"file": listed.file, "num_lines": num_lines}, args.json, list_text)
            return _report(args, packed)


def pack_parser() -> CommandParser:
    """The parser of `paddlevideo-fast data pack`."""
    parser = tool_parser("data pack", pack.__doc__)
    parser.add_argument("--list", required=True)
    share(parser, "--kind", "--data_prefix", "--suffix", "--class_names", "--margin")
    size = "largest short side of a stored frame in pixels (default 256); 0: as the source"
    parser.add_argument("--short_side", type=count(0), default=256, help=size)
    parser.add_argument("--quality", default=90)
    parser.add_argument("--shard_size", type=count(1), default=256, help="videos in a shard (default 256)")
    parser.add_argument("--output", required=True, help="folder of the shards, one for each list")
    parser.add_argument("--overwrite", help="pack existing shards again")
    share(parser, "--dry_run")
    add_work(parser)
    return parser


def _read_sources(args: argparse.Namespace) -> tuple[list[VideoRecord], list[Source]]:
    """The records of the list, and for each what to pack, by the name that the list has.

    Raises:
        AnnotationError: the list is missing or malformed.
        ToolError: two records would get one name, or one has a box or a track.
    """
    suffix = args.suffix if args.kind == "frames" else ""
    names = read_records(args.list, args.kind, None, suffix, args.class_names)
    records = read_records(args.list, args.kind, args.data_prefix, args.suffix, args.class_names)
    refuse_boxes(records, args.list)
    sources: list[Source] = []
    names_of_urls: dict[str, str] = {}
    for one, record in zip(names, records):
        part = Part.of(record, args.margin)
        name = bare_url(one.path)
        if names_of_urls.setdefault(name, one.path) != one.path:
            raise ToolError(
                f"{args.list}:{record.line}: {name} is in the list with another query, too. Packed frames "
                "are named by URLs without their queries, which may be signatures: pack these from a disk"
            )
        name = name if part is None else part_name(name, part.span)
        label = _label_of(record, args.margin)
        source = Source(name, located(record.path), label, record.num_frames, record.frames_suffix, part)
        sources.append(source)
    if is_table(args.list):
        seen: dict[str, Source] = {}
        for record, source in zip(records, sources):
            if seen.setdefault(source.name, source) is not source:
                raise ToolError(
                    f"{args.list}:{record.line}: {source.name} is in the list twice; give all its labels "
                    "together"
                )
    return records, sources


def _label_of(record: VideoRecord, margin: int) -> int:
    """The label that a shard stores; -1 where that would not be all: several labels, none, or a margin."""
    is_all = len(record.labels) == 1 and not (record.span and margin)
    return record.label if is_all else -1


def _stored(args: argparse.Namespace, sources: Sequence[Source]) -> dict[str, Stored]:
    """The videos of the shards, by name."""
    counts = {
        name: int(video["num_frames"])
        for shard in open_shards(args.output)
        for name, video in zip(shard.directory.names, shard.directory.videos)
    }
    stored = {}
    for source in sources:
        if source.name in counts:  # else it is among the failures
            inner = 0, counts[source.name]
            if args.margin and source.part:
                with source.open() as reader:
                    _, inner = open_part(reader, source.part)
            stored[source.name] = Stored(counts[source.name], "", inner)
    return stored


def _make_tasks(args: argparse.Namespace, sources: Sequence[Source]) -> list[Task]:
    """The shards, each with a digest of what it is made from."""
    firsts = range(0, len(sources), args.shard_size)
    tasks = []
    for shard, first in enumerate(firsts):
        part = list(sources[first : first + args.shard_size])
        videos = [source._replace(path="")[: None if source.part else -1] for source in part]
        asked = [videos, VERSION, args.short_side, args.quality]
        plan = bytes.fromhex(digest_of(asked))
        settings = PackSettings(shard, len(firsts), args.short_side, args.quality, plan)
        tasks.append(Task(located(args.output), settings, part))
    return tasks


def _find_done(output: Path, tasks: Sequence[Task], overwrite: bool, is_whole: bool) -> dict[str, _Packed]:
    """What is packed already, by the name of its task.

    Args:
        output: folder of the shards.
        tasks: all shards, or a share of them, which may have none.
        overwrite: remove what is there.
        is_whole: these are all; what else there is has another plan.

    Raises:
        ToolError: there are shards of something else, and `overwrite` is not set.
    """
    folder = located(output)
    settings = {task.settings.shard: task.settings for task in tasks}
    present = [number for number in sorted(shard_numbers(folder)) if is_whole or number in settings]
    done = {}
    for shard_number in present:
        if overwrite:  # the index first: a data file alone is no shard
            as_path(index_path(folder, shard_number)).unlink()
            as_path(data_path(folder, shard_number)).unlink(missing_ok=True)
            continue
        try:
            shard = PackedShard(folder, shard_number)
        except ShardError as error:
            print(f"warning: packed again: {error}", file=sys.stderr)
            continue
        if settings.get(shard_number) != shard.directory.settings:
            raise ToolError(
                f"{shard.path}: was packed from another list or with other options: give --overwrite to "
                "pack all of this folder anew, or another --output"
            )
        done[str(shard_number)] = _Packed.of(shard)
    return done


def _report(args: argparse.Namespace, packed: Sequence[_Packed]) -> int:
    """Prints the summary, writes failures.txt, and returns the exit code."""
    keys = ("num_videos", "num_frames", "num_bytes")
    counts = {key: sum(getattr(shard, key) for shard in packed) for key in keys}
    print_result({"folder": args.output, "num_shards": len(packed), **counts}, args.json, _as_text)
    num_videos, output = counts["num_videos"], args.output
    failures = [failure for shard in packed for failure in shard.failures]
    hint = "; to try them again, delete the .index of their shards, or give --overwrite"
    return report_failures(failures, num_videos + len(failures), output / "failures.txt", hint)


def _as_text(result: Mapping[str, Any]) -> str:
    num_frames, num_bytes = result["num_frames"], result["num_bytes"]
    text = f"{counted(result['num_videos'], 'video')}, {counted(num_frames, 'frame')}"
    each = f", {num_bytes / num_frames / 1000:.1f} kB a frame" if num_frames else ""
    shards = counted(result["num_shards"], "shard")
    return f"{result['folder']}: {text} in {shards}; {num_bytes / 1e6:.1f} MB{each}"


# --- one video


def _times_usec(part: VideoPart) -> list[int] | None:
    """The times of the frames in microseconds; None where nothing says, or the frame rate says it all."""
    try:
        times = part.times_sec()
    except VideoDecodeError:
        return None
    regular = np.arange(len(times)) / part.avg_fps if part.avg_fps else times + 1
    if np.abs(times - regular).max() < _SAME_SEC:
        return None
    return [round(usec) for usec in (times * 1e6).tolist()]


def _encoded(reader: VideoPart, size: tuple[int, int], quality: int) -> Iterator[bytes]:
    """The JPEG file of each frame.

    Raises:
        VideoDecodeError: a frame does not decode, or their size changes.
    """
    source_size = (reader.width, reader.height)
    for frame, original in _frames_and_files(reader):
        if frame.shape[1::-1] != source_size:
            sizes = f"{reader.width}×{reader.height} to {frame.shape[1]}×{frame.shape[0]}"
            raise VideoDecodeError(reader.path, f"the frame size changes from {sizes}")
        keep = original and size == source_size
        yield original if keep else encode_image(frame, size, reader.path, quality=quality)


def _frames_and_files(part: VideoPart) -> Iterator[tuple[np.ndarray, bytes]]:
    """Each frame, uint8 [H, W, 3] RGB, with its file where that is a JPEG, else with nothing."""
    reader = part.video
    if not isinstance(reader, FrameFolderReader):
        yield from ((frame, b"") for frame in part)
        return
    for index in range(part.first, part.first + part.num_frames):
        file = reader.image_file(index)
        data = read_image(file)
        yield decode_image(data, file), data if is_jpeg(data) else b""

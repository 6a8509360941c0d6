"""Videos of which training reads frames several times faster: `paddlevideo-fast data prepare`."""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import av

from paddlevideo_fast.apps.data.encoding import PRESETS, PrepareError, Settings, prepare
from paddlevideo_fast.apps.data.sets import of_sets
from paddlevideo_fast.apps.data.spans import OutputList, Part, Stored, middle_of
from paddlevideo_fast.cli.command import print_result
from paddlevideo_fast.command_line import CommandParser, count
from paddlevideo_fast.decode import Span, open_video
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.io.files import as_path
from paddlevideo_fast.io.urls import bare_url
from paddlevideo_fast.jobs.dry_run import Trial
from paddlevideo_fast.jobs.executor import located
from paddlevideo_fast.jobs.flags import add_work, share, tool_parser
from paddlevideo_fast.jobs.run import (
    Provenance,
    ToolError,
    crc32_of,
    json_lines,
    stop_if_disk_fails,
    write_lines,
)
from paddlevideo_fast.jobs.work import Work
from paddlevideo_fast.log import counted
from paddlevideo_fast.registry import did_you_mean

_MANIFEST = "prepared.jsonl"


class _Result(NamedTuple):
    """What came of a task: an entry of the manifest, or `cause` says why there is none."""

    entry: dict[str, Any] | None
    cause: str = ""

    @property
    def stored(self) -> Stored:
        """What the new list needs to know."""
        if self.entry is None:
            return Stored(0, self.cause)
        return Stored(self.entry["num_frames"], "", (self.entry["inner_first"], self.entry["inner_stop"]))


class Task(NamedTuple):
    """One video, or part of it, to prepare from `source` to `name` below `output`."""

    source: str
    output: str
    name: str
    settings: Settings
    part: Part | None = None

    @property
    def sources(self) -> Sequence[str]:
        """See `work.Task`."""
        return [self.source]

    @property
    def spans(self) -> Sequence[Span | None]:
        """What is stored of each of them; None: all."""
        return [self.part and self.part.span]

    @property
    def target(self) -> Any:
        """The prepared video."""
        return as_path(self.output) / self.name

    def source_state(self) -> dict[str, Any]:
        """What the prepared video depends on: its source as it is now, and the settings."""
        source = as_path(self.source)
        status = source.stat()
        state = {"source": bare_url(str(source.absolute())), "bytes_before": status.st_size}
        part = {} if self.part is None else {"span": list(self.part.span), "margin": self.part.margin}
        return {**state, "mtime_ns": status.st_mtime_ns, **self.settings._asdict(), **part}

    def do(self) -> _Result:
        """Prepares the video.

        Raises:
            ToolError: the output folder cannot be written to.
        """
        try:
            prepared = prepare(self.source, self.target, self.settings, self.part)
            return _Result({"name": self.name, **self.source_state(), **prepared._asdict()})
        except VideoDecodeError as error:
            return _Result(None, error.cause)
        except PrepareError as error:
            return _Result(None, str(error))
        except (OSError, av.FFmpegError, ValueError) as error:
            stop_if_disk_fails(self.target, error)
            return _Result(None, f"cannot be encoded: {error}")

    def restored(self, value: Any) -> _Result | None:
        """See `work.Task`; None where the video is not what it was, or its source."""
        entry, cause = value
        return _Result(entry, cause) if cause or self._is_done(entry) else None

    def trial(self, number: int, folder: str, most_frames: int) -> Trial:
        """See `MakeTrial`."""
        with open_video(self.source) as video:
            part, *counts = middle_of(video, self.part, most_frames)
        return Trial(self._replace(output=folder, part=part), *counts)

    def _is_done(self, entry: dict[str, Any]) -> bool:
        try:
            is_same = {**entry, **self.source_state()} == entry
            return is_same and self.target.stat().st_size == entry["bytes_after"]
        except (OSError, KeyError):
            return False


def prepare_list(argv: Sequence[str] | None = None) -> int:
    """Re-encodes the videos of a list once, so that training reads them several times faster.

    Every frame is kept, in order, with its time; sound is dropped. The short side is scaled down to
    --short_side (never up), rotation goes into the pixels, and each preset has one constant quality. The
    original files are not touched.

    Presets say which pictures depend on which: `sparse` for a few frames from all over a video (TSN, TSM),
    `dense` for windows of neighbouring frames (SlowFast, I3D), `intra` for any single frame.

    A list `x.list` gives, in the folder --output:
        the videos, at their paths below --data_prefix, ending in .mp4
        x.list           the same lines with the new paths; the config's data_prefix is then --output
        x.failures.txt   what could not be prepared, and why; those lines are not in the new list
        prepared.jsonl   what each video was made from, and its bytes
        provenance.json  the options, and the CRC32 of the list

    Of a list with spans (.jsonl, .csv), only the spans are stored, with --margin frames around each. The new
    list is x.jsonl, and its spans are frames of the new videos.

    Run the same command again to prepare what is missing or has changed. The doctor says how much faster a
    training becomes.

    Folders of frames cannot be prepared.

    Example:
        paddlevideo-fast data prepare my_set --output prepared
        paddlevideo-fast data prepare train.list --data_prefix videos --output prepared --preset dense
    """
    return max(map(_prepare, of_sets(_parse(argv))))


def _prepare(args: argparse.Namespace) -> int:
    listed = OutputList.read(args, ".mp4")
    settings, output = Settings(args.preset, args.short_side), located(args.output)
    tasks = {
        name: Task(located(record.path), output, name, settings, Part.of(record, args.margin))
        for name, record in listed.entries
    }
    job = Work.of(args)
    keys = ("preset", "short_side", "suffix", *(["margin"] if args.margin else []))
    options = {key: getattr(args, key) for key in keys}
    made = Provenance("prepare_videos", options, crc32_of(args.list), str(args.data_prefix or ""))
    named = f"{made.tool} {args.list.name}"
    folders = ((args.output / name).parent for name in tasks)
    with job.writing(args.output, named, folders=folders), job.recording(made):
        manifest = {entry["name"]: entry for entry in json_lines(args.output / _MANIFEST)}
        mine = job.mine([*tasks.values()])
        before = {
            task.name: outcome
            for task in mine
            if task.name in manifest and (outcome := task.restored((manifest[task.name], "")))
        }
        results = job.results(mine, "videos", before, Task.trial)
        if results is None:
            return 0
        stored = {name: result.stored for name, result in zip(tasks, results)}
        good = {name: result.entry for name, result in zip(tasks, results) if not result.cause}
        manifest.update(good)
        if manifest:
            write_lines(args.output / _MANIFEST, (json.dumps(manifest[name]) for name in sorted(manifest)))
        listed.write(stored)
        if good:
            sizes = {key: sum(one[key] for one in good.values()) for key in ("bytes_before", "bytes_after")}
            counts = {"num_videos": len(good), "num_new": len(good.keys() - before.keys())}
            print_result({"folder": args.output, **counts, **sizes}, args.json, _as_text)
        return listed.report(stored, args.output / f"{args.list.stem}.failures.txt")


def _as_text(result: Mapping[str, Any]) -> str:
    before, after = result["bytes_before"], result["bytes_after"]
    text = f"{result['folder']}: {counted(result['num_videos'], 'video')}, {result['num_new']} of them new"
    return f"{text}\nbytes: {before} before, {after} after ({after / before:.2f})"


def prepare_list_parser() -> CommandParser:
    """The parser of `paddlevideo-fast data prepare`."""
    parser = tool_parser("data prepare", prepare_list.__doc__)
    parser.add_argument("--list", required=True)
    share(parser, "--data_prefix")
    parser.add_argument("--suffix", help="ending to add to paths that lack it, such as .avi")
    share(parser, "--class_names", "--margin")
    parser.add_argument("--preset", default="sparse", help=f"{', '.join(PRESETS)} (default sparse)")
    parser.add_argument(
        "--short_side", type=count(16, even=True), default=256, help="pixels, even (default 256)"
    )
    parser.add_argument("--output", required=True, help="folder for the prepared videos and the new list")
    share(parser, "--dry_run")
    add_work(parser)
    return parser


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    args = prepare_list_parser().parse_args(argv)
    if args.preset not in PRESETS:
        hint = did_you_mean(args.preset, tuple(PRESETS))
        raise ToolError(f"--preset {args.preset}: unknown{hint}; known are {', '.join(PRESETS)}")
    if "libx264" not in av.codecs_available:
        raise ToolError("this build of PyAV has no libx264; install PyAV from PyPI: pip install av")
    return args

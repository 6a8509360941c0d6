"""Frames as image files: `paddlevideo-fast data extract`, and the one way to scale and encode a frame."""

import argparse
import contextlib
import errno
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from paddlevideo_fast.apps.data.clips import find_clips
from paddlevideo_fast.apps.data.sets import of_sets
from paddlevideo_fast.apps.data.spans import OutputList, Part, Stored, is_listable, middle_of, open_part
from paddlevideo_fast.cli.command import print_result
from paddlevideo_fast.command_line import CommandParser, add_options, count, option
from paddlevideo_fast.config.builtin import CONFIG_FILE
from paddlevideo_fast.decode import VIDEO_EXTENSIONS, Span, VideoReader, open_frames, open_video
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.io.files import as_path
from paddlevideo_fast.io.paths import temp_path
from paddlevideo_fast.jobs.dry_run import Trial
from paddlevideo_fast.jobs.executor import located
from paddlevideo_fast.jobs.flags import add_work, share, tool_parser
from paddlevideo_fast.jobs.run import Provenance, ToolError, earlier_run, stop_if_disk_fails
from paddlevideo_fast.jobs.work import Work
from paddlevideo_fast.loader.annotations import VideoRecord
from paddlevideo_fast.log import counted
from paddlevideo_fast.sources.remote.stores import put

_TOOL = "extract_rawframes"
_NO_EFFECT = {
    "num_gpu": "frames are decoded on the CPU",
    "use_opencv": "choose the decoder with --decoder",
    "resume": "complete folders are skipped always; --overwrite redoes them",
}


def stored_size(
    width: int, height: int, short_side: int, enlarge: bool = False, even: bool = False
) -> tuple[int, int]:
    """Size to store frames at.

    Args:
        width: width of the source in pixels.
        height: its height.
        short_side: length that the short side is scaled to; 0 keeps the size.
        enlarge: scale up too; else small frames keep their size.
        even: give even numbers, which 4:2:0 needs.

    Returns:
        Width and height in pixels.
    """
    short, step = min(width, height), 2 if even else 1
    if not short_side or short == short_side or (short < short_side and not enlarge):
        return width - width % step, height - height % step
    width, height = (step * round(side * short_side / short / step) for side in (width, height))
    return width, height


def encode_image(
    frame: np.ndarray, size: tuple[int, int], path: str, ending: str = ".jpg", quality: int = 95
) -> bytes:
    """Encodes a frame as JPEG, or as what `ending` names.

    Args:
        frame: uint8 [H, W, 3] RGB.
        size: width and height to scale it to.
        path: the video, for the error.
        ending: ".jpg" or ".png".
        quality: JPEG quality, 1 to 100.

    Raises:
        VideoDecodeError: the format cannot hold the frame.
    """
    height, width = frame.shape[:2]
    if (width, height) != size:
        shrinks = size[0] * size[1] < width * height
        frame = cv2.resize(frame, size, interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
    options = []
    if ending == ".jpg":  # optimised Huffman tables: 4 % fewer bytes for good, for 0.5 ms a frame once
        options = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_OPTIMIZE, 1]
    done, data = cv2.imencode(ending, cv2.cvtColor(frame, cv2.COLOR_RGB2BGR), options)
    if not done:
        raise VideoDecodeError(path, f"a frame of {size[0]}×{size[1]} cannot be stored as {ending[1:]}")
    return data.tobytes()


class Task(NamedTuple):
    """A video or part to extract to the folder `name` below `output`.

    `fixed_size` is (0, 0) where the short side decides, or nothing does.
    """

    video: str
    output: str
    name: str
    backend: str
    short_side: int
    fixed_size: tuple[int, int]
    image_format: str
    quality: int
    overwrite: bool
    part: Part | None = None

    @property
    def sources(self) -> Sequence[str]:
        """See `work.Task`."""
        return [self.video]

    @property
    def spans(self) -> Sequence[Span | None]:
        """What is stored of each of them; None: all."""
        return [self.part and self.part.span]

    @property
    def suffix(self) -> str:
        """Format of the names of the images."""
        return f"img_{{:05}}.{self.image_format}"

    def count_images(self) -> int:
        """How many images of the folder follow one another from number 1."""
        try:
            return open_frames(str(as_path(self.output) / self.name), self.suffix).num_frames
        except VideoDecodeError:
            return 0

    def do(self) -> Stored:
        """Extracts the video, unless its folder is complete."""
        folder = as_path(self.output) / self.name
        is_local = isinstance(folder, Path)
        unfinished = temp_path(folder) if is_local else Path(tempfile.mkdtemp(prefix="upload-"))
        try:
            with open_video(self.video, self.backend) as video:
                part, inner = open_part(video, self.part)
                if self.overwrite or self.count_images() != part.num_frames:
                    unfinished.mkdir(parents=True, exist_ok=True)
                    for place, frame in enumerate(part, 1):
                        (unfinished / self.suffix.format(place)).write_bytes(self._encoded(frame, video))
                    _put_in_place(unfinished, folder)
                return Stored(part.num_frames, inner=inner)
        except VideoDecodeError as error:
            return Stored(0, error.cause)
        except OSError as error:
            stop_if_disk_fails(folder, error)
            return Stored(0, f"cannot be stored: {error.strerror or error}")
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _encoded(self, frame: np.ndarray, video: VideoReader) -> bytes:
        size = stored_size(*video.square_size, self.short_side, enlarge=True)
        size = self.fixed_size if self.fixed_size[0] else size
        return encode_image(frame, size, self.video, f".{self.image_format}", self.quality)

    def restored(self, value: Any) -> Stored | None:
        """See `work.Task`; None where the images are not there any more, or not wanted."""
        num_frames, cause, inner = value
        if not cause and (self.overwrite or self.count_images() != num_frames):
            return None
        return Stored(num_frames, cause, tuple(inner))

    def trial(self, number: int, folder: str, most_frames: int) -> Trial:
        """See `MakeTrial`."""
        with open_video(self.video, self.backend) as video:
            part, *counts = middle_of(video, self.part, most_frames)
        return Trial(self._replace(output=folder, part=part), *counts)


def extract(argv: Sequence[str] | None = None) -> int:
    """Extracts the frames of videos to folders of numbered images, img_00001.jpg and so on.

    Videos are looked for in SRC_DIR (--level 1) or in its class folders (--level 2), or --list names them,
    or the lists of a set that `init` has made: then only their spans are extracted, with --margin frames
    around each. A folder appears under --output only when it is complete; run the same command again for
    the rest. Videos that do not decode are listed, with the cause, in failures.txt, and the exit code is 1.

    A run with another size, format or quality than the first (see provenance.json) needs --overwrite.

    Also writes rawframes.list: lines `folder num_frames label` with folders relative to --output (the
    config's data_prefix). The label is the class folder's place in alphabetical order; with --level 1 there
    is none. With --list, the new list has the same name; from a .jsonl or .csv it is a .jsonl.

    Example:
        paddlevideo-fast data extract videos --output rawframes --short_side 340
        paddlevideo-fast data extract my_set --output rawframes
        paddlevideo-fast data extract --list train.jsonl --data_prefix videos --output rawframes
    """
    args = _parse(argv)
    return max(map(_extract, of_sets(args) if args.list else [args]))


def _extract(args: argparse.Namespace) -> int:
    listed = OutputList.read(args, "") if args.list else _found(args)
    size = args.new_width, args.new_height
    job, overwrite = Work.of(args), args.overwrite and not args.merge
    settings = (args.decoder, args.short_side, size, args.out_format, args.quality, overwrite)
    output = located(args.output)
    tasks = {
        name: Task(located(record.path), output, name, *settings, Part.of(record, args.margin))
        for name, record in listed.entries
    }
    options = {key: getattr(args, key) for key in ("short_side", "new_width", "new_height", "out_format")}
    options["quality"] = args.quality if args.out_format == "jpg" else 0
    if args.margin:
        options["margin"] = args.margin
    named = f"{_TOOL} {args.list.name if args.list else ''}"
    with job.writing(args.output, named, folders=((args.output / name).parent for name in tasks)):
        earlier = earlier_run(args.output, _TOOL)
        before = earlier.options if earlier else options
        if before != options and not overwrite:
            raise ToolError(
                f"{args.output}: has images made with {_as_text(before)}; now it is {_as_text(options)}: "
                "give --overwrite to make all of them anew, or another --output"
            )
        with job.recording(Provenance(_TOOL, options, folder=str(args.root))):
            mine = job.mine([*tasks.values()])
            done = _complete(mine) if job.is_dry and not overwrite else None
            results = job.results(mine, "videos", done, Task.trial)
            if results is None:
                return 0
            stored = dict(zip(tasks, results))
            listed.write(stored, is_folder=True)
            if not any(result.cause for result in results):
                result = {"folder": args.output, "num_videos": len(results)}
                print_result(result, args.json, _result_text)
            return listed.report(stored, args.output / "failures.txt")


def _complete(tasks: Sequence[Task]) -> dict[str, Stored]:
    """The tasks whose folders are there, by name. The videos are not opened."""
    counts = {task.name: task.count_images() for task in tasks}
    return {name: Stored(num_images) for name, num_images in counts.items() if num_images}


_RARE: dict[str, dict[str, Any]] = {
    "--out_format": option("format of the images", choices=("jpg", "png"), default="jpg", rare=True),
    "--new_width": option("resize: width, with --new_height", type=count(0), default=0, rare=True),
    "--new_height": option("resize: height, with --new_width", type=count(0), default=0, rare=True),
    "--task": option("only rgb is supported", choices=("rgb", "flow", "both"), default="rgb", rare=True),
    "--num_gpu": option("no effect", type=int, rare=True),
    "--use_opencv": option("no effect", action="store_true", rare=True),
    "--resume": option("no effect: always on", action="store_true", rare=True),
}


def extract_parser() -> CommandParser:
    """The parser of `paddlevideo-fast data extract`."""
    parser = tool_parser("data extract", extract.__doc__)
    text = "folder with the videos; or as --list, which reads also a folder of a set with a config.yaml"
    parser.add_argument("--root", positional="SRC_DIR", help=text)
    parser.add_argument("--output", positional="OUT_DIR", required=True, help="folder for the frames")
    text = "annotation list of the videos, in place of SRC_DIR"
    parser.add_argument("--list", positional="", help=text)
    share(parser, "--data_prefix")
    parser.add_argument("--suffix", help="with --list: ending to add to paths that lack it, such as .avi")
    share(parser, "--class_names", "--margin", "--decoder")
    parser.add_argument(
        "--level",
        type=int,
        choices=(1, 2),
        default=2,
        help="1: SRC_DIR/video; 2: SRC_DIR/class/video (default)",
    )
    parser.add_argument(
        "--short_side", "--new_short", type=count(0), default=0, help="resize: length of the short side"
    )
    parser.add_argument("--quality", default=95)
    parser.add_argument("--overwrite", help="extract existing folders again")
    share(parser, "--dry_run")
    add_work(parser, "--num_worker")
    text = "ending of the videos, such as avi (default: all known)"
    parser.add_argument("--ext", default="", help=text, rare=True)
    add_options(parser, _RARE)
    return parser


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = extract_parser()
    args = parser.parse_args(argv)
    if args.root is None and args.list is None:
        parser.error("SRC_DIR is missing: folder with the videos")
    if args.root and args.list:
        raise ToolError("give either --root, a folder with videos, or --list, an annotation list of them")
    if isinstance(args.root, Path) and (args.root.is_file() or (args.root / CONFIG_FILE).is_file()):
        args.root, args.list = None, args.root
    if args.ext in ("jpg", "png"):  # PaddleVideo's name of the format
        args.out_format, args.ext = args.ext, ""
    for name, reason in _NO_EFFECT.items():
        if getattr(args, name):
            print(f"warning: --{name} has no effect: {reason}", file=sys.stderr)
    if args.task != "rgb":
        raise ToolError(f"--task {args.task}: optical flow is not supported; use --task rgb")
    if bool(args.new_width) != bool(args.new_height):
        raise ToolError("give both --new_width and --new_height, or --short_side alone")
    if args.short_side and args.new_width:
        raise ToolError("give either --short_side or --new_width and --new_height, not both")
    return args


def _result_text(result: Mapping[str, Any]) -> str:
    return f"{result['folder']}: frames of {counted(result['num_videos'], 'video')}"


def _as_text(options: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in options.items())


def _found(args: argparse.Namespace) -> OutputList:
    """The videos of --root; a class is numbered by its folder's place in alphabetical order.

    Videos with one stem keep their endings in the names of their folders.

    Raises:
        ToolError: there is none.
    """
    endings = (f".{args.ext.lstrip('.').lower()}",) if args.ext else VIDEO_EXTENSIONS
    videos = [video for video, _ in find_clips(args.root, max_depth=args.level, endings=endings)]
    places = {video: video.relative_to(args.root) for video in videos}
    with_stem = Counter(place.with_suffix("") for place in places.values())  # `a.avi` beside `a.mp4`
    video_of = {
        (place if with_stem[place.with_suffix("")] > 1 else place.with_suffix("")).as_posix(): video
        for video, place in places.items()
        if len(place.parts) == args.level
    }
    if not video_of:
        raise ToolError(f"{args.root}: no video ({', '.join(endings)}) at --level {args.level}")
    source = Path("rawframes.list")
    classes = sorted({name.rpartition("/")[0] for name in video_of if is_listable(source, name)})
    numbers = {name: (number,) for number, name in enumerate(classes)} if args.level == 2 else {}
    records = [
        VideoRecord(str(video), numbers.get(name.rpartition("/")[0], ())) for name, video in video_of.items()
    ]
    return OutputList(source, records, list(video_of), args.output)


def _put_in_place(unfinished: Path, folder: Path) -> None:
    """Renames a complete folder to `folder`, or uploads its images. Others may replace `folder` meanwhile.

    A rename onto `folder` finds it with images, or fails with ENOENT where the file system has looked it up
    and another writer has moved it since. Either way the next try comes after `folder` has been moved away.
    """
    if not isinstance(folder, Path):
        for image in sorted(unfinished.iterdir()):
            put(image, str(folder / image.name))
        return None
    while True:
        try:
            return os.replace(unfinished, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT) or not unfinished.exists():
                raise
        old = temp_path(folder)
        with contextlib.suppress(FileNotFoundError):
            os.replace(folder, old)
        shutil.rmtree(old, ignore_errors=True)

"""Extracts the frames of videos to folders of numbered images, img_00001.jpg and so on.

Videos are looked for in src_dir (--level 1) or in its class folders (--level 2). A folder appears under
out_dir only when it is complete; running the same command again does what is missing. Videos that do not
decode are listed, with the cause, in out_dir/failures.txt, and the exit code is 1.

A run with another size, format or quality than the first (out_dir/options.txt) needs --overwrite.

Also writes out_dir/rawframes.list: lines `folder num_frames label` with folders relative to out_dir (the
config's data_prefix), the label being the class folder's place in alphabetical order; with --level 1,
`folder num_frames`.

Example:
    python data/extract_rawframes.py videos rawframes --level 2 --num-worker 8 --short-side 340
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import cv2
import numpy as np
from _common import ScriptError, progress, run_main, run_parallel, write_lines

from paddlevideo_fast.decode import VIDEO_EXTENSIONS, open_frames, open_video
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.machine import num_cores

_NO_EFFECT = {
    "num_gpu": "frames are decoded on the CPU",
    "use_opencv": "choose the decoder with --backend",
    "resume": "complete folders are skipped always; --overwrite redoes them",
}


class Task(NamedTuple):
    """One video to extract."""

    video: str
    folder: str
    backend: str
    size: Tuple[int, int, int]
    image_format: str
    quality: int
    overwrite: bool


class Result(NamedTuple):
    """What came of a task: `cause` says why there are no frames."""

    video: str
    folder: str
    num_frames: int
    cause: Optional[str]


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """The command line; see --help."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("src_dir", type=Path, help="folder with the videos")
    add("out_dir", type=Path, help="folder for the frames")
    add(
        "--level",
        type=int,
        choices=(1, 2),
        default=2,
        help="1: src_dir/video; 2: src_dir/class/video (default)",
    )
    add("--num_worker", "--num-worker", "--workers", type=int, default=num_cores(), help="processes")
    add(
        "--ext",
        default="",
        help="ending of the videos, such as avi (default: all known); jpg, png: see --out_format",
    )
    add("--out_format", "--out-format", choices=("jpg", "png"), default="jpg", help="format of the images")
    add("--quality", type=int, default=95, help="JPEG quality, 1 to 100 (default 95)")
    add(
        "--new_short",
        "--new-short",
        "--short-side",
        type=int,
        default=0,
        help="resize: length of the short side",
    )
    add("--new_width", "--new-width", type=int, default=0, help="resize: width, with --new_height")
    add("--new_height", "--new-height", type=int, default=0, help="resize: height, with --new_width")
    add("--backend", choices=("pyav", "cv2", "decord"), default="pyav", help="decoder (default pyav)")
    add("--overwrite", action="store_true", help="extract again what is there already")
    add("--task", choices=("rgb", "flow", "both"), default="rgb", help="only rgb is supported")
    add("--num_gpu", "--num-gpu", type=int, help="no effect")
    add("--use_opencv", "--use-opencv", action="store_true", help="no effect")
    add("--resume", action="store_true", help="no effect: always on")
    args = parser.parse_args(argv)
    if args.ext in ("jpg", "png"):
        args.out_format, args.ext = args.ext, ""
    for name, reason in _NO_EFFECT.items():
        if getattr(args, name):
            print(f"warning: --{name} has no effect: {reason}", file=sys.stderr)
    return args


def check_args(args: argparse.Namespace) -> None:
    """Raises `ScriptError` where the arguments cannot work."""
    if args.task != "rgb":
        raise ScriptError(f"--task {args.task}: optical flow is not supported; use --task rgb")
    if not args.src_dir.is_dir():
        raise ScriptError(f"{args.src_dir}: no such folder")
    if not 1 <= args.quality <= 100:
        raise ScriptError(f"--quality: {args.quality}; must be 1 to 100")
    if min(args.new_short, args.new_width, args.new_height) < 0 or bool(args.new_width) != bool(
        args.new_height
    ):
        raise ScriptError("give both --new_width and --new_height, or --new_short alone, above 0")
    if args.new_short and args.new_width:
        raise ScriptError("give either --new_short or --new_width and --new_height, not both")


def keep_options(out_dir: Path, args: argparse.Namespace) -> None:
    """Notes in `out_dir` what its images were made with, so that a later run does not mix two kinds.

    Raises:
        ScriptError: there are images already that were made with other options.
    """
    size = f"short={args.new_short} width={args.new_width} height={args.new_height}"
    options = f"{size} format={args.out_format} quality={args.quality if args.out_format == 'jpg' else 0}"
    note = out_dir / "options.txt"
    before = note.read_text(encoding="utf-8").strip() if note.is_file() else options
    if before != options and not args.overwrite:
        raise ScriptError(
            f"{out_dir}: has images made with {before}; now it is {options}: give --overwrite to make all "
            "of them anew, or another out_dir"
        )
    write_lines(note, [options])


def find_videos(src_dir: Path, level: int, ext: str) -> Dict[str, Path]:
    """Folder name below out_dir -> video.

    Raises:
        ScriptError: there is none, or two would go to one folder.
    """
    endings = (f".{ext.lstrip('.').lower()}",) if ext else VIDEO_EXTENSIONS
    pattern = "*" if level == 1 else "*/*"
    found: Dict[str, Path] = {}
    for video in sorted(src_dir.glob(pattern)):
        if video.suffix.lower() not in endings or video.name.startswith("."):
            continue
        name = video.relative_to(src_dir).with_suffix("").as_posix()
        if name in found:
            raise ScriptError(f"{found[name]} and {video} would both go to '{name}'; choose one with --ext")
        found[name] = video
    if not found:
        raise ScriptError(f"{src_dir}: no video ({', '.join(endings)}) at --level {level}")
    return found


def extract(task: Task) -> Result:
    """Extracts one video, unless its folder is complete."""
    folder = Path(task.folder)
    suffix = f"img_{{:05}}.{task.image_format}"
    try:
        with open_video(task.video, task.backend) as reader:
            if not task.overwrite and count_images(task.folder, suffix) == reader.num_frames:
                return Result(task.video, task.folder, reader.num_frames, None)
            partial = folder.with_name(f".partial-{folder.name}")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            try:
                for number, frame in enumerate(reader, 1):
                    data = encode(frame, task)
                    (partial / suffix.format(number)).write_bytes(data)
                shutil.rmtree(folder, ignore_errors=True)
                os.replace(partial, folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
            return Result(task.video, task.folder, reader.num_frames, None)
    except VideoDecodeError as error:
        return Result(task.video, task.folder, 0, error.cause)


def count_images(folder: str, suffix: str) -> int:
    """How many images of a folder follow one another from number 1."""
    try:
        return open_frames(folder, suffix).num_frames
    except VideoDecodeError:
        return 0


def encode(frame: np.ndarray, task: Task) -> bytes:
    """The image file of a frame, uint8 [H, W, 3] RGB, resized as the task says."""
    height, width = frame.shape[:2]
    short, new_width, new_height = task.size
    if short:
        new_width = round(width * short / min(width, height))
        new_height = round(height * short / min(width, height))
    if new_width and (new_width, new_height) != (width, height):
        shrinks = new_width * new_height < width * height
        frame = cv2.resize(
            frame, (new_width, new_height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        )
    options = [cv2.IMWRITE_JPEG_QUALITY, task.quality] if task.image_format == "jpg" else []
    done, data = cv2.imencode(f".{task.image_format}", cv2.cvtColor(frame, cv2.COLOR_RGB2BGR), options)
    if not done:
        raise VideoDecodeError(
            task.video, f"a frame of {width}×{height} cannot be stored as {task.image_format}"
        )
    return data.tobytes()


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the script; returns the exit code."""
    args = parse_args(argv)
    check_args(args)
    videos = find_videos(args.src_dir, args.level, args.ext)
    size = (args.new_short, args.new_width, args.new_height)
    out_dir: Path = args.out_dir
    tasks = [
        Task(
            str(video), str(out_dir / name), args.backend, size, args.out_format, args.quality, args.overwrite
        )
        for name, video in videos.items()
    ]
    out_dir.mkdir(parents=True, exist_ok=True)
    keep_options(out_dir, args)
    results: List[Result] = list(
        progress(run_parallel(extract, tasks, args.num_worker), len(tasks), "videos")
    )
    failures = [result for result in results if result.cause]
    write_lines(out_dir / "rawframes.list", list_lines(results, out_dir, args.level))
    report = out_dir / "failures.txt"
    if not failures:
        report.unlink(missing_ok=True)
        print(f"{out_dir}: frames of {len(results)} videos")
        return 0
    write_lines(report, [f"{result.video}\t{result.cause}" for result in failures])
    for result in failures[:20]:
        print(f"failed: {result.video}: {result.cause}", file=sys.stderr)
    print(
        f"error: {len(failures)} of {len(results)} videos failed; all are listed in {report}", file=sys.stderr
    )
    return 1


def list_lines(results: Sequence[Result], out_dir: Path, level: int) -> List[str]:
    """Lines of the frame list for what was extracted; classes are numbered over all videos found."""
    classes = sorted({Path(result.folder).parent.name for result in results})
    lines = []
    for result in results:
        if result.cause is None:
            folder = Path(result.folder).relative_to(out_dir).as_posix()
            label = f" {classes.index(Path(result.folder).parent.name)}" if level == 2 else ""
            lines.append(f"{folder} {result.num_frames}{label}")
    return lines


if __name__ == "__main__":
    run_main(main)

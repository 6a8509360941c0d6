"""Lists of clips: what training reads, written from class folders, and checked."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections import deque
from pathlib import Path
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from paddlevideo_fast.decode import VIDEO_EXTENSIONS, open_frames, open_video
from paddlevideo_fast.decode.frames import DEFAULT_SUFFIX
from paddlevideo_fast.errors import EXIT_FAILURES, VideoDecodeError, cause_of
from paddlevideo_fast.files import read_names
from paddlevideo_fast.loader.annotations import (
    UNLISTABLE,
    VideoRecord,
    list_line,
    read_frame_list,
    read_video_list,
)
from paddlevideo_fast.locks import only_writer
from paddlevideo_fast.names import printable
from paddlevideo_fast.preparation.flags import ToolParser
from paddlevideo_fast.preparation.run import (
    Provenance,
    ToolError,
    crc32_of,
    report_failures,
    run_all,
    write_failures,
    write_lines,
)


class Clip(NamedTuple):
    """A video, or a folder of frames, on the disk."""

    path: Path
    num_frames: Optional[int]

    @property
    def name(self) -> str:
        """Its name without the ending of a video, which folders of frames may have as well."""
        is_video = self.path.suffix.lower() in VIDEO_EXTENSIONS
        return self.path.stem if is_video else self.path.name


def find_clips(
    root: Path,
    kind: str = "video",
    max_depth: Optional[int] = None,
    prefix: str = "img_",
    endings: Sequence[str] = VIDEO_EXTENSIONS,
) -> List[Clip]:
    """Finds the videos, or the folders of frames, below a folder, sorted by path.

    Args:
        root: the folder; hidden files and folders in it are passed over.
        kind: "video", or "frames" for folders of frames.
        max_depth: 1 looks at what lies in `root` itself, 2 also at what lies in its folders, and so on,
            through links too; None looks everywhere, but not through links.
        prefix: how the names of frames begin.
        endings: endings of videos, in lower case.

    Raises:
        ToolError: there is no such folder.
        OSError: a folder cannot be read.
    """
    if not root.is_dir():
        raise ToolError(f"{root}: no such folder")
    clips = []
    deepest = max_depth if kind == "frames" or max_depth is None else max_depth - 1
    for folder, subfolders, files in os.walk(root, onerror=_stop, followlinks=max_depth is not None):
        path = Path(folder)
        depth = len(path.relative_to(root).parts)
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        if depth == deepest:
            subfolders.clear()
        if kind == "video":
            clips += [
                Clip(path / name, None)
                for name in files
                if not name.startswith(".") and Path(name).suffix.lower() in endings
            ]
        elif depth:
            num_frames = sum(name.startswith(prefix) for name in files)
            if num_frames:
                clips.append(Clip(path, num_frames))
                subfolders.clear()
            elif not subfolders:
                print(f"warning: {path}: no frame '{prefix}*', left out", file=sys.stderr)
    return sorted(clips)


def _stop(error: OSError) -> None:
    raise error


def by_name(clips: Iterable[Clip], name: Callable[[Clip], str]) -> Dict[str, Clip]:
    """Name → clip.

    Raises:
        ToolError: two clips have the same name.
    """
    found: Dict[str, Clip] = {}
    for clip in clips:
        other = found.setdefault(name(clip), clip)
        if other is not clip:
            raise ToolError(f"{other.path} and {clip.path} are both '{name(clip)}'; keep one of them")
    return found


def write_list(file: Path, clips: Iterable[Tuple[Clip, int]], root: Optional[Path]) -> List[Tuple[str, str]]:
    """Writes lines `path label` or `folder num_frames label`.

    Args:
        file: the list.
        clips: clips with their labels.
        root: folder that paths are relative to, the config's data_prefix; None: absolute paths.

    Returns:
        Path and cause of each clip that no list can hold; the list is without it.
    """
    lines, left_out = [], []
    for clip, label in clips:
        path = clip.path.relative_to(root) if root else clip.path.absolute()
        line = list_line(path.as_posix(), *([] if clip.num_frames is None else [clip.num_frames]), label)
        if line is None:
            left_out.append((str(clip.path), UNLISTABLE))
        else:
            lines.append(line)
    write_lines(file, lines)
    return left_out


# --- from class folders: `paddlevideo-fast data list`


def build_parser() -> ToolParser:
    """The parser of `paddlevideo-fast data list`."""
    parser = ToolParser("data list", build.__doc__)
    parser.add("--root", "ROOT", help="folder with a folder for each class")
    parser.add("--kind", "--format", default="frames", help="what is listed (default frames)")
    parser.add("--rgb_prefix", default="img_", help="how frame files begin (default img_)")
    parser.add("--output", "--out_list_path", default=Path(), help="folder for the lists")
    parser.add("--classes", type=Path, metavar="FILE", help="class names in the order of their labels")
    parser.add("--valid_share", type=float, default=0.2, help="share for validation (default 0.2)")
    parser.add("--relative", action="store_true", help="paths relative to --root instead of absolute ones")
    parser.add("--shuffle", help="shuffle the lines")
    parser.add("--seed", help="decides the split and the shuffling (default 0)")
    return parser


def build(argv: Optional[Sequence[str]] = None) -> int:
    """Writes the lists for training and validation of a data set of your own.

    Each folder in --root is a class, numbered in alphabetical order, and --valid_share of each class goes to
    validation. Writes train.list, valid.list and classes.txt to --output. Lines are `path label` for videos
    and `folder num_frames label` for frames. What no list can hold is left out, and the exit code is 1.

    Data sets with annotations have scripts of their own, such as `paddlevideo-fast data ucf101`.

    Example:
        paddlevideo-fast data list --root videos --kind video --valid_share 0.2 --shuffle
    """
    args = build_parser().parse(argv, root="folder with a folder for each class")
    if not 0 <= args.valid_share < 1:
        raise ToolError(f"--valid_share: {args.valid_share}; must be from 0 to below 1")
    classes = _clips_by_class(args.root, args.kind, args.rgb_prefix)
    left_out = [(str(args.root / name), UNLISTABLE) for name in classes if list_line(name) is None]
    classes = {name: clips for name, clips in classes.items() if list_line(name) is not None}
    names = _read_classes(args.classes, classes) if args.classes else sorted(classes)
    lists = _split(classes, names, args.valid_share, args.seed)
    keys = ("kind", "rgb_prefix", "valid_share", "relative", "shuffle", "seed")
    made = Provenance(
        "build_file_list",
        {key: getattr(args, key) for key in keys},
        crc32_of(args.classes) if args.classes else {},
        str(args.root),
    )
    with only_writer(args.output), made.kept_in(args.output):
        for file, entries in lists.items():
            if args.shuffle:
                random.Random(args.seed).shuffle(entries)
            unlisted = write_list(args.output / file, entries, args.root if args.relative else None)
            print(f"{args.output / file}: {len(entries) - len(unlisted)} lines")
            left_out += unlisted
        write_lines(args.output / "classes.txt", names)
    return report_failures(left_out, len(left_out) + sum(map(len, lists.values())))


def _clips_by_class(root: Path, kind: str, prefix: str) -> Dict[str, List[Clip]]:
    """Class folder → its videos or folders of frames.

    Raises:
        ToolError: there is none.
    """
    found: Dict[str, List[Clip]] = {}
    for clip in find_clips(root, kind, 2, prefix):
        if clip.path.parent != root:
            found.setdefault(clip.path.parent.name, []).append(clip)
    if not found:
        what = "videos" if kind == "video" else "folders of frames"
        raise ToolError(f"{root}: no {what} in the folders in it; check --kind")
    return found


def class_names(file: Path) -> List[str]:
    """The class names of a file, one a line.

    Raises:
        ToolError: the file cannot be read.
    """
    try:
        return [line.strip() for line in read_names(file) if line.strip()]
    except (OSError, ValueError) as error:
        raise ToolError(f"{file}: cannot be read: {cause_of(error)}") from error


def _read_classes(file: Path, folders: Iterable[str]) -> List[str]:
    """The class names of a file, which has all of the folders."""
    names = class_names(file)
    unknown = sorted(set(folders) - set(names))
    if unknown:
        raise ToolError(f"{file}: lacks the class folders {', '.join(unknown)}")
    return names


def _split(
    classes: Dict[str, List[Clip]], names: Sequence[str], valid_share: float, seed: int
) -> Dict[str, List[Tuple[Clip, int]]]:
    """Divides the clips of each class at random: name of a list → its clips with their labels."""
    rng = random.Random(seed)
    lists: Dict[str, List[Tuple[Clip, int]]] = {"train.list": [], "valid.list": []}
    for label, class_name in enumerate(names):
        clips = classes.get(class_name, [])
        chosen = set(rng.sample(clips, round(len(clips) * valid_share)))
        for clip in clips:
            lists["valid.list" if clip in chosen else "train.list"].append((clip, label))
    return {file: entries for file, entries in lists.items() if entries}


# --- what does not decode: `paddlevideo-fast data check`


class _Entry(NamedTuple):
    """A clip to check, and its line in the list."""

    line: str
    path: str
    num_frames: Optional[int]  # of a folder of frames
    suffix: str
    backend: str


def check_parser() -> ToolParser:
    """The parser of `paddlevideo-fast data check`."""
    parser = ToolParser("data check", check.__doc__)
    parser.add("--list", "SOURCE", help="annotation list to check")
    parser.add("--root", help="folder to check with its sub-folders, in place of a list")
    parser.add("--data_prefix")
    parser.add("--kind", "--format")
    parser.add("--suffix")
    parser.add("--backend")
    parser.add("--workers")
    parser.add("--output", metavar="FILE", help="where to write the list of the intact ones")
    return parser


def check(argv: Optional[Sequence[str]] = None) -> int:
    """Decodes every video of a list or a folder and names those that do not decode, with the cause.

    The exit code is 0 where all are intact and 1 where some are not. --output writes the list without them;
    the lines that stay are unchanged, and `<output>.failures.txt` has the others with the cause.

    Example:
        paddlevideo-fast data check --list data/k400/train.list --data_prefix data/k400 --output clean.list
        paddlevideo-fast data check --root data/k400/videos --workers 8
    """
    args = check_parser().parse(argv)
    source = args.root or args.list
    if source is None or (args.root and args.list):
        raise ToolError("give --list, an annotation list, or --root, a folder")
    if source.is_dir():
        found = [str(clip.path) for clip in find_clips(source)]
        entries = [_Entry(list_line(path) or "", path, None, "", args.backend) for path in found]
    elif source.is_file():
        records = read_records(source, args.kind, args.data_prefix, args.suffix)
        lines = read_names(source)
        entries = [
            _Entry(lines[one.line - 1], one.path, one.num_frames, one.frames_suffix or "", args.backend)
            for one in records
        ]
    else:
        raise ToolError(f"{source}: no such file or folder")
    if not entries:
        raise ToolError(f"{source}: nothing to check in it")
    with only_writer(args.output.parent, args.output.name) if args.output else contextlib.nullcontext():
        causes = list(run_all(_fault, entries, args.workers, "checked", chunk=4))
        if args.output:
            causes = [cause or (None if entry.line else UNLISTABLE) for entry, cause in zip(entries, causes)]
        bad = [(entry.path, cause) for entry, cause in zip(entries, causes) if cause]
        for path, cause in bad:
            print(f"bad: {printable(path)}: {printable(cause)}")
        intact = f"{len(entries) - len(bad)} of {len(entries)} are intact"
        print(intact, file=sys.stderr if bad else sys.stdout)
        if args.output:
            write_lines(args.output, [entry.line for entry, cause in zip(entries, causes) if not cause])
            write_failures(args.output.with_suffix(".failures.txt"), bad)
    return EXIT_FAILURES if bad else 0


def read_records(file: Path, kind: str, data_prefix: Optional[Path], suffix: str) -> List[VideoRecord]:
    """The records of a list, read as training reads it; raises `AnnotationError`."""
    prefix = str(data_prefix) if data_prefix else None
    if kind == "frames":
        return read_frame_list(str(file), prefix, suffix or DEFAULT_SUFFIX)
    return read_video_list(str(file), prefix, suffix)


def _fault(entry: _Entry) -> Optional[str]:
    """Why an entry does not decode; None where it does."""
    try:
        if entry.num_frames is None:
            reader = open_video(entry.path, entry.backend)
        else:
            reader = open_frames(entry.path, entry.suffix, entry.num_frames)
        with reader:
            deque(reader, maxlen=0)
    except VideoDecodeError as error:
        return error.cause_in(entry.path)
    return None

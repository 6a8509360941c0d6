"""Lists of clips: what training reads, written from class folders, and checked."""

import contextlib
import csv
import hashlib
import json
import os
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paddlevideo_fast.decode import VIDEO_EXTENSIONS, Span, VideoReader, open_frames, open_video
from paddlevideo_fast.decode.image_folder import DEFAULT_SUFFIX
from paddlevideo_fast.errors import EXIT_FAILURES, VideoDecodeError
from paddlevideo_fast.io.files import as_path, read_names, walk
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.io.urls import is_url, secret_in, shown_url
from paddlevideo_fast.loader.annotations import (
    UNLISTABLE,
    VideoRecord,
    list_line,
    read_frame_list,
    read_video_list,
)
from paddlevideo_fast.log import printable
from paddlevideo_fast.preparation.executor import located
from paddlevideo_fast.preparation.flags import ToolParser
from paddlevideo_fast.preparation.init_dataset import split
from paddlevideo_fast.preparation.run import (
    Provenance,
    ToolError,
    class_names,
    crc32_of,
    report_failures,
    write_failures,
    write_lines,
)
from paddlevideo_fast.preparation.work import Work


class Clip(NamedTuple):
    """A video, or a folder of frames, on the disk."""

    path: Path
    num_frames: int | None

    @property
    def name(self) -> str:
        """Its name without the ending of a video, which folders of frames may have as well."""
        is_video = self.path.suffix.lower() in VIDEO_EXTENSIONS
        return self.path.stem if is_video else self.path.name


def find_clips(
    root: Path,
    kind: str = "video",
    max_depth: int | None = None,
    prefix: str = "img_",
    endings: Sequence[str] = VIDEO_EXTENSIONS,
) -> list[Clip]:
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
    for folder, subfolders, files in walk(root, onerror=_stop, followlinks=max_depth is not None):
        path = as_path(folder)
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


def by_name(clips: Iterable[Clip], name: Callable[[Clip], str]) -> dict[str, Clip]:
    """Name → clip.

    Raises:
        ToolError: two clips have the same name.
    """
    found: dict[str, Clip] = {}
    for clip in clips:
        other = found.setdefault(name(clip), clip)
        if other is not clip:
            raise ToolError(f"{other.path} and {clip.path} are both '{name(clip)}'; keep one of them")
    return found


def write_list(file: Path, clips: Iterable[tuple[Clip, int]], root: Path | None) -> list[tuple[str, str]]:
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
    parser.add("--classes", help="class names in the order of their labels")
    parser.add("--valid_share", type=float, default=0.2, help="share for validation (default 0.2)")
    parser.add("--relative", action="store_true", help="paths relative to --root instead of absolute ones")
    parser.add("--shuffle", help="shuffle the lines")
    parser.add("--seed", help="decides the split and the shuffling (default 0)")
    return parser


def build(argv: Sequence[str] | None = None) -> int:
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


def _clips_by_class(root: Path, kind: str, prefix: str) -> dict[str, list[Clip]]:
    """Class folder → its videos or folders of frames.

    Raises:
        ToolError: there is none.
    """
    found: dict[str, list[Clip]] = {}
    for clip in find_clips(root, kind, 2, prefix):
        if clip.path.parent != root:
            found.setdefault(clip.path.parent.name, []).append(clip)
    if not found:
        what = "videos" if kind == "video" else "folders of frames"
        raise ToolError(f"{root}: no {what} in the folders in it; check --kind")
    return found


def _read_classes(file: Path, folders: Iterable[str]) -> list[str]:
    """The class names of a file, which has all of the folders."""
    names = class_names(file)
    unknown = sorted(set(folders) - set(names))
    if unknown:
        raise ToolError(f"{file}: lacks the class folders {', '.join(unknown)}")
    return names


def _split(
    classes: dict[str, list[Clip]], names: Sequence[str], valid_share: float, seed: int
) -> dict[str, list[tuple[Clip, int]]]:
    """Divides the clips of each class, see `split`: name of a list → its clips with their labels."""
    entries = [(clip, label) for label, name in enumerate(names) for clip in classes.get(name, [])]
    places = [(f"{names[label]}/{clip.path.name}", names[label]) for clip, label in entries]
    lists: dict[str, list[tuple[Clip, int]]] = {"train.list": [], "valid.list": []}
    for side, entry in zip(split(places, valid_share, seed), entries):
        lists[f"{side}.list"].append(entry)
    return {file: found for file, found in lists.items() if found}


# --- what does not decode: `paddlevideo-fast data check`


class _File(NamedTuple):
    """A file to check, and the spans that a list has of it."""

    path: str
    num_frames: int | None  # of a folder of frames
    suffix: str
    backend: str
    spans: Sequence[Span | None] = (None,)


class _Checked(NamedTuple):
    """For each span of a file, why it cannot be read, or None; and the state that the file had."""

    causes: list[str | None]
    state: list[int]

    @property
    def cause(self) -> str | None:
        """The first of the causes."""
        return next(filter(None, self.causes), None)


class _Entry(NamedTuple):
    """An entry of a list: the text in it, and where; for a file of a folder, "" where no list can hold it."""

    text: str
    where: str
    file: int  # among those to check
    place: int  # of its span among those of the file


def check_parser() -> ToolParser:
    """The parser of `paddlevideo-fast data check`."""
    parser = ToolParser("data check", check.__doc__)
    parser.add("--list", "SOURCE", help="annotation list to check")
    parser.add("--root", help="folder to check with its sub-folders, in place of a list")
    parser.add("--data_prefix")
    parser.add("--kind", "--format")
    parser.add("--suffix")
    parser.add("--backend")
    parser.add_work()
    parser.add("--classes")
    parser.add(
        "--against", type=as_path, metavar="FILE", help="a list that must share no file and no group with it"
    )
    parser.add("--output", metavar="FILE", help="where to write the list of the intact ones")
    return parser


def check(argv: Sequence[str] | None = None) -> int:
    """Decodes every video of a list or a folder and names those that do not decode, with the cause.

    Of a list with spans (.jsonl, .csv), a span that is not inside its video is named with its line. --against
    names a second list, such as of validation: a file or a group that is in both is named.

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
    shared: list[tuple[str, str]] = []
    header: list[str] = []
    if source.is_dir():
        clips = find_clips(source)
        files = [_File(located(clip.path), None, "", args.backend) for clip in clips]
        paths = [str(clip.path) for clip in clips]
        entries = [_Entry(list_line(path) or "", path, number, 0) for number, path in enumerate(paths)]
    elif source.is_file():
        records = read_records(source, args.kind, args.data_prefix, args.suffix, args.classes)
        files, entries = _files_and_entries(source, records, args.backend)
        header = entry_texts(source)[0]
        if args.against:
            others = read_records(args.against, args.kind, args.data_prefix, args.suffix, args.classes)
            shared = _in_both(source, records, args.against, others)
    else:
        raise ToolError(f"{source}: no such file or folder")
    if not entries:
        raise ToolError(f"{source}: nothing to check in it")
    job = Work.of(args)
    place = [args.output.parent, f"check {args.output.name}", args.output.name] if args.output else []
    if not place and (args.shard or args.merge):
        raise ToolError("--output is missing: with --shard and --merge, the file for the list of intact ones")
    with job.writing(*place) if place else contextlib.nullcontext():
        mine = job.mine(files)
        found = job.results(_check, mine, "files", [file.path for file in mine], _key, _restored)
        if found is None:
            return 0
        causes = [found[entry.file].causes[entry.place] for entry in entries]
        if args.output:
            causes = [cause or (None if entry.text else UNLISTABLE) for entry, cause in zip(entries, causes)]
        bad = [(entry.where, cause) for entry, cause in zip(entries, causes) if cause]
        for where, cause in [*bad, *shared]:
            print(f"bad: {printable(where)}: {printable(cause)}")
        intact = f"{len(entries) - len(bad)} of {len(entries)} are intact"
        print(intact, file=sys.stderr if bad else sys.stdout)
        if args.output:
            lines = [entry.text for entry, cause in zip(entries, causes) if not cause]
            write_lines(args.output, [*header, *lines])
            if any(map(secret_in, filter(is_url, lines))):
                text = "has the URLs as they were, with what may be a signature or key; keep it to yourself"
                print(f"warning: {args.output}: {text}", file=sys.stderr)
            write_failures(args.output.with_suffix(".failures.txt"), bad)
    return EXIT_FAILURES if bad or shared else 0


def entry_texts(file: Path) -> tuple[list[str], dict[int, str]]:
    """The header of a list, if it has one, and number of a line → text of the entry that begins there."""
    lines = read_names(file)
    if not str(file).lower().endswith(".csv"):
        return [], dict(enumerate(lines, 1))
    rows, texts = csv.reader(f"{line}\n" for line in lines), {}
    while True:
        first = rows.line_num
        if next(rows, None) is None:
            break
        texts[first + 1] = "\n".join(lines[first : rows.line_num])
    written = [number for number, text in texts.items() if text.strip(" ,\r\t")]
    return [texts[written[0]]], texts


def _files_and_entries(
    source: Path, records: Sequence[VideoRecord], backend: str
) -> tuple[list[_File], list[_Entry]]:
    """Each file of a list once, with its spans, and the entries of the list."""
    texts = entry_texts(source)[1]
    numbers: dict[tuple[str, int | None], int] = {}
    found: list[tuple[VideoRecord, list[Span | None]]] = []
    entries = []
    for record in records:
        number = numbers.setdefault((record.path, record.num_frames), len(found))
        if number == len(found):
            found.append((record, []))
        spans = found[number][1]
        where = f"{source}:{record.line}: {shown_url(record.path)}" if record.span else record.path
        entries.append(_Entry(texts[record.line], where, number, len(spans)))
        spans.append(record.span)
    files = [
        _File(located(record.path), record.num_frames, record.frames_suffix or "", backend, tuple(spans))
        for record, spans in found
    ]
    return files, entries


def _in_both(
    source: Path, records: Sequence[VideoRecord], against: Path, others: Sequence[VideoRecord]
) -> list[tuple[str, str]]:
    """Where and cause for each file, and each group, that is in both lists; told once."""
    found = []
    for what, key in (("file", "path"), ("group", "group")):
        lines = {getattr(other, key): other.line for other in reversed(others) if getattr(other, key)}
        firsts = {getattr(record, key): record.line for record in reversed(records)}
        for name in sorted(set(lines) & set(firsts)):
            cause = f"its {what} {name} is in {against}:{lines[name]}, too"
            found.append((f"{source}:{firsts[name]}", cause))
    return found


def read_records(
    file: Path, kind: str, data_prefix: Path | None, suffix: str, classes: Path | None = None
) -> list[VideoRecord]:
    """The records of a list, read as training reads it; raises `AnnotationError`."""
    prefix, names = (str(path) if path else None for path in (data_prefix, classes))
    if kind == "frames":
        return read_frame_list(str(file), prefix, suffix or DEFAULT_SUFFIX, names)
    return read_video_list(str(file), prefix, suffix, names)


def _key(file: _File) -> str:
    """Tells a file from others without what its URL may hold."""
    return hashlib.blake2b(json.dumps(file).encode(), digest_size=16).hexdigest()


def _state(path: str) -> list[int]:
    """Size and time of a file or folder; it has changed where they differ."""
    try:
        status = os.stat(path)
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]


def _restored(file: _File, value: Any) -> _Checked | None:
    """What a journal has kept of a result; None where the file has changed."""
    result = _Checked(*value)
    return result if result.state == _state(file.path) else None


def _check(file: _File) -> _Checked:
    state = _state(file.path)
    return _Checked(_faults(file), state)


def _faults(file: _File) -> list[str | None]:
    """For each span of a file, why it cannot be read; None where it can."""
    try:
        if file.num_frames is None:
            reader = open_video(file.path, file.backend)
        else:
            reader = open_frames(file.path, file.suffix, file.num_frames)
        with reader:
            reader.verify()
            return [None if span is None else _fault_of(reader, span) for span in file.spans]
    except VideoDecodeError as error:
        return [error.cause_in(file.path)] * len(file.spans)


def _fault_of(reader: VideoReader, span: Span) -> str | None:
    try:
        reader.frames_of(span)
    except VideoDecodeError as error:
        return error.cause
    return None

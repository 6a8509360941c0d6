"""Lists of clips: what training reads, written from class folders, and checked."""

import argparse
import csv
import random
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from paddlevideo_fast.apps.data.clips import Clip, ReadClip, find_clips
from paddlevideo_fast.apps.data.duplicates import Listed, fault_text, report_duplicates
from paddlevideo_fast.apps.data.sets import of_sets
from paddlevideo_fast.apps.init.init_dataset import split
from paddlevideo_fast.cli.command import print_result, say
from paddlevideo_fast.command_line import CommandParser
from paddlevideo_fast.decode import Span, VideoReader
from paddlevideo_fast.decode.image_folder import DEFAULT_SUFFIX
from paddlevideo_fast.errors import EXIT_FAILURES, VideoDecodeError
from paddlevideo_fast.io.files import as_path, hint_at_working_folder, read_names
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.io.urls import masked, shown_url
from paddlevideo_fast.jobs.executor import located
from paddlevideo_fast.jobs.flags import add_work, share, tool_parser
from paddlevideo_fast.jobs.list_lines import UNLISTABLE, list_line
from paddlevideo_fast.jobs.run import (
    Provenance,
    ToolError,
    class_names,
    crc32_of,
    lines_of,
    list_text,
    report_failures,
    write_entries,
    write_failures,
    write_lines,
)
from paddlevideo_fast.jobs.work import Work
from paddlevideo_fast.loader.annotations import VideoRecord, read_frame_list, read_video_list
from paddlevideo_fast.loader.class_names import one_form
from paddlevideo_fast.loader.tables import Row, is_table, list_rows


def write_list(file: Path, clips: Iterable[tuple[Clip, int]], root: Path | None) -> list[tuple[str, str]]:
    """Writes lines `path label` or `folder num_frames label`.

    Args:
        file: the list.
        clips: clips with their labels.
        root: folder that paths are relative to, the config's data_prefix; None: absolute paths.

    Returns:
        Path and cause of each clip that no list can hold; the list is without it.
    """
    rows = []
    for clip, label in clips:
        path = clip.path.relative_to(root) if root else clip.path.absolute()
        rows.append((clip.path, Row(0, path.as_posix(), (label,), clip.num_frames)))
    lines, left_out = lines_of(rows)
    write_lines(file, lines)
    return left_out


# --- from class folders: `paddlevideo-fast data list`


def build_parser() -> CommandParser:
    """The parser of `paddlevideo-fast data list`."""
    parser = tool_parser("data list", build.__doc__)
    parser.add_argument("--root", required=True, help="folder with a folder for each class")
    text = "what to list: videos, or folders of frames (default: videos, if there are any)"
    parser.add_argument("--kind", "--format", default=None, help=text)
    parser.add_argument("--rgb_prefix", default="img_", help="how frame files begin (default img_)")
    share(parser, "--class_names")
    parser.add_argument("--output", "--out_list_path", default=Path(), help="folder for the lists")
    parser.add_argument("--valid_share", type=float, default=0.2, help="share for validation (default 0.2)")
    parser.add_argument(
        "--relative", action="store_true", help="paths relative to ROOT instead of absolute ones"
    )
    parser.add_argument("--shuffle", help="shuffle the lines")
    parser.add_argument("--seed", help="decides the split and the shuffling (default 0)")
    share(parser, "--json")
    return parser


def build(argv: Sequence[str] | None = None) -> int:
    """Writes the lists for training and validation of a data set of your own.

    Each folder in ROOT is a class, numbered in alphabetical order, and --valid_share of each class goes to
    validation. Writes train.list, valid.list and classes.txt to --output. Lines are `path label` for videos
    and `folder num_frames label` for frames. Files that a list cannot hold are left
    out, and the exit code is 1.

    Data sets with annotations have scripts of their own, such as `paddlevideo-fast data ucf101`.

    Example:
        paddlevideo-fast data list videos --output lists --shuffle
        paddlevideo-fast data list frames --kind frames --valid_share 0.1
    """
    args = build_parser().parse_args(argv)
    if not 0 <= args.valid_share < 1:
        raise ToolError(f"--valid_share: {args.valid_share}; must be from 0 to below 1")
    is_free, args.kind = args.kind is None, args.kind or "video"
    classes = _clips_by_class(args.root, args.kind, args.rgb_prefix)
    if is_free and not classes:
        args.kind = "frames"
        classes = _clips_by_class(args.root, args.kind, args.rgb_prefix)
    if not classes:
        what = "videos" if args.kind == "video" else "folders of frames"
        what = "videos and no folders of frames" if is_free else what
        raise ToolError(f"{args.root}: no {what} in the folders in it")
    left_out = [(str(args.root / name), UNLISTABLE) for name in classes if list_line(name) is None]
    classes = {name: clips for name, clips in classes.items() if list_line(name) is not None}
    names = class_names(args.class_names, classes) if args.class_names else sorted(classes)
    entries = [(clip, label) for label, name in enumerate(names) for clip in classes.get(name, [])]
    places = [(f"{names[label]}/{clip.path.name}", names[label]) for clip, label in entries]
    sides = split(places, args.valid_share, args.seed)
    keys = ("kind", "rgb_prefix", "valid_share", "relative", "shuffle", "seed")
    options = {key: getattr(args, key) for key in keys}
    read = crc32_of(args.class_names) if args.class_names else {}
    made = Provenance("build_file_list", options, read, str(args.root))
    with only_writer(args.output), made.kept_in(args.output):
        for side in sorted(set(sides)):
            file, listed = args.output / f"{side}.list", [e for e, own in zip(entries, sides) if own == side]
            if args.shuffle:
                random.Random(args.seed).shuffle(listed)
            unlisted = write_list(file, listed, args.root if args.relative else None)
            print_result({"file": file, "num_lines": len(listed) - len(unlisted)}, args.json, list_text)
            left_out += unlisted
        write_lines(args.output / "classes.txt", names)
    return report_failures(left_out, len(left_out) + len(entries))


def _clips_by_class(root: Path, kind: str, prefix: str) -> dict[str, list[Clip]]:
    """Class folder → its videos or folders of frames."""
    clips_of_classes: dict[str, list[Clip]] = {}
    for clip in find_clips(root, kind, 2, prefix):
        if clip.path.parent != root:
            clips_of_classes.setdefault(one_form(clip.path.parent.name), []).append(clip)
    return clips_of_classes


# --- what does not decode: `paddlevideo-fast data check`


class _Checked(NamedTuple):
    """For each span of a file, why it cannot be read, or None; the state that the file had; its notes."""

    causes: list[str | None]
    state: list[int]
    notes: Sequence[str] = ()

    @property
    def cause(self) -> str | None:
        """The first of the causes."""
        return next(filter(None, self.causes), None)


@dataclass(frozen=True)
class _File(ReadClip[_Checked]):
    """A file to check, and the spans that a list has of it."""

    outcome = _Checked

    spans: Sequence[Span | None] = ()

    def read(self, reader: VideoReader, state: list[int]) -> _Checked:
        reader.verify()
        return _Checked([_fault_of(reader, span) for span in self.spans], state, [*reader.notes])

    def failed(self, cause: str, state: list[int]) -> _Checked:
        return _Checked([cause] * len(self.spans), state)


def _fault_of(reader: VideoReader, span: Span | None) -> str | None:
    try:
        if span is not None:
            reader.frames_of(span)
    except VideoDecodeError as error:
        return error.cause
    return None


def check_parser() -> CommandParser:
    """The parser of `paddlevideo-fast data check`."""
    parser = tool_parser("data check", check.__doc__)
    text = "annotation list to check, folder of a set with a config.yaml, or folder of videos"
    parser.add_argument("--list", required=True, was="--root", help=text)
    share(parser, "--kind", "--data_prefix", "--suffix", "--class_names", "--decoder")
    other = "other lists: files and groups, or copies with --duplicates, that are in them, too, are named"
    parser.add_argument("--against", type=as_path, nargs="+", default=[], metavar="FILE", help=other)
    text = "file for the list of the intact videos; with --duplicates .jsonl file for the pairs of copies"
    parser.add_argument("--output_file", type=as_path, metavar="FILE", was="--output", help=text)
    text = "find copies of one video by what they show, in place of decoding everything"
    parser.add_argument("--duplicates", action="store_true", help=text)
    text = "with --duplicates, file for the list without the copies"
    parser.add_argument("--write_clean", type=as_path, metavar="FILE", help=text)
    add_work(parser)
    return parser


def check(argv: Sequence[str] | None = None) -> int:
    """Decodes every video of a list or a folder, and names each file that does not decode, with the cause.

    A folder with a config.yaml, such as `init` makes, stands for its lists: each is checked, and compared
    with those after it. Beside a list, config.yaml says where its paths start.

    Of a list with spans (.jsonl, .csv), a span that is not inside its video is named with its line. --against
    takes other lists, such as the validation list: a file or a group that is in both is named.

    What is unusual about an intact file, such as a pause of the recording, is a note. The exit code is 0 if
    all files are intact and 1 if some are not. --output_file writes the lines of the intact files, unchanged;
    `<output_file>.failures.txt` has the others with the cause.

    With --duplicates, videos are compared by what they show, also where they were re-encoded, scaled, cut,
    mirrored, or have a logo. Copies of a video in the lists of --against are named first, then copies with
    different labels, then the groups of copies in the list. --write_clean writes the lines of one video of
    each group, the largest, and none that has a copy in the lists of --against. The exit code is 1 if there
    are copies. Fingerprints are kept in `<output_file>.fingerprints.jsonl`, so the next run reads new files,
    and again what looks alike, to compare what moves in it.

    Example:
        paddlevideo-fast data check my_set
        paddlevideo-fast data check train.list --data_prefix videos --output_file clean.list
        paddlevideo-fast data check data/k400/videos --workers 8
        paddlevideo-fast data check a.list --duplicates --against b.list --write_clean clean.list
    """
    given = check_parser().parse_args(argv)
    if given.write_clean and not given.duplicates:
        raise ToolError(
            "--write_clean needs --duplicates; --output_file writes the list of the intact videos"
        )
    runs = of_sets(given, "output_file", "write_clean")
    against = [one for file in given.against for one in of_sets(Namespace(**{**vars(given), "list": file}))]
    return max(_check(args, [*runs[number:], *against]) for number, args in enumerate(runs, 1))


def _check(args: argparse.Namespace, against: Sequence[argparse.Namespace]) -> int:
    source = args.list
    listed, others = _listed(source, args), [_listed(other.list, other) for other in against]
    if source.is_file():
        _require_same_start(args)
    if args.duplicates:
        return report_duplicates(args, listed, others)
    _, records, header, texts = listed
    shared = [each for other in others for each in _in_both(listed, other)]
    spans: dict[tuple[str, int | None], list[Span | None]] = {}  # of each file
    for record in records:
        spans.setdefault((record.path, record.num_frames), []).append(record.span)
    suffix = records[0].frames_suffix or ""
    files = [
        _File(located(path), num_frames, suffix, args.decoder, of_file)
        for (path, num_frames), of_file in spans.items()
    ]
    job = Work.of(args)
    with job.writing_file(args.output_file, "check", "the list of intact ones"):
        results = job.results(job.mine(files), "files")
        if results is None:
            return 0
        causes = {
            (file, span): cause
            for (file, of_file), result in zip(spans.items(), results)
            for span, cause in zip(of_file, result.causes)
        }
        bad, lines = [], []
        for record in records:
            cause = causes[(record.path, record.num_frames), record.span]
            if args.output_file and not texts[record.line]:
                cause = cause or UNLISTABLE
            if cause:
                where = f"{source}:{record.line}: {shown_url(record.path)}" if record.span else record.path
                bad.append((where, cause))
            else:
                lines.append(texts[record.line])
        notes = [(file.path, note) for file, result in zip(files, results) for note in result.notes]
        for kind, faults in {"note": notes, "bad": [*bad, *shared]}.items():
            for where, cause in faults:
                print_result({"kind": kind, "file": masked(where), "cause": cause}, args.json, fault_text)
        counts = {"kind": "summary", "num_files": len(records), "num_intact": len(lines)}
        print_result(counts, args.json, "intact files: {num_intact} of {num_files}".format_map)
        hint = hint_at_working_folder(records[0].path)
        if hint and not lines and all("no such file" in cause for _, cause in bad):
            say(f"no file is there{hint}; for another folder, give --data_prefix FOLDER")
        if args.output_file:
            write_entries(args.output_file, header, lines)
            write_failures(args.output_file.with_suffix(".failures.txt"), bad)
    return EXIT_FAILURES if bad or shared else 0


def _require_same_start(args: argparse.Namespace) -> None:
    """Checks that paths of the new list start where those of the list do."""
    flag = "write_clean" if args.write_clean else "output_file"
    target = getattr(args, flag)
    if not target or args.data_prefix or target.absolute().parent == args.list.absolute().parent:
        return
    if is_table(args.list) and next(list_rows(str(args.list), labelled=False)).folder:
        text = (
            f"the paths of {args.list} start from its folder; put the new list there, or give --data_prefix"
        )
        raise ToolError(f"--{flag} {target}: {text}")


def _listed(source: Path, args: argparse.Namespace) -> Listed:
    """A list, or what lies in a folder.

    Raises:
        AnnotationError: the list is malformed.
        ToolError: it is missing, or nothing is in it.
    """
    header: list[str] = []
    if source.is_dir():
        paths = [str(clip.path) for clip in find_clips(source)]
        records = [VideoRecord(path, (), line=number) for number, path in enumerate(paths)]
        texts = {record.line: list_line(record.path) or "" for record in records}
    elif source.is_file():
        records = read_records(source, args.kind, args.data_prefix, args.suffix, args.class_names)
        header, texts = entry_texts(source)
    else:
        raise ToolError(f"{source}: no such file or folder")
    if not records:
        raise ToolError(f"{source}: nothing to check in it")
    return Listed(source, records, header, texts)


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
    written = [number for number, text in texts.items() if text.strip(" ,;\r\t")]
    return [texts[written[0]]], texts


def _in_both(listed: Listed, other: Listed) -> list[tuple[str, str]]:
    """Where and cause for each file, and each group, that is in both lists; told once."""
    faults = []
    for what, key in (("file", "path"), ("group", "group")):
        lines = {getattr(one, key): one.line for one in reversed(other.records) if getattr(one, key)}
        firsts = {getattr(record, key): record.line for record in reversed(listed.records)}
        for name in sorted(set(lines) & set(firsts)):
            cause = f"its {what} {name} is in {other.file}:{lines[name]}, too"
            faults.append((f"{listed.file}:{firsts[name]}", cause))
    return faults


def read_records(
    file: Path, kind: str, data_prefix: Path | None, suffix: str, classes: Path | None = None
) -> list[VideoRecord]:
    """The records of a list, read as training reads it.

    Raises:
        AnnotationError: the list is malformed.
        ToolError: it is missing, or has a label without a name.
    """
    if not file.exists():
        raise ToolError(f"{file}: there is no such list{hint_at_working_folder(file)}")
    prefix, name_file = (str(path) if path else None for path in (data_prefix, classes))
    if kind == "frames":
        records = read_frame_list(str(file), prefix, suffix or DEFAULT_SUFFIX, name_file)
    else:
        records = read_video_list(str(file), prefix, suffix, name_file)
    names = class_names(classes) if classes else []
    for record in records if names else ():
        if max(record.labels, default=0) >= len(names):
            text = f"label {max(record.labels)} has no name in {classes}, which has {len(names)}"
            raise ToolError(f"{file}:{record.line}: {text}: add the missing names, or correct the list")
    return records

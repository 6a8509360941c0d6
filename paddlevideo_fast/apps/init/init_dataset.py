"""A data set of one's own, from a folder or a list of videos: classes, a split, and what is wrong with it.

Each class is split by itself. When clips come or go, the others keep the side that earlier lists say, and
classes keep their numbers. Clips of one group, such as pieces of one recording, are on one side.
"""

import hashlib
import os
import re
import unicodedata
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from paddlevideo_fast.apps.data.clips import find_clips
from paddlevideo_fast.config.builtin import CONFIG_FILE
from paddlevideo_fast.decode import VIDEO_EXTENSIONS, Span, VideoReader, open_video
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.jobs import run
from paddlevideo_fast.jobs.executor import Executor, run_all
from paddlevideo_fast.jobs.run import ToolError, class_names
from paddlevideo_fast.loader.class_names import one_form
from paddlevideo_fast.loader.tables import Row, is_table, list_rows
from paddlevideo_fast.log import counted, printable

SPLITS = {"train": "train", "training": "train", "val": "valid", "valid": "valid", "validation": "valid"}
SPLITS["test"] = "valid"
SIDES = ("train", "valid")
ENDINGS = _PLAIN, _NAMED = ".list", ".jsonl"  # of the lists that are written
_FEW_CLIPS = 5
_MOST_CLASSES = 10**6
_FEW_VALID = 3
_NUM_NAMED = 5
_DEEPEST = 40  # folders in folders, so that a circle of links ends
_SQUARES = 32  # of a picture, in each direction
_STILL = 8  # levels of 255 by which the colour of a square may change


class Found(NamedTuple):
    """A video, or a part of one, and its classes.

    Attributes:
        path: of the file.
        labels: names of its classes.
        split: "train" or "valid" where its place says so, else None.
        where: the place in a list that names it, for messages; else empty.
        row: its entry in a list with named fields.
    """

    path: Path
    labels: tuple[str, ...]
    split: str | None = None
    where: str = ""
    row: Row | None = None

    @property
    def span(self) -> Span | None:
        """The part of the file that it is; None: all."""
        return self.row.span if self.row else None

    @property
    def group(self) -> str:
        """What the list says about clips that belong together; "" where it says nothing."""
        return self.row.group if self.row else ""


@dataclass
class Source:
    """Where the videos of a data set come from.

    Attributes:
        root: the folder that their paths are relative to.
        clips: the videos.
        classes: names of the classes, in the order of their labels.
        remarks: what was left out or decided, for the user.
        has_numbers: the labels of its list are numbers of classes, not names.
        has_several: a video of it may have any number of classes.
    """

    root: Path
    clips: list[Found]
    classes: list[str]
    remarks: list[str] = field(default_factory=list)
    has_numbers: bool = False
    has_several: bool = False


class Probe(NamedTuple):
    """What a file tells when it is opened.

    Attributes:
        num_frames: of the video; 0 where it does not decode.
        seconds: how long it lasts; 0.0 where nothing says.
        size: width and height in pixels.
        fault: why it does not decode; None where it does.
        still: share of the picture that is the same in the first, the middle and the last frame.
    """

    num_frames: int
    seconds: float
    size: tuple[int, int]
    fault: str | None = None
    still: float = 0.0


# --- finding the videos


def find(source: Path, class_file: Path | None = None, data_prefix: Path | None = None) -> Source:
    """The videos of a folder of classes, or of an annotation list of any format.

    Args:
        source: the folder or file.
        class_file: names of the classes, one a line, in the order of their labels; None: in alphabetical
            order, or the numbers of a list.
        data_prefix: folder that paths of a file start from; None: the folder of the file.

    Raises:
        ToolError: there is nothing to be found, or a line is wrong.
    """
    if source.is_dir():
        contents = _in_folders(source)
    elif not source.is_file():
        raise ToolError(f"{source}: no such folder or file")
    else:
        contents = _in_list(source, data_prefix or source.parent)
    if not contents.clips and (source / CONFIG_FILE).is_file():
        raise ToolError(f"{source}: is a set that init has written; name the folder or list of its videos")
    if not contents.clips:
        raise ToolError(
            f"{source}: holds no videos in folders of classes; looked for {', '.join(VIDEO_EXTENSIONS)}"
        )
    if not contents.classes:
        raise ToolError(f"{source}: none of its entries has a label")
    _unite(contents)
    if class_file is not None:
        _name(contents, class_file)
    unwritable = [name for name in contents.classes if not name.strip() or len(name.splitlines()) != 1]
    if unwritable:
        raise ToolError(f"{source}: the class name {unwritable[0]!r} does not fit on a line; rename it")
    return contents


def _unite(contents: Source) -> None:
    """Makes one class of names that read alike: of blanks around them, and of forms of their characters."""
    written: dict[str, set[str]] = {}
    for name in contents.classes:
        written.setdefault(one_form(name).strip(), set()).add(name)
    if len(written) < len(contents.classes):
        same = [repr(name) for name, forms in written.items() if len(forms) > 1]
        contents.remarks.append(f"names that differ only in invisible ways are one class: {some(same)}")
    united = {form: name for name, forms in written.items() for form in forms}
    contents.clips = _relabelled(contents.clips, united)
    contents.classes = [*dict.fromkeys(united[name] for name in contents.classes)]


def _relabelled(clips: Iterable[Found], names: Mapping[str, str]) -> list[Found]:
    return [
        clip._replace(labels=tuple(dict.fromkeys(names[label] for label in clip.labels))) for clip in clips
    ]


def _name(contents: Source, file: Path) -> None:
    """Gives a set the classes of a file: the numbers of a list get the names of their lines."""
    names = class_names(file, () if contents.has_numbers else contents.classes)
    if contents.has_numbers and len(contents.classes) > len(names):
        largest = len(contents.classes) - 1
        raise ToolError(f"{file}: has {counted(len(names), 'name')}, but the list has the label {largest}")
    if contents.has_numbers:
        contents.clips = _relabelled(contents.clips, dict(zip(contents.classes, names)))
    contents.classes = names


def _in_folders(root: Path) -> Source:
    """`root/CLASS/.../video`, or `root/train/CLASS/.../video` beside `root/val/CLASS/.../video`."""
    tops = _folders_in(root)
    is_split = bool(tops) and all(name.lower() in SPLITS for name in tops)
    others: Counter = Counter()
    clips: list[Found] = []
    num_nested = num_outside = 0
    videos = [clip.path for clip in find_clips(root, max_depth=_DEEPEST, others=others)]
    for video in sorted(videos, key=lambda path: (path.parent, path.name)):
        folders = list(video.relative_to(root).parts[:-1])
        split = SPLITS[folders.pop(0).lower()] if is_split and folders else None
        if folders:
            num_nested += len(folders) > 1
            clips.append(Found(video, (folders[0],), split))
        else:
            num_outside += 1
    classes = sorted({label for clip in clips for label in clip.labels})
    there = {name for top in (tops if is_split else [""]) for name in _folders_in(root / top)}
    kinds = ", ".join(f"{count} {kind}" for kind, count in others.most_common(_NUM_NAMED))
    empty = sorted(there.difference(classes))
    nested = "videos deeper in a class folder, which belong to the class of the outer folder"
    remarks = [
        (is_split, f"the folders {', '.join(tops)} are the split"),
        (empty, f"folders without videos, which are no classes: {some(empty)}"),
        (num_nested, f"{nested}: {num_nested}"),
        (num_outside, f"videos outside of class folders, left out: {num_outside}"),
        (others, f"files that are no videos, left out: {kinds}"),
    ]
    return Source(root, clips, classes, [text for holds, text in remarks if holds])


def _folders_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _in_list(file: Path, root: Path) -> Source:
    clips, rows = [], [*list_rows(str(file))]
    for row in rows:
        named = row if is_table(file) else None
        where = f"{file}:{row.line}: " if row.span else ""
        clips.append(Found(root / row.path, tuple(map(str, row.labels)), where=where, row=named))
    labels = {label for row in rows for label in row.labels}
    several = any(len(clip.labels) != 1 for clip in clips)
    if not all(isinstance(label, int) for label in labels):
        return Source(root, clips, sorted({*map(str, labels)}), has_several=several)
    largest = max(map(int, labels), default=-1)
    if largest >= _MOST_CLASSES:
        raise ToolError(f"{file}: the label {largest} is no number of a class; number classes from 0 on")
    names = [str(label) for label in range(largest + 1)]
    return Source(root, clips, names, has_numbers=True, has_several=several)


# --- the split


def group_of(path: str, pattern: str | None) -> str:
    """The name of a clip's group: what a pattern matches in its path, or its groups; else the path."""
    match = re.search(pattern, path) if pattern else None
    if match is None:
        return path
    return "/".join(part or "" for part in match.groups()) if match.groups() else match[0]


def rarest_labels(clips: Sequence[Found]) -> list[str]:
    """Of each clip the label that the fewest clips have, by which it is split; "" of a clip without one."""
    counts = Counter(label for clip in clips for label in clip.labels)
    return [min(clip.labels, key=lambda label: (counts[label], label), default="") for clip in clips]


def split(
    clips: Sequence[tuple[str, str]],
    valid_share: float,
    seed: int,
    groups: Sequence[str] | None = None,
    known: Mapping[str, str] | None = None,
) -> list[str]:
    """Says "train" or "valid" for each clip.

    Of each class, whole groups go to validation, in the order of a hash of the seed and their names, as long
    as that brings the class nearer to `valid_share` of its clips. Where no group does, the one that comes
    nearest goes. At least one group of a class is for training.

    Args:
        clips: path, relative to the data set, and class of each clip.
        valid_share: share of the clips of each class that goes to validation.
        seed: of the split.
        groups: the group of each clip; None: each clip is a group of its own.
        known: path or group → side of clips that were split before; they and their groups keep it. A group
            that is on both sides is split anew.
    """
    groups = groups or [path for path, _ in clips]
    known = known or {}
    before: dict[str, set[str]] = {}
    for (path, _), group in zip(clips, groups):
        side = known.get(group) or known.get(path)
        if side:
            before.setdefault(group, set()).add(side)
    sides = {group: side for group, (side, *others) in before.items() if not others}
    by_class: dict[str, Counter] = {}
    for (_, label), group in zip(clips, groups):
        by_class.setdefault(label, Counter())[group] += 1
    for sizes in by_class.values():
        _hold_out(sizes, valid_share * sum(sizes.values()), sides, seed)
    return [sides.get(group, "train") for group in groups]


def _hold_out(sizes: Mapping[str, int], wanted: float, sides: dict[str, str], seed: int) -> None:
    """Adds groups of a class to `sides` as those for validation; see `split`."""

    def keeps_one(group: str) -> bool:
        return any(sides.get(other, "train") == "train" for other in sizes.keys() - {group})

    done = sum(size for group, size in sizes.items() if sides.get(group) == "valid")
    free = sorted(sizes.keys() - sides.keys(), key=lambda group: _place(group, seed))
    for group in free:
        if keeps_one(group) and abs(done + sizes[group] - wanted) < abs(done - wanted):
            sides[group] = "valid"
            done += sizes[group]
    possible = [group for group in free if keeps_one(group)]
    if wanted and not done and possible:
        sides[min(possible, key=lambda group: abs(sizes[group] - wanted))] = "valid"


class Entry(NamedTuple):
    """An entry of the lists of an earlier run: the path as the lists have it now, its side and its group."""

    path: str
    side: str
    group: str


def earlier_entries(folder: Path, start: Path, source: Source) -> list[Entry]:
    """The entries of the lists of an earlier run; none where there are no lists.

    Args:
        folder: of the lists.
        start: folder that their paths start from.
        source: the set now, from whose folder the paths of the entries start.
    """
    root, start, entries = Path(os.path.abspath(source.root)), Path(os.path.abspath(start)), []
    for side, file in ((side, folder / f"{side}{ending}") for ending in ENDINGS for side in SIDES):
        for row in list_rows(str(file)) if file.is_file() else ():
            path = Path(os.path.abspath(start / row.path))
            is_below = start != root and path.is_relative_to(root)
            named = (
                path.relative_to(root).as_posix() if is_below else row.path if start == root else str(path)
            )
            entries.append(Entry(named, side, row.group))
    return entries


def with_groups(source: Source, clips: Sequence[Found], entries: Iterable[Entry]) -> list[Found]:
    """Clips of a list without groups, with the groups that earlier lists say; a remark says so."""
    groups = {entry.path: entry.group for entry in entries if entry.group}
    if not groups or any(clip.group for clip in clips):
        return [*clips]
    source.remarks.append(f"groups as before, of {counted(len(groups), 'video')}")
    rows = [(clip.row or Row(0, "", ()), groups.get(relative(source, clip.path), "")) for clip in clips]
    return [clip._replace(row=row._replace(group=group)) for clip, (row, group) in zip(clips, rows)]


def require_same_numbers(source: Source, earlier: Sequence[str], given_by: Path, kept_in: Path) -> None:
    """Checks that names that were given leave the classes of an earlier run their numbers.

    Raises:
        ToolError: a class has moved; it names the first.
    """
    if source.has_numbers and list(earlier) == [str(number) for number in range(len(earlier))]:
        return  # numbers get names
    for number, old in enumerate(earlier):
        new = source.classes[number] if number < len(source.classes) else None
        if new != old:
            now = "missing" if new is None else repr(new)
            raise ToolError(
                f"{given_by}: class {number} is {old!r} in {kept_in} and {now} here, so that trained weights "
                f"would mean other classes: keep the order and add new names at the end, or choose another "
                "--output"
            )


def keep_numbers(source: Source, earlier: Sequence[str]) -> None:
    """Gives the classes of an earlier run their numbers, and new classes the next ones; remarks say so."""
    if source.has_numbers and not all(name.isdecimal() for name in earlier):  # they mean what they meant
        names = [*earlier, *source.classes[len(earlier) :]]
        source.clips = _relabelled(source.clips, dict(zip(source.classes, names)))
        source.classes = names
    earlier = list(dict.fromkeys(earlier))  # a new name in an old line leaves a second line
    new = [name for name in source.classes if name not in earlier]
    gone = sorted(set(earlier) - set(source.classes))
    source.classes = [*earlier, *new]
    if new:
        source.remarks.append(f"new classes, numbered from {len(earlier)} on: {some(new)}")
    if gone:
        source.remarks.append(
            f"classes without videos, which keep their numbers: {some(gone)}; if one was renamed, write "
            "its new name in its line of classes.txt and run this again"
        )


def _place(group: str, seed: int) -> float:
    name = f"{seed}/{group}".encode("utf-8", errors="surrogateescape")
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "big") / 2**64


# --- looking at the files


def probe(clips: Sequence[Found], workers: int, full: bool = False) -> dict[tuple[Path, Span | None], Probe]:
    """Opens each file once and decodes the first, middle and last frame of each clip, or all of them.

    Returns:
        What each path and span told.
    """
    spans: dict[Path, dict[Span | None, None]] = {}
    for clip in clips:
        spans.setdefault(clip.path, {})[clip.span] = None
    tasks = [(path, tuple(of_file), full) for path, of_file in spans.items()]
    results = run_all(_probe, tasks, Executor(workers), "checked")
    return {
        (path, span): fact
        for (path, of_file, _), probes in zip(tasks, results)
        for span, fact in zip(of_file, probes)
    }


def _probe(task: tuple[Path, Sequence[Span | None], bool]) -> list[Probe]:
    path, spans, full = task
    try:
        with open_video(str(path)) as reader:
            return [_probe_part(path, reader, span, full) for span in spans]
    except VideoDecodeError as error:
        return [Probe(0, 0.0, (0, 0), error.cause_in(str(path)))] * len(spans)


def _probe_part(path: Path, reader: VideoReader, span: Span | None, full: bool) -> Probe:
    try:
        part = reader if span is None else reader.part(span)
        count = part.num_frames
        if full:
            deque(part, maxlen=0)
        frames = part.read(sorted({0, count // 2, count - 1}))
        seconds = part.end_sec() if part.avg_fps else 0.0
        return Probe(count, seconds, part.square_size, still=_still_share(frames))
    except VideoDecodeError as error:
        return Probe(0, 0.0, (0, 0), error.cause_in(str(path)))


def _still_share(frames: np.ndarray) -> float:
    """The share of squares of the picture whose mean colour changes little over frames [T, H, W, 3]."""
    means = [cv2.resize(frame, (_SQUARES, _SQUARES), interpolation=cv2.INTER_AREA) for frame in frames]
    changes = np.abs(np.diff(np.array(means, "int16"), axis=0)).mean(axis=-1)
    return float((changes <= _STILL).all(axis=0).mean())


def warnings_of(
    counts: Mapping[str, Counter], probes: Sequence[Probe], frames_of_clip: int, doubles: Sequence[str]
) -> list[str]:
    """What may spoil a training, in sentences.

    Args:
        counts: "train" and "valid" → clips of each class; 0 of a class without any.
        probes: of the files that decode.
        frames_of_clip: frames of a video that a clip spans.
        doubles: files that are there twice.
    """
    classes = sorted(set(counts["train"]) | set(counts["valid"]))
    idle = [printable(name) for name in classes if not counts["train"][name]]
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(re.sub(r"[\s_-]", "", unicodedata.normalize("NFKC", name).casefold()), []).append(
            name
        )
    similar = [" and ".join(map(printable, names)) for names in alike.values() if len(names) > 1]
    few = {name: counts["train"][name] + counts["valid"][name] for name in classes}
    few_named = [f"{printable(name)} ({count})" for name, count in few.items() if count < _FEW_CLIPS]
    is_split = any(counts["valid"].values())
    untested = [printable(name) for name in classes if is_split and not counts["valid"][name]]
    little = [printable(name) for name in classes if 0 < counts["valid"][name] < _FEW_VALID]
    sizes = [counts["train"][name] for name in classes if counts["train"][name]] or [1]
    small, large = min(sizes), max(sizes)
    num_short, num_probed = sum(one.num_frames < frames_of_clip for one in probes), len(probes)
    short = f"{num_short} of {num_probed} videos are shorter than a clip, {frames_of_clip} frames"
    warnings = [
        (few_named, f"classes with fewer than {_FEW_CLIPS} clips: {some(few_named)}"),
        (untested, f"classes without a clip in validation: {some(untested)}"),
        (little, f"classes with fewer than {_FEW_VALID} clips in validation: {some(little)}"),
        (large >= 10 * small, f"the largest class has {large} clips for training, the smallest {small}"),
        (2 * num_short >= num_probed > 0, f"{short}: frames repeat"),
        (idle, f"classes without a clip for training, which cannot be learned: {some(idle)}"),
        (similar, f"classes with nearly the same name, which may be one class: {some(similar)}"),
        (doubles, f"the lists overlap, these files are named twice: {some(sorted(doubles))}"),
        (len(classes) - len(idle) < 2, "there is one class only: nothing can be learned"),
    ]
    return [text for holds, text in warnings if holds]


def ending_of_lists(clips: Iterable[Found]) -> str:
    """How the names of the new lists end: .jsonl where clips say more than path and label."""
    rows = [clip.row for clip in clips if clip.row]
    more = any(
        (row.span, row.weight, row.group, row.more) != (None, 1.0, "", ()) or len(row.labels) != 1
        for row in rows
    )
    return _NAMED if more else _PLAIN


def lines_of(
    source: Source, clips: Iterable[Found], ending: str = _PLAIN
) -> tuple[list[str], list[tuple[str, str]]]:
    """Lines of a list whose name has this ending, and path and cause of each clip that no list can hold."""
    labels = {name: number for number, name in enumerate(source.classes)}
    rows = []
    for clip in clips:
        row = (clip.row if ending == _NAMED else None) or Row(0, "", ())
        path, own = relative(source, clip.path), tuple(labels[label] for label in clip.labels)
        rows.append((clip.path, row._replace(path=path, labels=own)))
    return run.lines_of(rows, ending == _NAMED)


def relative(source: Source, path: Path) -> str:
    """A path as lists have it: from the root of the data set where it lies below."""
    try:
        return path.relative_to(source.root).as_posix()
    except ValueError:
        return str(path.absolute())


def some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    rest = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
    return ", ".join(map(printable, names[:_NUM_NAMED])) + rest

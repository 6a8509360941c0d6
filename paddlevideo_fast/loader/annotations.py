"""Annotation lists become records: paths below a folder, labels as numbers."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from paddlevideo_fast.decode import Span, VideoReader
from paddlevideo_fast.decode.image_folder import DEFAULT_SUFFIX, is_frame_format
from paddlevideo_fast.errors import AnnotationError, shown
from paddlevideo_fast.io.files import hint_at_working_folder
from paddlevideo_fast.io.paths import file_system
from paddlevideo_fast.io.urls import join
from paddlevideo_fast.loader.class_names import one_form, read_class_names
from paddlevideo_fast.loader.tables import EXPECTED, Row, list_rows
from paddlevideo_fast.registry import did_you_mean

_NUM_LOOKED_FOR = 3  # files in a store


@dataclass(frozen=True)
class VideoRecord:
    """One line of a list.

    Attributes:
        path: the video file or the folder of frames.
        labels: numbers of the classes, each ≥ 0, ascending; none for background. The constructor also takes
            one number.
        num_frames: frames in the folder; None for a video.
        frames_suffix: format string of the frames' file names; None for a video.
        line: line number in the list, from 1; 0 where the record is from no list.
        position: of packed frames, the shard's number and the video's in it.
        span: the part of the video that the record is about; None: all of it.
        weight: how often the sampler `weighted` draws the record, relative to the others.
        group: name of the recordings that belong together, such as those of one person; "": only itself.
        draw_part: gives the part of the video, or of its span, that a clip is about, anew for each clip;
            None: all of it.
        more: name and value of each field of an annex, such as `track`, as the list has it.
    """

    path: str
    labels: tuple[int, ...]
    num_frames: int | None = None
    frames_suffix: str | None = None
    line: int = 0
    position: tuple[int, int] = (0, 0)
    span: Span | None = None
    weight: float = 1.0
    group: str = ""
    draw_part: Callable[[VideoReader, np.random.Generator], VideoReader] | None = None
    more: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if type(self.labels) is tuple and len(self.labels) == 1:
            return  # as in nearly all of a million records
        labels = (self.labels,) if isinstance(self.labels, int) else tuple(sorted(set(self.labels)))
        object.__setattr__(self, "labels", labels)

    @property
    def label(self) -> int:
        """The only label; raises ValueError where there is not exactly one."""
        (label,) = self.labels
        return label


class RecordSection:
    """A section of a data set that changes its records, such as `windows`; its fields are the keys."""

    def records(self, dataset: Any) -> list[VideoRecord]:
        """What takes the place of the records that a `ClipDataset` has read."""
        raise NotImplementedError


def read_video_list(
    file_path: str,
    data_prefix: str | None = None,
    suffix: str = "",
    class_names: str | None = None,
    labelled: bool = True,
) -> list[VideoRecord]:
    """Records of a list with lines `path label`, or with named fields.

    Args:
        file_path: the list.
        data_prefix: folder that relative paths start from.
        suffix: ending added to paths that lack it, such as ".mp4".
        class_names: file with the names of the classes, for a list that names them.
        labelled: False: the list needs no labels, and those that it has are left out.

    Raises:
        AnnotationError: the list is missing, empty or malformed.
    """
    rows = (
        row if row.path.endswith(suffix) else row._replace(path=row.path + suffix)
        for row in list_rows(file_path, 2, labelled)
    )
    return _records(rows, file_path, data_prefix, class_names)


def read_frame_list(
    file_path: str,
    data_prefix: str | None = None,
    suffix: str = DEFAULT_SUFFIX,
    class_names: str | None = None,
    labelled: bool = True,
) -> list[VideoRecord]:
    """Records of a list with lines `folder num_frames label`, or with named fields.

    Args:
        file_path: the list.
        data_prefix: folder that relative paths start from.
        suffix: format string from a frame's number, from 1, to its file name.
        class_names: file with the names of the classes, for a list that names them.
        labelled: False: the list needs no labels, and those that it has are left out.

    Raises:
        AnnotationError: the list is missing, empty or malformed, or `suffix` is no format string.
    """
    if not is_frame_format(suffix):
        text = f"suffix {shown(suffix)} names no frames by number; expected e.g. img_{{:05}}.jpg"
        raise AnnotationError(text)
    rows = (_with_frames(row, file_path) for row in list_rows(file_path, 3, labelled))
    return _records(rows, file_path, data_prefix, class_names, suffix)


def _with_frames(row: Row, file_path: str) -> Row:
    if row.num_frames is None:
        raise AnnotationError(f"{file_path}:{row.line}: num_frames is missing: the images in the folder")
    if row.span is not None and row.span.unit == "sec":
        raise AnnotationError(
            f"{file_path}:{row.line}: images have no times, so a span of seconds cannot be found in a "
            "folder; give start_frame and end_frame"
        )
    return row


def _records(
    rows: Iterable[Row],
    file_path: str,
    data_prefix: str | None,
    class_names: str | None,
    frames_suffix: str | None = None,
) -> list[VideoRecord]:
    numbers = ClassNumbers(class_names)
    records = [
        VideoRecord(
            join(start, row.path) if (start := data_prefix or row.folder) else row.path,
            tuple(numbers.of(label, f"{file_path}:{row.line}: label") for label in row.labels),
            row.num_frames if frames_suffix else None,
            frames_suffix,
            row.line,
            span=row.span,
            weight=row.weight,
            group=row.group,
            more=row.more,
        )
        for row in rows
    ]
    if not records:
        expected = EXPECTED[3 if frames_suffix else 2]
        raise AnnotationError(f"{file_path}: the list is empty; expected lines of '{expected}'")
    return records


class ClassNumbers:
    """The numbers of classes that a list or a config names.

    Args:
        class_names: file with the names, read for the first name that is asked for; None: there is none.
    """

    def __init__(self, class_names: str | None) -> None:
        self._file = class_names

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {text: number for number, text in enumerate(read_class_names(self._file or ""))}

    def of(self, label: int | str, where: str) -> int:
        """The number of a class; what is no name stays as it is.

        Raises:
            AnnotationError: nothing says the number of a name; it begins with `where`.
        """
        if not isinstance(label, str):
            return label
        label = one_form(label)
        where = f"{where} {shown(label)}"
        if self._file is None:
            raise AnnotationError(
                f"{where} is a name, and nothing says its number: give the file with the names of the "
                "classes, as DATASET.class_names or --class_names"
            )
        if label not in self._numbers:
            hint = did_you_mean(label, tuple(self._numbers))
            text = f"{where} is not among the {len(self._numbers)} names of {self._file}{hint}"
            raise AnnotationError(text)
        return self._numbers[label]


def require_files(
    records: list[VideoRecord], file_path: str, data_prefix: str | None = None
) -> list[VideoRecord]:
    """The records, once a file below `data_prefix` is found; a list of other files is not looked through.

    Of files in a store, a few are looked for.

    Raises:
        AnnotationError: none of the files that the list has below `data_prefix` is there.
    """
    below = [record.path for record in records if data_prefix and record.path.startswith(data_prefix)]
    files = file_system(data_prefix or "")
    if not files.is_local:
        below = below[:: max(1, len(below) // _NUM_LOOKED_FOR)][:_NUM_LOOKED_FOR]
    folders: dict[str, bool] = {}  # where a folder is missing, its files need not be looked for

    def is_there(path: str) -> bool:
        if not files.is_local:
            return files.exists(
                path if records[0].num_frames is None else join(path, _first_image(records[0]))
            )
        folder = os.path.dirname(path) or "."
        if folder not in folders:
            folders[folder] = os.path.isdir(folder)
        return folders[folder] and os.path.exists(path)

    if below and not any(map(is_there, below)):
        raise AnnotationError(
            f"{file_path}: none of its {len(below)} files is below data_prefix '{data_prefix}'; the first "
            f"would be {below[0]}; check data_prefix and suffix in DATASET{hint_at_working_folder(below[0])}"
        )
    return records


def _first_image(record: VideoRecord) -> str:
    return (record.frames_suffix or DEFAULT_SUFFIX).format(1)


def check_labels(
    records: Sequence[VideoRecord], num_classes: int, file: str, any_number: bool = False
) -> None:
    """Checks the labels of records.

    Args:
        records: of a list.
        num_classes: every label is below it.
        file: the list, for messages.
        any_number: a record may have any number of labels, and not exactly one; but not all may have none.

    Raises:
        AnnotationError: names the first line, or the record where it is from no list, whose labels are wrong.
    """
    for record in records:
        where = f"{file}:{record.line}" if record.line else record.path
        largest = max(record.labels, default=0)
        if largest >= num_classes:
            raise AnnotationError(
                f"{where}: label {largest} with num_classes {num_classes}: "
                f"labels go from 0 to {num_classes - 1}; correct the list or the head's num_classes"
            )
        if len(record.labels) != 1 and not any_number:
            problem = f"has {len(record.labels)} labels" if record.labels else "has no label"
            raise AnnotationError(
                f"{where}: {problem}, and with a softmax a video has one class: write one label, or set "
                "MODEL.head.activation to sigmoid"
            )
    if any_number and not any(record.labels for record in records):
        text = f"none of its {len(records)} videos has a label; there is nothing to learn or to measure"
        raise AnnotationError(f"{file}: {text}")

"""How the classes of a config and of trained weights are called, and whether both mean the same classes."""

import contextlib
import itertools
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paddlevideo_fast.config import Config
from paddlevideo_fast.errors import AnnotationError, ObjectMissingError, StoreAccessError, cause_of
from paddlevideo_fast.io.files import as_path, atomic_write_text, local_copy, read_names, read_text
from paddlevideo_fast.io.urls import shown_url, without_checksum
from paddlevideo_fast.log import get_logger

logger = get_logger(__name__)

NAMES_FILE = "class_names.txt"  # beside the weights of a training
NAMES_KEY = "class_names"  # in the mark of a checkpoint
_BESIDE_LIST = "classes.txt"  # as `init` and `data` write it
_CHECKPOINT = re.compile(r"(.+_(?:epoch|step)_\d+)\.pdparams")
_MAX_MARK_BYTES = 2**26
_MAX_CLASS_NAMES = 2**24  # bytes
_NUM_MOVED = 3


class Classes(NamedTuple):
    """What classes are called.

    Attributes:
        names: by number.
        source: what says so, for messages.
    """

    names: list[str]
    source: str


def one_form(name: str) -> str:
    """A class name with its characters in one form, NFC: an é may be one character, or e and an accent."""
    return unicodedata.normalize("NFC", name)


def read_class_names(file_path: str | Path, num_classes: int | None = None, key: str = "") -> list[str]:
    """Names of the classes from a text file: one a line, in the order of the labels.

    A byte-order mark, line ends of Windows, blank lines and spaces around a name are no part of the names.
    Where each line is `label name`, as PaddleVideo and PaddleX write it, the label says where a name belongs.

    Args:
        file_path: the file.
        num_classes: how many names the file has to have; None: any number.
        key: the config key that names the file, for messages.

    Raises:
        AnnotationError: the file cannot be read, or has another number of names.
    """
    where = f"{key} {file_path}".strip()
    try:
        names = [one_form(line.strip()) for line in read_names(file_path, _MAX_CLASS_NAMES) if line.strip()]
    except (OSError, ValueError) as error:
        raise AnnotationError(f"{where}: cannot be read: {cause_of(error)}") from error
    if num_classes not in (None, len(names)):
        text = f"{where}: has {len(names)} names, the model {num_classes} classes; write one name a line"
        raise AnnotationError(text)
    numbered = dict(name.partition(" ")[::2] for name in names)
    labels = [str(label) for label in range(len(names))]
    if set(numbered) == set(labels) and all(numbered.values()):
        return [numbered[label].strip() for label in labels]
    return names


def classes_of_config(cfg: Config, num_classes: int) -> Classes | None:
    """The classes by DATASET.class_names, else by a `classes.txt` beside a list, which `init` writes there.

    Args:
        cfg: a checked config.
        num_classes: of its network. A `classes.txt` with another number of names does not count.

    Returns:
        None where nothing says how they are called.

    Raises:
        AnnotationError: see `read_class_names`.
    """
    if not num_classes:
        return None
    section: Mapping[str, Any] = cfg.get("DATASET") or {}
    if file := section.get("class_names"):
        source = f"{cfg.where('DATASET.class_names')}  DATASET.class_names={file}"
        return Classes(read_class_names(file, num_classes, "DATASET.class_names"), source)
    for split in ("train", "valid", "test"):
        listed = (section.get(split) or {}).get("file_path")
        beside = Path(listed or "").parent / _BESIDE_LIST
        if listed and beside.is_file():  # a store is not asked: a `Path` is none of its
            with contextlib.suppress(AnnotationError):
                return Classes(read_class_names(beside, num_classes), str(beside))
    return None


def classes_of_weights(weights: str, num_classes: int | None = None) -> Classes | None:
    """The classes of trained weights, by the mark of the checkpoint, else by the file beside them.

    Args:
        weights: the file, a path or a URL.
        num_classes: how many there have to be; None: any number.

    Returns:
        None where nothing says how they are called. Of a store that refuses, which some do where nothing is,
        a warning says so.

    Raises:
        AnnotationError: the file cannot be read, or has another number of names.
        PaddleVideoFastError: a store does not answer.
    """
    path = as_path(without_checksum(weights)[0])
    checkpoint = _CHECKPOINT.fullmatch(path.name)
    mark = path.with_name(f"{checkpoint[1]}.json") if checkpoint else None
    names = _names_in_mark(mark) if mark else None
    if names and num_classes in (None, len(names)):
        return Classes(names, shown_url(str(mark)))
    beside = path.with_name(NAMES_FILE)
    file = _local(beside)
    if file is None:
        return None
    names = read_class_names(file, num_classes, f"classes of {shown_url(weights)}:")
    return Classes(names, shown_url(str(beside)))


def _names_in_mark(mark: Any) -> list[str] | None:
    """The names in the mark of a checkpoint; None where it has none."""
    file = _local(mark)
    try:
        content = json.loads(read_text(file, _MAX_MARK_BYTES)) if file else None
    except (OSError, ValueError, RecursionError):  # whoever resumes from it says so
        return None
    names = content.get(NAMES_KEY) if isinstance(content, dict) else None
    is_right = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return [*map(one_form, names or ())] if is_right else None


def _local(path: Any) -> Path | None:
    """The file at a path or URL; None where there is none."""
    try:
        file = Path(local_copy(path))
        return file if file.exists() else None
    except ObjectMissingError:
        return None
    except StoreAccessError as error:
        logger.warning("classes not compared: %s", error)
        return None
    except OSError as error:
        raise AnnotationError(f"{shown_url(str(path))}: cannot be read: {cause_of(error)}") from error


def compared(classes: Classes | None, weights: str) -> Classes | None:
    """The classes that were given, which must be those of the weights; else those of the weights.

    Where the weights do not say their classes, a line in the log says that nothing was compared.

    Args:
        classes: by a config or a file; None: not known.
        weights: the file, a path or a URL.

    Raises:
        AnnotationError: a number means another class, or see `classes_of_weights`.
        PaddleVideoFastError: a store does not answer.
    """
    earlier = classes_of_weights(weights)
    if classes is not None and earlier is not None:
        check_classes(classes, earlier)
    elif classes is not None:
        logger.info("classes not compared: no %s beside %s", NAMES_FILE, shown_url(weights))
    return classes or earlier


def checked_class_names(cfg: Config, num_classes: int, *weights: str) -> list[str] | None:
    """The names of a network's classes, by the config, else by weights; None: not known.

    Args:
        cfg: a checked config.
        num_classes: of its network; 0: it has none.
        weights: files that were trained with the same classes.

    Raises:
        AnnotationError: in weights, a number means another class; see `compared`.
        PaddleVideoFastError: a store does not answer.
    """
    if not num_classes:
        return None
    classes = classes_of_config(cfg, num_classes)
    for file in weights:
        classes = compared(classes, file)
    return classes and classes.names


def check_classes(classes: Classes, earlier: Classes) -> None:
    """Checks that classes are called as when they were trained, so that each number means the same class.

    Raises:
        AnnotationError: classes have moved; it names them.
    """
    pairs = itertools.zip_longest(map(repr, earlier.names), map(repr, classes.names))
    moved = [
        f"class {number} was {old or 'missing'} and is {new or 'missing'}"
        for number, (old, new) in enumerate(pairs)
        if old != new
    ]
    if moved:
        more = f", and {len(moved) - _NUM_MOVED} more" if len(moved) > _NUM_MOVED else ""
        raise AnnotationError(
            f"{classes.source}: the classes are not those of {earlier.source}: "
            f"{'; '.join(moved[:_NUM_MOVED])}{more}. Give the names in the order of that training, or train "
            "anew; names that were only rewritten, change there, too"
        )


def write_class_names(folder: Path, names: Sequence[str]) -> None:
    """Writes the names beside the weights of a folder."""
    atomic_write_text(folder / NAMES_FILE, "".join(f"{name}\n" for name in names))

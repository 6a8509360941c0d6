"""How the classes of a run are called, and of the runs whose weights it starts from.

A run with DATASET.class_names leaves the names beside its weights. A later run on other classes takes over
what the weights know of the classes that both have.
"""

from __future__ import annotations

from pathlib import Path
from typing import List, Optional

from paddlevideo_fast.config import RunSpec
from paddlevideo_fast.files import write_text_whole
from paddlevideo_fast.loader import NAMES_FILE, check_classes, names_beside, read_class_names
from paddlevideo_fast.modeling import ClassNames, classes_of


def class_names(spec: RunSpec) -> ClassNames:
    """The names of the network's classes, from DATASET.class_names, and of a file's, from beside the file."""

    def of_network(num_classes: int) -> Optional[List[str]]:
        if spec.data.class_names is None or not num_classes:
            return None
        return read_class_names(spec.data.class_names, num_classes, "DATASET.class_names")

    return ClassNames(of_network, names_beside)


def check_class_names(spec: RunSpec, weights: str) -> None:
    """Checks that DATASET.class_names are the names with which weights or a checkpoint were trained.

    Raises:
        AnnotationError: a number means another class; see `check_classes`.
    """
    names = class_names(spec).of_network(classes_of(spec.model) or 0)
    earlier = names and names_beside(weights)
    if names and earlier:
        place = f"{spec.config.where('DATASET.class_names')}  DATASET.class_names={spec.data.class_names}"
        check_classes(names, earlier, place, weights)


def save_class_names(spec: RunSpec, num_classes: int, folder: Path) -> None:
    """Writes the names that DATASET.class_names gives beside the weights."""
    names = class_names(spec).of_network(num_classes)
    if names is not None:
        write_text_whole(folder / NAMES_FILE, "".join(f"{name}\n" for name in names))

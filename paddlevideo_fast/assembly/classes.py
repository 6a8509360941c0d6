"""How the classes of a run are called, and of the runs whose weights it starts from.

A run with DATASET.class_names leaves the names beside its weights. A later run on other classes takes over
what the weights know of the classes that both have.
"""

from __future__ import annotations

from pathlib import Path
from typing import List, Optional

from paddlevideo_fast.config import RunSpec
from paddlevideo_fast.files import write_text_whole
from paddlevideo_fast.loader import read_class_names
from paddlevideo_fast.modeling import ClassNames

_BESIDE = "class_names.txt"


def class_names(spec: RunSpec) -> ClassNames:
    """The names of the network's classes, from DATASET.class_names, and of a file's, from beside the file."""

    def of_network(num_classes: int) -> Optional[List[str]]:
        if spec.data.class_names is None or not num_classes:
            return None
        return read_class_names(spec.data.class_names, num_classes, "DATASET.class_names")

    def of_file(weights: str, num_classes: int) -> Optional[List[str]]:
        path = Path(weights).parent / _BESIDE
        return read_class_names(path, num_classes, f"classes of {weights}:") if path.exists() else None

    return ClassNames(of_network, of_file)


def save_class_names(spec: RunSpec, num_classes: int, folder: Path) -> None:
    """Writes the names that DATASET.class_names gives beside the weights."""
    names = class_names(spec).of_network(num_classes)
    if names is not None:
        write_text_whole(folder / _BESIDE, "".join(f"{name}\n" for name in names))

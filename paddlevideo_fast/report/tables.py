"""The tables of an evaluation: predictions, classes, confusion, hardest videos."""

from __future__ import annotations

import contextlib
import csv
import json
from pathlib import Path
from typing import IO, Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from paddlevideo_fast.loader import read_class_names
from paddlevideo_fast.metrics import Predictions, class_results, confusion_matrix, hardest
from paddlevideo_fast.report.output import whole

NUM_TOP = 5
_ANY_NAME = "backslashreplace"  # for bytes that are not UTF-8: in JSON, the escape reads back as the name
NUM_HARDEST = 100


class Naming(NamedTuple):
    """The names that stand for numbers in tables.

    Attributes:
        classes: name of each class, or its number where there are no names.
        paths: path of each video of the list.
    """

    classes: Sequence[str]
    paths: Sequence[str]

    @property
    def shows_top5(self) -> bool:
        """Whether top-5 says anything: with five classes or fewer it is always 1."""
        return len(self.classes) > 5

    @classmethod
    def of(cls, class_names: Optional[str], num_classes: int, paths: Sequence[str]) -> Naming:
        """Takes the names of the classes from a file, or their numbers where there is no file.

        Raises:
            AnnotationError: see `read_class_names`.
        """
        if class_names is None:
            return cls([str(label) for label in range(num_classes)], paths)
        return cls(read_class_names(class_names, num_classes, "DATASET.class_names"), paths)


def write_tables(folder: Path, predictions: Predictions, naming: Naming) -> None:
    """Writes predictions.jsonl, per_class.csv, confusion.csv and worst.csv.

    Raises:
        PaddleVideoFastError: a file cannot be written.
    """
    with whole(folder / "predictions.jsonl") as partial:
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in prediction_rows(predictions, naming))
        partial.write_bytes("".join(lines).encode("utf-8", _ANY_NAME))
    _write_csv(folder / "per_class.csv", class_rows(predictions, naming))
    _write_csv(folder / "worst.csv", hardest_rows(predictions, naming, NUM_HARDEST))
    names = list(naming.classes)
    with _csv_file(folder / "confusion.csv") as file:
        writer = csv.writer(file)
        writer.writerow(["label \\ predicted", *names])
        writer.writerows([name, *row] for name, row in zip(names, confusion_matrix(predictions).tolist()))


def prediction_rows(predictions: Predictions, naming: Naming) -> Iterator[Dict[str, Any]]:
    """Path, label, number of views and best classes with their scores of each video."""
    for place, best in enumerate(predictions.ranking()[:, :NUM_TOP].tolist()):
        label = int(predictions.labels[place])
        yield {
            "path": naming.paths[predictions.ids[place]],
            "label": label,
            "name": naming.classes[label],
            "num_views": int(predictions.num_views[place]),
            "top": [
                {
                    "label": top,
                    "name": naming.classes[top],
                    "score": round(float(predictions.scores[place, top]), 6),
                }
                for top in best
            ],
        }


def class_rows(predictions: Predictions, naming: Naming) -> List[Dict[str, Any]]:
    """Results of each class; a cell is empty where the class has no videos."""
    rows = []
    for result in class_results(predictions):
        other = result.confused_with
        rows.append(
            {
                "label": result.label,
                "name": naming.classes[result.label],
                "videos": result.num_videos,
                "predicted": result.num_predicted,
                "top1": _rounded(result.top1),
                "top5": _rounded(result.top5),
                "precision": _rounded(result.precision),
                "confused_with": "" if other is None else naming.classes[other],
            }
        )
    return rows


def hardest_rows(predictions: Predictions, naming: Naming, count: int) -> List[Dict[str, Any]]:
    """The videos whose own class has the lowest score, the lowest first."""
    ranking, own = predictions.ranking(), predictions.own_scores()
    rows = []
    for place in hardest(predictions, count):
        label, best = int(predictions.labels[place]), int(ranking[place, 0])
        rows.append(
            {
                "path": naming.paths[predictions.ids[place]],
                "label": label,
                "name": naming.classes[label],
                "score": round(float(own[place]), 6),
                "rank": 1 + int(np.flatnonzero(ranking[place] == label)[0]),
                "predicted": best,
                "predicted_name": naming.classes[best],
                "predicted_score": round(float(predictions.scores[place, best]), 6),
            }
        )
    return rows


def _rounded(share: float) -> Any:
    return "" if np.isnan(share) else round(share, 5)


@contextlib.contextmanager
def _csv_file(path: Path) -> Iterator[IO[str]]:
    with whole(path) as partial, partial.open("w", newline="", encoding="utf-8", errors=_ANY_NAME) as file:
        yield file


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with _csv_file(path) as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)

"""The tables of an evaluation: predictions, classes, confusion or thresholds, hardest videos."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paddlevideo_fast.extensions.report.output import atomic_write
from paddlevideo_fast.extensions.report.scores import class_results, hardest, label_results, own_scores
from paddlevideo_fast.extensions.report.thresholds import precision_recall
from paddlevideo_fast.metrics.accuracy import telling
from paddlevideo_fast.metrics.predictions import Predictions, confusion_matrix

NUM_TOP = 5
_ANY_NAME = "backslashreplace"  # for bytes that are not UTF-8: in JSON, the escape reads back as the name
NUM_HARDEST = 100
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
# Column → attribute of a result.
_CLASS_SHARES = {"top1": "top1", "top5": "top5", "precision": "precision"}
_LABEL_SHARES = {
    "AP": "average_precision",
    "precision": "precision",
    "recall": "recall",
    "best_threshold": "best_threshold",
    "best_F1": "best_f1",
}
_THRESHOLD_COLUMNS = ("label", "name", "threshold", "precision", "recall", "F1")


class Naming(NamedTuple):
    """The names that stand for numbers in tables.

    Attributes:
        classes: name of each class, or its number where there are no names.
        paths: path of each video of the list.
    """

    classes: Sequence[str]
    paths: Sequence[str]


def write_tables(folder: Path, predictions: Predictions, naming: Naming) -> None:
    """Writes predictions.jsonl, per_class.csv, worst.csv and confusion.csv.

    Where a video has any number of classes, thresholds.csv takes the place of confusion.csv.

    Raises:
        PaddleVideoFastError: a file cannot be written.
    """
    write_predictions(folder / "predictions.jsonl", predictions, naming)
    for name, rows in (
        ("per_class", class_rows(predictions, naming)),
        ("worst", hardest_rows(predictions, naming, NUM_HARDEST)),
    ):
        _write_csv(folder / f"{name}.csv", list(rows[0]), (row.values() for row in rows))
    if predictions.has_several:
        _write_csv(folder / "thresholds.csv", _THRESHOLD_COLUMNS, threshold_rows(predictions, naming))
    else:
        counts = confusion_matrix(predictions).tolist()
        rows_of_counts = ([name, *row] for name, row in zip(naming.classes, counts))
        _write_csv(folder / "confusion.csv", ["label \\ predicted", *naming.classes], rows_of_counts)


def write_predictions(path: Path, predictions: Predictions, naming: Naming) -> None:
    """Writes `prediction_rows`, one a line.

    Raises:
        PaddleVideoFastError: the file cannot be written.
    """
    with atomic_write(path) as partial:
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in prediction_rows(predictions, naming))
        partial.write_bytes("".join(lines).encode("utf-8", _ANY_NAME))


def prediction_rows(predictions: Predictions, naming: Naming) -> Iterator[dict[str, Any]]:
    """Path, label, number of views and best classes with their scores of each video.

    Where a video has any number of classes, `label` and `name` are lists, and `predicted` are the classes
    from `DECISION` on.
    """
    several = predictions.has_several

    def scored(place: int, labels: Sequence[int]) -> list[dict[str, Any]]:
        scores = predictions.scores[place]
        return [
            {"label": label, "name": naming.classes[label], "score": round(float(scores[label]), 6)}
            for label in labels
        ]

    for place, ranking in enumerate(predictions.ranking().tolist()):
        labels = np.flatnonzero(predictions.there[place]).tolist()
        names = [naming.classes[label] for label in labels]
        num_predicted = int(predictions.predicted[place].sum())
        yield {
            "path": naming.paths[predictions.ids[place]],
            "label": labels if several else labels[0],
            "name": names if several else names[0],
            "num_views": int(predictions.num_views[place]),
            "top": scored(place, ranking[:NUM_TOP]),
            **({"predicted": scored(place, ranking[:num_predicted])} if several else {}),
        }


def class_rows(predictions: Predictions, naming: Naming) -> list[dict[str, Any]]:
    """Results of each class; a cell is empty where the class has no videos."""
    several = predictions.has_several
    results: Sequence[Any] = label_results(predictions) if several else class_results(predictions)
    shares = dict(_LABEL_SHARES if several else _CLASS_SHARES)
    if telling((1, NUM_TOP), len(naming.classes)) == [1]:
        shares.pop("top5", None)
    names: dict[int | None, str] = dict(enumerate(naming.classes))
    return [
        {
            "label": result.label,
            "name": naming.classes[result.label],
            "videos": result.num_videos,
            "predicted": result.num_predicted,
            **{column: _rounded(getattr(result, name)) for column, name in shares.items()},
            **({} if several else {"confused_with": names.get(result.confused_with, "")}),
        }
        for result in results
    ]


def threshold_rows(predictions: Predictions, naming: Naming) -> Iterator[Sequence[Any]]:
    """Precision, recall and F1 of each class with videos at thresholds from 0 to 1."""
    for label in np.flatnonzero(predictions.there.any(axis=0)).tolist():
        curve = precision_recall(predictions.there[:, label], predictions.scores[:, label])
        for threshold, *shares in zip(curve.thresholds, curve.precision, curve.recall, curve.f1):
            yield label, naming.classes[label], round(float(threshold), 2), *map(_rounded, shares)


def hardest_rows(predictions: Predictions, naming: Naming, count: int) -> list[dict[str, Any]]:
    """The videos with the lowest `own_scores`, the lowest first."""
    ranking, own = predictions.ranking(), own_scores(predictions)
    rows: list[dict[str, Any]] = []
    for place in hardest(predictions, count):
        row: dict[str, Any] = {"path": naming.paths[predictions.ids[place]]}
        score = round(float(own[place]), 6)
        if predictions.has_several:
            there, predicted = predictions.there[place], predictions.predicted[place]
            classes = {"classes": there, "missed": there & ~predicted, "wrong": predicted & ~there}
            row["score"] = score
            row.update({name: joined(naming.classes, chosen) for name, chosen in classes.items()})
        else:
            label, best = int(predictions.labels[place]), int(ranking[place, 0])
            row.update(label=label, name=naming.classes[label], score=score)
            row["rank"] = 1 + int(np.flatnonzero(ranking[place] == label)[0])
            row.update(predicted=best, predicted_name=naming.classes[best])
            row["predicted_score"] = round(float(predictions.scores[place, best]), 6)
        rows.append(row)
    return rows


def joined(names: Sequence[str], chosen: np.ndarray) -> str:
    """The names of the classes that `chosen`, bool [num_classes], names."""
    return ", ".join(names[label] for label in np.flatnonzero(chosen).tolist())


def _rounded(share: float) -> Any:
    return "" if np.isnan(share) else round(share, 5)


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    with (
        atomic_write(path) as partial,
        partial.open("w", newline="", encoding="utf-8", errors=_ANY_NAME) as file,
    ):
        csv.writer(file).writerows([cell(value) for value in row] for row in (columns, *rows))


def cell(value: Any) -> Any:
    """A value as a spreadsheet shows it: text that it would run as a formula gets a quote in front."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value

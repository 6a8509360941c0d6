"""Wrong labels in a set: how many of the videos that `data report --run` suggests have one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from paddlevideo_fast.command_line import count
from paddlevideo_fast.loader.tables import list_rows

CONFIG = "slowfast_motion"


def run(
    folder: Path, work: Path, wrong: Annotated[int, count(1, 50)] = 5, folds: Annotated[int, count(2)] = 3
) -> dict[str, Any]:
    """Changes labels of train.list at random, cross-validates, and looks at the suggestions.

    Folds that have ended are not trained again.

    Args:
        folder: that `paddlevideo-fast data motion` has written.
        work: folder for the list and the runs.
        wrong: percent of the labels.
        folds: of the cross-validation.

    Returns:
        "videos", "wrong" and "suggested", numbers of videos; of the first tenth of the suggestions
        "first_tenth", their number, and "wrong_in_tenth"; and "found", how many of the wrong labels are among
        as many suggestions as there are wrong ones.
    """
    rows = list(list_rows(str(folder / "train.list"), 2))
    rng = np.random.default_rng(0)
    labels = [int(row.labels[0]) for row in rows]
    num_classes = max(labels) + 1
    changed = set(rng.choice(len(rows), round(len(rows) * wrong / 100), replace=False).tolist())
    for at in range(len(rows)):
        labels[at] += int(rng.integers(1, num_classes)) * (at in changed)
    work.mkdir(parents=True, exist_ok=True)
    lines = [f"{row.path} {label % num_classes}\n" for row, label in zip(rows, labels)]
    (work / "train.list").write_text("".join(lines))
    overrides = [f"DATASET.train.data_prefix={folder}", f"DATASET.train.file_path={work / 'train.list'}"]
    overrides += ["resume=auto", f"output_dir={work / 'folds'}"]
    _command("train", CONFIG, "--folds", folds, *(word for each in overrides for word in ("-o", each)))
    listed = ("data", "report", work / "train.list", "--data_prefix", folder)
    _command(*listed, "--run", work / "folds", "--output", work / "report")
    lines = (work / "report" / "findings.jsonl").read_text(encoding="utf-8").splitlines()
    findings = [json.loads(line) for line in lines]
    suggested = [one["line"] - 1 for one in findings if one["finding"] == "label contradicted"]
    tenth = suggested[: max(len(suggested) // 10, 1)]
    return {
        "videos": len(rows),
        "wrong": len(changed),
        "suggested": len(suggested),
        "first_tenth": len(tenth),
        "wrong_in_tenth": len(changed.intersection(tenth)),
        "found": len(changed.intersection(suggested[: len(changed)])),
    }


def _command(*words: Any) -> None:
    command = [sys.executable, "-m", "paddlevideo_fast", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

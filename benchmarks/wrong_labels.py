"""Wrong labels in a set: how many of the videos that `data report --run` suggests have one."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from paddlevideo_fast.cli import count
from paddlevideo_fast.loader.tables import list_rows

CONFIG = "slowfast_motion"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument("folder", type=Path, help="that `paddlevideo-fast data motion` has written")
    parser.add_argument("work", type=Path, help="folder for the list and the runs")
    parser.add_argument("--wrong", type=count(1, 50), default=5, help="percent of the labels (default 5)")
    parser.add_argument("--folds", type=count(2), default=3, help="of the cross-validation (default 3)")


def run(folder: Path, work: Path, wrong: int = 5, folds: int = 3) -> dict[str, Any]:
    """Changes labels of train.list at random, cross-validates, and looks at the suggestions.

    Folds that have ended are not trained again.

    Returns:
        "videos", "wrong" and "suggested", numbers of videos; "top1" of the cross-validation, on the labels
        as they are; of the first tenth of the suggestions "first_tenth", their number, and "wrong_in_tenth";
        and "found", how many of the wrong labels are among as many suggestions as there are wrong ones.
    """
    rows = list(list_rows(str(folder / "train.list"), 2))
    rng = np.random.default_rng(0)
    labels = [int(row.labels[0]) for row in rows]
    num_classes = max(labels) + 1
    changed = set(rng.choice(len(rows), round(len(rows) * wrong / 100), replace=False).tolist())
    work.mkdir(parents=True, exist_ok=True)
    (work / "train.list").write_text(
        "".join(
            f"{row.path} {(label + int(rng.integers(1, num_classes)) * (at in changed)) % num_classes}\n"
            for at, (row, label) in enumerate(zip(rows, labels))
        )
    )
    data = {"data_prefix": folder, "file_path": work / "train.list"}
    overrides = [f"DATASET.train.{key}={value}" for key, value in data.items()]
    overrides += ["resume=auto", f"output_dir={work / 'folds'}"]
    flags = [word for override in overrides for word in ("-o", override)]
    _command("train", CONFIG, "--folds", folds, *flags)
    _command(
        *("data", "report", work / "train.list", "--data_prefix", folder),
        *("--run", work / "folds", "--output", work / "report"),
    )
    lines = (work / "report" / "findings.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    suggested = [one["line"] - 1 for one in found if one["finding"] == "label contradicted"]
    tenth = suggested[: max(len(suggested) // 10, 1)]
    result = json.loads((work / "folds" / "folds.json").read_text(encoding="utf-8"))
    return {
        "videos": len(rows),
        "wrong": len(changed),
        "suggested": len(suggested),
        "top1": result["mean"],
        "first_tenth": len(tenth),
        "wrong_in_tenth": len(changed.intersection(tenth)),
        "found": len(changed.intersection(suggested[: len(changed)])),
    }


def _command(*words: Any) -> None:
    command = [sys.executable, "-m", "paddlevideo_fast", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

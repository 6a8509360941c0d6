"""Methods against imbalance beside plain training, on motions with 400 to 10 clips a class.

A narrow TSM is trained from nothing in this process, once for each method and seed. The seed also decides
which classes are rare. A run that is complete is kept and not repeated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from benchmarks.measuring import ROOT, add_output_arguments, show
from benchmarks.runs import kept_result
from benchmarks.tables import imbalance_rows
from paddlevideo_fast.assembly import train
from paddlevideo_fast.assembly.callbacks import make_evaluator, make_metric
from paddlevideo_fast.assembly.data import make_split
from paddlevideo_fast.cli import count, timed_progress
from paddlevideo_fast.config import Config, RunSpec, load_config
from paddlevideo_fast.engine import Distribution, Precision
from paddlevideo_fast.preparation import motion
from paddlevideo_fast.preparation.packing import pack

PLAIN, LATE = "plain", "plain, then sampler: balanced"
_LOSS = "MODEL.head.loss_cfg"
ROWS: dict[str, Sequence[str]] = {
    PLAIN: (),
    "class_weights: balanced": (f"{_LOSS}={{name: CrossEntropyLoss, class_weights: balanced}}",),
    "class_weights: effective": (f"{_LOSS}={{name: CrossEntropyLoss, class_weights: effective}}",),
    "FocalLoss": (f"{_LOSS}={{name: FocalLoss}}",),
    "sampler: balanced": ("DATASET.train.sampler=balanced",),
    "sampler: square_root": ("DATASET.train.sampler=square_root",),
    "logit_adjustment: 1": (f"{_LOSS}={{name: CrossEntropyLoss, logit_adjustment: 1}}",),
    LATE: ("DATASET.train.sampler=balanced",),
}
_CONFIG = ROOT / "configs" / "quickstart" / "tsm_motion.yaml"
_RATE = "OPTIMIZER.learning_rate"
_SIZE_PX, _CROP_PX, _VIDEO_FRAMES, _NUM_FRAMES = 40, 32, 8, 4
_LATE_SHARE, _LATE_RATE = 0.25, 0.1  # of the epochs and of the learning rate of plain training


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument("--seeds", type=count(1), default=3, help="runs of each method (default 3)")
    parser.add_argument("--classes", default="left,right,up,down", help="motions joined by commas")
    parser.add_argument("--most", type=count(1), default=400, help="clips of the first class (default 400)")
    parser.add_argument("--fewest", type=count(1), default=10, help="clips of the last class (default 10)")
    parser.add_argument("--valid", type=count(1), default=100, help="validation clips a class (default 100)")
    parser.add_argument("--epochs", type=count(4), default=12, help="epochs of plain training (default 12)")
    parser.add_argument(
        "--output", type=Path, default=Path("output/imbalance"), help="folder of clips, runs and results"
    )
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Trains with every method and seed, and prints the table."""
    classes = args.classes.split(",")
    counts = np.geomspace(args.most, args.fewest, len(classes)).round().astype(int).tolist()
    result = run(classes, counts, args.valid, args.epochs, args.seeds, args.output, timed_progress())
    show(result, args, table)


def run(
    classes: Sequence[str],
    counts: Sequence[int],
    num_valid: int,
    epochs: int,
    num_seeds: int,
    output: Path,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Trains with every method and seed.

    Args:
        classes: names of motions.
        counts: training clips of a class, falling; with seed s, class c has counts[(c + s) % len(counts)].
        num_valid: validation clips of a class.
        epochs: of plain training.
        num_seeds: number of seeds, from 0.
        output: folder of the clips and of the runs, each in a folder of its own.
        progress: called with the name of each run that starts.

    Returns:
        "classes", "counts", "epochs", "num_valid", "paddle" and "rows": for each method and seed the share of
        the validation clips of a class that are recognised, the class with the most training clips first.

    Raises:
        PaddleVideoFastError: a run fails, or the folder has a run of another config.
    """
    data = output / "data"
    options = {
        "output": data,
        "size": _SIZE_PX,
        "frames": _VIDEO_FRAMES,
        "classes": ",".join(classes),
        "train": max(counts) * len(classes),
        "valid": num_valid * len(classes),
        "workers": 1,
    }
    motion.make([f"--{name}={value}" for name, value in options.items()])
    for split in ("train", "valid"):
        packed = ["--list", f"{data}/{split}.list", "--data_prefix", f"{data}", "--kind", "video"]
        pack([*packed, "--output", f"{data}/packed_{split}", "--workers", "1"])
    rows: dict[str, list[list[float]]] = {name: [] for name in ROWS}
    for seed in range(num_seeds):
        listed = _write_list(data, np.roll(counts, -seed).tolist(), output / f"train_{seed}.list")
        for name, overrides in ROWS.items():
            progress(f"seed {seed}, {name}")
            common = _overrides(data, listed, len(classes), epochs, seed)
            if name == LATE:
                weights = _folder(output, PLAIN, seed) / f"TSM_motion_epoch_{epochs:05d}.pdparams"
                common += [*_late(epochs), f"weights={json.dumps(str(weights))}"]
            accuracies = _accuracies([*common, *overrides], _folder(output, name, seed))
            rows[name].append(np.roll(accuracies, seed).tolist())
    return {
        "classes": list(classes),
        "counts": list(counts),
        "epochs": epochs,
        "num_valid": num_valid,
        "paddle": paddle.__version__,
        "rows": rows,
    }


def _write_list(data: Path, counts: Sequence[int], path: Path) -> Path:
    """A list with the first clips of each class of the training list."""
    left, kept = list(counts), []
    for line in (data / "train.list").read_text(encoding="utf-8").splitlines():
        label = int(line.rsplit(None, 1)[1])
        left[label] -= 1
        kept += [line] if left[label] >= 0 else []
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return path


def _folder(output: Path, name: str, seed: int) -> Path:
    return output / f"{name.replace(': ', '_').replace(', ', '_').replace(' ', '_')}_{seed}"


def _overrides(data: Path, listed: Path, num_classes: int, epochs: int, seed: int) -> list[str]:
    lists = {"train": listed, "valid": data / "valid.list"}
    return [
        f"seed={seed}",
        f"epochs={epochs}",
        f"save_interval={epochs}",
        "validate=false",
        "report=false",
        "max_iters=null",
        "TRACKERS=[]",
        f"MODEL.backbone.num_seg={_NUM_FRAMES}",
        f"MODEL.head.num_classes={num_classes}",
        "DATASET.batch_size=16",
        "DATASET.test=null",
        "PIPELINE.test=null",
        *(f"DATASET.{name}.format=PackedFrameDataset" for name in lists),  # reading costs next to nothing
        *(f"DATASET.{name}.data_prefix={json.dumps(f'{data}/packed_{name}')}" for name in lists),
        *(f"DATASET.{name}.file_path={json.dumps(str(path))}" for name, path in lists.items()),
        *(f"PIPELINE.{name}.sample.num_seg={_NUM_FRAMES}" for name in lists),
        f"PIPELINE.train.transform.0.RandomCrop.target_size={_CROP_PX}",
        f"PIPELINE.valid.transform.0.CenterCrop.target_size={_CROP_PX}",
        f"{_RATE}.max_epoch={epochs}",
        f"{_RATE}.warmup_epochs=1",
    ]


def _late(epochs: int) -> list[str]:
    """Overrides of a short training at a low rate that follows plain training."""
    more = round(epochs * _LATE_SHARE)
    rates = load_config(_CONFIG)["OPTIMIZER"]["learning_rate"]
    return [
        f"epochs={more}",
        f"save_interval={more}",
        f"{_RATE}.max_epoch={more}",
        f"{_RATE}.warmup_epochs=0",
        f"{_RATE}.cosine_base_lr={rates['cosine_base_lr'] * _LATE_RATE}",
    ]


def _accuracies(overrides: Sequence[str], folder: Path) -> list[float]:
    """The share of the clips of each class that a run recognises; see `kept_result`."""
    config = load_config(_CONFIG, [*overrides, f"output_dir={json.dumps(str(folder))}"])
    return kept_result(folder, config, lambda: _train(config))["accuracies"]


def _train(config: Config) -> dict[str, list[float]]:
    model: Any = train(config).model
    spec = RunSpec.of(config)
    split, metric = make_split(spec, "valid", model.layout, Distribution()), make_metric(spec)
    make_evaluator(spec, split, Precision(), Distribution()).run(model, metric)
    assert metric.predictions is not None
    labels, guesses = metric.predictions.labels, metric.predictions.scores.argmax(axis=1)
    return {"accuracies": [float((guesses[labels == label] == label).mean()) for label in np.unique(labels)]}


def table(result: Mapping[str, Any]) -> str:
    """The result as a Markdown table: means over seeds, with the least and the greatest."""
    head, *rows = imbalance_rows(result, str)
    lines = [" | ".join(row) for row in (head, ["---"] * len(head), *rows)]
    clips = ", ".join(map(str, result["counts"]))
    num_seeds = len(result["rows"][PLAIN])
    return "\n".join(
        [
            *(f"| {line} |" for line in lines),
            "",
            f"Training clips a class: {clips}. {num_seeds} seeds, {result['epochs']} epochs.",
        ]
    )

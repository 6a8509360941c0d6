"""Cross-validation: a small list is dealt into folds, and each is the validation of a run of its own.

A list of a hundred videos leaves twenty for validation, too few to compare two settings by. In
cross-validation each video is validated once, by a network that has not seen it.
"""

import argparse
import gc
import hashlib
import json
import os
import re
import signal
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

from paddlevideo_fast.assembly.run import train
from paddlevideo_fast.cli.command import print_result
from paddlevideo_fast.config import Config, RunSpec
from paddlevideo_fast.engine import TrainingInterrupted
from paddlevideo_fast.engine.checkpoint import writing
from paddlevideo_fast.engine.distribution import launched_rank
from paddlevideo_fast.engine.output import FOLDS, folder_of_run, move_aside
from paddlevideo_fast.errors import SettingError, UsageError
from paddlevideo_fast.extensions.report import save_json
from paddlevideo_fast.io.files import atomic_write_text
from paddlevideo_fast.io.urls import join, scheme_of
from paddlevideo_fast.jobs.list_lines import json_line
from paddlevideo_fast.loader.class_names import classes_of_config
from paddlevideo_fast.loader.tables import Row, list_rows
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.metrics.accuracy import interval
from paddlevideo_fast.modeling import classes_of

logger = get_logger(__name__)

_KEY = "--folds"
_OF_LIST = ("format", "data_prefix", "suffix")


def run(cfg: Config, args: argparse.Namespace) -> None:
    """Does what `train --folds` asks for."""
    if args.test:
        raise UsageError("--folds: is for a training; leave --test out")
    print_result(cross_validate(cfg, args.folds), args.json)


def cross_validate(cfg: Config, num_folds: int) -> dict[str, Any]:
    """Trains `num_folds` runs, each on all folds of DATASET.train but its own, and returns what they reach.

    The runs go to `fold_1`, `fold_2`, … in the output folder, their lists and the result beside them. With
    `resume: auto` runs that have ended stay, and one that was stopped goes on. The result is of the last
    epoch of each run: the best of many epochs, chosen by the same videos, would be too good.

    Raises:
        ConfigError: DATASET.train has no list that can be dealt, or the run cannot be cross-validated.
        PaddleVideoFastError: as its message says.
        TrainingInterrupted: a signal came and the run of a fold saved.
    """
    with cfg.placing():
        cfg.require(_KEY, "DATASET.train", "PIPELINE.valid", "METRIC")
        spec = RunSpec.of(cfg)
        _require_a_list(spec, num_folds)
        section = cfg["DATASET"]["train"]
        rows = list(list_rows(section["file_path"], 3 if section["format"] == "FrameDataset" else 2))
        if not section.get("data_prefix"):  # the new lists are in another folder
            rows = [row._replace(path=join(row.folder, row.path)) if row.folder else row for row in rows]
        folds = deal(rows, num_folds, spec.run.seed)
    folder, results = _folder(spec), []
    lists = {
        _list(folder, fold, name): "".join(
            f"{json_line(row)}\n" for row, own in zip(rows, folds) if (own == fold) is inside
        )
        for fold in range(1, num_folds + 1)
        for name, inside in (("train", False), ("valid", True))
    }
    if spec.run.resume:
        _require_same_division(folder, lists)
    else:
        move_aside(folder, [path for path in (folder / "lists", *folder.glob("fold_*")) if path.exists()])
    with writing(folder):
        (folder / "lists").mkdir(parents=True, exist_ok=True)
        save_json({"num_folds": num_folds, "seed": spec.run.seed}, folder / FOLDS)
        for path, text in lists.items():
            atomic_write_text(path, text)
    for fold in range(1, num_folds + 1):
        logger.info("fold %d of %d: %s", fold, num_folds, folder / f"fold_{fold}")
        try:
            validation = train(_config_of(spec, folder, fold)).state.last_validation
        except KeyboardInterrupt:  # between the trainings, of which those that have ended are saved
            stopped = TrainingInterrupted(signal.SIGINT)
            stopped.folder = str(folder / f"fold_{fold}")
            raise stopped from None
        results.append({"fold": fold, **validation})
        gc.collect()
    result = {
        "output_dir": str(folder),
        "num_folds": num_folds,
        "seed": spec.run.seed,
        **summary(results),
        "folds": results,
    }
    save_json(result, folder / FOLDS)
    logger.info("%s; %s", result["text"], folder / FOLDS)
    return result


def deal(rows: Sequence[Row], num_folds: int, seed: int) -> list[int]:
    """The fold of each row, from 1; the classes are spread over the folds as evenly as their groups allow.

    Rows of one group, or of one file, are in one fold, and so are groups that share a file. Groups come in
    the order of a hash of the seed and their names, and each goes to the fold that has the fewest rows of its
    classes.

    Raises:
        SettingError: there are fewer groups than folds.
    """
    names = _names_of_groups(rows)
    labels: dict[str, Counter] = {}
    for name, row in zip(names, rows):
        labels.setdefault(name, Counter()).update(row.labels or ("",))
    if len(labels) < num_folds:
        text = f"the list has {len(labels)} videos or groups, too few for {num_folds} folds"
        raise SettingError("DATASET.train.file_path", text)
    of_class = sum(labels.values(), Counter())

    def order(name: str) -> tuple[int, str, bytes]:
        rarest = min(labels[name], key=lambda label: (of_class[label], str(label)))
        text = f"{seed}/{name}".encode("utf-8", errors="surrogateescape")
        return of_class[rarest], str(rarest), hashlib.sha256(text).digest()

    counts: list[Counter] = [Counter() for _ in range(num_folds)]
    chosen: dict[str, int] = {}
    for name in sorted(labels, key=order):
        own = labels[name]
        taken = [(sum(count[label] * size for label, size in own.items()), count.total()) for count in counts]
        fold = taken.index(min(taken))
        counts[fold].update(own)
        chosen[name] = fold + 1
    single = [label for label in of_class if sum(count[label] > 0 for count in counts) == 1]
    if single:
        logger.warning(
            "the run of a fold does not see class %s: all of its videos are in that fold", single[0]
        )
    return [chosen[name] for name in names]


def _names_of_groups(rows: Sequence[Row]) -> list[str]:
    """For each row the name of what stays in one fold.

    It is the row's group; without one, the group of another row of the same file; else the file.
    """
    of_file: dict[str, str] = {}
    joined: dict[str, str] = {}  # a group to another one that shares a file with it

    def first(group: str) -> str:
        while group in joined:
            group = joined[group]
        return group

    paths = [os.path.normpath(row.path) for row in rows]
    for path, row in zip(paths, rows):
        if row.group:
            own, other = first(row.group), first(of_file.setdefault(path, row.group))
            if own != other:
                joined[own] = other
    return [first(of_file[path]) if path in of_file else path for path in paths]


def summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and deviation of the folds' first value, top-1 of all videos with its interval, and a text."""
    name = next(key for key in results[0] if key not in ("fold", "epoch"))
    values = [result[name] for result in results]
    mean, deviation = statistics.mean(values), statistics.stdev(values)
    fields: dict[str, Any] = {"metric": name, "mean": mean, "standard_deviation": deviation}
    text = f"{len(results)} folds, last epoch of each: {name} {mean:.5f} ± {deviation:.5f}"
    if name == "top1":
        num_samples = sum(int(result["num_samples"]) for result in results)
        right = sum(round(result[name] * result["num_samples"]) for result in results)
        low, high = interval(right / num_samples, num_samples)
        fields |= {"pooled": right / num_samples, "interval": [low, high], "num_samples": num_samples}
        text += (
            f"; all {num_samples} videos together: {right / num_samples:.5f}, "
            f"95 % interval {low:.3f} to {high:.3f}"
        )
    return {**fields, "text": text}


def _require_a_list(spec: RunSpec, num_folds: int) -> None:
    """Raises `SettingError` where the training data cannot be dealt into folds."""
    section = spec.config["DATASET"]["train"]
    path = str(section.get("file_path"))
    if num_folds < 2:
        raise SettingError(_KEY, f"{num_folds}: cross-validation needs at least 2")
    if launched_rank()[1] > 1:
        raise SettingError(_KEY, "runs in one process; start it without a launcher")
    if scheme_of(path) or not Path(path).is_file() or section.get("format") == "WebDataset":
        raise SettingError("DATASET.train.file_path", f"{_KEY} deals a list out, and {path} is no such file")
    if spec.holds("features"):
        raise SettingError("features", f"belong to one division of the data; leave it or {_KEY} out")
    if not classes_of(spec.model):
        raise SettingError(_KEY, f"{spec.model['framework']} has no classes to deal evenly")
    if scheme_of(spec.run.output_dir):
        raise SettingError("output_dir", f"{_KEY} writes to a local folder; choose one")


def _folder(spec: RunSpec) -> Path:
    """Where the folds go: output_dir, else the newest ones that are resumed, else a free folder."""
    base, resume = Path(spec.run.output_dir), spec.run.resume
    if spec.config.get("output_dir"):
        return base
    return (_newest_folds(base) or base) if resume else folder_of_run(base)


def _newest_folds(base: Path) -> Path | None:
    """The folder of the newest cross-validation among `base`, `base_2`, …; None: there is none."""
    numbered = re.compile(re.escape(base.name) + r"(_\d+)?")
    beside = [path.parent for path in base.parent.glob(f"*/{FOLDS}") if numbered.fullmatch(path.parent.name)]
    return max(beside, key=lambda folder: (folder / FOLDS).stat().st_mtime_ns, default=None)


def _require_same_division(folder: Path, lists: Mapping[Path, str]) -> None:
    """Raises `SettingError` where the runs to resume have other folds than these."""
    there = sorted((folder / "lists").glob("fold_*.jsonl"))
    if any(lists.get(path) != path.read_text(encoding="utf-8") for path in there):
        begun = json.loads((folder / FOLDS).read_text(encoding="utf-8"))
        text = (
            f"{folder} holds {begun['num_folds']} folds by seed {begun['seed']}. This run has other folds or "
            "another list: go on with what was begun, or start anew without --resume"
        )
        raise SettingError(_KEY, text)


def _list(folder: Path, fold: int, name: str) -> Path:
    return folder / "lists" / f"fold_{fold}_{name}.jsonl"


def _config_of(spec: RunSpec, folder: Path, fold: int) -> Config:
    """The config of the run that validates on a fold."""
    config = copy(spec.config)
    section = dict(config["DATASET"])
    own = {key: section["train"][key] for key in _OF_LIST if key in section["train"]}
    kept = {key: item for key, item in (section.get("valid") or {}).items() if key not in _OF_LIST}
    section["train"] = {**section["train"], "file_path": str(_list(folder, fold, "train"))}
    section["valid"] = {**kept, **own, "file_path": str(_list(folder, fold, "valid"))}
    classes = classes_of_config(config, classes_of(spec.model))
    if classes is not None and not section.get("class_names"):
        section["class_names"] = classes.source  # the file beside the whole list
    config["DATASET"] = section
    config.update(
        output_dir=str(folder / f"fold_{fold}"), validate=True, resume="auto" if spec.run.resume else None
    )
    return config

"""Videos of a test that the training has seen, or that chose the tested weights."""

import os
import re
from pathlib import Path

from paddlevideo_fast.assembly.data import Pipelines
from paddlevideo_fast.config import RunSpec
from paddlevideo_fast.config.settings import SplitName
from paddlevideo_fast.engine import CheckpointStore
from paddlevideo_fast.engine.callbacks.evaluation import best_of
from paddlevideo_fast.engine.checkpoint import read_mark
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.io.paths import file_system
from paddlevideo_fast.loader import build_dataset
from paddlevideo_fast.loader.dataset import ClipDataset


def overlap(spec: RunSpec, weights: str, tested: ClipDataset, pipelines: Pipelines) -> str:
    """A sentence on tested videos that are no news to the weights; empty where all are new to them."""
    share = f"of the {len(tested)} tested videos"
    trained, chose = (_num_shared(spec, name, tested, pipelines) for name in ("train", "valid"))
    texts = [f"{trained} {share} are in DATASET.train"] if trained else []
    file = Path(weights).with_suffix("")
    if chose and re.search("_best$|^best_model$", file.name):
        texts.append(f"{chose} {share} chose these weights in validation")
        store = CheckpointStore(file.parent, spec.run.model_name)
        mark = read_mark(Path(f"{store.latest()}.json"))
        if mark and file.name.endswith("_best"):
            state = (mark["trainer"].get(key, {}) for key in ("best", "choice", "last_validation"))
            texts[-1] += f" ({best_of(*state)})"
    return f"{'; '.join(texts)}. Expect less on new videos; train --folds K measures that" if texts else ""


def _num_shared(spec: RunSpec, name: SplitName, tested: ClipDataset, pipelines: Pipelines) -> int:
    """How many of the tested videos DATASET.`name` has, too; 0 where its list cannot be read."""
    if not spec.holds(f"DATASET.{name}") or not file_system(spec.splits[name].dataset["file_path"]).is_local:
        return 0
    try:
        other = build_dataset(
            spec.splits[name].dataset,
            pipelines[name],
            training=name == "train",
            seed=spec.run.seed,
            class_names=spec.data.class_names,
        )
    except PaddleVideoFastError:
        return 0
    there = {os.path.normpath(record.path) for record in other.records}
    return sum(os.path.normpath(record.path) in there for record in tested.records)

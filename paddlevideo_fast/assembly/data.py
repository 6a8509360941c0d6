"""The parts of the data of a config, ready to be iterated."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Literal, Optional

import paddle

from paddlevideo_fast.config import Config, DatasetSettings, RunSettings
from paddlevideo_fast.engine import Distribution
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.loader import (
    BadSamples,
    Pipeline,
    WorkerOptions,
    build_dataset,
    build_loader,
    check_labels,
)
from paddlevideo_fast.loader.dali import DaliOptions, to_tensor
from paddlevideo_fast.loader.transforms import RandomFlip
from paddlevideo_fast.machine import gpu_number
from paddlevideo_fast.modeling import Preprocess
from paddlevideo_fast.registry import RECOGNIZERS


@dataclass
class Split:
    """One part of the data, ready to be iterated."""

    loader: Any
    preprocess: Any
    bad_samples: BadSamples


def split_of(
    cfg: Config,
    name: str,
    folder: Optional[Path],
    layout: Literal["NTCHW", "NCTHW"],
    distribution: Optional[Distribution] = None,
) -> Split:
    """Loader, preprocessing and bad-sample count of DATASET.`name`, of which each rank takes its share."""
    distribution = distribution or Distribution()
    settings, data = RunSettings.from_config(cfg), DatasetSettings.from_config(cfg)
    training = name == "train"
    dataset = build_dataset(
        cfg["DATASET"][name], cfg["PIPELINE"][name], training=training, seed=settings.seed
    )
    recognizer: Any = RECOGNIZERS.get(cfg["MODEL"]["framework"])
    num_classes = recognizer.classes_of(cfg["MODEL"])
    check_labels(dataset.records, num_classes, cfg["DATASET"][name]["file_path"])
    _check_mirrored_labels(dataset.pipeline, num_classes, f"PIPELINE.{name}.transform")
    dali = dali_options(settings, name, layout)
    drop_last = training and len(dataset) >= data.batch_size * distribution.world_size
    loader = loader_of(cfg, name, dataset, dali, drop_last, distribution)
    listed = folder / "bad_samples.txt" if folder and distribution.is_main else None
    bad = BadSamples(listed, total=len(dataset), max_share=data.max_bad_share)
    preprocess = to_tensor if dali else Preprocess(*dataset.pipeline.normalization, layout)
    return Split(loader, preprocess, bad)


def _check_mirrored_labels(pipeline: Pipeline, num_classes: int, key: str) -> None:
    """A flip may give a clip a label that no line of the list has."""
    for step in pipeline.geometric:
        largest = max(step.swapped_labels, default=0) if isinstance(step, RandomFlip) else 0
        if largest >= num_classes:
            raise ConfigError(
                [f"{key}: RandomFlip.swapped_labels: label {largest} with num_classes {num_classes}"]
            )


def loader_of(
    cfg: Config,
    name: str,
    dataset: Any,
    dali: Optional[DaliOptions],
    drop_last: bool,
    distribution: Distribution,
    pad: Optional[bool] = None,
) -> Any:
    """A loader of DATASET.`name`, through DALI where `dali` is given; for `pad` see `ClipBatchSampler`."""
    settings, data = RunSettings.from_config(cfg), DatasetSettings.from_config(cfg)
    return build_loader(
        dataset,
        batch_size=data.batch_size_of(name),  # type: ignore[arg-type]
        num_workers=data.num_workers_of(name),  # type: ignore[arg-type]
        shuffle=name == "train",
        drop_last=drop_last,
        seed=settings.seed,
        rank=distribution.rank,
        world_size=distribution.world_size,
        pad=pad,
        worker_options=WorkerOptions(
            affinity=data.worker_affinity,
            stall_timeout_sec=data.stall_timeout_sec,
            stall_limit_sec=data.stall_limit_sec,
        ),
        dali=dali,
    )


def dali_options(
    settings: RunSettings, name: str, layout: Literal["NTCHW", "NCTHW"]
) -> Optional[DaliOptions]:
    """How DALI reads DATASET.`name`; None where our own reader does."""
    return (
        DaliOptions(gpu_number(paddle.get_device()), layout)
        if settings.train_dali and name != "test"
        else None
    )


def data_identity(cfg: Config, split: Split) -> Dict[str, Any]:
    """What decides which samples a step sees."""
    records = "\n".join(f"{record.path} {record.label}" for record in split.loader.dataset.records)
    return {
        "batch_size": DatasetSettings.from_config(cfg).batch_size,
        "num_samples": len(split.loader.dataset),
        "list_crc32": zlib.crc32(records.encode("utf-8", errors="surrogateescape")),
    }

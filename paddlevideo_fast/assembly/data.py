"""Builds the data of a run: training, validation and test, each with its loader and preprocessing."""

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddlevideo_fast import annexes
from paddlevideo_fast.config import RunSpec
from paddlevideo_fast.config.settings import SplitName
from paddlevideo_fast.config.spec import placed
from paddlevideo_fast.decode import FrameStore
from paddlevideo_fast.engine import Distribution, protocols
from paddlevideo_fast.errors import SettingError, TransformError
from paddlevideo_fast.io.paths import file_system, use_storage
from paddlevideo_fast.io.urls import bare_url, join
from paddlevideo_fast.loader import BadSamples, WorkerOptions
from paddlevideo_fast.loader.annotations import VideoRecord, check_labels
from paddlevideo_fast.loader.build import (
    MakeLoader,
    SampledLoader,
    build_dataset,
    build_loader,
    build_pipeline,
)
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.loader.pipeline import Pipeline
from paddlevideo_fast.loader.transforms.crop import RandomFlip
from paddlevideo_fast.log import get_logger, warn_once
from paddlevideo_fast.modeling import Preprocess, activation_of, classes_of
from paddlevideo_fast.modeling.preprocess import Layout

_NUM_LOOKED_AT = 1000  # records
_OF_CACHE = ("cache_gb", "block_kb", "prefetch")


class Pipelines(dict[SplitName, Pipeline]):
    """What opens the files of each part of the data and makes clips of them, built at its first use.

    Args:
        spec: of the run.
    """

    def __init__(self, spec: RunSpec) -> None:
        super().__init__()
        self._splits = spec.splits

    def __missing__(self, name: SplitName) -> Pipeline:
        return self.setdefault(name, build_pipeline(self._splits[name].pipeline))

    def crop_size(self, name: SplitName) -> int:
        """Side of the clips of a part, in pixels; 0 where no transform sets a size."""
        try:
            return self[name].crop_size
        except TransformError:
            return 0


@dataclass
class Split:
    """One part of the data, ready to be iterated.

    Attributes:
        dataset: its samples.
        loader: gives its batches.
        preprocess: from what the loader gives to what the network takes.
        bad_samples: the files that did not decode.
    """

    dataset: ClipDataset
    loader: SampledLoader
    preprocess: protocols.Preprocess
    bad_samples: BadSamples


@placed
def make_split(
    spec: RunSpec,
    name: SplitName,
    layout: Layout,
    distribution: Distribution,
    folder: Path | None = None,
    pipelines: Pipelines | None = None,
) -> Split:
    """Loader, preprocessing and bad-sample count of DATASET.`name`, of which each rank takes its share.

    Args:
        spec: of the run.
        name: of the part.
        layout: of the clips that the network takes.
        distribution: the processes that share the data.
        folder: where files that do not decode are listed; None: nowhere.
        pipelines: that are built already.
    """
    split, training = spec.splits[name], name == "train"
    use_storage(spec.storage)
    num_classes = classes_of(spec.model)
    has_several = activation_of(spec.model) == "sigmoid"
    dataset = build_dataset(
        split.dataset,
        (Pipelines(spec) if pipelines is None else pipelines)[name],
        training=training,
        seed=spec.run.seed,
        num_classes=num_classes if has_several or not num_classes else None,
        class_names=spec.data.class_names,
        index_cache=spec.data.index_cache,
        frames_cache=_frames_cache(spec, name),
    )
    _tell_what_storage_does(spec, name, dataset)
    if num_classes:
        check_labels(dataset.records, num_classes, split.dataset["file_path"], any_number=has_several)
        _check_mirrored_labels(spec, name, dataset, num_classes)
    drop_last = training and len(dataset) >= spec.data.batch_size * distribution.world_size
    loader = make_loader(spec, name, dataset, distribution, drop_last)
    listed = folder / "bad_samples.txt" if folder and distribution.is_main else None
    bad = BadSamples(listed, total=len(dataset), max_share=spec.data.max_bad_share)
    preprocess: protocols.Preprocess = Preprocess(*dataset.pipeline.normalization, layout)
    for extension in spec.extensions:
        preprocess = extension.on_clips(name, preprocess, layout)
    return Split(dataset, loader, preprocess, bad)


def _frames_cache(spec: RunSpec, name: SplitName) -> FrameStore | None:
    """Where decoded frames of DATASET.`name` are kept; None: nowhere."""
    settings = spec.storage
    if settings.frames_cache is None:
        if spec.holds("STORAGE.frames_cache_gb"):
            spec.warn("STORAGE.frames_cache_gb", "has no effect without frames_cache")
        return None
    if _other_loader(spec, name) is not None:
        return None
    module = annexes.load("storage", "frames_cache")
    if module is None:
        raise SettingError("STORAGE.frames_cache", "this installation has no sources to keep frames with")
    return module.FrameCache(settings.frames_cache, settings.frames_cache_gb)


def _tell_what_storage_does(spec: RunSpec, name: SplitName, dataset: ClipDataset) -> None:
    is_remote = not all(file_system(record.path).is_local for record in dataset.records[:_NUM_LOOKED_AT])
    if is_remote and spec.storage.cache_dir is None:
        text = (
            "its files lie at URLs, and each epoch reads them anew and waits for them: with "
            "STORAGE.cache_dir they are fetched ahead and kept on a disk"
        )
        get_logger().info(f"DATASET.{name}: {text}")
    elif not is_remote and spec.storage.cache_dir is not None:
        text = f"STORAGE.cache_dir has no effect on DATASET.{name}: none of its files lies at a URL"
        warn_once(get_logger(), text)
    for key in _OF_CACHE if spec.storage.cache_dir is None else ():
        if spec.holds(f"STORAGE.{key}"):
            spec.warn(f"STORAGE.{key}", "has no effect without cache_dir")


def make_loader(
    spec: RunSpec,
    name: SplitName,
    dataset: ClipDataset,
    distribution: Distribution,
    drop_last: bool = False,
    pad: bool | None = None,
) -> SampledLoader:
    """A loader of DATASET.`name`; for `drop_last` and `pad` see `ClipBatchSampler`."""
    data = spec.data
    return build_loader(
        dataset,
        batch_size=data.batch_size_of(name),
        num_workers=data.num_workers_of(name),
        shuffle=name == "train",
        drop_last=drop_last,
        seed=spec.run.seed,
        rank=distribution.rank,
        world_size=distribution.world_size,
        pad=pad,
        worker_options=WorkerOptions(
            affinity=data.worker_affinity,
            stall_timeout_sec=data.stall_timeout_sec,
            stall_limit_sec=data.stall_limit_sec,
            prefetch=spec.storage.prefetch,
        ),
        make=_other_loader(spec, name),
    )


def data_identity(spec: RunSpec, split: Split) -> dict[str, Any]:
    """What determines the samples of a step; a run resumes only where this is the same."""
    records = "\n".join(_identity(record, split.dataset) for record in split.dataset.records)
    return {
        "batch_size": spec.data.batch_size,
        "clips_per_video": split.dataset.clips_per_video,
        "num_samples": len(split.dataset),
        "sampler": split.dataset.sampler,
        "split_by": "sample" if split.dataset.groups is None else "shard",
        "shuffle_window": window.size if (window := split.loader.batch_sampler.window) else None,
        "list_crc32": zlib.crc32(records.encode("utf-8", errors="surrogateescape")),
    }


def path_in_set(path: str, dataset: ClipDataset) -> str:
    """A path from the data_prefix on, if it is below: a set that is moved stays the same set."""
    return path.removeprefix(join(dataset.data_prefix, "")) if dataset.data_prefix else path


def _identity(record: VideoRecord, dataset: ClipDataset) -> str:
    """What a record adds to the identity of its list; the plain line where it says no more.

    A URL counts without its query: it names the same video when it is signed anew.
    """
    path = path_in_set(bare_url(record.path), dataset)
    plain = f"{path} {','.join(map(str, record.labels))}"
    more = (record.span, record.weight, record.group, record.draw_part or ())
    return plain if more == (None, 1.0, "", ()) else f"{plain} {more}"


def _other_loader(spec: RunSpec, name: SplitName) -> MakeLoader | None:
    """What makes the loader of DATASET.`name` where an extension does; None: worker processes read it."""
    makers = (extension.loader_of(name) for extension in spec.extensions)
    return next((make for make in makers if make is not None), None)


def _check_mirrored_labels(spec: RunSpec, name: SplitName, dataset: ClipDataset, num_classes: int) -> None:
    """A flip may give a clip a label that no line of the list has."""
    for step in dataset.pipeline.geometric:
        largest = max(step.swapped_labels, default=0) if isinstance(step, RandomFlip) else 0
        if largest >= num_classes:
            text = f"RandomFlip.swapped_labels: label {largest} with num_classes {num_classes}"
            raise SettingError(f"PIPELINE.{name}.transform", text)

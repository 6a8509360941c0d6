"""Builds the data of a run: training, validation and test, each with its loader and preprocessing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from paddlevideo_fast import annexes
from paddlevideo_fast.config import RunSpec
from paddlevideo_fast.config.settings import SplitName, StorageSettings
from paddlevideo_fast.config.spec import SplitSpec, placed
from paddlevideo_fast.decode import FrameStore
from paddlevideo_fast.engine import Distribution, protocols
from paddlevideo_fast.errors import SettingError
from paddlevideo_fast.io.paths import use_storage
from paddlevideo_fast.loader import BadSamples, WorkerOptions
from paddlevideo_fast.loader.annotations import check_labels
from paddlevideo_fast.loader.build import (
    SampledLoader,
    build_dataset,
    build_loader,
    build_pipeline,
    tell_where_files_are,
)
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.loader.pipeline import Pipeline
from paddlevideo_fast.modeling import Preprocess, activation_of, classes_of
from paddlevideo_fast.modeling.preprocess import Layout


class Pipelines(dict[SplitName, Pipeline]):
    """What opens the files of each part of the data and makes clips of them, built at its first use.

    Args:
        splits: the parts of the data.
    """

    def __init__(self, splits: Mapping[SplitName, SplitSpec]) -> None:
        super().__init__()
        self._splits = splits

    def __missing__(self, name: SplitName) -> Pipeline:
        return self.setdefault(name, build_pipeline(self._splits[name].pipeline))


@dataclass
class Split:
    """One part of the data, ready to be iterated.

    Attributes:
        dataset: its samples.
        loader: gives its batches.
        preprocess: from what the loader gives to what the network takes.
        bad_samples: the files that did not decode.
        make_loader: another loader of the clips; for its arguments `drop_last` and `pad` see
            `ClipBatchSampler`.
    """

    dataset: ClipDataset
    loader: SampledLoader
    preprocess: protocols.Preprocess
    bad_samples: BadSamples
    make_loader: Callable[..., SampledLoader]

    def of_statistics(self) -> "Split":
        """The training data as precise BN reads them: with the last, smaller batch.

        The clips have the configured shape in every phase.
        """
        return replace(self, loader=self.make_loader(drop_last=False, pad=False))

    def identity(self) -> dict[str, Any]:
        """What determines the samples of a step; a run resumes only where this is the same."""
        dataset, sampler = self.dataset, self.loader.batch_sampler
        return {
            "batch_size": sampler.batch_size,
            "clips_per_video": dataset.clips_per_video,
            "num_samples": len(dataset),
            "sampler": dataset.sampler,
            "split_by": "sample" if dataset.groups is None else "shard",
            "shuffle_window": sampler.window.size if sampler.window else None,
            "list_crc32": dataset.list_crc32,
        }


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
    data, storage, training = spec.data, spec.storage, name == "train"
    pipelines = Pipelines(spec.splits) if pipelines is None else pipelines
    use_storage(storage)
    # what makes the loader where an option does; else worker processes read the data
    other_loaders = (extension.loader_of(name) for extension in spec.extensions)
    other_loader = next(filter(None, other_loaders), None)
    num_classes, has_several = classes_of(spec.model), activation_of(spec.model) == "sigmoid"
    dataset = build_dataset(
        spec.splits[name].dataset,
        pipelines[name],
        training=training,
        seed=spec.run.seed,
        num_classes=num_classes if has_several or not num_classes else None,
        class_names=data.class_names,
        index_cache=data.index_cache,
        frames_cache=None if other_loader else _frames_cache(storage),
    )
    if num_classes:
        check_labels(dataset.records, num_classes, dataset.file_path, any_number=has_several)
    tell_where_files_are(f"DATASET.{name}", dataset, storage.cache_dir)
    make_loader = partial(
        build_loader,
        dataset,
        batch_size=data.batch_size_of(name),
        num_workers=data.num_workers_of(name),
        shuffle=training,
        seed=spec.run.seed,
        rank=distribution.rank,
        world_size=distribution.world_size,
        worker_options=WorkerOptions(
            affinity=data.worker_affinity,
            stall_timeout_sec=data.stall_timeout_sec,
            stall_limit_sec=data.stall_limit_sec,
            prefetch=storage.prefetch,
        ),
        make=other_loader,
    )
    loader = make_loader(drop_last=training and len(dataset) >= data.batch_size * distribution.world_size)
    listed = folder / "bad_samples.txt" if folder and distribution.is_main else None
    bad = BadSamples(listed, total=len(dataset), max_share=data.max_bad_share)
    preprocess: protocols.Preprocess = Preprocess(*dataset.pipeline.normalization, layout)
    for extension in spec.extensions:
        preprocess = extension.on_clips(name, preprocess, layout)
    return Split(dataset, loader, preprocess, bad, make_loader)


def _frames_cache(storage: StorageSettings) -> FrameStore | None:
    """Where decoded frames are kept; None: nowhere."""
    if storage.frames_cache is None:
        return None
    module = annexes.load("storage", "frames_cache")
    if module is None:
        raise SettingError("STORAGE.frames_cache", "this installation has no sources to keep frames with")
    return module.FrameCache(storage.frames_cache, storage.frames_cache_gb)

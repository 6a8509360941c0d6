"""Datasets and loaders from the sections of a config."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Protocol

from paddlevideo_fast import annexes
from paddlevideo_fast.config import build, build_list
from paddlevideo_fast.config.settings import PipelineSettings, settings_from
from paddlevideo_fast.decode import FrameStore
from paddlevideo_fast.errors import LoaderError
from paddlevideo_fast.io.paths import file_system
from paddlevideo_fast.loader.batches import ClipBatchSampler
from paddlevideo_fast.loader.clip_loader import ClipLoader
from paddlevideo_fast.loader.collate import Batch
from paddlevideo_fast.loader.dataset import ClipDataset, VideoDecoder
from paddlevideo_fast.loader.pipeline import Decoder, Pipeline
from paddlevideo_fast.loader.workers import WorkerOptions
from paddlevideo_fast.log import get_logger, warn_once
from paddlevideo_fast.registry import DATASETS, DECODERS, SAMPLERS, TRANSFORMS

_NUM_LOOKED_AT = 1000  # records


class SampledLoader(Protocol):
    """Gives the batches that its sampler decides on; see `engine.protocols.BatchLoader`."""

    batch_sampler: ClipBatchSampler

    def __len__(self) -> int: ...

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]: ...

    def close(self) -> None: ...


MakeLoader = Callable[[ClipDataset, ClipBatchSampler, int | Literal["auto"]], SampledLoader]


def build_pipeline(section: Mapping[str, Any]) -> Pipeline:
    """A pipeline from `PIPELINE.train`, `.valid` or `.test`, with what opens its files.

    `decode_sampler` alone stands for both `decode: {name: VideoDecoder}` and `sample`.

    Raises:
        LoaderError: `decode` or `sample` is missing.
    """
    if section.get("decode_sampler"):
        section = {**section, "decode": {"name": "VideoDecoder"}, "sample": section["decode_sampler"]}
    for key in ("decode", "sample"):
        if not section.get(key):
            raise LoaderError(f"a pipeline needs '{key}'; it has {', '.join(section) or 'nothing'}")
    sample, decoder = build(SAMPLERS, section["sample"]), build(DECODERS, section["decode"])
    sample = decoder.sampler(sample) if isinstance(decoder, VideoDecoder) else sample
    transforms = build_list(TRANSFORMS, section.get("transform") or [])
    return Pipeline(sample, transforms, settings_from(PipelineSettings, section).resample, decoder)


def build_dataset(
    dataset_section: Mapping[str, Any],
    pipeline_section: Mapping[str, Any] | Pipeline,
    *,
    training: bool,
    seed: int,
    num_classes: int | None = None,
    class_names: str | None = None,
    index_cache: str | None = None,
    frames_cache: FrameStore | None = None,
) -> ClipDataset:
    """A dataset from `DATASET.train`, `.valid` or `.test` and the pipeline of the same name.

    Args:
        dataset_section: the section.
        pipeline_section: that pipeline, or what `build_pipeline` made of it.
        training: see `ClipDataset`.
        seed: of all randomness.
        num_classes: see `ClipDataset`.
        class_names: file with the names of the classes, for a list that names them.
        index_cache: folder for the indexes of long videos; None: they are not kept.
        frames_cache: for decoded frames; None: they are not kept.

    Raises:
        AnnotationError: the list is missing, empty or malformed.
    """
    pipeline = pipeline_section
    if not isinstance(pipeline, Pipeline):
        pipeline = build_pipeline(pipeline)
    _tell_what_has_no_effect(pipeline, training)
    module = annexes.load("storage", "index_cache") if index_cache is not None else None
    if module is not None:
        for decoder in _caching(pipeline.decoder, dataset_section, "DATASET.index_cache"):
            decoder.cache = module.IndexCache(index_cache)
    if frames_cache is not None:
        for decoder in _caching(pipeline.decoder, dataset_section, "STORAGE.frames_cache"):
            decoder.frames = frames_cache
    optional = {"num_classes": num_classes, "class_names": class_names}
    optional = {name: value for name, value in optional.items() if value is not None}
    return build(DATASETS, dataset_section, pipeline=pipeline, seed=seed, training=training, **optional)


def _caching(decoder: Decoder | None, section: Mapping[str, Any], key: str) -> list[VideoDecoder]:
    """The decoder, if it can use a cache; else none, and a warning names the key without effect."""
    is_ours = isinstance(decoder, VideoDecoder) and decoder.reader in ("auto", "pyav")
    form: Any = DATASETS.get(section["format"])
    if isinstance(decoder, VideoDecoder) and is_ours and decoder.on_corrupt == "raise" and form.uses_decoder:
        return [decoder]
    needs = "video files, backend: pyav and on_corrupt: raise"
    warn_once(get_logger(), f"{key} has no effect on {section.get('file_path')}: it needs {needs}")
    return []


def _tell_what_has_no_effect(pipeline: Pipeline, training: bool) -> None:
    if not pipeline.is_normalized:
        mean, std = pipeline.normalization
        warn_once(
            get_logger(),
            f"a pipeline has no Normalization: clips are normalised by ImageNet's mean {list(mean)} and std "
            f"{list(std)}",
        )
    for step in [] if training else [*pipeline.geometric, *pipeline.pixelwise]:
        if getattr(step, "p", 1.0) < 1.0:
            warn_once(
                get_logger(),
                f"{type(step).__name__} has no effect in evaluation, where nothing is drawn at random; p: 1 "
                "applies it to every clip",
            )


def tell_where_files_are(key: str, dataset: ClipDataset, cache_dir: str | None) -> None:
    """Says so where the files of a dataset lie at URLs and have no cache, or a cache has no such files.

    Args:
        key: of the dataset's section.
        dataset: the dataset.
        cache_dir: of STORAGE.
    """
    is_remote = not all(file_system(record.path).is_local for record in dataset.records[:_NUM_LOOKED_AT])
    if is_remote and cache_dir is None:
        get_logger().info(
            f"{key}: its files lie at URLs, and each epoch reads them anew and waits for them: with "
            "STORAGE.cache_dir they are fetched ahead and kept on a disk"
        )
    elif not is_remote and cache_dir is not None:
        warn_once(get_logger(), f"STORAGE.cache_dir has no effect on {key}: none of its files lies at a URL")


def build_loader(
    dataset: ClipDataset,
    *,
    batch_size: int,
    num_workers: int | Literal["auto"],
    shuffle: bool,
    drop_last: bool,
    seed: int,
    rank: int = 0,
    world_size: int = 1,
    pad: bool | None = None,
    worker_options: WorkerOptions | None = None,
    make: MakeLoader | None = None,
) -> SampledLoader:
    """A loader of this rank's share of the dataset, with worker processes unless `make` makes another one.

    For `pad` see `ClipBatchSampler`.

    Raises:
        LoaderError: the dataset is too small for one batch, and `drop_last` leaves nothing; it has fewer
            groups than there are ranks; or the other loader cannot do what the pipeline asks for.
    """
    sampler = ClipBatchSampler(
        len(dataset),
        batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        seed=seed,
        rank=rank,
        world_size=world_size,
        num_views=dataset.num_views,
        pad=pad,
        groups=dataset.groups,
        clips_per_video=dataset.clips_per_video,
        repeat_counts=dataset.repeat_counts if shuffle else None,
        window=dataset.window if shuffle else None,
    )
    if make is not None:
        return make(dataset, sampler, num_workers)
    return ClipLoader(dataset, sampler, num_workers, worker_options)

"""Packed frames as a data set."""

from __future__ import annotations

import os
from typing import ClassVar, Dict, List, Literal, Optional, Sequence

from paddlevideo_fast.config.types import PositiveInt
from paddlevideo_fast.decode import PackedShard, VideoReader, open_shards
from paddlevideo_fast.errors import AnnotationError
from paddlevideo_fast.loader.annotations import VideoRecord, read_video_list
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.loader.pipeline import Pipeline
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.registry import DATASETS


@DATASETS.register()
class PackedFrameDataset(ClipDataset):
    """Videos that data/pack_frames.py packed into shards. `decode` of the pipeline has no effect.

    Args:
        file_path: the folder of the shards: all of their videos, with the labels they were packed with. Or a
            list with lines `name label`, names as in the list that was packed: these videos and labels.
        pipeline: makes the clips.
        seed: of all randomness.
        training: whether a video that does not decode is replaced.
        data_prefix: with a list: the folder of the shards.
        num_retries: records that are tried in training before a sample is given up.
        split_by: what is dealt to the ranks: "sample": videos, anew in each epoch; "shard": whole shards,
            once, so that a rank reads the same files in all epochs, which the memory of its machine may hold.
        num_ensemble_views: clips of a video that a test sees; more than one needs a DecodeSampler with
            `test_mode`, or a Sampler in `valid_mode` that takes segments.
        num_spatial_crops: crops of a span, each a view of its own; null: those that the transforms make.
            Where both are null, all clips of a video are one view.

    Raises:
        ShardError: a shard is missing, unfinished, altered or of another version.
        AnnotationError: the list is missing, empty or malformed, or names a video that is not packed.
        LoaderError: the sampler or the transforms make other views.
    """

    ignored_arguments: ClassVar[Dict[str, str]] = {
        **ClipDataset.ignored_arguments,
        "suffix": "videos have the names that they were packed with",
    }

    def __init__(
        self,
        file_path: str,
        pipeline: Pipeline,
        seed: int,
        training: bool,
        data_prefix: Optional[str] = None,
        num_retries: PositiveInt = 5,
        split_by: Literal["sample", "shard"] = "sample",
        num_ensemble_views: Optional[PositiveInt] = None,
        num_spatial_crops: Optional[PositiveInt] = None,
    ) -> None:
        if os.path.isdir(file_path):
            shards = open_shards(file_path)
            records = _all_records(shards)
        else:
            listed = read_video_list(file_path)
            if not data_prefix:
                raise AnnotationError(
                    f"{file_path}: is a list, so data_prefix must be the folder of its shards"
                )
            shards = open_shards(data_prefix)
            records = _listed_records(shards, listed, file_path)
        if not records:
            raise AnnotationError(
                f"{file_path}: no video of it could be packed; see failures.txt of the shards"
            )
        pipeline.decode = _PackedDecoder(shards)  # so that `format` is all that a config has to change
        views = num_ensemble_views, num_spatial_crops
        super().__init__(records, file_path, pipeline, seed, training, num_retries, *views)
        if split_by == "shard":
            self.groups = [record.place[0] for record in records]


class _PackedDecoder:
    """Opens a record at its place in the shards."""

    def __init__(self, shards: Sequence[PackedShard]) -> None:
        self.shards = shards

    def open(self, record: VideoRecord) -> VideoReader:
        shard, video = record.place
        return self.shards[shard].open(video)


def _all_records(shards: Sequence[PackedShard]) -> List[VideoRecord]:
    return [
        VideoRecord(shard.path_of(video), label, place=(number, video))
        for number, shard in enumerate(shards)
        for video, label in enumerate(shard.directory.videos["label"].tolist())
    ]


def _listed_records(
    shards: Sequence[PackedShard], listed: Sequence[VideoRecord], file_path: str
) -> List[VideoRecord]:
    places = {
        name: (number, video)
        for number, shard in enumerate(shards)
        for video, name in enumerate(shard.directory.names)
    }
    failed = {name for shard in shards for name, _ in shard.directory.failures}
    records, num_failed = [], 0
    for record in listed:
        # a frame list has the number of frames between name and label
        names = (record.path, record.path.rsplit(None, 1)[0])
        name = next((name for name in names if name in places or name in failed), None)
        if name is None:
            raise AnnotationError(f"{file_path}:{record.line}: '{record.path}' is not in the packed frames")
        if name in failed:
            num_failed += 1
            continue
        number, video = places[name]
        path = shards[number].path_of(video)
        records.append(VideoRecord(path, record.label, line=record.line, place=(number, video)))
    if num_failed:
        get_logger().warning(f"{file_path}: {num_failed} videos are left out: they could not be packed")
    return records

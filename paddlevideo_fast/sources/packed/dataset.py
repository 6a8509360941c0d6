"""Packed frames as a data set: all videos of the shards, or those of a list."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from paddlevideo_fast.decode import VideoReader
from paddlevideo_fast.errors import AnnotationError, VideoDecodeError
from paddlevideo_fast.io.paths import file_system
from paddlevideo_fast.io.urls import bare_url
from paddlevideo_fast.loader.annotations import VideoRecord, read_video_list
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.log import counted, get_logger
from paddlevideo_fast.registry import DATASETS
from paddlevideo_fast.sources.packed.packed import PackedShard, is_folder_of_shards, open_shards
from paddlevideo_fast.sources.sharded import ShardedDataset


@DATASETS.register()
class PackedFrameDataset(ShardedDataset):
    """Videos that `paddlevideo-fast data pack` packed into shards. `decode` of the pipeline has no effect.

    Args:
        file_path: the folder of the shards, or its URL: all of their videos, with the labels they were packed
            with. Or a list with lines `name label`, or a .jsonl or .csv file, with names as in the list that
            was packed: these videos and labels.
        data_prefix: with a list: the folder of the shards, or its URL.

    Raises:
        ShardError: a shard is missing, unfinished, altered or of another version.
        AnnotationError: the list is missing, empty or malformed, or names a video that is not packed.
        LoaderError: the sampler or the transforms make other views.
    """

    ignored_arguments: ClassVar[dict[str, str]] = {
        **ClipDataset.ignored_arguments,
        "suffix": "videos have the names that they were packed with",
    }

    uses_decoder = False

    def read_records(self) -> list[VideoRecord]:
        if is_folder_of_shards(self.file_path):
            self.shards = open_shards(self.file_path)
            records = _all_records(self.shards, self.is_labelled)
        else:
            listed = read_video_list(self.file_path, class_names=self.class_names, labelled=self.is_labelled)
            if not self.data_prefix:
                text = f"{self.file_path}: is a list, so data_prefix must be the folder of its shards"
                raise AnnotationError(text)
            self.shards = open_shards(self.data_prefix)
            records = _listed_records(self.shards, listed, self.file_path)
        if not records:
            text = f"{self.file_path}: no video of it could be packed; see failures.txt of the shards"
            raise AnnotationError(text)
        return records

    @property
    def files(self) -> list[str]:
        return [shard.path for shard in self.shards]

    @property
    def is_remote(self) -> bool:
        return file_system(self.shards[0].path).fetches_ahead()

    def open(self, record: VideoRecord) -> VideoReader:
        shard, video = record.position
        return self.shards[shard].open(video)


def _all_records(shards: Sequence[PackedShard], labelled: bool) -> list[VideoRecord]:
    records = [
        VideoRecord(shard.path_of(video), (label,) if labelled else (), position=(number, video))
        for number, shard in enumerate(shards)
        for video, label in enumerate(shard.directory.videos["label"].tolist())
        if label >= 0 or not labelled
    ]
    num_videos = sum(map(len, shards))
    if len(records) < num_videos:
        raise AnnotationError(
            f"{shards[0].path}: only the list that the packing wrote says the labels or spans of "
            f"{num_videos - len(records)} of {num_videos} videos: give this list as file_path and the folder "
            "of the shards as data_prefix"
        )
    return records


def _listed_records(
    shards: Sequence[PackedShard], listed: Sequence[VideoRecord], file_path: str
) -> list[VideoRecord]:
    positions = {
        name: (number, video)
        for number, shard in enumerate(shards)
        for video, name in enumerate(shard.directory.names)
    }
    failed = {name for shard in shards for name, _ in shard.directory.failures}
    records, num_failed = [], 0
    for record in listed:
        # a frame list has the number of frames between name and label
        path = bare_url(record.path)
        names = (path, path.rsplit(None, 1)[0])
        name = next((name for name in names if name in positions or name in failed), None)
        if name is None:
            raise AnnotationError(f"{file_path}:{record.line}: '{record.path}' is not in the packed frames")
        if name in failed:
            num_failed += 1
            continue
        number, video = positions[name]
        path = shards[number].path_of(video)
        if record.span is not None:
            try:
                shards[number].open(video).frames_of(record.span)
            except VideoDecodeError as error:
                raise AnnotationError(f"{file_path}:{record.line}: {error.cause}") from None
        records.append(replace(record, path=path, position=(number, video)))
    if num_failed:
        get_logger().warning(
            f"{file_path}: {counted(num_failed, 'video')} left out, which could not be packed"
        )
    return records

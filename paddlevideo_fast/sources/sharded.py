"""Data sets whose videos lie in shards: packed frames and tars."""

from typing import Any, Literal

from paddlevideo_fast.config.types import PositiveInt
from paddlevideo_fast.loader.batches import ShuffleWindow
from paddlevideo_fast.loader.dataset import ClipDataset


class ShardedDataset(ClipDataset):
    """Videos in shards; `place` of a record is the number of its shard and its own in the shard.

    Args:
        split_by: how ranks share the data: "sample": by videos, anew in each epoch; "shard": by whole
            shards, so that a rank reads the same files in all epochs, and they may stay in its memory.
        shuffle_window: in training, take the shards in a new random order in each epoch, and mix the videos
            in a window of so many videos, over all processes together. It keeps the reads of an epoch close
            together, where random access is slow or the set does not fit into the cache; see the page on
            packed frames for what it costs. null: an epoch mixes all videos.
    """

    def __init__(
        self,
        file_path: str,
        *,
        split_by: Literal["sample", "shard"] = "sample",
        shuffle_window: PositiveInt | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(file_path, **shared)
        if split_by == "shard":
            self.groups = [record.position[0] for record in self.records]
        if shuffle_window is None:
            return
        if self.training and shuffle_window < len(self):
            self.window = ShuffleWindow([record.position for record in self.records], shuffle_window)
        else:
            all_mixed = f"it mixes all {len(self)} videos anyway"
            why = all_mixed if self.training else "an evaluation takes the videos in their order"
            self._say_no_effect(f"shuffle_window: {shuffle_window}", why)

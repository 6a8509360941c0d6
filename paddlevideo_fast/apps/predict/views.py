"""The clips of a prediction: every view of a video, as an evaluation sees it. Needs no Paddle."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paddlevideo_fast.decode import VideoReader
from paddlevideo_fast.decode.reader import VideoPart
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.loader.annotations import VideoRecord
from paddlevideo_fast.loader.build import build_pipeline
from paddlevideo_fast.loader.collate import make_batch
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.loader.pipeline import Decoder
from paddlevideo_fast.loader.request import ClipRequest


class OpenedVideo:
    """Opens a video that is open already; closing what `open` returns leaves it open."""

    def __init__(self, video: VideoReader) -> None:
        self._video = video

    def open(self, record: VideoRecord) -> VideoPart:
        """All of the video."""
        return VideoPart(self._video, 0, self._video.num_frames)


@dataclass(frozen=True)
class Views:
    """How a video becomes clips.

    Args:
        section: PIPELINE.valid or .test.
        num_ensemble_views: see `ClipDataset`.
        num_spatial_crops: see `ClipDataset`.
    """

    section: Mapping[str, Any]
    num_ensemble_views: int | None = None
    num_spatial_crops: int | None = None

    def dataset(self, records: Sequence[VideoRecord], decoder: Decoder | None = None) -> ClipDataset:
        """A data set that gives the clips of an evaluation; `decoder` opens the records if it is given."""
        pipeline = build_pipeline(self.section)
        pipeline.decoder = decoder or pipeline.decoder
        return ClipDataset(
            "",
            pipeline=pipeline,
            seed=0,
            training=False,
            num_ensemble_views=self.num_ensemble_views,
            num_spatial_crops=self.num_spatial_crops,
            records=records,
        )


def read_views(dataset: ClipDataset, index: int = 0) -> np.ndarray:
    """All views of a record: uint8 [V, T, H, W, 3].

    Raises:
        VideoDecodeError: it does not decode.
        PaddleVideoFastError: the pipeline cannot use it.
    """
    requests = [ClipRequest(index, 0, view, dataset.num_views) for view in range(dataset.num_views)]
    batch = make_batch(dataset, requests)
    for _, cause in batch.failures:
        raise VideoDecodeError(dataset.records[index].path, cause)
    return batch.clips

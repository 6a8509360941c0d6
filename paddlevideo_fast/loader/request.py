"""What a batch sampler asks a dataset for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class ClipRequest:
    """One clip of one record. The shape travels with the request, so datasets and workers keep no state.

    Attributes:
        index: number of the record in the dataset.
        epoch: the epoch the clip is for; part of the key of its randomness.
        view: which of several clips of the record, for multi-view evaluation.
        num_views: how many those are.
        num_frames: frames of the clip; None: what the sampler says.
        sampling_rate: source frames from one clip frame to the next, at most: a random clip draws a rate
            between the sampler's own and this one; None: what the sampler says.
        crop_size: height and width of the clip in pixels; None: what the transforms say.
    """

    index: int
    epoch: int
    view: int = 0
    num_views: int = 1
    num_frames: Optional[int] = None
    sampling_rate: Optional[float] = None
    crop_size: Optional[int] = None

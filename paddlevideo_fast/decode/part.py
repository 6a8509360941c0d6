"""Some consecutive frames of an open video, as a video of their own."""

from __future__ import annotations

from typing import Iterator, List, Tuple

import numpy as np

from paddlevideo_fast.decode.reader import VideoReader


class VideoPart(VideoReader):
    """Frames `first` to `stop` - 1 of a video, counted from 0. Closing it leaves the video open.

    Args:
        video: an open reader.
        first: number of the first frame.
        stop: number of the frame after the last, at most the video's number of frames.
    """

    def __init__(self, video: VideoReader, first: int, stop: int) -> None:
        if not 0 <= first < stop <= video.num_frames:
            raise ValueError(f"[{first}, {stop}) is no part of {video.num_frames} frames")
        self._video, self._first = video, first
        self.path, self.codec, self.avg_fps = video.path, video.codec, video.avg_fps
        self.num_frames = stop - first

    @property
    def quarter_turns(self) -> int:
        """See `VideoReader`."""
        return self._video.quarter_turns

    @property
    def pixel_aspect(self) -> float:
        """See `VideoReader`."""
        return self._video.pixel_aspect

    def _shown_size(self) -> Tuple[int, int]:
        self._require_open()
        return self._video.width, self._video.height

    def _decode(self, wanted: List[int]) -> Iterator[Tuple[int, np.ndarray]]:
        replaced_before = self._video.num_replaced
        for index, picture in self._video._decode([self._first + index for index in wanted]):
            yield index - self._first, picture
        self.num_replaced += self._video.num_replaced - replaced_before

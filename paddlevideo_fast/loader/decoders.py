"""The `decode` entry of a pipeline: how a record is opened."""

from __future__ import annotations

from typing import ClassVar, Dict, Literal

from paddlevideo_fast.decode import VideoReader, open_frames, open_video
from paddlevideo_fast.loader.annotations import VideoRecord
from paddlevideo_fast.loader.errors import LoaderError
from paddlevideo_fast.registry import DECODERS


@DECODERS.register()
class VideoDecoder:
    """Opens video files.

    Args:
        backend: the reader: "pyav" is exact and the fastest; "decord" and "cv2" are there to compare with.
        on_corrupt: what becomes of a frame that does not decode: "raise" makes its file a bad sample;
            "nearest" shows the nearest frame that does, and counts it. "pyav" offers both.
    """

    ignored_arguments: ClassVar[Dict[str, str]] = {
        "mode": "the sampler decides what is random",
        "sampling_rate": "the sampler decides which frames are read",
        "num_seg": "the sampler decides which frames are read",
        "num_clips": "the sampler decides which frames are read",
        "target_fps": "the sampler decides which frames are read",
    }

    def __init__(
        self,
        backend: Literal["auto", "pyav", "decord", "cv2"] = "pyav",
        on_corrupt: Literal["raise", "nearest"] = "raise",
    ) -> None:
        if on_corrupt != "raise" and backend not in ("auto", "pyav"):
            raise LoaderError(f"VideoDecoder: on_corrupt: {on_corrupt} needs backend: pyav, not {backend}")
        self.backend = backend
        self.on_corrupt = on_corrupt

    def open(self, record: VideoRecord) -> VideoReader:
        """A reader of the record's frames.

        Raises:
            VideoDecodeError: the file cannot be decoded.
        """
        return open_video(record.path, backend=self.backend, on_corrupt=self.on_corrupt)


@DECODERS.register()
class FrameDecoder:
    """Opens folders of images."""

    def open(self, record: VideoRecord) -> VideoReader:
        """A reader of the record's frames.

        Raises:
            VideoDecodeError: the folder or its first image cannot be read.
        """
        suffix = record.frames_suffix or "img_{:05}.jpg"
        return open_frames(record.path, suffix=suffix, num_frames=record.num_frames)

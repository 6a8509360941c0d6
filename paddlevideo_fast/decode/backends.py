"""Opens whatever holds a video, with the default reader or with another that is registered."""

import os
from collections.abc import Callable
from functools import partial
from typing import Protocol, get_args

from paddlevideo_fast.decode.image_folder import open_frames
from paddlevideo_fast.decode.pyav_reader import PyAVReader
from paddlevideo_fast.decode.reader import OnCorrupt, VideoReader
from paddlevideo_fast.decode.source import Source, VideoSource, path_of
from paddlevideo_fast.decode.stored_index import IndexStore
from paddlevideo_fast.errors import PaddleVideoFastError, VideoDecodeError
from paddlevideo_fast.registry import READERS, did_you_mean


class FrameStore(Protocol):
    """Keeps decoded frames, so that a frame is decoded once."""

    def reader(self, source: Source, opener: Callable[[], VideoReader]) -> VideoReader:
        """A reader that looks here first; `opener` opens the video for what is missing."""


ON_CORRUPT = get_args(OnCorrupt)
# The data tools and prediction take files with these endings for videos.
VIDEO_EXTENSIONS = (
    *(".avi", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ts", ".webm", ".wmv"),
    *(".3g2", ".3gp", ".asf", ".f4v", ".gif", ".m2ts", ".mts", ".mxf", ".ogv", ".vob"),
)


BACKENDS = ("auto", "pyav", "frames")  # `READERS` has the others


def open_video(
    source: Source,
    backend: str = "auto",
    on_corrupt: OnCorrupt = "raise",
    cache: IndexStore | None = None,
    frames: FrameStore | None = None,
) -> VideoReader:
    """Opens a video for exact access to its frames.

    Args:
        source: the path of a video file or of a folder of numbered images; for both also a URL; for "pyav"
            and "nvdec" also the bytes of a file, or a file object that reads bytes and can seek (it stays
            open).
        backend: "pyav" (exact, the fastest), "nvdec" (the same frames, decoded on an NVIDIA GPU), "cv2",
            "decord" (must be installed; see its reader for the files it gets wrong), "frames" (a folder), or
            "auto": "frames" for a folder, else "pyav".
        on_corrupt: "raise", or "nearest", which "pyav" offers: a frame that does not decode is replaced by
            the nearest that does, and counted in the reader's `num_replaced`.
        cache: keeps indexes of long videos, for "pyav" without "nearest"; no effect on others.
        frames: keeps decoded frames, with the same limits.

    Returns:
        A reader, to be used as a context manager.

    Raises:
        VideoDecodeError: it does not decode; the message has the path and the cause.
        PaddleVideoFastError: the backend is unknown, not installed, or cannot do what is asked.
    """
    if backend == "auto":
        backend = "frames" if isinstance(source, (str, os.PathLike)) and os.path.isdir(source) else "pyav"
    if backend not in BACKENDS and backend not in READERS:
        known = [*BACKENDS, *READERS.names()]
        raise PaddleVideoFastError(f"unknown decoding backend '{backend}'{did_you_mean(backend, known)}")
    if on_corrupt not in ON_CORRUPT:
        raise PaddleVideoFastError(f"on_corrupt is one of {', '.join(ON_CORRUPT)}, found {on_corrupt!r}")
    if backend == "pyav":
        opener = partial(PyAVReader, source, on_corrupt, cache)
        return opener() if frames is None or on_corrupt != "raise" else frames.reader(source, opener)
    if on_corrupt != "raise":
        raise PaddleVideoFastError(f"backend '{backend}' cannot replace damaged frames; backend 'pyav' can")
    if backend == "frames":
        return open_frames(VideoSource(source).url or path_of(source, "frames"), None)
    return READERS.get(backend)(source)


def check_video(source: Source, backend: str = "auto") -> str | None:
    """Decodes everything, see `VideoReader.verify`; returns why that fails, or None for an intact video."""
    try:
        with open_video(source, backend) as reader:
            reader.verify()
    except VideoDecodeError as error:
        return error.cause
    return None

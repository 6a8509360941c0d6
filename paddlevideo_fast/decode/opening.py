"""One way to open whatever holds a video."""

from __future__ import annotations

import os
from collections import deque
from typing import Callable, Dict, Optional, get_args

from paddlevideo_fast.decode.cv2_reader import Cv2Reader
from paddlevideo_fast.decode.decord_reader import DecordReader
from paddlevideo_fast.decode.frames import guess_suffix, open_frames
from paddlevideo_fast.decode.pyav_reader import PyAVReader
from paddlevideo_fast.decode.reader import OnCorrupt, VideoReader
from paddlevideo_fast.decode.source import Source, path_of
from paddlevideo_fast.errors import PaddleVideoFastError, VideoDecodeError
from paddlevideo_fast.registry import did_you_mean

ON_CORRUPT = get_args(OnCorrupt)
VIDEO_EXTENSIONS = (".mp4", ".avi", ".mkv", ".webm", ".mov", ".m4v", ".mpg", ".ts", ".flv", ".wmv")


def _open_folder(source: Source) -> VideoReader:
    path = path_of(source, "frames")
    return open_frames(path, guess_suffix(path)) if os.path.isdir(path) else open_frames(path)


_OPENERS: Dict[str, Callable[[Source], VideoReader]] = {
    "pyav": PyAVReader,
    "cv2": Cv2Reader,
    "decord": DecordReader,
    "frames": _open_folder,
}
BACKENDS = ("auto", *_OPENERS)


def open_video(source: Source, backend: str = "auto", on_corrupt: OnCorrupt = "raise") -> VideoReader:
    """Opens a video for exact access to its frames.

    Args:
        source: the path of a video file or of a folder of numbered images; for "pyav" also the bytes of a
            file, or a file object that reads bytes and can seek (it stays open).
        backend: "pyav" (exact, the fastest), "cv2", "decord" (must be installed; see its reader for the files
            it gets wrong), "frames" (a folder), or "auto": "frames" for a folder, else "pyav".
        on_corrupt: "raise", or "nearest", which "pyav" offers: a frame that does not decode is replaced by
            the nearest that does, and counted in the reader's `num_replaced`.

    Returns:
        A reader, to be used as a context manager.

    Raises:
        VideoDecodeError: it does not decode; the message has the path and the cause.
        PaddleVideoFastError: the backend is unknown, not installed, or cannot do what is asked.
    """
    if backend == "auto":
        backend = "frames" if isinstance(source, (str, os.PathLike)) and os.path.isdir(source) else "pyav"
    if backend not in _OPENERS:
        raise PaddleVideoFastError(f"unknown decoding backend '{backend}'{did_you_mean(backend, BACKENDS)}")
    if on_corrupt not in ON_CORRUPT:
        raise PaddleVideoFastError(f"on_corrupt is one of {', '.join(ON_CORRUPT)}, found {on_corrupt!r}")
    if backend == "pyav":
        return PyAVReader(source, on_corrupt)
    if on_corrupt != "raise":
        raise PaddleVideoFastError(f"backend '{backend}' cannot replace damaged frames; backend 'pyav' can")
    return _OPENERS[backend](source)


def check_video(source: Source, backend: str = "auto") -> Optional[str]:
    """Decodes everything; returns the cause why that fails, or None for an intact video."""
    try:
        with open_video(source, backend) as reader:
            deque(reader, maxlen=0)
    except VideoDecodeError as error:
        return error.cause
    return None

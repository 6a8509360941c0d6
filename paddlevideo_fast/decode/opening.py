"""One way to open whatever holds a video."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Callable, Dict, Optional, Union

from paddlevideo_fast.decode.cv2_reader import Cv2Reader
from paddlevideo_fast.decode.decord_reader import DecordReader
from paddlevideo_fast.decode.frames import guess_suffix, open_frames
from paddlevideo_fast.decode.pyav_reader import PyAVReader
from paddlevideo_fast.decode.reader import VideoReader
from paddlevideo_fast.errors import PaddleVideoFastError, VideoDecodeError
from paddlevideo_fast.registry import did_you_mean

VIDEO_EXTENSIONS = (".mp4", ".avi", ".mkv", ".webm", ".mov", ".m4v", ".mpg", ".ts", ".flv", ".wmv")


def _open_folder(path: str) -> VideoReader:
    if not os.path.isdir(path):
        return open_frames(path)
    return open_frames(path, guess_suffix(path))


_OPENERS: Dict[str, Callable[[str], VideoReader]] = {
    "pyav": PyAVReader,
    "cv2": Cv2Reader,
    "decord": DecordReader,
    "frames": _open_folder,
}
BACKENDS = ("auto", *_OPENERS)


def open_video(path: Union[str, Path], backend: str = "auto") -> VideoReader:
    """Opens a video for exact access to its frames.

    Args:
        path: a video file, or a folder of numbered images.
        backend: "pyav" (exact, the fastest), "cv2", "decord" (must be installed; see its reader for the files
            it gets wrong), "frames" (a folder), or "auto": "frames" for a folder, else "pyav".

    Returns:
        A reader, to be used as a context manager.

    Raises:
        VideoDecodeError: it does not decode; the message has the path and the cause.
        PaddleVideoFastError: the backend is unknown, or not installed.
    """
    path = str(path)
    if backend == "auto":
        backend = "frames" if os.path.isdir(path) else "pyav"
    if backend not in _OPENERS:
        raise PaddleVideoFastError(f"unknown decoding backend '{backend}'{did_you_mean(backend, BACKENDS)}")
    return _OPENERS[backend](path)


def check_video(path: Union[str, Path], backend: str = "auto") -> Optional[str]:
    """Decodes everything; returns the cause why that fails, or None for an intact video."""
    try:
        with open_video(path, backend) as reader:
            deque(reader, maxlen=0)
    except VideoDecodeError as error:
        return error.cause
    return None

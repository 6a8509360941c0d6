"""Which files are predicted."""

from __future__ import annotations

from pathlib import Path
from typing import List, Union

from paddlevideo_fast.errors import PaddleVideoFastError

VIDEO_SUFFIXES = (".avi", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm", ".wmv")


def find_videos(path: Union[str, Path]) -> List[Path]:
    """A file, or the videos in a folder and the folders in it, in the order of their names.

    Raises:
        PaddleVideoFastError: there is no such file, or no video in the folder.
    """
    path = Path(path)
    if not path.is_dir():
        if not path.exists():
            raise PaddleVideoFastError(f"{path}: there is no such file or folder")
        return [path]
    named_so = (file for file in path.rglob("*") if file.suffix.lower() in VIDEO_SUFFIXES)
    found = sorted(file for file in named_so if not file.is_dir())
    if not found:
        raise PaddleVideoFastError(f"{path}: has no video; looked for {', '.join(VIDEO_SUFFIXES)}")
    return found


def listed_videos(path: Union[str, Path]) -> List[Path]:
    """The files that a text file lists, one a line.

    Raises:
        PaddleVideoFastError: it cannot be read, or is empty.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PaddleVideoFastError(f"{path}: is no list of videos: {error}") from error
    found = [Path(line.strip()) for line in lines if line.strip()]
    if not found:
        raise PaddleVideoFastError(f"{path}: lists no video; write one a line")
    return found

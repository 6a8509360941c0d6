"""Clips on the disk, and the lists of them that training reads."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

from _common import ScriptError, write_lines

from paddlevideo_fast.decode import VIDEO_EXTENSIONS


class Clip(NamedTuple):
    """A video, or a folder of frames, on the disk."""

    path: Path
    num_frames: Optional[int]

    @property
    def name(self) -> str:
        """Its name without the ending of a video, which folders of frames may have as well."""
        is_video = self.path.suffix.lower() in VIDEO_EXTENSIONS
        return self.path.stem if is_video else self.path.name


def find_clips(root: Path, frames: bool, max_depth: int, prefix: str = "img_") -> List[Clip]:
    """The videos, or the folders of frames, below a folder, in order of their paths.

    Args:
        root: where to look; hidden files and folders are passed over.
        frames: look for folders of frames in place of videos.
        max_depth: 1 looks at what lies in `root` itself, 2 also at what lies in its folders, and so on.
        prefix: how frame files begin.

    Raises:
        ScriptError: there is no such folder.
        OSError: a folder cannot be read.
    """
    if not root.is_dir():
        raise ScriptError(f"{root}: no such folder")
    clips = []
    deepest = max_depth if frames else max_depth - 1
    for folder, subfolders, files in os.walk(root, onerror=_stop, followlinks=True):
        path = Path(folder)
        depth = len(path.relative_to(root).parts)
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        if depth == deepest:
            subfolders.clear()
        if not frames:
            clips += [
                Clip(path / name, None)
                for name in files
                if not name.startswith(".") and Path(name).suffix.lower() in VIDEO_EXTENSIONS
            ]
        elif depth:
            num_frames = sum(name.startswith(prefix) for name in files)
            if num_frames:
                clips.append(Clip(path, num_frames))
                subfolders.clear()
            elif not subfolders:
                print(f"warning: {path}: no frame '{prefix}*', left out", file=sys.stderr)
    return sorted(clips)


def _stop(error: OSError) -> None:
    raise error


def by_name(clips: Iterable[Clip], name: Callable[[Clip], str]) -> Dict[str, Clip]:
    """Name -> clip.

    Raises:
        ScriptError: two have the same.
    """
    found: Dict[str, Clip] = {}
    for clip in clips:
        other = found.setdefault(name(clip), clip)
        if other is not clip:
            raise ScriptError(f"{other.path} and {clip.path} are both '{name(clip)}'; keep one of them")
    return found


def write_list(file: Path, clips: Iterable[Tuple[Clip, int]], root: Optional[Path]) -> None:
    """Writes lines `path label` or `folder num_frames label`.

    Args:
        file: the list.
        clips: with their labels.
        root: folder that paths are relative to, the config's data_prefix; None: absolute paths.
    """
    lines = []
    for clip, label in clips:
        path = clip.path.relative_to(root) if root else clip.path.absolute()
        count = "" if clip.num_frames is None else f" {clip.num_frames}"
        lines.append(f"{path.as_posix()}{count} {label}")
    write_lines(file, lines)

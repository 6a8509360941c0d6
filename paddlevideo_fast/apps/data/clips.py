"""Videos and folders of frames on a disk or in a store."""

import dataclasses
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from paddlevideo_fast.decode import VIDEO_EXTENSIONS, VideoReader, open_frames, open_video
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.io.files import as_path, walk
from paddlevideo_fast.jobs.run import ToolError, digest_of, state_of
from paddlevideo_fast.jobs.work import Outcome


class Clip(NamedTuple):
    """A video, or a folder of frames, on the disk."""

    path: Path
    num_frames: int | None

    @property
    def name(self) -> str:
        """Its name without the ending of a video, which folders of frames may have as well."""
        is_video = self.path.suffix.lower() in VIDEO_EXTENSIONS
        return self.path.stem if is_video else self.path.name


def open_clip(path: str, num_frames: int | None, suffix: str | None, backend: str = "auto") -> VideoReader:
    """A reader of an entry of a list.

    Args:
        path: of the video file, or of the folder of frames.
        num_frames: frames in the folder; None: it is a video.
        suffix: format of the names of the folder's images.
        backend: that opens a video.

    Raises:
        VideoDecodeError: it cannot be opened.
    """
    return open_video(path, backend) if num_frames is None else open_frames(path, suffix or "", num_frames)


class OfFile(Outcome, Protocol):
    """What came of reading a file."""

    @property
    def state(self) -> Sequence[int]:
        """See `state_of`."""


Result = TypeVar("Result", bound=OfFile)


@dataclass(frozen=True)
class ReadClip(ABC, Generic[Result]):
    """A task of `work.Work`: reads an entry of a list. What it finds is of no use once the file has changed.

    Args:
        path: as of `open_clip`, like the next three.
        num_frames: see there.
        suffix: see there.
        backend: see there.
    """

    outcome: ClassVar[type]  # `Result`, a named tuple

    path: str
    num_frames: int | None = None
    suffix: str = ""
    backend: str = "auto"

    @abstractmethod
    def read(self, reader: VideoReader, state: list[int]) -> Result:
        """What is found in the clip; may raise `VideoDecodeError`."""

    def failed(self, cause: str, state: list[int]) -> Result:
        """What is found in a clip that cannot be read."""
        return self.outcome(cause=cause, state=state)

    @property
    def name(self) -> str:
        """See `work.Task`; it is without what a URL may hold."""
        return digest_of(dataclasses.astuple(self))

    @property
    def sources(self) -> Sequence[str]:
        """See `work.Task`."""
        return [self.path]

    def open(self) -> VideoReader:
        """A reader of the clip; raises `VideoDecodeError`."""
        return open_clip(self.path, self.num_frames, self.suffix, self.backend)

    def do(self) -> Result:
        """Reads the clip."""
        state = state_of(self.path)
        try:
            with self.open() as reader:
                return self.read(reader, state)
        except VideoDecodeError as error:
            return self.failed(error.cause_in(self.path), state)

    def restored(self, value: Any) -> Result | None:
        """See `work.Task`."""
        result: Result = self.outcome(*value)
        return result if list(result.state) == state_of(self.path) else None


def find_clips(
    root: Path,
    kind: str = "video",
    max_depth: int | None = None,
    prefix: str = "img_",
    endings: Sequence[str] = VIDEO_EXTENSIONS,
    others: Counter | None = None,
) -> list[Clip]:
    """Finds the videos, or the folders of frames, below a folder, sorted by path.

    Args:
        root: the folder; hidden files and folders in it are passed over.
        kind: "video", or "frames" for folders of frames.
        max_depth: 1 looks at what lies in `root` itself, 2 also at what lies in its folders, and so on,
            through links too; None looks everywhere, but not through links.
        prefix: how the names of frames begin.
        endings: endings of videos, in lower case.
        others: counts the endings of files that are no videos.

    Raises:
        ToolError: there is no such folder, or a folder cannot be read.
    """
    if not root.is_dir():
        raise ToolError(f"{root}: no such folder")
    clips = []
    deepest = max_depth if kind == "frames" or max_depth is None else max_depth - 1
    for folder, subfolders, files in walk(root, onerror=_stop, followlinks=max_depth is not None):
        path = as_path(folder)
        depth = len(path.relative_to(root).parts)
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        if depth == deepest:
            subfolders.clear()
        if kind == "video":
            for name in files:
                ending = Path(name).suffix.lower()
                if not name.startswith(".") and ending in endings:
                    clips.append(Clip(path / name, None))
                elif not name.startswith(".") and others is not None:
                    others[ending or "no ending"] += 1
        elif depth:
            num_frames = sum(name.startswith(prefix) for name in files)
            if num_frames:
                clips.append(Clip(path, num_frames))
                subfolders.clear()
            elif not subfolders:
                print(f"warning: {path}: no frame '{prefix}*', left out", file=sys.stderr)
    return sorted(clips)


def _stop(error: OSError) -> None:
    raise ToolError(f"{error.filename}: cannot be read: {error.strerror}") from error


def by_name(clips: Iterable[Clip], name: Callable[[Clip], str]) -> dict[str, Clip]:
    """Name → clip.

    Raises:
        ToolError: two clips have the same name.
    """
    named: dict[str, Clip] = {}
    for clip in clips:
        other = named.setdefault(name(clip), clip)
        if other is not clip:
            raise ToolError(f"{other.path} and {clip.path} are both '{name(clip)}'; keep one of them")
    return named

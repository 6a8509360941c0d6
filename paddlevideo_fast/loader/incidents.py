"""Files that do not decode, as a whole or in parts: from the reader that meets them to `bad_samples.txt`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from paddlevideo_fast.errors import BadSampleShareError, VideoDecodeError
from paddlevideo_fast.io.urls import shown_url
from paddlevideo_fast.log import get_logger, printable, warn_once

_REPLACED = "replaced:"
_MIN_FILES = 3  # one or two bad files stop no run, however small its list is


class DecodeFailure(NamedTuple):
    """A file that did not decode. It travels with the batch that the file was read for.

    Attributes:
        path: the video, or the folder of frames.
        kind: "failed": nothing of the file was used; "replaced": some of its frames did not decode, and
            others of the same file took their place.
        cause: why, in one sentence.
        num_frames: frames of the clip that were replaced; 0 of a file that failed.
    """

    path: str
    kind: Literal["failed", "replaced"]
    cause: str
    num_frames: int = 0

    @classmethod
    def failed(cls, path: str, error: VideoDecodeError) -> DecodeFailure:
        """A record that did not decode: a folder of frames is one, whichever of its images is damaged."""
        return cls(shown_url(path), "failed", error.cause_in(path))

    @classmethod
    def replaced(cls, path: str, num_frames: int) -> DecodeFailure:
        """A clip in which `num_frames` frames were replaced."""
        cause = f"{num_frames} frames of a clip do not decode, others took their place"
        return cls(shown_url(path), "replaced", cause, num_frames)


class BadSamples:
    """Names each bad file once, in the log and in a file, and stops the run where there are too many.

    A file of which some frames were replaced is named as well, with a cause that begins with "replaced:". It
    is no bad file and does not count.

    Args:
        path: the file, lines of `path TAB cause`, with an escape for a character that does not print; a
            resumed run adds the files that it does not name yet. None: no file.
        total: records of the dataset, which the share is of.
        max_share: largest share of bad files, from 0 to 1.

    Attributes:
        causes: path → cause of all bad files that this process met.
        replaced: path → frames that were replaced in the first clip of each file with damaged frames.
    """

    def __init__(self, path: str | Path | None, total: int, max_share: float = 0.1) -> None:
        self.path = Path(path) if path is not None else None
        self.total = total
        self.max_share = max_share
        self.causes: dict[str, str] = {}
        self.replaced: dict[str, int] = {}
        self._listed: set[tuple[str, bool]] = set()  # of the first _num_read bytes of the file
        self._num_read = 0

    def add(self, incidents: Iterable[DecodeFailure]) -> None:
        """Takes the incidents of a batch.

        Raises:
            BadSampleShareError: the files that do not decode are more than `max_share` of the dataset.
        """
        failed: dict[str, str] = {}
        replaced: dict[str, str] = {}
        for path, kind, cause, num_frames in incidents:
            if kind == "failed" and path not in self.causes:
                failed.setdefault(path, " ".join(cause.split()))
            elif kind == "replaced" and path not in self.replaced:
                self.replaced[path] = num_frames
                replaced[path] = f"{_REPLACED} {cause}"
        self._append([*replaced.items(), *failed.items()])
        for path, cause in replaced.items():
            get_logger().warning(f"{printable(path)} is damaged: {cause}")
        for path, cause in failed.items():
            get_logger().warning(f"{printable(path)} does not decode and is left out: {cause}")
        self.causes.update(failed)
        if failed and len(self.causes) > max(self.max_share * self.total, _MIN_FILES - 1):
            where = f"; they are listed in {self.path}" if self.path else ""
            raise BadSampleShareError(
                f"{len(self.causes)} of {self.total} files do not decode, more than max_bad_share "
                f"{self.max_share:g} allows{where}; the last one: {printable(path)}: {cause}"
            )

    def _append(self, causes: list[tuple[str, str]]) -> None:
        """Adds lines in one write, so that processes which share the file do not mix them."""
        if self.path is None or not causes:
            return
        lines = [(printable(path), printable(cause)) for path, cause in causes]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a+b", buffering=0) as file:
                self._read_new_lines(file)
                new = (line for line in lines if _kind(*line) not in self._listed)
                file.write("".join(f"{path}\t{cause}\n" for path, cause in new).encode())
                os.fsync(file.fileno())
        except OSError as error:  # the log names the files, too
            warn_once(get_logger(), f"'{self.path}' cannot be written: {error.strerror or error}")

    def _read_new_lines(self, file: BinaryIO) -> None:
        """Reads what this object or another has written since the last call; all of a file that is new."""
        if file.seek(0, os.SEEK_END) < self._num_read:
            self._num_read = 0
            self._listed.clear()
        file.seek(self._num_read)
        data = file.read()
        self._num_read += len(data)
        lines = data.decode("utf-8", errors="replace").split("\n")
        self._listed.update(_kind(*line.partition("\t")[::2]) for line in lines)


def _kind(path: str, cause: str) -> tuple[str, bool]:
    """The key by which a line is listed once: the path, and whether frames were replaced or all failed."""
    return path, cause.startswith(_REPLACED)

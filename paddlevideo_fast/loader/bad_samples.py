"""The account of files that do not decode, as a whole or in parts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, Iterable, Optional, Tuple, Union

from paddlevideo_fast.errors import BadSampleShareError
from paddlevideo_fast.loader.errors import LoaderError
from paddlevideo_fast.log import get_logger

_REPLACED = "replaced:"
_MIN_FILES = 3  # one or two bad files stop no run, however small its list is


class BadSamples:
    """Names each bad file once, in the log and in a file, and stops the run where there are too many.

    A file of which some frames were replaced is named as well, with a cause that begins with "replaced:"; it
    is no bad file and does not count.

    Args:
        path: the file, lines of `path TAB cause`; a resumed run adds to it what is not there yet. None: no
            file.
        total: records of the dataset, which the share is of.
        max_share: largest share of bad files, from 0 to 1.

    Attributes:
        causes: path → cause of all bad files that this process met.
        num_failures: how often one was met, repeats included.
        replaced: path → frames that were replaced in the first clip of each file with damaged frames.
    """

    def __init__(self, path: Optional[Union[str, Path]], total: int, max_share: float = 0.1) -> None:
        self.path = Path(path) if path is not None else None
        self.total = total
        self.max_share = max_share
        self.num_failures = 0
        self.causes: Dict[str, str] = {}
        self.replaced: Dict[str, int] = {}

    def add(self, failures: Iterable[Tuple[str, str]], replaced: Iterable[Tuple[str, int]] = ()) -> None:
        """Takes the failures of a batch.

        Args:
            failures: (path, cause) of each.
            replaced: (path, frames) of each clip in which frames were replaced.

        Raises:
            BadSampleShareError: the files that do not decode are more than `max_share` of the dataset.
            LoaderError: the list of bad files cannot be written.
        """
        self._add_replaced(replaced)
        new = {}
        for path, cause in failures:
            self.num_failures += 1
            if path not in self.causes and path not in new:
                new[path] = " ".join(cause.split())
        if not new:
            return
        self.causes.update(new)
        self._append(new)
        for path, cause in new.items():
            get_logger().warning(f"{path} does not decode and is left out: {cause}")
        allowed = max(self.max_share * self.total, _MIN_FILES - 1)
        if len(self.causes) > allowed:
            where = f"; they are listed in {self.path}" if self.path else ""
            raise BadSampleShareError(
                f"{len(self.causes)} of {self.total} files do not decode, more than max_bad_share "
                f"{self.max_share:g} allows{where}; the last one: {path}: {cause}"
            )

    def _add_replaced(self, replaced: Iterable[Tuple[str, int]]) -> None:
        new = {}
        for path, num_frames in replaced:
            if path not in self.replaced:
                self.replaced[path] = num_frames
                new[path] = (
                    f"{_REPLACED} {num_frames} frames of a clip do not decode, others took their place"
                )
        if new:
            self._append(new)
        for path, cause in new.items():
            get_logger().warning(f"{path} is damaged: {cause}")

    def _append(self, causes: Dict[str, str]) -> None:
        """Adds lines in one write, so that processes which share the file do not mix them."""
        if self.path is None:
            return
        listed = set()
        if self.path.exists():
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
            listed = {_kind(*line.partition("\t")[::2]) for line in lines}
        text = "".join(
            f"{path}\t{cause}\n" for path, cause in causes.items() if _kind(path, cause) not in listed
        )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab", buffering=0) as file:
                file.write(text.encode("utf-8", errors="surrogateescape"))
                os.fsync(file.fileno())
        except OSError as exc:
            raise LoaderError(f"'{self.path}' cannot be written: {exc.strerror or exc}") from exc


def _kind(path: str, cause: str) -> Tuple[str, bool]:
    """What stands once in the list: a file as one that does not decode, and as one with damaged frames."""
    return path, cause.startswith(_REPLACED)

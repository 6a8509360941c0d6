"""`DATASET.index_cache`: a folder of indexes of videos, `FOLDER/<digest of the path>.npz`.

Only indexes of intact files are kept: of those that had to be decoded to index them, of large ones, and of
long ones in MP4, MOV, Matroska and WebM.
"""

import hashlib
import os
import zipfile
from pathlib import Path

import numpy as np

from paddlevideo_fast.decode.source import VideoSource
from paddlevideo_fast.decode.stored_index import State, StoredIndex
from paddlevideo_fast.errors import cause_of
from paddlevideo_fast.io.files import atomic_write
from paddlevideo_fast.log import get_logger, warn_once

_VERSION = 6

# What reading a damaged zip file of arrays may raise.
_DAMAGED = (OSError, ValueError, KeyError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile)


class IndexCache:
    """A folder of indexes. Several processes may use it.

    Args:
        folder: it is made where it is missing.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def _file(self, source: VideoSource) -> Path:
        name = os.fsencode(source.url or os.path.realpath(source.path or ""))
        return self.folder / f"{hashlib.blake2b(name, digest_size=16).hexdigest()}.npz"

    def load(self, source: VideoSource, state: State) -> StoredIndex | None:
        """The index of a file in this state; None where there is none."""
        file = self._file(source)
        try:
            with np.load(file, allow_pickle=False) as content:  # the checksums of a zip file are checked
                if content["state"].tolist() != [*state, _VERSION]:
                    return None
                return StoredIndex(*(content[name] for name in StoredIndex._fields))
        except FileNotFoundError:
            return None
        except _DAMAGED as error:
            warn_once(get_logger(), f"{file}: is damaged and is made anew: {cause_of(error)}")
            return None

    def keep(self, source: VideoSource, stored: StoredIndex, state: State) -> None:
        """Stores the index of a file in this state."""
        try:
            with atomic_write(self._file(source), sync=False) as partial, open(partial, "wb") as file:
                np.savez(file, state=np.array([*state, _VERSION], np.int64), **stored._asdict())
        except OSError as error:
            cause = cause_of(error)
            warn_once(get_logger(), f"index_cache {self.folder}: indexes cannot be written: {cause}")

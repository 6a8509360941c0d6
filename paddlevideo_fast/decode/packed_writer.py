"""Writes shards of packed frames; `packed_format` has the layout."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path
from typing import Iterable, List, Tuple, Union

import numpy as np

from paddlevideo_fast.decode.packed import data_path, index_path
from paddlevideo_fast.decode.packed_format import FRAME, VIDEO, PackSettings, encode_index


class ShardWriter:
    """Writes one shard; it counts as there when the `with` block ends without an exception, and not before.

    A shard of the same number is replaced.

    Args:
        folder: of the set; it is made where it is missing.
        settings: number, size and quality.

    Example:
        with ShardWriter(folder, settings) as shard:
            shard.add("walk/0.mp4", 3, 25.0, (340, 256), jpeg_files)
    """

    def __init__(self, folder: Union[str, Path], settings: PackSettings) -> None:
        self._settings = settings
        self._index = index_path(folder, settings.shard)
        self._data = data_path(folder, settings.shard)
        self._videos: List[Tuple[int, int, int, int, int, float]] = []
        self._names: List[str] = []
        self._failures: List[Tuple[str, str]] = []
        self._frames: List[Tuple[int, int, int]] = []
        self._num_bytes = 0

    def __enter__(self) -> ShardWriter:
        os.makedirs(os.path.dirname(self._index) or ".", exist_ok=True)
        self._file = open(_partial(self._data), "wb")
        return self

    def add(self, name: str, label: int, fps: float, size: Tuple[int, int], images: Iterable[bytes]) -> None:
        """Adds a video. Where `images` raises, nothing of the video stays, and the writer goes on.

        Args:
            name: what the list calls it.
            label: number of its class.
            fps: frames a second; 0.0 where unknown.
            size: (width, height) of the frames in pixels.
            images: the JPEG file of each frame.
        """
        first_byte, first_frame = self._num_bytes, len(self._frames)
        try:
            for image in images:
                self._file.write(image)
                self._frames.append((self._num_bytes, len(image), zlib.crc32(image)))
                self._num_bytes += len(image)
            if len(self._frames) == first_frame:
                raise ValueError(f"{name}: there are no frames to pack")
        except BaseException:
            self._file.seek(first_byte)
            self._file.truncate()
            self._num_bytes = first_byte
            del self._frames[first_frame:]
            raise
        self._videos.append((first_frame, len(self._frames) - first_frame, *size, label, fps))
        self._names.append(name)

    def add_failure(self, name: str, cause: str) -> None:
        """Notes a video that could not be packed."""
        self._failures.append((name, cause))

    def __exit__(self, error_type: object, *rest: object) -> None:
        try:
            if error_type is None:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()
            if error_type is None:
                self._commit()
        finally:
            for path in (self._data, self._index):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(_partial(path))

    def _commit(self) -> None:
        """Puts both files in their place, the index last: a data file without one is no shard."""
        index = encode_index(
            self._settings,
            np.array(self._videos, VIDEO),
            self._names,
            self._failures,
            np.array(self._frames, FRAME),
            self._num_bytes,
        )
        with open(_partial(self._index), "wb") as file:
            file.write(index)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._index)
        os.replace(_partial(self._data), self._data)
        os.replace(_partial(self._index), self._index)


def _partial(path: str) -> str:
    return f"{path}.partial"

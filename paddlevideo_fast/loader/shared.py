"""Memory that this process shares with the workers it forks: it has no name, so nothing is left behind."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import IO, Tuple

import numpy as np

from paddlevideo_fast.loader.errors import LoaderError


class SharedBuffer:
    """An array that grows, written by one process and read by another.

    Made before the fork; each process then maps it for itself. The memory belongs to a file without a name
    and goes back to the system with the last process that has it, however that ends. Where the system has
    memfd (Linux 3.17 and a Python built for it) the size of /dev/shm is no limit.
    """

    def __init__(self) -> None:
        self._file = _unnamed_file()
        self._mapping = mmap.mmap(-1, 1)

    def array(self, shape: Tuple[int, ...]) -> np.ndarray:
        """The first bytes as a uint8 array; a view of a 1-D array that nothing else refers to.

        Raises:
            LoaderError: there is not enough shared memory.
        """
        size = int(np.prod(shape))
        if len(self._mapping) < size:
            if os.fstat(self._file.fileno()).st_size < size:
                self._grow(size)
            self._mapping = mmap.mmap(self._file.fileno(), size)
        return np.frombuffer(self._mapping, np.uint8, size).reshape(shape)

    def _grow(self, size: int) -> None:
        try:
            # without its pages, a write past what the system has would end the process by SIGBUS
            os.posix_fallocate(self._file.fileno(), 0, size)
        except OSError as error:
            raise LoaderError(
                f"no shared memory for a batch of {size / 2**20:.0f} MiB ({error.strerror}): look at "
                "df -h /dev/shm and free -m (a container: docker run --shm-size 8g); lower num_workers or "
                "batch_size"
            ) from error


def _unnamed_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("paddlevideo_fast"), "r+b", buffering=0)
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    return tempfile.TemporaryFile(dir=folder, buffering=0)

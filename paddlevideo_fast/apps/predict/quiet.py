"""Keeps what Paddle prints off the output of predictions."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def paddle_is_quiet() -> Iterator[None]:
    """Drops what Paddle prints on stdout, which has predictions alone; errors are on stderr.

    A program is optimized when it runs for the first time, and its passes print then. With oneDNN, Paddle 3
    prints ReduceMeanCheckIfOneDNNSupport.
    """
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)

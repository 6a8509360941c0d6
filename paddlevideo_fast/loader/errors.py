"""Errors of the loader that are not about one file."""

from __future__ import annotations

from paddlevideo_fast.errors import PaddleVideoFastError


class LoaderError(PaddleVideoFastError):
    """A loader that cannot deliver: a set-up that does not fit the data, or a worker process that died."""


class TransformError(LoaderError):
    """A transform that does not fit the frames it gets, such as a crop larger than the frame."""

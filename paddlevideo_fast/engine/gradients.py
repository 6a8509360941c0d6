"""Gradients that travel between processes in fewer bits than they are computed in."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List, Sequence

import paddle
import paddle.distributed as dist

_BYTES = 2


@contextlib.contextmanager
def averaging(parameters: Sequence[Any], world_size: int, dtype: str, buffer_size: float) -> Iterator[None]:
    """Averages the gradients over all processes when the block ends.

    `paddle.DataParallel` sends gradients as they are, so this takes its place. The messages leave when the
    backward pass is over, and no computation hides them.

    Args:
        parameters: those without a gradient are passed over; on all processes the same ones.
        world_size: number of processes.
        dtype: of 16 bits, of the gradients on their way.
        buffer_size: MB of one message.
    """
    yield
    with paddle.no_grad():
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for bucket in _buckets(gradients, int(buffer_size * 2**20)):
            # divided first: a sum of float16 could leave its range
            together = paddle.concat([gradient.flatten() / world_size for gradient in bucket]).astype(dtype)
            dist.all_reduce(together)
            parts = paddle.split(together, [gradient.size for gradient in bucket])
            for gradient, part in zip(bucket, parts):
                paddle.assign(part.astype(gradient.dtype).reshape(gradient.shape), gradient)


def _buckets(gradients: Sequence[Any], num_bytes: int) -> Iterator[List[Any]]:
    """The gradients in messages of at most so many bytes, or one gradient that is larger."""
    bucket: List[Any] = []
    size = 0
    for gradient in gradients:
        if bucket and size + gradient.size * _BYTES > num_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.size * _BYTES
    if bucket:
        yield bucket

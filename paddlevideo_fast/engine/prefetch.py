"""Pins the next batch while the current one trains, and copies it to the device."""

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import paddle

from paddlevideo_fast.device import LAG, pinned_buffers
from paddlevideo_fast.loader import Batch
from paddlevideo_fast.machine import gpu_number

Item = TypeVar("Item")
Prepared = TypeVar("Prepared")


def to_device(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches, with their clips on the device.

    On a GPU a thread takes each batch from the loader and puts its clips into pinned memory, one step ahead.
    Their copy runs on the stream of the computations: it takes one or two percent of a step, and so nothing
    reads clips before they are there, and nothing writes to memory that a step still reads. The host waits
    for neither, unless it is more than LAG batches ahead. On a CPU the batches pass as they are.
    """
    number = gpu_number(paddle.get_device())
    return batches if number is None else _on_device(batches, number)


def one_ahead(items: Iterator[Item], prepare: Callable[[Item], Prepared]) -> Iterator[Prepared]:
    """Prepares each item in a thread while the consumer works on the previous one.

    Errors of `items` and `prepare` come in their turn. A consumer that leaves waits for the item that is
    being prepared.

    Args:
        items: taken in the thread, one after the other.
        prepare: called in the thread.
    """

    def work() -> tuple[Prepared, ...]:
        for item in items:
            return (prepare(item),)
        return ()

    with ThreadPoolExecutor(1, "batches") as thread:
        coming = thread.submit(work)
        while prepared := coming.result():
            coming = thread.submit(work)
            yield prepared[0]


def _on_device(batches: Iterator[Batch], number: int) -> Iterator[Batch]:
    buffers = pinned_buffers(number, LAG)

    def pin(batch: Batch) -> tuple[Batch, Any]:
        paddle.device.set_device(f"gpu:{number}")  # it is the thread's own, and at first the first GPU
        is_on_host = len(batch) and isinstance(batch.clips, np.ndarray)
        return batch, buffers.fill(batch.clips) if is_on_host else None

    for batch, clips in one_ahead(batches, pin):
        yield batch if clips is None else dataclasses.replace(batch, clips=buffers.send(clips))

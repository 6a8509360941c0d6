"""Copies the next batch to the device while the current one trains."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Callable, Deque, Iterator, Tuple, TypeVar

import paddle

from paddlevideo_fast.loader import Batch
from paddlevideo_fast.machine import gpu_number

Item = TypeVar("Item")
Prepared = TypeVar("Prepared")


def to_device(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches, with their clips on the device.

    On a GPU a thread takes each batch from the loader and starts its copy one step ahead. The copy comes from
    pinned memory, so the host waits neither for the copy nor for the computations of the device: the time
    until the next batch is here is the time that the step waits for data. On a CPU the batches pass as they
    are.
    """
    number = gpu_number(paddle.get_device())
    return batches if number is None else one_ahead(batches, DeviceCopy(number))


def one_ahead(items: Iterator[Item], prepare: Callable[[Item], Prepared]) -> Iterator[Prepared]:
    """Prepares each item in a thread while the consumer works on the previous one.

    Errors of `items` and `prepare` come in their turn. A consumer that leaves waits for the item that is
    being prepared.

    Args:
        items: taken in the thread, one after the other.
        prepare: called in the thread.
    """

    def work() -> Tuple[Prepared, ...]:
        for item in items:
            return (prepare(item),)
        return ()

    with ThreadPoolExecutor(1, "batches") as thread:
        coming = thread.submit(work)
        while prepared := coming.result():
            coming = thread.submit(work)
            yield prepared[0]


class DeviceCopy:
    """Starts the copy of a batch's clips to a GPU.

    Args:
        number: of the GPU.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._under_way: Deque[Tuple[Any, Any]] = deque()  # an event after each copy, and its source

    def __call__(self, batch: Batch) -> Batch:
        """The batch with its clips on the device; the copy is complete before the device uses them."""
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()
        if not len(batch):
            return batch
        pinned = paddle.to_tensor(batch.clips, place=paddle.CUDAPinnedPlace())
        clips = pinned.cuda(self.number, blocking=False)
        copied = paddle.device.cuda.Event()
        copied.record(paddle.device.cuda.current_stream(self.number))
        self._under_way.append((copied, pinned))
        return replace(batch, clips=clips)

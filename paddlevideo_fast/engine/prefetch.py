"""Copies the next batch to the device while the current one trains."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
import paddle

from paddlevideo_fast.device import LAG, PinnedBuffers, upload
from paddlevideo_fast.loader import Batch
from paddlevideo_fast.machine import gpu_number

Item = TypeVar("Item")
Prepared = TypeVar("Prepared")


def to_device(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches, with their clips and labels on the device.

    On a GPU a thread takes each batch from the loader and puts it into pinned memory, one step ahead. The
    copy of a batch runs on a stream of its own, beside the computations of the step before. The host waits
    neither for the copy nor for the computations: the time until the next batch is here is the time that the
    step waits for data. On a CPU the batches pass as they are.
    """
    number = gpu_number(paddle.get_device())
    return batches if number is None else _on_device(batches, DeviceCopies(number))


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


@dataclass
class DeviceBatch(Batch):
    """A batch whose clips and labels are on the device, or on their way to it.

    Attributes:
        targets: the labels, on the device.
        arrival: an event behind both copies.
    """

    targets: Any = None
    arrival: Any = None


def device_inputs(batch: Batch) -> tuple[Any, paddle.Tensor]:
    """Clips and labels of a batch, for the device; the device waits for their copies, the host does not."""
    if not isinstance(batch, DeviceBatch):
        return batch.clips, upload(batch.labels)
    paddle.device.current_stream().wait_event(batch.arrival)
    return batch.clips, batch.targets


class DeviceCopies:
    """Copies batches to a GPU on a stream of its own, while the device computes on earlier ones.

    A thread puts each batch into pinned memory (`pin`). The main thread starts the copy (`start`), because
    Paddle's current stream is that of the process: a thread that changed it would move the step's kernels.

    Args:
        number: of the GPU.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._buffers = PinnedBuffers(number)
        self._stream = paddle.device.Stream()
        self._in_use: deque[tuple[Any, Any]] = deque()  # an event after each step, and its batch

    def pin(self, batch: Batch) -> tuple[Batch, Any, Any]:
        """A batch, and its clips and labels in pinned memory; clips that are on the device stay there."""
        paddle.device.set_device(f"gpu:{self._number}")  # it is the thread's own, and at first the first GPU
        if not len(batch):
            return batch, None, None
        clips = self._buffers.fill(batch.clips) if isinstance(batch.clips, np.ndarray) else None
        return batch, clips, self._buffers.fill(batch.labels)

    def start(self, pinned: tuple[Batch, Any, Any]) -> Batch:
        """Starts the copies of what `pin` gave."""
        batch, clips, labels = pinned
        if labels is None:
            return batch
        with paddle.device.stream_guard(self._stream):
            sent = batch.clips if clips is None else self._buffers.send(clips)
            targets = self._buffers.send(labels)
            arrival = paddle.device.Event()
            arrival.record(self._stream)
        values = {field.name: getattr(batch, field.name) for field in fields(Batch)}
        return DeviceBatch(**{**values, "clips": sent}, targets=targets, arrival=arrival)

    def used(self, batch: Batch) -> None:
        """Keeps the memory of a batch, all of whose work is launched, until the device has done it.

        Paddle gives memory back to the stream that it came from, which does not know what others read. Where
        the host is more than LAG batches ahead it waits: the batches would fill the device.
        """
        while self._in_use and (len(self._in_use) > LAG or self._in_use[0][0].query()):
            self._in_use.popleft()[0].synchronize()
        done = paddle.device.Event()
        done.record(paddle.device.current_stream())
        self._in_use.append((done, batch))


def _on_device(batches: Iterator[Batch], copies: DeviceCopies) -> Iterator[Batch]:
    for pinned in one_ahead(batches, copies.pin):
        batch = copies.start(pinned)
        yield batch
        copies.used(batch)

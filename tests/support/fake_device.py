"""A device that computes on its own, simulated on a CPU.

The values are computed at once, on the CPU, so the training is a real one. Only the device's time is made up:
a thread works off a queue, and who hands over a piece of work says how long it takes. The host waits for the
queue where it would wait for a GPU:

- `Tensor.numpy`, `item`, `bool` and so on wait until the queue is empty;
- so does `paddle.to_tensor` of an array, which copies on CUDA's default stream;
- an event waits for what was in the queue when it was recorded;
- pinned memory and copies that do not block wait for nothing.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import paddlevideo_fast  # isort: skip  # noqa: F401  before Paddle 2.6
import paddle

READS = ("numpy", "item", "tolist", "__bool__", "__float__", "__int__", "__index__", "__array__")


class FakeDevice:
    """A queue of work, and a thread that takes its time over each piece.

    Attributes:
        on_pin: called with each tensor that is made in pinned memory.
        num_launched, num_done: pieces of work that the host has handed over, and that are done.
    """

    def __init__(self) -> None:
        self.num_launched = self.num_done = 0
        self.on_pin: Callable[[Any], None] = lambda tensor: None
        self._work: queue.Queue = queue.Queue()
        self._changed = threading.Condition()
        self._pinned: list[Any] = []
        threading.Thread(target=self._run, daemon=True).start()

    def launch(self, seconds: float) -> None:
        """Hands over a piece of work; does not wait."""
        self.num_launched += 1
        self._work.put(seconds)

    def wait(self, number: int) -> None:
        """Waits until this many pieces of work are done."""
        with self._changed:
            self._changed.wait_for(lambda: self.num_done >= number)

    def _run(self) -> None:
        while True:
            time.sleep(self._work.get())
            with self._changed:
                self.num_done += 1
                self._changed.notify_all()

    def is_pinned(self, tensor: Any) -> bool:
        """Whether the host can read a tensor without asking the device."""
        return any(each is tensor for each in self._pinned)

    def pin(self, tensor: Any) -> Any:
        """The same tensor, in pinned memory from now on."""
        self._pinned = [*self._pinned[-999:], tensor]
        return tensor

    @contextlib.contextmanager
    def installed(self) -> Iterator[FakeDevice]:
        """Context in which Paddle seems to compute on this device, as "gpu:0"."""
        place, to_tensor = paddle.CPUPlace(), paddle.to_tensor

        class Pinned:
            """Asked for as a place; nothing but `to_tensor` and `_copy_to` looks at it."""

            def __new__(cls) -> Any:
                return place

        def uploading(data: Any, dtype: Any = None, place: Any = None, stop_gradient: bool = True) -> Any:
            tensor = to_tensor(data, dtype=dtype, stop_gradient=stop_gradient)
            if place is not None:
                self.on_pin(tensor)
                return self.pin(tensor)
            if not isinstance(data, paddle.Tensor):
                self.wait(self.num_launched)
            return tensor

        patches = {
            (paddle, "get_device"): lambda: "gpu:0",
            (paddle, "to_tensor"): uploading,
            (paddle, "CUDAPinnedPlace"): Pinned,
            (paddle.Tensor, "_copy_to"): lambda tensor, place, blocking: self.pin(tensor.clone()),
            (paddle.Tensor, "cuda"): lambda tensor, number, blocking: tensor.clone(),
            (paddle.device, "get_device"): lambda: "gpu:0",
            (paddle.device, "set_device"): lambda name: None,
            (paddle.device, "current_stream"): lambda: self,
            (paddle.device, "Event"): lambda: _Event(self),
            (paddle.device.cuda, "current_stream"): lambda number: self,  # as earlier revisions ask
            (paddle.device.cuda, "Event"): lambda: _Event(self),
        }
        for name in READS:
            if hasattr(paddle.Tensor, name):
                patches[paddle.Tensor, name] = self._reading(getattr(paddle.Tensor, name))
        with contextlib.ExitStack() as stack:
            for (owner, name), patch in patches.items():
                stack.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, patch)
            yield self

    def _reading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def read(tensor: Any, *args: Any, **options: Any) -> Any:
            if not self.is_pinned(tensor):
                self.wait(self.num_launched)
            return original(tensor, *args, **options)

        return read


class _Event:
    def __init__(self, device: FakeDevice) -> None:
        self._device, self._number = device, 0

    def record(self, stream: FakeDevice) -> None:
        self._number = self._device.num_launched

    def query(self) -> bool:
        return self._device.num_done >= self._number

    def synchronize(self) -> None:
        self._device.wait(self._number)

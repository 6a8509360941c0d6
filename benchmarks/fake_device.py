"""A device that computes on its own, simulated on a CPU, and a training on it.

    python benchmarks/fake_device.py REPORT STEPS DEVICE_SEC HOST_SEC

The values are computed at once, on the CPU, so the training is a real one. Only the device's time is made up:
a thread works off a queue, and each forward and backward pass adds DEVICE_SEC to it. The host waits for the
queue where it would wait for a GPU:

- `Tensor.numpy`, `item`, `bool` and so on wait until the queue is empty;
- so does `paddle.to_tensor` of an array, which copies on CUDA's default stream;
- an event waits for what was in the queue when it was recorded;
- pinned memory and copies that do not block wait for nothing.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import threading
import time
from typing import Any, Callable, Iterator, List, Tuple

import paddlevideo_fast  # isort: skip  # noqa: F401  before Paddle 2.6
import numpy as np
import paddle

from paddlevideo_fast.engine import Distribution, FleetDistribution, Trainer
from paddlevideo_fast.engine.callbacks import Callback, ExponentialMovingAverage, Recorder
from paddlevideo_fast.engine.distribution import launched_rank
from paddlevideo_fast.loader import Batch
from paddlevideo_fast.modeling.losses import CrossEntropyLoss
from paddlevideo_fast.schedule.phases import plain_phases

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
        self._pinned: List[Any] = []
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
            (paddle.device, "current_stream"): lambda: _Stream(self),
            (paddle.device, "Stream"): lambda: _Stream(self),
            (paddle.device, "stream_guard"): contextlib.nullcontext,
            (paddle.device, "Event"): lambda: _Event(self),
            (paddle.device.cuda, "current_stream"): lambda number: _Stream(self),  # as earlier revisions ask
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


class _Stream:
    def __init__(self, device: FakeDevice) -> None:
        self.device = device

    def wait_event(self, event: _Event) -> None:
        """The device waits, not the host."""


class _Event:
    def __init__(self, device: FakeDevice) -> None:
        self._device, self._number = device, 0

    def record(self, stream: _Stream) -> None:
        self._number = self._device.num_launched

    def query(self) -> bool:
        return self._device.num_done >= self._number

    def synchronize(self) -> None:
        self._device.wait(self._number)


class _Net(paddle.nn.Layer):
    """A linear network whose passes take the device some time."""

    def __init__(self, device: FakeDevice, device_sec: float) -> None:
        super().__init__()
        self.fc = paddle.nn.Linear(8, 4)
        self.leads: List[int] = []  # steps that the device still has to do when the host hands over the next

        def launch() -> None:
            self.leads.append(device.num_launched - device.num_done)
            device.launch(device_sec)

        self._launch = launch

    def forward(self, clips: Any) -> Any:
        self._launch()
        return self.fc(clips)

    def loss(self, logits: Any, labels: Any) -> Any:
        return CrossEntropyLoss()(logits, labels)  # Paddle 2.6's own reads back


class _Loader:
    """Batches that take the host some time."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps

    def __len__(self) -> int:
        return self._num_steps

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        for step in range(start_batch, self._num_steps):
            clips = np.random.default_rng(step).standard_normal((4, 8)).astype("float32")
            yield Batch(clips, np.arange(4), np.arange(4), np.zeros(4, np.int64))

    def close(self) -> None:
        """There are no workers to end."""


class _HostWork(Callback):
    """What Python and Paddle need for the launches of a real step."""

    def __init__(self, host_sec: float) -> None:
        self._host_sec = host_sec

    def step_begin(self, trainer: Trainer) -> None:
        time.sleep(self._host_sec)


def train(num_steps: int, device_sec: float, host_sec: float, interval: int) -> Tuple[List[int], float]:
    """Trains on a fake device; returns the host's lead at each step, in steps, and the time in seconds.

    Args:
        num_steps: of the run.
        device_sec: of the device, a step.
        host_sec: of the host, a step.
        interval: of the log lines, in steps.
    """
    distribution = FleetDistribution() if launched_rank()[1] > 1 else Distribution()
    device = FakeDevice()
    paddle.seed(0)
    model, loader = _Net(device, device_sec), _Loader(num_steps)
    optimizer = paddle.optimizer.Momentum(0.1, 0.9, model.parameters())
    trainer = Trainer(
        model,
        optimizer,
        lambda phase: loader,
        preprocess=lambda clips: clips if isinstance(clips, paddle.Tensor) else paddle.to_tensor(clips),
        phases=plain_phases(1),
        callbacks=[ExponentialMovingAverage(model, 0.9), _HostWork(host_sec), Recorder([], interval)],
        distribution=distribution,
    )
    with device.installed():
        began = time.perf_counter()
        trainer.fit()
        return model.leads, time.perf_counter() - began


def main(argv: List[str]) -> None:
    """Trains and writes a report; see the module."""
    path, num_steps, device_sec, host_sec = argv
    leads, seconds = train(int(num_steps), float(device_sec), float(host_sec), interval=int(num_steps))
    with open(f"{path}.{launched_rank()[0]}", "w", encoding="utf-8") as file:
        json.dump({"leads": leads, "seconds": seconds}, file)


if __name__ == "__main__":
    main(sys.argv[1:])

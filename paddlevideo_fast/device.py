"""Copies between host and device for which the host does not wait.

On a GPU, `tensor.numpy()` waits until the device has done all that it was given. So does
`paddle.to_tensor(array)`: Paddle copies on CUDA's default stream, which waits for the stream of the kernels.
Here copies go through pinned memory, and what comes back is read later, when it has long arrived. On a CPU
nothing is copied.
"""

import functools
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle

from paddlevideo_fast.machine import gpu_number

LAG = 2  # batches that the host may be ahead of what it reads; more would not hide more
_MAX_SHAPES = 16  # of free buffers; multigrid training has ever new ones
_MAX_UPLOADS = 64  # of small arrays under way, some steps' worth
_SWITCH = {False: "off", True: "on"}
_MAX_WORKSPACE_MB = 4096  # enough for the fastest algorithm of nearly all convolutions

Key = tuple[tuple[int, ...], str]


def compute_capability() -> int:
    """Of the GPU in use, such as 90 for 9.0; 0 where a CPU computes."""
    number = gpu_number(paddle.get_device())
    return 0 if number is None else _compute_capability(number)


@functools.cache
def _compute_capability(number: int) -> int:
    major, minor = paddle.device.cuda.get_device_capability(number)
    return 10 * major + minor


class HostCopy:
    """Tensors on their way to the host; the copy starts at once.

    Args:
        tensors: must not change later.
    """

    def __init__(self, tensors: Sequence[paddle.Tensor]) -> None:
        self._tensors = list(tensors)
        self._arrival = None
        number = gpu_number(paddle.get_device())
        if number is not None:
            self._tensors = [each._copy_to(paddle.CUDAPinnedPlace(), False) for each in tensors]
            self._arrival = paddle.device.Event()
            self._arrival.record(paddle.device.current_stream())

    def read(self) -> list[np.ndarray]:
        """The values; waits until they have arrived."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return [each.numpy() for each in self._tensors]


@dataclass(eq=False)
class LateReader:
    """Reads the values of each batch when `lag` later batches have been added, or when it is told to.

    Args:
        use: called with the arrays of a batch and what was added with them, in the order of `add`.
        lag: in batches.
    """

    use: Callable[..., None]
    lag: int = LAG
    _coming: deque[tuple[HostCopy, tuple[Any, ...]]] = field(default_factory=deque, init=False)

    def read_due(self) -> None:
        """Reads what is due before another batch is added."""
        self._read(self.lag - 1)

    def add(self, tensors: Sequence[paddle.Tensor], *notes: Any) -> None:
        """Starts the copies of a batch's tensors to the host.

        Args:
            tensors: must not change later.
            notes: further arguments of `use`.
        """
        self.read_due()
        self._coming.append((HostCopy(tensors), notes))

    def read_all(self) -> None:
        """Reads all that is left; waits for the device."""
        self._read(0)

    def _read(self, num_left: int) -> None:
        while len(self._coming) > num_left:
            copy, notes = self._coming.popleft()
            self.use(copy.read(), *notes)


class PinnedBuffers:
    """Copies arrays to a GPU from pinned buffers, which are used again when their copy is done.

    Args:
        number: of the GPU.
        max_under_way: copies that may wait for the device before the host waits for the first of them.
    """

    def __init__(self, number: int, max_under_way: int) -> None:
        self._number = number
        self._max_under_way = max_under_way
        self._free: dict[Key, list[Any]] = {}
        self._under_way: deque[tuple[Any, Key, Any]] = deque()  # an event after each copy, and its buffer

    def fill(self, array: np.ndarray) -> Any:
        """A pinned tensor with the values of `array`; may be called in a thread that has set its device."""
        place = paddle.CUDAPinnedPlace()
        try:
            pinned = self._free.get(_key(array), []).pop()
        except IndexError:
            return paddle.to_tensor(array, place=place)
        pinned.get_tensor().set(array, place)
        return pinned

    def send(self, pinned: Any) -> paddle.Tensor:
        """Starts the copy of what `fill` gave, on the current stream."""
        while self._under_way and (
            len(self._under_way) > self._max_under_way or self._under_way[0][0].query()
        ):
            copied, key, done = self._under_way.popleft()
            copied.synchronize()
            self._free.setdefault(key, []).append(done)
            if len(self._free) > _MAX_SHAPES:
                del self._free[next(iter(self._free))]
        tensor = pinned.cuda(self._number, blocking=False)
        copied = paddle.device.Event()
        copied.record(paddle.device.current_stream())
        self._under_way.append((copied, _key(pinned), pinned))
        return tensor


@functools.cache
def pinned_buffers(number: int, max_under_way: int) -> PinnedBuffers:
    """The buffers of a GPU for all of a run; see `PinnedBuffers`."""
    return PinnedBuffers(number, max_under_way)


def upload(array: np.ndarray | paddle.Tensor) -> paddle.Tensor:
    """An array as a tensor on the device; a tensor stays as it is."""
    if isinstance(array, paddle.Tensor):
        return array
    number = gpu_number(paddle.get_device())
    if number is None:
        return paddle.to_tensor(array)
    buffers = pinned_buffers(number, _MAX_UPLOADS)
    return buffers.send(buffers.fill(array))


def tune_gpu(has_fixed_shapes: bool, in_16_bits: bool) -> str:
    """Sets the flags with which Paddle trains fastest on a GPU; one that the environment has stays.

    On a CPU nothing changes. A key of RUNTIME is in the environment since `config.startup.prepare_process`.

    Args:
        has_fixed_shapes: steps have the same shape, so that timing cuDNN's algorithms pays.
        in_16_bits: the network computes in 16 bits.

    Returns:
        The GPU and what is in force, for the log; "" on a CPU.
    """
    number = gpu_number(paddle.get_device())
    if number is None:
        return ""
    gpu = paddle.device.cuda.get_device_properties(number)
    exact = "FLAGS_cudnn_deterministic"  # Paddle refuses it together with the search
    wanted = {
        "FLAGS_cudnn_exhaustive_search": has_fixed_shapes and not paddle.get_flags(exact)[exact],
        "FLAGS_cudnn_batchnorm_spatial_persistent": in_16_bits,  # in float32 it may overflow for little
        "FLAGS_conv_workspace_size_limit": min(_MAX_WORKSPACE_MB, gpu.total_memory >> 24),  # a sixteenth
        "FLAGS_max_inplace_grad_add": 8,  # read where a static graph is built
    }
    paddle.set_flags({name: value for name, value in wanted.items() if name not in os.environ})
    search, norm, workspace, _ = (paddle.get_flags(name)[name] for name in wanted)
    return (
        f"{gpu.name} (sm {gpu.major}{gpu.minor}, {gpu.total_memory / 2**30:.0f} GiB), cuDNN search "
        f"{_SWITCH[search]}, persistent batch norm {_SWITCH[norm]}, workspace {workspace} MiB"
    )


def gpu_memory_mb() -> dict[str, int]:
    """MiB of the GPU: what tensors have, what Paddle holds, and the most that tensors had; empty on a CPU."""
    number = gpu_number(paddle.get_device())
    if number is None:
        return {}
    cuda = paddle.device.cuda
    asked = {
        "memory_mb": cuda.memory_allocated,
        "memory_reserved_mb": cuda.memory_reserved,
        "memory_peak_mb": cuda.max_memory_allocated,
    }
    return {name: ask(number) >> 20 for name, ask in asked.items()}


def _key(array: Any) -> Key:
    return tuple(array.shape), str(array.dtype).rpartition(".")[2]

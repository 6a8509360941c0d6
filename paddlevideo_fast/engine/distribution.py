"""Training over many processes: an object whose plain form, one process, does nothing.

Gradients travel by `paddle.DataParallel`, or by `_averaging`: in 16 bits, and after frozen parameters have
begun to train, which `paddle.DataParallel` does not notice. A sharded optimizer is an annex.
"""

import contextlib
import itertools
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.optimizer import Optimizer

from paddlevideo_fast import annexes
from paddlevideo_fast.config.settings import DistributedSettings
from paddlevideo_fast.engine.interrupt import TrainingInterrupted
from paddlevideo_fast.errors import DistributionError, PaddleVideoFastError
from paddlevideo_fast.machine import gpu_number, installed_gpus

Value = TypeVar("Value")

_NUM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class RankGroup:
    """A group of consecutive ranks that all_reduce tensors among themselves.

    On GPUs the group is a process group of `paddle.distributed`. Groups of gloo that form at the same time
    take each other's addresses (Paddle 2.6 and 3.3). So on CPUs all ranks all_reduce one message, in which
    each group has a row.

    Args:
        rank: of this process.
        world_size: processes of the job.
        num_ranks: size of a group, a divisor of the world size.

    Attributes:
        rank: of this process in the job.
        is_everyone: the group has all processes of the job.
    """

    def __init__(self, rank: int, world_size: int, num_ranks: int) -> None:
        self.rank, self.is_everyone = rank, num_ranks == world_size
        self._row, self._num_rows = rank // num_ranks, world_size // num_ranks
        self._group: dist.communication.group.Group | None = None
        if not on_cpu() and not self.is_everyone:
            starts = range(0, world_size, num_ranks)
            groups = [dist.new_group(list(range(start, start + num_ranks))) for start in starts]
            self._group = groups[self._row]
            self._row, self._num_rows = 0, 1

    def all_sum(self, values: paddle.Tensor) -> paddle.Tensor:
        """The sum of a tensor [M] over the ranks of the group."""
        rows = paddle.zeros([self._num_rows, *values.shape], values.dtype)
        rows[self._row] = values
        dist.all_reduce(rows, group=self._group)
        return rows[self._row]


class Distribution:
    """One process: nothing to share, nobody to wait for.

    All ranks must call the methods in the same order, as each waits for the others.

    Attributes:
        rank: of this process, from 0.
        world_size: processes of the job.
        has_whole_gradients: gradients are the means over all ranks before the optimizer's step.
    """

    rank = 0
    world_size = 1
    has_whole_gradients = True

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and the log."""
        return self.rank == 0

    def wrap(self, model: nn.Layer, optimizer: Optimizer, scaler: Any = None) -> tuple[nn.Layer, Optimizer]:
        """Wraps model and optimizer for training. Returns the pair that the training step uses.

        Callbacks, evaluation and checkpoints go on using model and optimizer themselves.

        Args:
            model: the model.
            optimizer: of the model.
            scaler: of the loss; from here on it skips the same steps on all ranks.
        """
        return model, optimizer

    def accumulating(self, model: nn.Layer, last: bool) -> AbstractContextManager[Any]:
        """Context for forward and backward of one micro-batch of an optimizer step.

        Args:
            model: the wrapped model.
            last: whether it is the last micro-batch of the step; only behind it gradients are exchanged.
        """
        return contextlib.nullcontext()

    def gather_optimizer_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Consolidates the state of an optimizer of which each rank may hold a shard."""
        return dict(state)

    def all_sum(self, values: Any) -> np.ndarray:
        """The element-wise sum over ranks of an array that has the same shape and dtype on all of them."""
        return np.asarray(values)

    def sum_on_device(self, values: paddle.Tensor) -> paddle.Tensor:
        """The element-wise sum of a tensor over the ranks, in its place; the host does not wait for it."""
        return values

    def gather(self, value: Value) -> list[Value]:
        """The values of all ranks, by rank; anything that pickles."""
        return [value]

    def gather_from(self, work: Callable[[], Value]) -> list[Value]:
        """Runs `work`, which must not wait for other ranks, on each rank and gathers the results.

        Raises:
            Exception: an error of one rank is raised on all ranks, so that none waits for a rank that left.
                An error that a user can act upon is the same on all. Any other error is a `DistributionError`
                on the ranks where it did not happen.
        """
        return [work()]

    def is_shared(self, error: Exception) -> bool:
        """Whether all ranks raise this error here, so that what follows may wait for other ranks."""
        return True

    def rank_group(self, num_ranks: int) -> RankGroup | None:
        """The group of `num_ranks` consecutive ranks that this rank belongs to; all ranks must call it.

        Args:
            num_ranks: size of a group, a divisor of the world size: ranks 0 to num_ranks - 1 are the first.

        Returns:
            None where each rank is alone.
        """
        return None

    def barrier(self) -> None:
        """Waits for all ranks."""

    def failure_detector(self) -> AbstractContextManager[Any]:
        """Context in which all ranks end when one of them fails or dies, where the annex for it is there."""
        return contextlib.nullcontext()


class FleetDistribution(Distribution):
    """The processes that `paddle.distributed.launch` or `fleetrun` has started: NCCL on GPUs, gloo on CPUs.

    Args:
        settings: how gradients travel between the processes.

    Raises:
        DistributionError: this is one process alone, or the settings do not fit the number of processes.
    """

    def __init__(self, settings: DistributedSettings | None = None) -> None:
        self.rank, self.world_size = launched_rank()
        self.settings = settings or DistributedSettings()
        if self.world_size < 2:
            text = "this is one process alone: start several with python -m paddle.distributed.launch"
            raise DistributionError(text)
        self._check()
        if on_cpu():  # a GPU build takes NCCL, unless it is told otherwise, even where there is no GPU
            os.environ["PADDLE_DISTRI_BACKEND"] = "gloo"
        else:
            _refuse_shared_gpu(self.rank, self.world_size)
        self._connect()
        self._rank_groups: dict[int, RankGroup | None] = {1: None}
        self._shared_error: Exception | None = None
        self._frozen_at_start: list[bool] = []

    def _check(self) -> None:
        """Checks the settings against the number of processes.

        Raises:
            DistributionError: names the key of DISTRIBUTED.
        """
        if self.settings.allreduce_dtype == "float16" and on_cpu():
            text = "Paddle 3.3 adds float16 wrongly on CPUs; use bfloat16"
            raise DistributionError(f"DISTRIBUTED.allreduce_dtype=float16: {text}")

    def _connect(self) -> None:
        """Connects the processes."""
        dist.init_parallel_env()

    def wrap(self, model: nn.Layer, optimizer: Optimizer, scaler: Any = None) -> tuple[nn.Layer, Optimizer]:
        self._frozen_at_start = _frozen(model)
        wrapped = paddle.DataParallel(
            model,
            comm_buffer_size=self.settings.comm_buffer_size,
            last_comm_buffer_size=self.settings.last_comm_buffer_size,
            find_unused_parameters=self.settings.find_unused_parameters,
        )
        return wrapped, optimizer

    def accumulating(self, model: nn.Layer, last: bool) -> AbstractContextManager[Any]:
        if self.settings.allreduce_dtype == "float32" and _frozen(model) == self._frozen_at_start:
            return contextlib.nullcontext() if last else model.no_sync()
        stack = contextlib.ExitStack()
        if last:
            stack.enter_context(self._averaging(model.parameters()))
        stack.enter_context(model.no_sync())
        return stack

    @contextlib.contextmanager
    def _averaging(self, parameters: Sequence[paddle.Tensor]) -> Iterator[None]:
        """Averages the gradients over all processes when the block ends.

        `paddle.DataParallel` sends gradients in their own type only, and only of parameters that trained when
        it was made. These messages leave when the backward pass is over, so no computation hides them.

        Args:
            parameters: the same on all processes. A parameter without a gradient is skipped.
        """
        yield
        dtype, num_bytes = self.settings.allreduce_dtype, int(self.settings.comm_buffer_size * 2**20)
        with paddle.no_grad():
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            for bucket in _buckets(gradients, num_bytes // _NUM_BYTES[dtype]):
                # divided first: a sum of float16 could leave its range
                flat = [gradient.flatten() / self.world_size for gradient in bucket]
                together = paddle.concat(flat).astype(dtype)
                dist.all_reduce(together)
                parts = paddle.split(together, [gradient.size for gradient in bucket])
                for gradient, part in zip(bucket, parts):
                    paddle.assign(part.astype(gradient.dtype).reshape(gradient.shape), gradient)

    def all_sum(self, values: Any) -> np.ndarray:
        tensor = paddle.to_tensor(np.asarray(values))
        dist.all_reduce(tensor)
        return tensor.numpy()

    def sum_on_device(self, values: paddle.Tensor) -> paddle.Tensor:
        dist.all_reduce(values)
        return values

    def gather(self, value: Value) -> list[Value]:
        values: list[Value] = []
        dist.all_gather_object(values, value)
        return values

    def gather_from(self, work: Callable[[], Value]) -> list[Value]:
        result: Any = None
        own: Exception | None = None
        try:
            result = work()
        except Exception as exc:
            own = exc
        outcomes = self.gather((result, own and _for_others(own, self.rank)))
        self._shared_error = own or next((problem for _, problem in outcomes if problem is not None), None)
        if self._shared_error is not None:
            raise self._shared_error
        return [result for result, _ in outcomes]

    def is_shared(self, error: Exception) -> bool:
        return error is self._shared_error

    def rank_group(self, num_ranks: int) -> RankGroup | None:
        if num_ranks not in self._rank_groups:
            self._rank_groups[num_ranks] = RankGroup(self.rank, self.world_size, num_ranks)
        return self._rank_groups[num_ranks]

    def barrier(self) -> None:
        dist.barrier()

    def failure_detector(self) -> AbstractContextManager[Any]:
        module = annexes.load("run", "failure detector")
        if module is None:
            return contextlib.nullcontext()
        return module.FailureDetector(self.rank, self.gather, orderly=(TrainingInterrupted,))


def make_distribution(settings: DistributedSettings) -> Distribution:
    """A distribution over the processes that a launcher has started; the plain one without a launcher.

    Raises:
        DistributionError: the settings do not fit the number of processes, or the GPUs are not as asked for.
    """
    _check_visible_gpus()
    if launched_rank()[1] == 1:
        return Distribution()
    if settings.sharding_degree == 1:
        return FleetDistribution(settings)
    sharding = annexes.load("run", "sharded optimizer")
    if sharding is None:
        text = "this installation has no sharded optimizer; take it out"
        raise DistributionError(f"DISTRIBUTED.sharding_degree: {text}")
    distribution: Distribution = sharding.ShardedDistribution(settings)
    return distribution


def launched_rank() -> tuple[int, int]:
    """(rank, world size) that a launcher has given this process; (0, 1) without one."""
    return int(os.environ.get("PADDLE_TRAINER_ID", "0")), int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))


def on_cpu() -> bool:
    """Whether Paddle computes on the CPU."""
    return gpu_number(paddle.get_device()) is None


def _check_visible_gpus() -> None:
    """Refuses GPUs that CUDA does not find; it says nothing, and Paddle would compute on others or the CPU.

    Raises:
        DistributionError: names what is asked for.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None or not paddle.is_compiled_with_cuda():
        return
    num_named = len(list(itertools.takewhile(lambda name: name.strip() != "-1", named.split(","))))
    num_found = paddle.device.cuda.device_count()
    if not named.strip() and installed_gpus():
        raise DistributionError(
            "CUDA_VISIBLE_DEVICES is empty, which hides all GPUs: unset it, name GPUs such as 0,1, or set it "
            "to -1 to compute on the CPU"
        )
    if named.strip() and num_found < num_named:
        raise DistributionError(
            f"CUDA_VISIBLE_DEVICES={named}: CUDA finds {num_found} of these {num_named} GPUs; "
            "nvidia-smi -L  lists those that are there, and each may be named once"
        )


def _refuse_shared_gpu(rank: int, world_size: int) -> None:
    """Ends all ranks where two of one machine have the same GPU: NCCL would fail, or wait for ever.

    Raises:
        DistributionError: names the ranks.
    """
    given = dist.ParallelEnv()
    names = dict(enumerate(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))))
    host = given.current_endpoint.rpartition(":")[0]
    store = paddle.base.core.create_or_get_global_tcp_store()
    store.set(f"gpu/{rank}", f"{names.get(given.device_id, given.device_id)} of {host}")
    gpus = [store.get(f"gpu/{other}").decode() for other in range(world_size)]
    store.set(f"gpu/read/{rank}", "yes")
    twice = next((gpu for gpu in gpus if gpus.count(gpu) > 1), None)
    if twice is None:
        return
    if rank == 0:  # it serves the store: it may end when all have read
        for other in range(world_size):
            store.get(f"gpu/read/{other}")
    ranks = ", ".join(str(other) for other, gpu in enumerate(gpus) if gpu == twice)
    raise DistributionError(
        f"the ranks {ranks} have the same GPU, {twice}: start one process for each GPU, as  paddlevideo-fast "
        "launch --gpus 0,1 train ...  does"
    )


def _for_others(problem: Exception, rank: int) -> Exception:
    """What the other ranks raise where `rank` has a problem; its own rank has the traceback."""
    if isinstance(problem, (PaddleVideoFastError, TrainingInterrupted)):
        with contextlib.suppress(Exception):
            pickle.loads(pickle.dumps(problem))
            return problem
    return DistributionError(f"rank {rank} failed: {type(problem).__name__}: {problem}")


def _frozen(model: nn.Layer) -> list[bool]:
    return [parameter.stop_gradient for parameter in model.parameters()]


def _buckets(gradients: Sequence[paddle.Tensor], num_values: int) -> Iterator[list[paddle.Tensor]]:
    """Groups gradients into messages of `num_values` numbers; a larger gradient is a message of its own."""
    bucket: list[paddle.Tensor] = []
    size = 0
    for gradient in gradients:
        if bucket and size + gradient.size > num_values:
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.size
    if bucket:
        yield bucket

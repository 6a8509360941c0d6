"""Training over many processes as an object whose plain form, one process, does nothing."""

from __future__ import annotations

import contextlib
import os
import pickle
from dataclasses import dataclass
from typing import Any, Callable, ContextManager, Dict, List, Literal, Mapping, Optional, Tuple, TypeVar

import numpy as np
import paddle
import paddle.distributed as dist

from paddlevideo_fast.engine.gradients import averaging
from paddlevideo_fast.engine.interrupt import TrainingInterrupted
from paddlevideo_fast.engine.lifeline import Lifeline
from paddlevideo_fast.engine.sharding import shard, start_sharding
from paddlevideo_fast.errors import DistributionError, PaddleVideoFastError

Value = TypeVar("Value")


class Neighbours:
    """Ranks in a row that add up tensors among themselves.

    On GPUs they have a group of `paddle.distributed` of their own. Groups of gloo that form at the same time
    take each other's addresses (Paddle 2.6 and 3.3), so on CPUs all ranks exchange one message, in which each
    group has a row.

    Args:
        rank: of this process.
        world_size: processes of the job.
        num_ranks: of a group, a divisor of the world size.

    Attributes:
        is_everyone: whether there is one group.
    """

    def __init__(self, rank: int, world_size: int, num_ranks: int) -> None:
        self.is_everyone = num_ranks == world_size
        self._row, self._num_rows = rank // num_ranks, world_size // num_ranks
        self._group: Optional[Any] = None
        if paddle.is_compiled_with_cuda() and not self.is_everyone:
            starts = range(0, world_size, num_ranks)
            groups = [dist.new_group(list(range(start, start + num_ranks))) for start in starts]
            self._group = groups[self._row]
            self._row, self._num_rows = 0, 1

    def all_sum(self, values: Any) -> Any:
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
    """

    rank = 0
    world_size = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and the log."""
        return self.rank == 0

    def wrap(self, model: Any, optimizer: Any) -> Tuple[Any, Any]:
        """What a training step calls in place of the model, and what it steps in place of the optimizer.

        Model and optimizer themselves stay what callbacks, evaluation and checkpoints use.
        """
        return model, optimizer

    def accumulating(self, model: Any, last: bool) -> ContextManager[Any]:
        """Wraps forward and backward of one of the batches that make an optimizer step.

        Args:
            model: what `wrap` gave.
            last: gradients are exchanged behind the last one only.
        """
        return contextlib.nullcontext()

    def wrap_scaler(self, scaler: Any) -> Any:
        """What scales the loss in place of a `paddle.amp.GradScaler`: all ranks must skip the same steps."""
        return scaler

    def whole(self, state: Mapping[str, Any]) -> Dict[str, Any]:
        """The state of an optimizer of which each rank may have only a part."""
        return dict(state)

    def all_sum(self, values: Any) -> np.ndarray:
        """The element-wise sum over ranks of an array that has one shape and dtype on all of them."""
        return np.asarray(values)

    def gather(self, value: Value) -> List[Value]:
        """The values of all ranks, by rank; anything that pickles."""
        return [value]

    def gather_from(self, work: Callable[[], Value]) -> List[Value]:
        """Runs `work`, which must not wait for other ranks, on each rank and gathers what it returns.

        Raises:
            Exception: what a user can act upon is raised on all ranks alike, so that none waits for one that
                left. Any other error is itself on its own rank and a `DistributionError` on the others.
        """
        return [work()]

    def is_shared(self, error: Exception) -> bool:
        """Whether all ranks raise this error here; else the others do not wait for what follows it."""
        return True

    def neighbours(self, num_ranks: int) -> Optional[Neighbours]:
        """This rank and those beside it, who add up tensors among themselves; all must ask for it.

        Args:
            num_ranks: in a group, a divisor of the world size: ranks 0 to num_ranks - 1 make the first.

        Returns:
            None where each rank is alone.
        """
        return None

    def barrier(self) -> None:
        """Waits for all ranks."""

    def lifeline(self) -> ContextManager[Any]:
        """Ends all ranks where one of them fails or dies in the block; see `Lifeline`."""
        return contextlib.nullcontext()


@dataclass(frozen=True)
class GradientExchange:
    """How gradients travel between processes.

    Attributes:
        comm_buffer_size: MB of gradients in one message.
        last_comm_buffer_size: MB of the last message of a step, behind which no computation hides.
        find_unused_parameters: look for parameters that a step does not use, at each step.
        allreduce_dtype: of gradients while they travel.
        sharding_degree: processes that share one copy of the optimizer's state.
    """

    comm_buffer_size: float = 25.0
    last_comm_buffer_size: float = 1.0
    find_unused_parameters: bool = False
    allreduce_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    sharding_degree: int = 1

    def check(self, world_size: int) -> None:
        """Checks the settings against each other and the number of processes.

        Raises:
            DistributionError: names the key of DISTRIBUTED.
        """
        key = f"DISTRIBUTED.sharding_degree={self.sharding_degree}"
        if world_size % self.sharding_degree:
            raise DistributionError(f"{key} does not divide the {world_size} processes")
        if 1 < self.sharding_degree < world_size and not paddle.is_compiled_with_cuda():
            raise DistributionError(
                f"{key}: on CPUs Paddle's gloo does not connect parts of a job; use {world_size}, or 1"
            )
        if self.allreduce_dtype == "float32":
            return
        key = f"DISTRIBUTED.allreduce_dtype={self.allreduce_dtype}"
        if self.sharding_degree > 1:
            raise DistributionError(f"{key}: gradients of a sharded optimizer travel in float32")
        if self.allreduce_dtype == "float16" and not paddle.is_compiled_with_cuda():
            raise DistributionError(f"{key}: Paddle 3.3 adds float16 wrongly on CPUs; use bfloat16")


class FleetDistribution(Distribution):
    """The processes that `paddle.distributed.launch` or `fleetrun` has started: NCCL on GPUs, gloo on CPUs.

    Args:
        exchange: of gradients.

    Raises:
        DistributionError: this is one process alone, or the exchange does not fit the number of processes.
    """

    def __init__(self, exchange: Optional[GradientExchange] = None) -> None:
        self.rank, self.world_size = launched_rank()
        self.exchange = exchange or GradientExchange()
        if self.world_size < 2:
            raise DistributionError(
                "this is one process alone: start several with python -m paddle.distributed.launch"
            )
        self.exchange.check(self.world_size)
        if not paddle.is_compiled_with_cuda():
            os.environ.setdefault("PADDLE_DISTRI_BACKEND", "gloo")  # as the launcher says it
        if self._sharded:
            start_sharding(self.exchange.sharding_degree, self.world_size)
        else:
            dist.init_parallel_env()
        self._neighbours: Dict[int, Optional[Neighbours]] = {1: None}
        self._shared_error: Optional[Exception] = None

    @property
    def _sharded(self) -> bool:
        return self.exchange.sharding_degree > 1

    def wrap(self, model: Any, optimizer: Any) -> Tuple[Any, Any]:
        if self._sharded:
            return shard(model, optimizer)
        wrapped = paddle.DataParallel(
            model,
            comm_buffer_size=self.exchange.comm_buffer_size,
            last_comm_buffer_size=self.exchange.last_comm_buffer_size,
            find_unused_parameters=self.exchange.find_unused_parameters,
        )
        return wrapped, optimizer

    def accumulating(self, model: Any, last: bool) -> ContextManager[Any]:
        if self._sharded:  # gradients travel in the optimizer's step
            return contextlib.nullcontext()
        if self.exchange.allreduce_dtype == "float32":
            return contextlib.nullcontext() if last else model.no_sync()
        stack = contextlib.ExitStack()
        if last:
            dtype, size = self.exchange.allreduce_dtype, self.exchange.comm_buffer_size
            stack.enter_context(averaging(model.parameters(), self.world_size, dtype, size))
        stack.enter_context(model.no_sync())
        return stack

    def wrap_scaler(self, scaler: Any) -> Any:
        return dist.fleet.distributed_scaler(scaler) if self._sharded else scaler

    def whole(self, state: Mapping[str, Any]) -> Dict[str, Any]:
        if not self._sharded:
            return dict(state)
        parts = self.gather({name: np.asarray(value) for name, value in state.items()})
        return {name: value for part in parts for name, value in part.items()}

    def all_sum(self, values: Any) -> np.ndarray:
        tensor = paddle.to_tensor(np.asarray(values))
        dist.all_reduce(tensor)
        return tensor.numpy()

    def gather(self, value: Value) -> List[Value]:
        values: List[Value] = []
        dist.all_gather_object(values, value)
        return values

    def gather_from(self, work: Callable[[], Value]) -> List[Value]:
        result: Any = None
        own: Optional[Exception] = None
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

    def neighbours(self, num_ranks: int) -> Optional[Neighbours]:
        if num_ranks not in self._neighbours:
            self._neighbours[num_ranks] = Neighbours(self.rank, self.world_size, num_ranks)
        return self._neighbours[num_ranks]

    def barrier(self) -> None:
        dist.barrier()

    def lifeline(self) -> ContextManager[Any]:
        return Lifeline(self.rank, self.gather, orderly=(TrainingInterrupted,))


def launched_rank() -> Tuple[int, int]:
    """(rank, world size) that a launcher has given this process; (0, 1) without one."""
    return int(os.environ.get("PADDLE_TRAINER_ID", "0")), int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))


def _for_others(problem: Exception, rank: int) -> Exception:
    """What the other ranks raise for it; an error of the program has its traceback on its own rank."""
    if isinstance(problem, (PaddleVideoFastError, TrainingInterrupted)):
        with contextlib.suppress(Exception):
            pickle.loads(pickle.dumps(problem))
            return problem
    return DistributionError(f"rank {rank} failed: {type(problem).__name__}: {problem}")

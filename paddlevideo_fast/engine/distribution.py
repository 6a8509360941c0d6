"""Training over many processes as an object whose plain form, one process, does nothing."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any, Callable, ContextManager, List, Optional, Tuple, TypeVar

import numpy as np
import paddle
import paddle.distributed as dist

from paddlevideo_fast.engine.interrupt import TrainingInterrupted
from paddlevideo_fast.engine.lifeline import Lifeline
from paddlevideo_fast.errors import DistributionError

Value = TypeVar("Value")


class Distribution:
    """One process: nothing to share, nobody to wait for.

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

    def all_sum(self, values: Any) -> np.ndarray:
        """The element-wise sum over ranks of an array that has one shape and dtype on all of them."""
        return np.asarray(values)

    def gather(self, value: Value) -> List[Value]:
        """The values of all ranks, by rank; anything that pickles."""
        return [value]

    def gather_from(self, work: Callable[[], Value]) -> List[Value]:
        """Runs `work` on each rank and gathers what it returns.

        Raises:
            Exception: what `work` raised on a rank is raised on all, so that none waits for one that left.
        """
        return [work()]

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
    """

    comm_buffer_size: float = 25.0
    last_comm_buffer_size: float = 1.0
    find_unused_parameters: bool = False


class FleetDistribution(Distribution):
    """The processes that `paddle.distributed.launch` or `fleetrun` has started: NCCL on GPUs, gloo on CPUs.

    Args:
        exchange: of gradients.

    Raises:
        DistributionError: the launcher says no number of processes above one.
    """

    def __init__(self, exchange: Optional[GradientExchange] = None) -> None:
        self.rank, self.world_size = launched_rank()
        self.exchange = exchange or GradientExchange()
        if self.world_size < 2:
            raise DistributionError(
                "this is one process alone: start several with python -m paddle.distributed.launch"
            )
        if not paddle.is_compiled_with_cuda():
            os.environ.setdefault("PADDLE_DISTRI_BACKEND", "gloo")  # as the launcher says it
        dist.init_parallel_env()

    def wrap(self, model: Any, optimizer: Any) -> Tuple[Any, Any]:
        wrapped = paddle.DataParallel(
            model,
            comm_buffer_size=self.exchange.comm_buffer_size,
            last_comm_buffer_size=self.exchange.last_comm_buffer_size,
            find_unused_parameters=self.exchange.find_unused_parameters,
        )
        return wrapped, optimizer

    def accumulating(self, model: Any, last: bool) -> ContextManager[Any]:
        return contextlib.nullcontext() if last else model.no_sync()

    def all_sum(self, values: Any) -> np.ndarray:
        tensor = paddle.to_tensor(np.asarray(values))
        dist.all_reduce(tensor)
        return tensor.numpy()

    def gather(self, value: Value) -> List[Value]:
        values: List[Value] = []
        dist.all_gather_object(values, value)
        return values

    def gather_from(self, work: Callable[[], Value]) -> List[Value]:
        outcome: Any = None
        problem = None
        try:
            outcome = work()
        except Exception as exc:
            problem = exc
        outcomes = self.gather((outcome, problem))
        for _, failure in outcomes:
            if failure is not None:
                raise failure
        return [result for result, _ in outcomes]

    def barrier(self) -> None:
        dist.barrier()

    def lifeline(self) -> ContextManager[Any]:
        return Lifeline(self.rank, self.gather, orderly=(TrainingInterrupted,))


def launched_rank() -> Tuple[int, int]:
    """(rank, world size) that a launcher has given this process; (0, 1) without one."""
    return int(os.environ.get("PADDLE_TRAINER_ID", "0")), int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))

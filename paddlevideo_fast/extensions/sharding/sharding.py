"""A sharded optimizer: each process of a group keeps a part of the optimizer's state, as fleet deals it out.

Reference: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
arXiv 1910.02054.
"""

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import paddle
from paddle import nn
from paddle.distributed import fleet
from paddle.optimizer import Optimizer
from paddle.regularizer import WeightDecayRegularizer

from paddlevideo_fast.engine.distribution import FleetDistribution, on_cpu
from paddlevideo_fast.errors import DistributionError


class ShardedDistribution(FleetDistribution):
    """Processes of a launcher in groups of `sharding_degree`; gradients travel in the optimizer's step.

    Args:
        settings: how gradients travel between the processes.

    Raises:
        DistributionError: this is one process alone, or the settings do not fit the number of processes.
    """

    has_whole_gradients = False

    def _check(self) -> None:
        degree = self.settings.sharding_degree
        key = f"DISTRIBUTED.sharding_degree={degree}"
        if self.world_size % degree:
            raise DistributionError(f"{key} does not divide the {self.world_size} processes")
        if degree < self.world_size and on_cpu():
            text = (
                f"{key}: on CPUs Paddle's gloo does not connect parts of a job; use {self.world_size}, or 1"
            )
            raise DistributionError(text)
        if self.settings.allreduce_dtype != "float32":
            key = f"DISTRIBUTED.allreduce_dtype={self.settings.allreduce_dtype}"
            raise DistributionError(f"{key}: gradients of a sharded optimizer travel in float32")

    def _connect(self) -> None:
        _start_sharding(self.settings.sharding_degree, self.world_size)

    def wrap(self, model: nn.Layer, optimizer: Optimizer, scaler: Any = None) -> tuple[nn.Layer, Optimizer]:
        if scaler is not None:  # gradients overflow on their own rank, before they are added up
            fleet.distributed_scaler(scaler)
        return _shard(model, optimizer)

    def accumulating(self, model: nn.Layer, last: bool) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def gather_optimizer_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        parts = self.gather({name: np.asarray(value) for name, value in state.items()})
        return {name: value for part in parts for name, value in part.items()}


def _start_sharding(degree: int, world_size: int) -> None:
    """Connects the processes in groups of `degree`, each of which shares one copy of the optimizer's state.

    This is stage 1 of ZeRO: each process of a group updates a part of the parameters, keeps the optimizer's
    state of this part only, and sends the updated parameters to the others.

    Raises:
        DistributionError: this Paddle's fleet does not run with the protobuf that is installed.
    """
    strategy = fleet.DistributedStrategy()
    try:
        strategy.hybrid_configs = {
            "dp_degree": world_size // degree,
            "mp_degree": 1,
            "pp_degree": 1,
            "sharding_degree": degree,
        }
    except TypeError as exc:  # Paddle 2.6 reads an attribute that protobuf 7 has dropped
        raise DistributionError(
            f"DISTRIBUTED.sharding_degree={degree}: the fleet of Paddle {paddle.__version__} does not run "
            'with the protobuf that is installed: type  pip install "protobuf<7"'
        ) from exc
    fleet.init(is_collective=True, strategy=strategy, log_level="WARNING")


def _shard(model: nn.Layer, optimizer: Optimizer) -> tuple[nn.Layer, Optimizer]:
    """Wraps model and optimizer for sharded training. Returns the pair that the training step uses."""
    state = optimizer.state_dict()
    parameters = model.parameters()
    decays = {each.name: each.regularizer for each in parameters if each.regularizer is not None}
    if decays:
        for parameter in parameters:
            parameter.regularizer = None
        optimizer.regularization = _DecayByParameter(decays)
    wrapped = fleet.distributed_optimizer(optimizer)
    if state:  # a resumed run: from here on each process keeps its shard only
        wrapped.set_state_dict(state)
    return fleet.distributed_model(model), wrapped


class _DecayByParameter(WeightDecayRegularizer):
    """Weight decay by parameter, in the only form that fleet's sharding accepts.

    Fleet refuses parameters with a regularizer of their own, but calls the optimizer's for each parameter.

    Args:
        decays: regularizers by the name of the parameter; other parameters do not decay.
    """

    def __init__(self, decays: Mapping[str, WeightDecayRegularizer]) -> None:
        super().__init__()
        self._decays = dict(decays)

    def __call__(self, param: paddle.Tensor, grad: paddle.Tensor, block: Any) -> paddle.Tensor:
        decay = self._decays.get(param.name)
        return paddle.zeros_like(grad) if decay is None else decay(param, grad, block)

    def __str__(self) -> str:
        return f"decay of {len(self._decays)} parameters"

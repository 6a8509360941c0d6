"""The optimizer's state in shards: fleet's hybrid `sharding_degree`, stage 1.

Each process of a sharding group updates a part of the parameters, keeps the state of that part only, and
sends the others the result.

Reference: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
arXiv 1910.02054.
"""

from __future__ import annotations

from typing import Any, Mapping, Tuple

import paddle
from paddle.distributed import fleet
from paddle.regularizer import WeightDecayRegularizer

from paddlevideo_fast.errors import DistributionError


def start_sharding(degree: int, world_size: int) -> None:
    """Connects the processes, in groups of `degree` that share one copy of the optimizer's state.

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


def shard(model: Any, optimizer: Any) -> Tuple[Any, Any]:
    """What a step calls in place of the model and steps in place of the optimizer."""
    state = optimizer.state_dict()
    parameters = model.parameters()
    decays = {each.name: each.regularizer for each in parameters if each.regularizer is not None}
    if decays:
        for parameter in parameters:
            parameter.regularizer = None
        optimizer.regularization = _DecayByParameter(decays)
    wrapped = fleet.distributed_optimizer(optimizer)
    if state:  # of a resumed run: from here on only the part of this process
        wrapped.set_state_dict(state)
    return fleet.distributed_model(model), wrapped


class _DecayByParameter(WeightDecayRegularizer):
    """Weight decay that is not the same for all parameters, as fleet's sharding takes it.

    It refuses parameters that have a rule of their own, but asks the optimizer's for each.

    Args:
        decays: rules by the name of the parameter; others do not decay.
    """

    def __init__(self, decays: Mapping[str, WeightDecayRegularizer]) -> None:
        super().__init__()
        self._decays = dict(decays)

    def __call__(self, param: Any, grad: Any, block: Any) -> Any:
        decay = self._decays.get(param.name)
        return paddle.zeros_like(grad) if decay is None else decay(param, grad, block)

    def __str__(self) -> str:
        return f"decay of {len(self._decays)} parameters"

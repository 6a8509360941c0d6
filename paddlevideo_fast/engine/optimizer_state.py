"""An optimizer's state under names that another process understands."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

import paddle

from paddlevideo_fast.errors import CheckpointError
from paddlevideo_fast.log import get_logger

logger = get_logger(__name__)


def portable_state(optimizer: Any, model: Any) -> Dict[str, Any]:
    """The optimizer's state with structured parameter names in place of Paddle's generated ones.

    Paddle names an accumulator after a counter of layers built in the process (`conv2d_7.w_0_velocity_0`), so
    its own state dict fits only a process that built the same layers in the same order.
    """
    names = {parameter.name: structured for structured, parameter in model.named_parameters()}
    state = {}
    for key, value in optimizer.state_dict().items():
        name = _renamed(key, names, ".")
        if name is None:
            raise CheckpointError(f"the optimizer holds '{key}', of a parameter that the model does not have")
        state[name] = value
    return state


def restore_optimizer(optimizer: Any, model: Any, state: Mapping[str, Any]) -> None:
    """Takes back what `portable_state` gave; another toolkit's names are left out with a warning."""
    names = {structured: parameter.name for structured, parameter in model.named_parameters()}
    renamed = {_renamed(key, names, "_"): value for key, value in state.items()}
    known = {key: value for key, value in renamed.items() if key is not None}
    if state and not known:
        logger.warning("the optimizer state is under names of another toolkit: the optimizer starts afresh")
        return
    optimizer.set_state_dict({key: paddle.to_tensor(value) for key, value in known.items()})


def _renamed(key: str, names: Mapping[str, str], separator: str) -> Optional[str]:
    """`key` with its parameter's name replaced; the longest name that fits is the parameter's."""
    for cut in range(len(key), 0, -1):
        if key[:cut] in names and key[cut : cut + 1] in ("_", "."):
            return f"{names[key[:cut]]}{separator}{key[cut + 1 :]}"
    return None

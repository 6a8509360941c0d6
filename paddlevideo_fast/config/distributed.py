"""The DISTRIBUTED section."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Dict, Literal, Mapping, Optional

from paddlevideo_fast.config.run import settings_from
from paddlevideo_fast.config.types import PositiveInt, Range


@dataclass(frozen=True)
class DistributedSettings:
    """How the processes of a run work together; without effect on one process.

    Args:
        comm_buffer_size: MB of gradients that travel in one message.
        last_comm_buffer_size: MB of the last message of a step, which no computation hides.
        find_unused_parameters: look at each step for parameters that the loss does not depend on; only a
            network that leaves some of them out needs it.
        allreduce_dtype: of gradients while they travel; 16 bits halve the messages, which then leave only
            when the backward pass is over.
        sharding_degree: processes that share one copy of the optimizer's state; 1 keeps a copy on each.
        sync_bn: batch norms take the statistics of a step over the clips of all processes.
        one_process_ips: clips a second that one process reaches alone. With it the log has the scaling
            efficiency: the clips a second of the run over those of as many processes without each other.
    """

    comm_buffer_size: Annotated[float, Range(0.001)] = 25.0
    last_comm_buffer_size: Annotated[float, Range(0.001)] = 1.0
    find_unused_parameters: bool = False
    allreduce_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    sharding_degree: PositiveInt = 1
    sync_bn: bool = False
    one_process_ips: Optional[Annotated[float, Range(0.001)]] = None

    refused_arguments: ClassVar[Dict[str, str]] = {
        "fp16_allreduce": "Paddle's strategy of this name changes static graphs only; use allreduce_dtype",
        "localsgd": "Paddle has local SGD for static graphs only, and training runs in dynamic mode",
    }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DistributedSettings:
        """The DISTRIBUTED section of a checked config."""
        return settings_from(cls, config.get("DISTRIBUTED"))

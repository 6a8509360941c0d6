"""The DISTRIBUTED section."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Mapping, Optional

from paddlevideo_fast.config.run import settings_from
from paddlevideo_fast.config.types import Range


@dataclass(frozen=True)
class DistributedSettings:
    """How the processes of a run work together; without effect on one process.

    Args:
        comm_buffer_size: MB of gradients that travel in one message.
        last_comm_buffer_size: MB of the last message of a step, which no computation hides.
        find_unused_parameters: look at each step for parameters that the loss does not depend on; only a
            network that leaves some of them out needs it.
        one_process_ips: clips a second that one process reaches alone. With it the log has the scaling
            efficiency: the clips a second of the run over those of as many processes without each other.
    """

    comm_buffer_size: Annotated[float, Range(0.001)] = 25.0
    last_comm_buffer_size: Annotated[float, Range(0.001)] = 1.0
    find_unused_parameters: bool = False
    one_process_ips: Optional[Annotated[float, Range(0.001)]] = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DistributedSettings:
        """The DISTRIBUTED section of a checked config."""
        return settings_from(cls, config.get("DISTRIBUTED"))

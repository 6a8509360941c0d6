"""The processes of a run, from what a launcher and the config say."""

from __future__ import annotations

from paddlevideo_fast.config import Config, DistributedSettings
from paddlevideo_fast.engine import Distribution, FleetDistribution, GradientExchange
from paddlevideo_fast.engine.distribution import launched_rank


def distribution_of(cfg: Config) -> Distribution:
    """One process, or those that a launcher has started.

    Raises:
        DistributionError: DISTRIBUTED does not fit the number of processes.
    """
    _, world_size = launched_rank()
    if world_size == 1:
        return Distribution()
    settings = DistributedSettings.from_config(cfg)
    return FleetDistribution(
        GradientExchange(
            comm_buffer_size=settings.comm_buffer_size,
            last_comm_buffer_size=settings.last_comm_buffer_size,
            find_unused_parameters=settings.find_unused_parameters,
            allreduce_dtype=settings.allreduce_dtype,
            sharding_degree=settings.sharding_degree,
        )
    )

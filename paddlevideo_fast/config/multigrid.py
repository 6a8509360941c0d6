"""The MULTIGRID section."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Dict, List, Mapping, Sequence, Tuple, Union

from paddlevideo_fast.config.run import settings_from
from paddlevideo_fast.config.types import PositiveInt, Range, Share
from paddlevideo_fast.errors import ConfigError

_FOLLOWS = "it follows from DATASET and PIPELINE"


@dataclass(frozen=True)
class MultigridSettings:
    """How a run goes through small clips in large batches before it comes to the configured ones.

    Args:
        LONG_CYCLE: whole epochs at the shapes of `long_cycle_factors`, in each stage of the learning rate.
        SHORT_CYCLE: steps take turns at the sides of `short_cycle_factors` and the full one.
        epoch_factor: epochs of the run for one of the plain training that `epochs` and the learning rate
            describe.
        bn_base_size: clips over which a batch norm takes its statistics; larger batches are split, smaller
            ones of several processes put together.
        long_cycle_factors: for each shape, from small to large, the share of the frames and the share of the
            side: `[0.25, 0.7071]`, or `value: [0.25, 0.7071]` as PaddleVideo writes it.
        short_cycle_factors: shares of the side.
    """

    LONG_CYCLE: bool = False
    SHORT_CYCLE: bool = False
    epoch_factor: Annotated[float, Range(0.01)] = 1.0
    bn_base_size: PositiveInt = 8
    long_cycle_factors: Sequence[Union[Tuple[Share, Share], Dict[str, Tuple[Share, Share]]]] = (
        (0.25, 0.5**0.5),
        (0.5, 0.5**0.5),
        (0.5, 1.0),
        (1.0, 1.0),
    )
    short_cycle_factors: Sequence[Share] = (0.5, 0.5**0.5)

    ignored_arguments: ClassVar[Dict[str, str]] = {
        "default_batch_size": _FOLLOWS,
        "default_temporal_size": _FOLLOWS,
        "default_crop_size": _FOLLOWS,
        "long_cycle_sampling_rate": "it follows from the phase's frames, so that clips last as long",
        "EVAL_FREQ": "val_interval says when to evaluate",
    }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> MultigridSettings:
        """The MULTIGRID section of a checked config.

        Raises:
            ConfigError: a cycle without factors, or a mapping among them that is not one `value`.
        """
        settings = settings_from(cls, config.get("MULTIGRID"))
        if settings.LONG_CYCLE and not settings.long_cycle_factors:
            raise ConfigError(["MULTIGRID.long_cycle_factors: LONG_CYCLE needs at least one"])
        if settings.SHORT_CYCLE and not settings.short_cycle_factors:
            raise ConfigError(["MULTIGRID.short_cycle_factors: SHORT_CYCLE needs at least one"])
        for entry in settings.long_cycle_factors:
            if isinstance(entry, Mapping) and list(entry) != ["value"]:
                raise ConfigError(
                    [f"MULTIGRID.long_cycle_factors: {dict(entry)} must have the one key 'value'"]
                )
        return settings

    @property
    def long_factors(self) -> List[Tuple[float, float]]:
        """(share of the frames, share of the side) of each shape of the long cycle; none without one."""
        pairs = [item["value"] if isinstance(item, Mapping) else item for item in self.long_cycle_factors]
        return [(frames, side) for frames, side in pairs] if self.LONG_CYCLE else []

    @property
    def short_factors(self) -> List[float]:
        """Shares of the side that a short cycle passes; none without one."""
        return list(self.short_cycle_factors) if self.SHORT_CYCLE else []

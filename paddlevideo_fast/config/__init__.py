"""Configs: YAML with inheritance and overrides, checked against the constructors of the components."""

from paddlevideo_fast.config.build import build, build_list, build_named
from paddlevideo_fast.config.distributed import DistributedSettings
from paddlevideo_fast.config.load import Config, load_config
from paddlevideo_fast.config.multigrid import MultigridSettings
from paddlevideo_fast.config.run import (
    DatasetSettings,
    EmaSettings,
    GradientAccumulation,
    PreciseBNSettings,
    RunSettings,
    accumulation_of,
    clips_of_update,
)
from paddlevideo_fast.config.runtime import RuntimeSettings
from paddlevideo_fast.config.schema import check_config

__all__ = [
    "Config",
    "DatasetSettings",
    "DistributedSettings",
    "EmaSettings",
    "GradientAccumulation",
    "MultigridSettings",
    "PreciseBNSettings",
    "RunSettings",
    "RuntimeSettings",
    "accumulation_of",
    "build",
    "build_list",
    "build_named",
    "check_config",
    "clips_of_update",
    "load_config",
]

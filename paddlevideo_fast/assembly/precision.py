"""The precision that a config asks for, on the device that is there."""

from __future__ import annotations

from typing import Type

import paddle

from paddlevideo_fast.config import Config, RunSettings
from paddlevideo_fast.engine import MixedPrecision, Precision, RoundedPrecision
from paddlevideo_fast.errors import ConfigError


def precision_of(cfg: Config) -> Precision:
    """The precision of a checked config.

    Raises:
        ConfigError: the device cannot compute in the format, or `amp_level` or `amp_dtype` has no effect.
    """
    settings = RunSettings.from_config(cfg)
    if not settings.amp:
        _check_no_other_key(cfg)
        return Precision()
    device = paddle.device.get_device().partition(":")[0]
    if device == "cpu":
        kind: Type[MixedPrecision] = RoundedPrecision
        dtype = settings.amp_dtype or "bfloat16"
        supported = dtype == "bfloat16"
    else:
        kind = MixedPrecision
        dtype = settings.amp_dtype or "float16"
        check = paddle.amp.is_float16_supported if dtype == "float16" else paddle.amp.is_bfloat16_supported
        supported = check()
    if not supported:
        other = "bfloat16" if dtype == "float16" else "float16"
        place = cfg.where(("amp_dtype",) if "amp_dtype" in cfg else ("amp",))
        raise ConfigError(
            [
                f"{place}  amp_dtype={dtype}: this {device.upper()} cannot train in it; "
                f"take --amp_dtype {other}, or leave --amp out"
            ]
        )
    return kind(settings.amp_level, dtype)


def _check_no_other_key(cfg: Config) -> None:
    """An explicit `amp: false` may stand beside the others; where there is none, `amp` was forgotten."""
    lost = [key for key in ("amp_level", "amp_dtype") if cfg.get(key) is not None and "amp" not in cfg]
    if lost:
        raise ConfigError(
            [f"{cfg.where((key,))}  {key}={cfg[key]}: has no effect without amp; add --amp" for key in lost]
        )

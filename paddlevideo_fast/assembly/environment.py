"""Precision, processes, Paddle's options and the static graph, on the machine that is there."""

import os
from typing import Any

import paddle

from paddlevideo_fast.config import RunSpec
from paddlevideo_fast.config.settings import DistributedSettings, RuntimeSettings
from paddlevideo_fast.engine import (
    Distribution,
    FleetDistribution,
    MixedPrecision,
    Precision,
    RoundedPrecision,
)
from paddlevideo_fast.engine.callbacks import ProfilerOptions
from paddlevideo_fast.engine.distribution import launched_rank
from paddlevideo_fast.machine import MKL_PATH, available_cores, gpu_number
from paddlevideo_fast.registry import did_you_mean


def make_precision(spec: RunSpec) -> Precision:
    """The precision that `amp` and its keys describe, on the device that is there.

    Raises:
        ConfigError: the device cannot compute in the format, or `amp_level` or `amp_dtype` has no effect.
    """
    run, config = spec.run, spec.config
    if not run.amp:
        # an explicit `amp: false` may stand beside the others; where there is none, `amp` was forgotten
        lost = [key for key in ("amp_level", "amp_dtype") if config.get(key) is not None]
        if lost and "amp" not in config:
            text = "has no effect without amp; add --amp"
            spec.refuse([(f"{key}={config[key]}", text) for key in lost])
        return Precision()
    device = paddle.device.get_device().partition(":")[0]
    if device == "cpu":
        kind: type[MixedPrecision] = RoundedPrecision
        dtype = run.amp_dtype or "bfloat16"
        supported = dtype == "bfloat16"
    else:
        kind = MixedPrecision
        dtype = run.amp_dtype or "float16"
        check = paddle.amp.is_float16_supported if dtype == "float16" else paddle.amp.is_bfloat16_supported
        supported = check()
    if not supported:
        other = "bfloat16" if dtype == "float16" else "float16"
        raise config.error(
            f"amp_dtype={dtype}",
            f"this {device.upper()} cannot train in it; take --amp_dtype {other}, or leave --amp out",
            at=("amp_dtype",) if "amp_dtype" in config else ("amp",),
        )
    return kind(run.amp_level, dtype)


def make_distribution(settings: DistributedSettings) -> Distribution:
    """A distribution over the processes that a launcher has started; the plain one without a launcher.

    Raises:
        DistributionError: DISTRIBUTED does not fit the number of processes.
    """
    if launched_rank()[1] == 1:
        return Distribution()
    return FleetDistribution(settings)


def with_static_graph(spec: RunSpec, model: Any) -> Any:
    """The same model, whose forward pass is a static graph where the config says `to_static`.

    Paddle builds one graph for each shape of a batch, and one for training and one for evaluation.
    """
    if not spec.run.to_static:
        return model
    strategy = paddle.static.BuildStrategy()
    for name, on in (spec.runtime.build_strategy or {}).items():
        setattr(strategy, name, on)
    backend = "CINN" if spec.runtime.cinn else None
    # without `full_graph` Paddle cuts the graph at what it cannot trace, and fails on some of the networks
    return paddle.jit.to_static(model, build_strategy=strategy, backend=backend, full_graph=True)


def check_environment(spec: RunSpec) -> None:
    """Checks that every option of RUNTIME can take effect here, and that Paddle knows the flags.

    Raises:
        ConfigError: names every option that cannot, with what to do; or what is wrong in `profiler_options`.
    """
    if spec.run.profiler_options is not None:
        ProfilerOptions.parse(spec.run.profiler_options)
    settings = spec.runtime
    problems = {**_flag_problems(settings), **_device_problems(settings), **_graph_problems(spec)}
    spec.refuse(list(problems.items()))


def _device_problems(settings: RuntimeSettings) -> dict[str, str]:
    if gpu_number(paddle.get_device()) is not None:
        return {}
    return {
        f"RUNTIME.{name}": "it is for GPUs, and Paddle computes on the CPU here; take it out"
        for name in settings.gpu_only
        if getattr(settings, name) is not None
    }


def _flag_problems(settings: RuntimeSettings) -> dict[str, str]:
    known = paddle.base.core.globals().keys()
    problems = {}
    for variable in settings.environment():
        key = f"RUNTIME.{variable[6:]}" if variable.startswith("FLAGS_") else "RUNTIME.tf32"
        if variable.startswith("FLAGS_") and variable not in known:
            problems[key] = f"Paddle {paddle.__version__} has no {variable}; take it out"
        elif variable not in os.environ:
            problems[key] = (
                "Paddle reads it at its import, which came first; start through paddlevideo-fast train, or "
                f"set {variable} in the environment"
            )
    return problems


def _graph_problems(spec: RunSpec) -> dict[str, str]:
    run, settings, problems = spec.run, spec.runtime, {}
    if run.to_static and run.multigrid:
        problems["to_static"] = "multigrid changes the network while it trains; keep one of the two"
    elif run.to_static and spec.precise_bn:
        problems["to_static"] = "PRECISEBN looks into the network, which is hidden then; keep one of the two"
    elif run.to_static and run.amp:
        problems["to_static"] = "amp changes the network while it runs; keep one of the two"
    if run.to_static and settings.recompute:
        problems["RUNTIME.recompute"] = "it is for dynamic graphs; take to_static or it out"
    for name in ("build_strategy", "cinn"):
        if getattr(settings, name) and not run.to_static:
            problems[f"RUNTIME.{name}"] = "it is for static graphs: add to_static: True, or take it out"
    if settings.cinn and run.to_static and not paddle.is_compiled_with_cinn():
        problems["RUNTIME.cinn"] = f"this Paddle {paddle.__version__} is built without CINN; take it out"
    strategy = paddle.static.BuildStrategy()
    switches = [name for name in dir(strategy) if isinstance(getattr(strategy, name), bool)]
    for name in settings.build_strategy or {}:
        if name not in switches:
            hint = did_you_mean(name, switches)
            problems[f"RUNTIME.build_strategy.{name}"] = f"Paddle's BuildStrategy has no such switch{hint}"
    return problems


def describe_environment() -> str:
    """The threads, the cores and the flags that are in force, in one line."""
    flags = [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith("FLAGS_") or name in ("NVIDIA_TF32_OVERRIDE", MKL_PATH)
    ]
    return (
        f"{os.environ.get('OMP_NUM_THREADS', '1')} CPU threads on cores "
        f"{','.join(map(str, available_cores()))}; flags: {' '.join(flags) or 'none'}"
    )

"""The RUNTIME section in a process that has imported Paddle: did it arrive, and the static graph."""

from __future__ import annotations

import os
from typing import Any, Dict

import paddle

from paddlevideo_fast.config import Config, RunSettings, RuntimeSettings
from paddlevideo_fast.config.schema import place_of
from paddlevideo_fast.engine.callbacks import ProfilerOptions
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.machine import available_cores, gpu_number
from paddlevideo_fast.registry import did_you_mean


def require_runtime(cfg: Config) -> None:
    """Checks that every option of RUNTIME can have its effect here, and that Paddle has its flags.

    Raises:
        ConfigError: with all that cannot; each says what to do. Or with what is wrong in `profiler_options`.
    """
    run, settings = RunSettings.from_config(cfg), RuntimeSettings.from_config(cfg)
    if run.profiler_options is not None:
        ProfilerOptions.parse(run.profiler_options)
    problems = {**_flag_problems(settings), **_device_problems(settings), **_graph_problems(cfg, settings)}
    if problems:
        lines = [f"{place_of(cfg, tuple(key.split('.')))}  {key}: {text}" for key, text in problems.items()]
        raise ConfigError(lines)


def describe_runtime() -> str:
    """The threads, the cores and the flags that are in force, in one line."""
    flags = [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith("FLAGS_") or name == "NVIDIA_TF32_OVERRIDE"
    ]
    return (
        f"{os.environ.get('OMP_NUM_THREADS', '1')} CPU threads on cores "
        f"{','.join(map(str, available_cores()))}; flags: {' '.join(flags) or 'none'}"
    )


def with_static_graph(cfg: Config, model: Any) -> Any:
    """The same model, whose forward pass is a static graph where the config says `to_static`.

    Paddle builds one graph for each shape of a batch, and one for training and one for evaluation.
    """
    if not RunSettings.from_config(cfg).to_static:
        return model
    settings = RuntimeSettings.from_config(cfg)
    strategy = paddle.static.BuildStrategy()
    for name, on in (settings.build_strategy or {}).items():
        setattr(strategy, name, on)
    backend = "CINN" if settings.cinn else None
    # without `full_graph` Paddle cuts the graph at what it cannot trace, and fails on some of the networks
    return paddle.jit.to_static(model, build_strategy=strategy, backend=backend, full_graph=True)


def _device_problems(settings: RuntimeSettings) -> Dict[str, str]:
    if gpu_number(paddle.get_device()) is not None:
        return {}
    return {
        f"RUNTIME.{name}": "it is for GPUs, and Paddle computes on the CPU here; take it out"
        for name in settings.gpu_only
        if getattr(settings, name) is not None
    }


def _flag_problems(settings: RuntimeSettings) -> Dict[str, str]:
    known = paddle.base.core.globals().keys()
    problems = {}
    for variable in settings.environment():
        key = f"RUNTIME.{variable[6:]}" if variable.startswith("FLAGS_") else "RUNTIME.tf32"
        if variable.startswith("FLAGS_") and variable not in known:
            problems[key] = f"Paddle {paddle.__version__} has no {variable}; take it out"
        elif variable not in os.environ:
            problems[key] = (
                "Paddle reads it at its import, which came first; start through tools/main.py, or set "
                f"{variable} in the environment"
            )
    return problems


def _graph_problems(cfg: Config, settings: RuntimeSettings) -> Dict[str, str]:
    run, problems = RunSettings.from_config(cfg), {}
    if run.to_static and run.multigrid:
        problems["to_static"] = "multigrid changes the network while it trains; keep one of the two"
    elif run.to_static and cfg.get("PRECISEBN"):
        problems["to_static"] = "PRECISEBN looks into the network, which is hidden then; keep one of the two"
    elif run.to_static and run.amp:
        problems["to_static"] = "amp changes the network while it runs; keep one of the two"
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

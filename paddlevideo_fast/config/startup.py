"""Threads, cores and flags of this process, set before Paddle is imported: Paddle reads them once, then."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.config.settings import RunSettings, RuntimeSettings
from paddlevideo_fast.config.types import arguments_of, mismatches
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.machine import available_cores, tune_process


def prepare_process(config: str | None = None, overrides: Sequence[str] = ()) -> None:
    """Gives this process the cores, threads and flags of a config; must run before Paddle is imported.

    A variable that is set already wins: `OMP_NUM_THREADS` over `num_threads`, `FLAGS_x` over `RUNTIME.x`.
    Values of a wrong kind are skipped: the check of the config, which imports Paddle, reports all problems at
    once.

    Args:
        config: path of the config; None for the default settings.
        overrides: of its keys.

    Raises:
        ConfigError: `RUNTIME.cpu_affinity` names a core that this process may not use.
    """
    tune_process()
    try:
        values: Mapping[str, Any] = load_config(config, overrides, check=False) if config else {}
    except ConfigError:
        values = {}
    section = values.get("RUNTIME")
    settings = RuntimeSettings(**_fitting(RuntimeSettings, section if isinstance(section, Mapping) else {}))
    share = cores_of_process(settings, available_cores())
    if settings.cpu_affinity is not None:
        os.sched_setaffinity(0, share)
    num_threads = _fitting(RunSettings, values).get("num_threads") or len(share)
    for name, value in {"OMP_NUM_THREADS": str(num_threads), **settings.environment()}.items():
        os.environ.setdefault(name, value)


def cores_of_process(settings: RuntimeSettings, cores: Sequence[int]) -> list[int]:
    """This process's share of the cores, in a row; the processes of the machine share evenly.

    With fewer cores than processes, some processes have the same one.

    Args:
        settings: `cpu_affinity` names the cores to share; null: all.
        cores: numbers of the cores that this process may use.

    Raises:
        ConfigError: `cpu_affinity` names another core, or none.
    """
    wanted = settings.cpu_affinity
    if isinstance(wanted, list):
        if not wanted or not set(wanted) <= set(cores):
            allowed = ", ".join(map(str, cores))
            raise ConfigError([f"RUNTIME.cpu_affinity={wanted}: this process may use the cores {allowed}"])
        cores = sorted(set(wanted))
    # set by paddle.distributed.launch
    rank, size = int(os.environ.get("PADDLE_LOCAL_RANK", 0)), int(os.environ.get("PADDLE_LOCAL_SIZE", 1))
    begin, end = rank * len(cores) // size, (rank + 1) * len(cores) // size
    return list(cores[begin : max(end, begin + 1)])


def _fitting(cls: type, section: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of `section` that are arguments of `cls` and have a value that fits."""
    arguments = arguments_of(cls)
    return {
        name: value
        for name, value in section.items()
        if name in arguments and not list(mismatches(value, arguments[name].hint))
    }

"""The one table of what may be added to the core: a name in a config, a path or a command → its module.

A module is imported when its name is used, and registers what it has. Nothing else in the core names an
annex. An annex that is not installed has no names here: the core works without the folders `extensions/`,
`sources/`, `jobs/` and `apps/`.
"""

import functools
import importlib
import importlib.util
from collections.abc import Mapping

# kind of a registry → name in it → module below `paddlevideo_fast` that registers it; extensions, the core's
# first, in the order in which they take part in a run
_TABLE: dict[str, dict[str, str]] = {
    "extension": {
        "FINETUNE": "engine.callbacks.finetune",
        "EMA": "engine.callbacks.ema",
        "PRECISEBN": "engine.callbacks.precise_bn",
        "SELECTION": "engine.callbacks.evaluation",
        "report": "extensions.report.extension",
        "TRACKERS": "extensions.trackers.trackers",
        "use_visualdl": "extensions.trackers.trackers",
        "profiler_options": "extensions.profiler.profiling",
    },
}
# extensions that take part in a run whose config does not name them
ALWAYS = ("SELECTION", "report", "TRACKERS")


@functools.cache
def modules_of(kind: str) -> Mapping[str, str]:
    """Name → dotted name of the module, for everything of a kind that is installed."""
    return {
        name: f"{__package__}.{module}"
        for name, module in _TABLE.get(kind, {}).items()
        if _is_there(f"{__package__}.{module.partition('.')[0]}")
    }


def load(kind: str, name: str) -> None:
    """Imports the module that registers `name`; without effect on a name that is not in the table."""
    if module := modules_of(kind).get(name):
        importlib.import_module(module)


@functools.cache
def _is_there(package: str) -> bool:
    return importlib.util.find_spec(package) is not None

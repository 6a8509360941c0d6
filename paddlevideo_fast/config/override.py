"""`-o a.b.0.c=value`: changes to a config from the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Collection, List, Sequence, Tuple

from paddlevideo_fast.config.types import KeyPath
from paddlevideo_fast.config.yaml_source import Source, dotted, parse
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.registry import did_you_mean

if TYPE_CHECKING:
    from paddlevideo_fast.config.load import Config


def apply_overrides(config: Config, overrides: Sequence[str], sections: Collection[str] = ()) -> List[str]:
    """Applies each override in order and returns the problems of those that cannot be applied.

    The key is split from the value at the first `=` and at each dot; a number steps into a list. The value
    is YAML, so `1e-4` is a float and `[1, 2]` a list, and nothing is ever executed. The last key may be new;
    those before it must exist, or be one of `sections` at the top level. A mapping as value replaces the
    whole section.
    """
    problems: List[str] = []
    for number, text in enumerate(overrides, 1):
        name = f"-o #{number}"
        try:
            path, source = _read(text, name)
            if path[0] in sections and len(path) > 1:
                config.setdefault(path[0], {})
            _set(config, path, source, name)
        except ConfigError as error:
            problems += error.problems
    return problems


def _read(text: str, name: str) -> Tuple[List[str], Source]:
    key, equals, value = text.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        example = "OPTIMIZER.learning_rate.values.0=0.1"
        raise ConfigError([f"{name}  {text!r}: expected KEY=VALUE, for example {example}"])
    try:
        return path, parse(value, name)
    except ConfigError as error:
        cause = error.problems[0].partition("  ")[2]
        raise ConfigError([f"{name}  {key.strip()}={value!r}: {cause}"]) from None


def _set(config: Config, path: Sequence[str], source: Source, name: str) -> None:
    container: Any = config
    done: KeyPath = ()
    for part in path[:-1]:
        key = _key(container, part, done, name)
        if isinstance(container, dict) and key not in container:
            hint = did_you_mean(part, container)
            raise ConfigError([f"{name}  {dotted((*done, key))}: there is no such section{hint}"])
        if container[key] is None:  # `- RandomFlip:` is a component without arguments
            container[key] = {}
        container, done = container[key], (*done, key)
    key = _key(container, path[-1], done, name)
    container[key] = source.data
    config.forget(done + (key,))
    for below in source.lines:
        config.origins[done + (key, *below)] = name


def _key(container: Any, part: str, done: KeyPath, name: str) -> Any:
    """`part` as a key of `container`, or a ConfigError that says why it is none."""
    if isinstance(container, dict):
        return part
    if not isinstance(container, list):
        raise ConfigError([f"{name}  {dotted(done)}={container!r}: is a value, '{part}' cannot be set in it"])
    if not part.isdecimal() or int(part) >= len(container):
        span = f"0 to {len(container) - 1}" if container else "none, it is empty"
        raise ConfigError([f"{name}  {dotted((*done, part))}: '{part}' is no index of this list ({span})"])
    return int(part)

"""Builds components from their sections."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Sequence, Set, Union

from paddlevideo_fast.config.sections import (
    Component,
    Group,
    ListOf,
    NamedListOf,
    Section,
    parts_of,
    tag_of,
)
from paddlevideo_fast.config.types import arguments_of, describe
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.registry import Registry, did_you_mean


def build(registry: Registry, section: Mapping[str, Any], **extra: Any) -> Any:
    """Builds the component that `section` names.

    Arguments without effect are left out. Arguments that are components (see `parts_of`) are built first.

    Args:
        registry: where the name is looked up.
        section: the arguments, and the name under `name` (`framework` for a recognizer, `format` for a
            dataset).
        extra: further constructor arguments, which code and not a config provides.

    Raises:
        ConfigError: the name, or an argument, is missing or unknown.
    """
    tag = tag_of(registry)
    if tag not in section:
        raise ConfigError([f"a {registry.kind} needs '{tag}' in its section {dict(section)!r}"])
    arguments = {key: value for key, value in section.items() if key != tag}
    return build_named(registry, section[tag], arguments, **extra)


def build_named(
    registry: Registry, name: str, arguments: Optional[Mapping[str, Any]] = None, **extra: Any
) -> Any:
    """Builds the component called `name`; see `build`."""
    try:
        cls = registry.get(name)
    except KeyError as error:
        raise ConfigError([str(error.args[0])]) from None
    parts = parts_of(cls)
    ignored = getattr(cls, "ignored_arguments", {})
    built = {
        key: _part(parts[key], value) if key in parts else value
        for key, value in (arguments or {}).items()
        if key not in ignored
    }
    problems = _problems(cls, {*built, *extra})
    if problems:
        raise ConfigError(problems)
    return cls(**built, **extra)


def _part(part: Union[Registry, Section], value: Any) -> Any:
    """What an argument that is or holds components becomes; a named list becomes pairs."""
    if isinstance(part, (Registry, Component)):
        registry = part if isinstance(part, Registry) else part.registry
        return build(registry, value) if isinstance(value, Mapping) else value
    if isinstance(part, ListOf):
        return [_part(part.item, item) for item in value]
    if isinstance(part, NamedListOf):
        return [(name, _part(part.item, item)) for pair in value for name, item in pair.items()]
    if isinstance(part, Group):
        unknown = sorted(set(value) - set(part.members))
        if unknown:
            raise ConfigError([f"{key}: unknown key{did_you_mean(key, part.members)}" for key in unknown])
        return {name: _part(part.members[name], item) for name, item in value.items()}
    return value


def _problems(cls: type, given: Set[str]) -> List[str]:
    """What a check would say about the names of the arguments; a section that code wrote has met none."""
    arguments = arguments_of(cls)
    known = {*arguments, *getattr(cls, "injected", ())}
    unknown = [
        f"{key}: unknown key for {cls.__name__}{did_you_mean(key, arguments)}"
        for key in sorted(given - known)
    ]
    return unknown + [
        f"{name}: missing for {cls.__name__}; expected {describe(argument.hint)}"
        for name, argument in arguments.items()
        if argument.required and name not in given
    ]


def build_list(
    registry: Registry, items: Sequence[Mapping[str, Optional[Mapping[str, Any]]]], **extra: Any
) -> List[Any]:
    """Builds a list of one-key mappings `{name: arguments}`, as in `PIPELINE.train.transform`."""
    return [build_named(registry, *next(iter(item.items())), **extra) for item in items]

"""Checks a config against the constructors of the components it names.

Everything is collected, so that one look shows all problems:

    configs/tsm.yaml:41  OPTIMIZER.momentun: unknown key for Momentum; did you mean 'momentum'?
    -o #1  MODEL.backbone.depth='fifty': expected int
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Optional, Tuple

from paddlevideo_fast.config.sections import (
    NEEDS,
    ROOT,
    Component,
    ComponentList,
    Group,
    ListOf,
    NamedListOf,
    Section,
    Unsupported,
    parts_of,
    tag_of,
)
from paddlevideo_fast.config.types import (
    Argument,
    KeyPath,
    arguments_of,
    describe,
    mismatches,
    plain_alternatives,
)
from paddlevideo_fast.config.yaml_source import dotted
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.log import get_logger, warn_once
from paddlevideo_fast.registry import Registry, did_you_mean

_LOGGER = get_logger(__name__)
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60


@dataclass(frozen=True)
class Unused:
    """A key that is accepted and has no effect.

    Args:
        path: the key.
        place: where it was written.
        owner: the component that does without it; keys of one owner are reported together.
        reason: why it has no effect.
    """

    path: KeyPath
    place: str
    owner: str
    reason: str


@dataclass
class Findings:
    """What a check found: problems as texts, and the keys without effect."""

    problems: List[str] = field(default_factory=list)
    unused: List[Unused] = field(default_factory=list)


def check_config(config: MutableMapping[str, Any], root: Group = ROOT) -> None:
    """Checks a config and takes out of it what has no effect, with one warning each.

    Args:
        config: a `Config`, or a plain dict, whose problems then carry no file and line.
        root: the schema.

    Raises:
        ConfigError: with all problems; the config is then unchanged.
    """
    found = examine(config, root)
    if found.problems:
        raise ConfigError(found.problems)
    drop_unused(config, found.unused)


def examine(config: Mapping[str, Any], root: Group = ROOT) -> Findings:
    """Everything a check finds, without raising and without a change to the config."""
    checker = _Checker(config)
    checker.section(root, config, ())
    for having, needed in NEEDS:
        if _holds(config, having) and needed[0] in root.members and not _holds(config, needed):
            checker.problem(having, f"{dotted(having)} needs {dotted(needed)}, which is missing", key=needed)
    return checker.found


def drop_unused(config: MutableMapping[str, Any], unused: Iterable[Unused]) -> None:
    """Removes keys without effect and says so, once for each argument of each component."""
    groups: Dict[Tuple[str, Any], List[Unused]] = {}
    for item in unused:
        groups.setdefault((item.owner, item.path[-1]), []).append(item)
        container: Any = config
        for part in item.path[:-1]:
            container = container[part]
        del container[item.path[-1]]
    for items in groups.values():
        first = items[0]
        more = f" (and in {len(items) - 1} more places)" if len(items) > 1 else ""
        warn_once(_LOGGER, f"{first.place}  {dotted(first.path)}: has no effect{more}: {first.reason}")


def place_of(config: Mapping[str, Any], path: KeyPath) -> str:
    """Where the value at `path`, or else the nearest section around it, was written."""
    origins = getattr(config, "origins", {})
    for length in range(len(path), -1, -1):
        if path[:length] in origins:
            return origins[path[:length]]
    return "config"


class _Checker:
    """One walk over a config."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.found = Findings()

    def problem(self, path: KeyPath, message: str, key: Optional[KeyPath] = None) -> None:
        """Notes a problem at `path`; `key` is what the line names where that is not the path itself."""
        self.found.problems.append(f"{place_of(self.config, path)}  {dotted(key or path)}: {message}")

    def wrong_value(self, path: KeyPath, value: Any, expected: str) -> None:
        """Notes a value of the wrong kind."""
        line = f"{place_of(self.config, path)}  {dotted(path)}={_REPR.repr(value)}: expected {expected}"
        self.found.problems.append(line)

    def section(self, section: Section, value: Any, path: KeyPath) -> None:
        if isinstance(section, Unsupported):
            self.unused(path, dotted(path), section.reason)
        elif isinstance(section, ComponentList):
            self.component_list(section, value, path)
        elif isinstance(section, ListOf):
            self.list_of(section, value, path)
        elif isinstance(section, NamedListOf):
            for name, item, here in self.named_items(value, path):
                self.section(section.item, item, (*here, name))
        elif not isinstance(value, Mapping):
            self.wrong_value(path, value, "a mapping")
        elif isinstance(section, Component):
            self.component(section.registry, value, path, section.injected)
        else:
            self.group(section, value, path)

    def group(self, group: Group, value: Mapping[str, Any], path: KeyPath) -> None:
        for name in group.required:
            other = group.replaced_by.get(name)
            replaced = other is not None and value.get(other) is not None
            if value.get(name) is None and not replaced:
                self.problem((*path, name), "this section is missing")
            elif value.get(name) is not None and replaced:
                self.problem((*path, name), f"{other} stands for it; keep one of the two")
        settings = {key: item for key, item in value.items() if key not in group.members}
        if group.settings:
            self.arguments(group.settings, settings, path, known=group.members, owner="")
        else:
            for key in settings:
                self.problem((*path, key), f"unknown key{did_you_mean(key, group.members)}")
        for name, section in group.members.items():
            if value.get(name) is not None:  # null turns off what a base turned on
                self.section(section, value[name], (*path, name))

    def component(
        self, registry: Registry, value: Mapping[str, Any], path: KeyPath, injected: Tuple[str, ...] = ()
    ) -> None:
        tag = tag_of(registry)
        if tag not in value:
            self.problem(path, f"'{tag}' is missing; known: {', '.join(registry.names())}")
            return
        cls = self.lookup(registry, value[tag], (*path, tag))
        if cls is not None:
            arguments = {key: item for key, item in value.items() if key != tag}
            self.arguments(cls, arguments, path, injected=injected)

    def component_list(self, section: ComponentList, value: Any, path: KeyPath) -> None:
        for name, arguments, here in self.named_items(value, path):
            cls = self.lookup(section.registry, name, here)
            if cls is not None and not isinstance(arguments, (Mapping, type(None))):
                self.wrong_value((*here, name), arguments, "a mapping of arguments")
            elif cls is not None:
                self.arguments(cls, arguments or {}, (*here, name))

    def list_of(self, section: ListOf, value: Any, path: KeyPath) -> None:
        if not isinstance(value, list):
            self.wrong_value(path, value, "a list")
            return
        for index, item in enumerate(value):
            self.section(section.item, item, (*path, index))

    def named_items(self, value: Any, path: KeyPath) -> Iterator[Tuple[Any, Any, KeyPath]]:
        """Name, content and path of each item of a list of one-key mappings; notes what is none."""
        if not isinstance(value, list):
            self.wrong_value(path, value, "a list of one-key mappings")
            return
        for index, item in enumerate(value):
            if isinstance(item, Mapping) and len(item) == 1:
                yield (*next(iter(item.items())), (*path, index))
            else:
                self.wrong_value((*path, index), item, "one name, with its arguments indented below it")

    def lookup(self, registry: Registry, name: Any, path: KeyPath) -> Optional[type]:
        if not isinstance(name, str):
            self.wrong_value(path, name, f"the name of a {registry.kind}")
            return None
        try:
            return registry.get(name)
        except KeyError as error:
            self.problem(path, str(error.args[0]))
            return None

    def arguments(
        self,
        cls: type,
        given: Mapping[str, Any],
        path: KeyPath,
        injected: Tuple[str, ...] = (),
        known: Iterable[str] = (),
        owner: Optional[str] = None,
    ) -> None:
        """Compares the keys at `path` with the constructor of `cls`; `known` keys only serve suggestions."""
        arguments = {name: item for name, item in arguments_of(cls).items() if name not in injected}
        ignored: Mapping[str, str] = getattr(cls, "ignored_arguments", {})
        refused: Mapping[str, str] = getattr(cls, "refused_arguments", {})
        owner = f" for {cls.__name__}" if owner is None else owner
        for key, value in given.items():
            here = (*path, key)
            if key in arguments:
                self.argument(cls, arguments[key], value, here)
            elif key in ignored:
                self.unused(here, cls.__name__, ignored[key])
            elif key in refused:
                self.problem(here, refused[key])
            else:
                self.problem(here, f"unknown key{owner}{did_you_mean(key, [*arguments, *known])}")
        for name, argument in arguments.items():
            if argument.required and name not in given:
                self.problem((*path, name), f"missing{owner}; expected {describe(argument.hint)}")

    def argument(self, cls: type, argument: Argument, value: Any, path: KeyPath) -> None:
        part = parts_of(cls).get(argument.name)
        if part is not None and not isinstance(part, Registry):
            self.section(part, value, path)
            return
        found = list(mismatches(value, argument.hint))
        if part is None:
            for item in found:
                self.wrong_value((*path, *item.path), item.value, item.expected)
        elif isinstance(value, Mapping):
            self.component(part, value, path)
        elif found:  # a plain number may do for a learning rate
            allowed = [*plain_alternatives(argument.hint), f"a mapping with '{tag_of(part)}'"]
            self.wrong_value(path, value, " or ".join(allowed))

    def unused(self, path: KeyPath, owner: str, reason: str) -> None:
        self.found.unused.append(Unused(path, place_of(self.config, path), owner, reason))


def _holds(config: Mapping[str, Any], path: KeyPath) -> bool:
    value: Any = config
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value is not None

"""What the check of a config finds: problems, and keys that go."""

import logging
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paddlevideo_fast.config.document import Config
from paddlevideo_fast.config.types import KeyPath
from paddlevideo_fast.config.yaml_source import dotted
from paddlevideo_fast.errors import MAX_PROBLEMS, ConfigError, shown
from paddlevideo_fast.log import get_logger, warn_once

_LOGGER = get_logger(__name__)


class _Unused(NamedTuple):
    """A key that is accepted and has no effect.

    Attributes:
        path: the key.
        owner: the component that does without it; keys of one owner are reported together.
        reason: why it has no effect.
    """

    path: KeyPath
    owner: str
    reason: str


@dataclass
class Findings:
    """Collects what a check finds, so that one look shows everything.

    Attributes:
        config: what is checked.
        problems: one line each.
        unused: keys without effect.
        left_out: key path of a component's name, the name, and the name of an earlier component, to those of
            its arguments that the new one does not take.
    """

    config: Config
    problems: list[str] = field(default_factory=list)
    unused: list[_Unused] = field(default_factory=list)
    left_out: dict[tuple[KeyPath, str, str], list[str]] = field(default_factory=dict)

    def problem(self, path: KeyPath, text: str) -> None:
        """Notes a problem of the key at `path`.

        Raises:
            ConfigError: the problems are too many.
        """
        self._add(self.config.problem(path, text))

    def wrong_value(self, path: KeyPath, value: Any, expected: str) -> None:
        """Notes a value of the wrong kind."""
        self._add(f"{self.config.where(path)}  {dotted(path)}={shown(value)}: expected {expected}")

    def _add(self, line: str) -> None:
        self.problems.append(line)
        if len(self.problems) > MAX_PROBLEMS:  # each may cost a search for the nearest name
            raise ConfigError(self.problems)

    def has_no_effect(self, path: KeyPath, owner: str, reason: str) -> None:
        """Notes a key that is accepted and taken out."""
        self.unused.append(_Unused(path, owner, reason))

    def leave_out(self, name: KeyPath, value: str, key: str) -> None:
        """Notes an argument that the component `value`, named at `name`, inherited and does not take."""
        path = (*name[:-1], key)
        earlier = self.config.inherited[path]
        self.left_out.setdefault((name, value, earlier), []).append(key)

    def settle(self) -> None:
        """Takes out of the config what has no effect, and says so once.

        Raises:
            ConfigError: with all problems; the config is then unchanged.
        """
        if self.problems:
            raise ConfigError(self.problems)
        for (name, value, earlier), keys in self.left_out.items():
            text = f"left out what was written for {earlier}: {', '.join(keys)}"
            warn_once(_LOGGER, self.config.problem(f"{dotted(name)}={value}", text), logging.INFO)
            for key in keys:
                self.config.remove((*name[:-1], key))
        groups: dict[tuple[str, Any], list[_Unused]] = {}
        for item in self.unused:
            groups.setdefault((item.owner, item.path[-1]), []).append(item)
            self.config.remove(item.path)
        for items in groups.values():
            first = items[0]
            more = f" (and in {len(items) - 1} more places)" if len(items) > 1 else ""
            text = f"has no effect{more}: {first.reason}"
            warn_once(_LOGGER, self.config.problem(first.path, text))

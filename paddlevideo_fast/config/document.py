"""A config: plain nested data that knows where each of its values was written, and what its check finds."""

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paddlevideo_fast.config.builtin import CONFIG_FILE
from paddlevideo_fast.config.types import KeyPath
from paddlevideo_fast.config.yaml_source import dotted, dump
from paddlevideo_fast.errors import MAX_PROBLEMS, ConfigError, SettingError, shown
from paddlevideo_fast.io.files import atomic_write_text
from paddlevideo_fast.log import counted, get_logger, warn_once
from paddlevideo_fast.plugins import Import

_LOGGER = get_logger(__name__)


class Config(dict):
    """The nested plain data of a config.

    Args:
        data: the content.
        origins: key path to "file:line" or "-o #n"; () is the file as a whole.
        path: the file it was read from.

    Attributes:
        inherited: key path of an argument that was written for another component to the name of that
            component: a later file or an override has changed `name` since. The check leaves out what the
            new component does not take.
        imports: the plug-ins that the config and the files that it inherits name.
    """

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        origins: Mapping[KeyPath, str] | None = None,
        path: str | None = None,
    ) -> None:
        super().__init__(data or {})
        self.origins: dict[KeyPath, str] = dict(origins or {})
        self.inherited: dict[KeyPath, str] = {}
        self.imports: list[Import] = []
        self.path = path

    @property
    def name(self) -> str:
        """The name of the file without its ending; of its folder where the file is called config.yaml."""
        path = Path(self.path or "")
        return Path(os.path.abspath(path)).parent.name if path.name == CONFIG_FILE else path.stem

    def where(self, key: str | KeyPath) -> str:
        """Where the value at a dotted key or key path, or the nearest section around it, was written."""
        path = _path_of(key) if isinstance(key, str) else key
        for length in range(len(path), -1, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return self.path or "config"

    def problem(self, key: str | KeyPath, text: str, at: KeyPath | None = None) -> str:
        """The line of a problem, `tsm.yaml:7  MODEL.backbone.depth=50: …`.

        Args:
            key: dotted, or a key path. After a dotted key may stand `=` and the value.
            text: what is wrong, and what to do.
            at: the key whose file and line are named; None: `key`.
        """
        location = self.where(key if at is None else at)
        return f"{location}  {key if isinstance(key, str) else dotted(key)}: {text}"

    def error(self, key: str | KeyPath, text: str, at: KeyPath | None = None) -> ConfigError:
        """A problem that was found after the check; see `problem`."""
        return ConfigError([self.problem(key, text, at)])

    @contextlib.contextmanager
    def placing(self) -> Iterator[None]:
        """Adds the place to problems that components raise, which know their key and no file.

        `MODEL.head.in_channels=64: …` becomes `tsm.yaml:9  MODEL.head.in_channels=64: …`.
        """
        try:
            yield
        except SettingError as error:
            raise self.error(error.key, error.text) from error
        except ConfigError as error:
            raise ConfigError([self._placed(problem) for problem in error.problems]) from error

    def _placed(self, problem: str) -> str:
        key = re.match(r"\w+(\.\w+)*(?=[=:])", problem)
        if key is None or key[0].partition(".")[0] not in self:
            return problem
        return self.problem(problem.partition(": ")[0], problem.partition(": ")[2])

    def at(self, key: str) -> Any:
        """The value at a dotted key; None where there is none."""
        value: Any = self
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def holds(self, key: str) -> bool:
        """Whether there is something at a dotted key; null and an empty section are nothing."""
        return self.at(key) not in (None, {})

    def missing(self, who: str, *keys: str) -> list[str]:
        """A problem for each of the sections `keys` that `who` needs and that is not there."""
        at = tuple(who.split(".")) if self.holds(who) else None
        return [self.problem(key, f"{who} needs this section", at) for key in keys if not self.holds(key)]

    def require(self, who: str, *keys: str) -> None:
        """Checks that the sections `keys` are there.

        Raises:
            ConfigError: `who` needs one that is missing.
        """
        problems = self.missing(who, *keys)
        if problems:
            raise ConfigError(problems)

    def forget(self, path: KeyPath, value: Any) -> None:
        """Drops what is known of where the `value` at `path`, and everything in it, came from."""
        self.origins.pop(path, None)
        self.inherited.pop(path, None)
        if isinstance(value, (dict, list)):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                self.forget((*path, key), item)

    def remove(self, path: KeyPath) -> None:
        """Takes a key out."""
        container: Any = self
        for part in path[:-1]:
            container = container[part]
        del container[path[-1]]

    def save(self, path: str | Path) -> None:
        """Writes the resolved config as YAML; loading it gives an equal config.

        The file appears whole or not at all.
        """
        atomic_write_text(path, dump(dict(self)))


def _path_of(key: str) -> KeyPath:
    """The key path of a dotted key, without the value after an `=`."""
    return tuple(int(part) if part.isdecimal() else part for part in key.partition("=")[0].split("."))


@dataclass
class Findings:
    """Collects what a check finds, so that one look shows everything.

    Attributes:
        config: what is checked.
        problems: one line each.
        unused: by the component that does without them and their name, key paths that have no effect, with
            the reason.
        left_out: key path of a component's name, the name, and the name of an earlier component, to those of
            its arguments that the new one does not take.
    """

    config: Config
    problems: list[str] = field(default_factory=list)
    unused: dict[tuple[str, Any], list[tuple[KeyPath, str]]] = field(default_factory=dict)
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
        """Notes a key that is accepted and taken out; the keys of one name and owner are one warning."""
        self.unused.setdefault((owner, path[-1]), []).append((path, reason))

    def leave_out(self, name: KeyPath, value: str, key: str) -> None:
        """Notes an argument that the component `value`, named at `name`, inherited and does not take."""
        path = (*name[:-1], key)
        earlier = self.config.inherited[path]
        self.left_out.setdefault((name, value, earlier), []).append(key)

    def report(self) -> None:
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
        for items in self.unused.values():
            for path, _ in items:
                self.config.remove(path)
            path, reason = items[0]
            more = f" (and in {counted(len(items) - 1, 'more place')})" if len(items) > 1 else ""
            warn_once(_LOGGER, self.config.problem(path, f"has no effect{more}: {reason}"))

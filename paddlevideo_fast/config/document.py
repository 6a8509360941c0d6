"""A config: plain nested data that knows where each of its values was written."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paddlevideo_fast.config.types import KeyPath
from paddlevideo_fast.config.yaml_source import dotted, dump
from paddlevideo_fast.errors import ConfigError, SettingError
from paddlevideo_fast.io.files import atomic_write_text
from paddlevideo_fast.plugins import Import


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
            at: the key whose place is named; None: `key`.
        """
        place = self.where(key if at is None else at)
        return f"{place}  {key if isinstance(key, str) else dotted(key)}: {text}"

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

    def holds(self, key: str) -> bool:
        """Whether there is something at a dotted key; null and an empty section are nothing."""
        value: Any = self
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value is not None and value != {}

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

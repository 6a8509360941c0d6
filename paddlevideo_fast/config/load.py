"""A YAML file, its bases and the overrides become one plain dict that knows where each value was written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence, Union

from paddlevideo_fast.config.dali import expand_dali_data
from paddlevideo_fast.config.inherit import forget, read_with_bases
from paddlevideo_fast.config.override import apply_overrides
from paddlevideo_fast.config.schema import drop_unused, examine, place_of
from paddlevideo_fast.config.sections import ROOT, Group
from paddlevideo_fast.config.types import KeyPath
from paddlevideo_fast.config.yaml_source import dump
from paddlevideo_fast.errors import ConfigError


class Config(dict):
    """The nested plain data of a config.

    Args:
        data: the content.
        origins: key path to "file:line" or "-o #n"; () is the file as a whole.
        path: the file it was read from.
    """

    def __init__(
        self,
        data: Optional[Mapping[str, Any]] = None,
        origins: Optional[Dict[KeyPath, str]] = None,
        path: Optional[str] = None,
    ) -> None:
        super().__init__(data or {})
        self.origins = dict(origins or {})
        self.path = path

    def where(self, path: KeyPath) -> str:
        """Where the value at `path`, or else the nearest section around it, was written."""
        return place_of(self, path)

    def forget(self, path: KeyPath) -> None:
        """Drops the origins of `path` and of everything below it."""
        forget(self.origins, path)

    def save(self, path: Union[str, Path]) -> None:
        """Writes the resolved config as YAML; loading it gives an equal config.

        The file appears whole or not at all. Its folder must exist.
        """
        temporary = f"{path}.{os.getpid()}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(dump(dict(self)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


def load_config(path: Union[str, Path], overrides: Sequence[str] = (), check: bool = True) -> Config:
    """Reads a config with everything it inherits, applies the overrides and checks the result.

    Args:
        path: a YAML file.
        overrides: `KEY.PATH=VALUE` texts, see `apply_overrides`.
        check: False leaves the content unchecked.

    Raises:
        ConfigError: with all problems, each with file and line or the number of its override.
    """
    return load_with_schema(path, overrides, ROOT if check else None)


def load_with_schema(path: Union[str, Path], overrides: Sequence[str], root: Optional[Group]) -> Config:
    """See `load_config`; `root` is the schema, None to leave the content unchecked."""
    data, origins = read_with_bases(str(path))
    config = Config(data, origins, str(path))
    problems = apply_overrides(config, overrides, (root or ROOT).members)
    found = examine(config, root) if root else None
    if found:
        problems += found.problems
    if problems:
        raise ConfigError(problems)
    if found:
        drop_unused(config, found.unused)
        expand_dali_data(config)
    return config

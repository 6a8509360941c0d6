"""`_BASE_`: a config that starts from others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List, Tuple

from paddlevideo_fast.config.types import KeyPath
from paddlevideo_fast.config.yaml_source import parse
from paddlevideo_fast.errors import ConfigError

BASE = "_BASE_"
_TAGS = ("name", "format", "framework")
Origins = Dict[KeyPath, str]


def read_with_bases(path: str, trail: Tuple[str, ...] = ()) -> Tuple[Dict[str, Any], Origins]:
    """Reads a file and everything it inherits.

    `_BASE_` is a path relative to the file that has it, or a list of paths of which later ones win over
    earlier ones; the file's own content wins over all. Mappings merge, lists and plain values replace. Where
    a component's name changes, the plain arguments it inherited go; its parts that are components stay.

    Args:
        path: the file.
        trail: the files that led here, to find cycles.

    Returns:
        The data without `_BASE_`, and key path to "file:line".

    Raises:
        ConfigError: a file is missing, is no YAML mapping, or inherits from itself.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError([f"{path}  the file cannot be read: {cause}"]) from None
    source = parse(text, path)
    data = {} if source.data is None else source.data
    if not isinstance(data, dict):
        raise ConfigError([f"{path}  the file is not a mapping of sections such as MODEL and DATASET"])
    origins = {key: f"{path}:{line}" for key, line in source.lines.items() if not (key and key[0] == BASE)}
    origins[()] = path
    where = f"{path}:{source.lines.get((BASE,), 1)}"

    merged: Dict[str, Any] = {}
    merged_origins: Origins = {}
    for base in _base_paths(data.pop(BASE, []), where):
        target = os.path.normpath(os.path.join(os.path.dirname(path), base))
        chain = (*trail, path)
        if os.path.realpath(target) in [os.path.realpath(seen) for seen in chain]:
            circle = " -> ".join((*chain, target))
            raise ConfigError([f"{where}  {BASE}: files inherit in a circle: {circle}"])
        if not os.path.isfile(target):
            raise ConfigError([f"{where}  {BASE}={base!r}: there is no file {target}"])
        merge(merged, merged_origins, *read_with_bases(target, chain))
    merge(merged, merged_origins, data, origins)
    return merged, merged_origins


def merge(base: Dict[str, Any], base_origins: Origins, over: Dict[str, Any], over_origins: Origins) -> None:
    """Puts `over` on top of `base`, both the data and where it was written, in place."""
    if () in over_origins:
        base_origins[()] = over_origins[()]
    _merge_mapping(base, base_origins, over, over_origins, ())


def forget(origins: Origins, path: KeyPath) -> None:
    """Drops the origins of `path` and of everything below it."""
    for key in [key for key in origins if key[: len(path)] == path]:
        del origins[key]


def _merge_mapping(
    base: Dict[str, Any], base_origins: Origins, over: Dict[str, Any], over_origins: Origins, path: KeyPath
) -> None:
    if any(tag in base and tag in over and base[tag] != over[tag] for tag in _TAGS):
        for key in [key for key, value in base.items() if not _is_component(value)]:
            forget(base_origins, (*path, key))
            del base[key]
    for key, value in over.items():
        here = (*path, key)
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            base_origins[here] = over_origins[here]
            _merge_mapping(base[key], base_origins, value, over_origins, here)
            continue
        forget(base_origins, here)
        base[key] = value
        base_origins.update({k: v for k, v in over_origins.items() if k[: len(here)] == here})


def _is_component(value: Any) -> bool:
    return isinstance(value, dict) and any(tag in value for tag in _TAGS)


def _base_paths(value: Any, where: str) -> List[str]:
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ConfigError([f"{where}  {BASE}={value!r}: expected a path or a list of paths"])
    return paths

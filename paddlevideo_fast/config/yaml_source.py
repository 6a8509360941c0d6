"""YAML text to plain data, with the line of every key and list item.

Two things differ from the standard safe loader: `1e-4` is a float, and a date stays a str.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Set, Tuple

import yaml

from paddlevideo_fast.config.types import KeyPath
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.log import get_logger, warn_once

_LOGGER = get_logger(__name__)

_MAX_VALUES = 100_000  # aliases of aliases can stand for any number in a few lines
_FLOAT = "tag:yaml.org,2002:float"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_EXPONENT = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$")


class _Loader(yaml.SafeLoader):
    """The safe loader with our reading of plain scalars."""


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads; it quotes by the same rules."""

    def ignore_aliases(self, data: Any) -> bool:
        """No anchors: a saved config is read by people."""
        return True


for _cls in (_Loader, _Dumper):
    _cls.yaml_implicit_resolvers = {
        first: [rule for rule in rules if rule[0] != _TIMESTAMP]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _cls.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+.0123456789"))


@dataclass
class Source:
    """Plain data and where it was written.

    Args:
        data: dict, list, str, float, int, bool or None, nested.
        lines: key path to line, counted from 1; () is the whole.
    """

    data: Any
    lines: Dict[KeyPath, int] = field(default_factory=dict)


def parse(text: str, name: str) -> Source:
    """Reads one YAML document.

    Args:
        text: the document.
        name: what problems call it, a path or `-o #1`.

    Raises:
        ConfigError: bad syntax, a key that occurs twice with different values, a key that is no str, a tag
            that builds objects, or more values than a config can have.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        reader = _Reader(loader, name)
        source = Source(None, reader.lines)
        source.lines[()] = 1
        if node is not None:
            source.data = reader.read(node, (), ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        cause = ", ".join(text for text in (error.context, error.problem) if text)
        raise ConfigError([f"{where}  not valid YAML: {cause}"]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError([f"{name}  not valid YAML: {' '.join(str(error).split())}"]) from None
    except RecursionError:
        raise ConfigError([f"{name}  not valid YAML: lists or mappings are nested too deeply"]) from None
    if reader.problems:
        raise ConfigError(reader.problems)
    return source


def dump(data: Any) -> str:
    """YAML text that `parse` reads back to equal data; mappings keep their order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Reader:
    """Walks a node tree; each alias becomes its own copy, so that every place can be overridden alone."""

    def __init__(self, loader: _Loader, name: str) -> None:
        self.loader = loader
        self.name = name
        self.lines: Dict[KeyPath, int] = {}
        self.problems: List[str] = []
        self.examined: Set[int] = set()

    def read(self, node: yaml.Node, path: KeyPath, above: Tuple[yaml.Node, ...]) -> Any:
        if any(node is parent for parent in above):
            self._problem(node, path, "an alias that contains itself")
            return None
        self.lines.setdefault(path, node.start_mark.line + 1)
        if len(self.lines) > _MAX_VALUES:
            text = f"more than {_MAX_VALUES:,} values; do aliases contain aliases?"
            raise ConfigError([f"{self._where(node)}  {text}"])
        if node.tag in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path, (*above, node))
            if isinstance(node, yaml.SequenceNode):
                children = enumerate(node.value)
                return [self.read(child, (*path, index), (*above, node)) for index, child in children]
        return self.loader.construct_object(node, deep=True)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath, above: Tuple[yaml.Node, ...]) -> Dict[str, Any]:
        self._find_duplicates(node, path)
        self.loader.flatten_mapping(node)  # `<<` merges; the mapping's own keys come last and win
        data = {}
        for key_node, value_node in node.value:
            key = self.loader.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                self._problem(key_node, path, f"the key {key!r} is no text; put it in quotes")
                continue
            self.lines[path + (key,)] = key_node.start_mark.line + 1
            data[key] = self.read(value_node, (*path, key), above)
        return data

    def _find_duplicates(self, node: yaml.MappingNode, path: KeyPath) -> None:
        """A key that comes again is a slip. With an equal value it cannot matter which one counts."""
        if id(node) in self.examined:  # through an alias; merging has changed its keys since
            return
        self.examined.add(id(node))
        first: Dict[str, Tuple[int, yaml.Node]] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
                continue
            line, earlier = first.setdefault(key_node.value, (key_node.start_mark.line + 1, value_node))
            if earlier is value_node:
                continue
            where, here = self._where(key_node), (*path, key_node.value)
            if yaml.serialize(earlier, canonical=True) == yaml.serialize(value_node, canonical=True):
                message = f"{where}  {dotted(here)}: written twice, alike, first in line {line}"
                warn_once(_LOGGER, message)
            else:
                message = f"written twice, with another value first in line {line}; keep one"
                self._problem(key_node, here, message)

    def _where(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}"

    def _problem(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        self.problems.append(f"{self._where(node)}  {dotted(path)}: {message}")


def dotted(path: KeyPath) -> str:
    """A key path as users write it: `PIPELINE.train.transform.0.Scale`."""
    return ".".join(str(part) for part in path) or "the file"

"""YAML text to plain data, with the line of every key and list item.

Three things differ from the standard safe loader: `1e-4` is a float, `None` is null, as in PaddleVideo's
configs, and a date stays a str. And a config has a limit of characters and of values, because aliases, merge
keys and files that inherit repeat what they name.
"""

import re
from dataclasses import dataclass
from typing import Any

import yaml

from paddlevideo_fast.config.types import KeyPath
from paddlevideo_fast.errors import MAX_PROBLEMS, ConfigError, shortened, shown
from paddlevideo_fast.log import get_logger, warn_once

_LOGGER = get_logger(__name__)

MAX_CHARACTERS = 2**18
MAX_DEPTH = 50
_MAX_DIGITS = 100
_MAX_VALUES = 25_000
_TAG = "tag:yaml.org,2002:"
_EXPONENT = re.compile(r"[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)[eE][-+]?\d+$")
_SCALARS = {f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float")}
_TOO_DEEP = "lists or mappings are nested too deeply, or an alias contains itself"


@dataclass
class Budget:
    """What is left for a config: for all of its files and overrides together.

    Attributes:
        characters: of text.
        values: that are read, each as often as aliases and merge keys repeat it. A file that is inherited
            counts as 100 of them.
    """

    characters: int = MAX_CHARACTERS
    values: int = _MAX_VALUES

    def take_text(self, text: str, name: str) -> None:
        """Takes the characters of a text called `name`; raises ConfigError where they are too many."""
        self.characters -= len(text)
        if self.characters < 0:
            raise ConfigError([f"{name}  a config has at most {MAX_CHARACTERS:,} characters"])

    def take_values(self, count: int, where: str) -> None:
        """Takes values that were written at `where`; raises ConfigError where they are too many."""
        self.values -= count
        if self.values < 0:
            cause = "do aliases, merge keys or files repeat each other?"
            raise ConfigError([f"{where}  more than {_MAX_VALUES:,} values; {cause}"])


class _Loader(yaml.SafeLoader):
    """The safe loader with our reading of plain scalars."""


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads; it quotes by the same rules."""

    def ignore_aliases(self, data: Any) -> bool:
        """No anchors: a saved config is read by people."""
        return True


for _cls in (_Loader, _Dumper):
    _cls.yaml_implicit_resolvers = {
        first: [rule for rule in rules if rule[0] not in (f"{_TAG}timestamp", f"{_TAG}value")]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _cls.add_implicit_resolver(f"{_TAG}float", _EXPONENT, list("-+.0123456789"))
    _cls.add_implicit_resolver(f"{_TAG}null", re.compile("None$"), ["N"])


@dataclass
class Source:
    """Plain data and where it was written.

    Args:
        data: dict, list, str, float, int, bool or None, nested.
        lines: key path to line, counted from 1; () is the whole.
    """

    data: Any
    lines: dict[KeyPath, int]


def parse(text: str, name: str, budget: Budget | None = None) -> Source:
    """Reads one YAML document.

    Args:
        text: the document.
        name: what problems call it, a path or `-o #1`.
        budget: what it may ask for; None: as much as a whole config.

    Raises:
        ConfigError: bad syntax, a key that occurs twice with different values, a key that is no str, a tag
            that builds objects, a value that is not of its tag, or more than the budget has.
    """
    budget = budget or Budget()
    budget.take_text(text, name)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        reader = _Reader(loader, name, budget)
        data = None if node is None else reader.read(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        cause = ", ".join(text for text in (error.context, error.problem) if text)
        raise ConfigError([f"{where}  not valid YAML: {cause}"]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError([f"{name}  not valid YAML: {' '.join(str(error).split())}"]) from None
    except RecursionError:
        raise ConfigError([f"{name}  not valid YAML: {_TOO_DEEP}"]) from None
    if reader.problems:
        raise ConfigError(list(dict.fromkeys(reader.problems)))
    for warning in reader.alike:
        warn_once(_LOGGER, warning)
    return Source(data, reader.lines)


def dump(data: Any) -> str:
    """YAML text that `parse` reads back to equal data; mappings keep their order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Reader:
    """Walks a node tree; each alias becomes its own copy, so that every place can be overridden alone."""

    def __init__(self, loader: _Loader, name: str, budget: Budget) -> None:
        self.loader = loader
        self.name = name
        self.budget = budget
        self.lines: dict[KeyPath, int] = {(): 1}
        self.problems: list[str] = []
        self.alike: list[str] = []  # warnings

    def read(self, node: yaml.Node, path: KeyPath) -> Any:
        if len(path) > MAX_DEPTH:
            raise ConfigError([f"{self._where(node)}  {_TOO_DEEP}"])
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            pairs = self._pairs(node, path)
            for key, (key_node, _) in pairs.items():
                self.lines[path + (key,)] = key_node.start_mark.line + 1
            return {key: self.read(value_node, (*path, key)) for key, (_, value_node) in pairs.items()}
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            self.budget.take_values(len(node.value), self._where(node))
            return [self.read(child, (*path, index)) for index, child in enumerate(node.value)]
        return self._scalar(node, path)

    def _scalar(self, node: yaml.Node, path: KeyPath) -> Any:
        if isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}str":
            if "\0" in node.value:
                self._problem(node, path, f"{shown(node.value)} holds a NUL character")
            return node.value
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            try:
                if len(node.value) <= _MAX_DIGITS:
                    return self.loader.construct_object(node)
            except (ValueError, KeyError, IndexError):
                pass
            self._problem(node, path, f"{shown(node.value)} is no {node.tag[len(_TAG) :]}")
        else:
            self._problem(
                node, path, f"the tag {shown(node.tag.replace(_TAG, '!!'))} does not fit here; leave it out"
            )
        return None

    def _pairs(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Key to the nodes of key and value: those that `<<` merges, then the mapping's own, which win."""
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        self.budget.take_values(len(node.value), self._where(node))
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                sources = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                self.budget.take_values(len(sources), self._where(value_node))
                for source in reversed(sources):  # of several, the first one wins
                    if not isinstance(source, yaml.MappingNode):
                        self._problem(source, path, "'<<' takes a mapping or a list of mappings")
                    else:
                        merged.update(self._pairs(source, path))
                continue
            key = self._key(key_node, path)
            if key in own:
                self._compare(own[key], (key_node, value_node), (*path, key))
            if key is not None:
                own[key] = (key_node, value_node)
        return {**merged, **own}

    def _key(self, node: yaml.Node, path: KeyPath) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._problem(node, path, "a key is a list or a mapping; a key is text")
            return None
        key = self._scalar(node, path)
        if isinstance(key, str):
            return key
        self._problem(node, path, f"the key {shown(key)} is no text; put it in quotes")
        return None

    def _compare(
        self, first: tuple[yaml.Node, yaml.Node], again: tuple[yaml.Node, yaml.Node], path: KeyPath
    ) -> None:
        """A key that comes again is a slip. With an equal value it cannot matter which one counts."""
        line = first[0].start_mark.line + 1
        # the repr, because 1 == True == 1.0
        if repr(self.read(first[1], path)) == repr(self.read(again[1], path)):
            where = f"{self._where(again[0])}  {dotted(path)}"
            self.alike.append(f"{where}: written twice, alike, first in line {line}")
        else:
            self._problem(again[0], path, f"written twice, with another value first in line {line}; keep one")

    def _where(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}"

    def _problem(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        self.problems.append(f"{self._where(node)}  {dotted(path)}: {message}")
        if len(self.problems) > MAX_PROBLEMS:
            raise ConfigError(self.problems)


def dotted(path: KeyPath) -> str:
    """A key path as users write it: `PIPELINE.train.transform.0.Scale`."""
    return shortened(".".join(str(part) for part in path)) or "the file"

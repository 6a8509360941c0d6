"""Sections of a config that only networks of several parts have: lists of sections, with names or without."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from paddlevideo_fast.config.document import Findings
from paddlevideo_fast.config.sections import Arguments, Section, named_items
from paddlevideo_fast.config.types import KeyPath


@dataclass(frozen=True)
class ListOf(Section):
    """A list, each of whose items is the same section.

    Args:
        item: the section.

    Attributes:
        caption: the sentence of the config reference that introduces it.
    """

    caption: ClassVar[str] = "list of"
    item: Section

    def check(self, value: Any, path: KeyPath, findings: Findings) -> None:
        if not isinstance(value, list):
            findings.wrong_value(path, value, "a list")
            return
        for index, item in enumerate(value):
            self.item.check(item, (*path, index), findings)

    def build(self, value: Any) -> Any:
        return [self.item.build(item) for item in value]


@dataclass(frozen=True)
class NamedListOf(Section):
    """A list of one-key mappings from a name of the user's choice to a section; pairs for a constructor.

    Args:
        item: the section.

    Attributes:
        caption: the sentence of the config reference that introduces it.
    """

    caption: ClassVar[str] = "named list of"
    item: Section

    def check(self, value: Any, path: KeyPath, findings: Findings) -> None:
        for name, item, here in named_items(value, path, findings):
            self.item.check(item, (*here, name), findings)

    def build(self, value: Any) -> Any:
        return [(name, self.item.build(item)) for pair in value for name, item in pair.items()]

    def arguments(self, value: Any, path: KeyPath) -> Iterator[Arguments]:
        for name, item, here in named_items(value, path):
            yield from self.item.arguments(item, (*here, name))

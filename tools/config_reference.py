"""The config reference as Markdown, written from constructors and their docstrings.

`python tools/config_reference.py [--lang zh-CN]` prints it.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.config.sections import (
    ROOT,
    Component,
    ComponentList,
    Group,
    Section,
    Unsupported,
    parts_of,
    tag_of,
)
from paddlevideo_fast.config.types import Argument, arguments_of, describe, plain_alternatives
from paddlevideo_fast.registry import Registry

Lines = Iterator[str]
KeyNames = tuple[str, ...]

_ENGLISH = {
    "title": "Config reference",
    "intro": "This page is generated from the code by `python tools/config_reference.py`. "
    "A config is a YAML file; each section below is one of its keys. "
    "An argument without a default has to be given.",
    "contents": "Sections: {}",
    "chosen by": "Names the component with the key `{tag}`:",
    "list": "A list; each item is the name of a component with its arguments below it:",
    "list of names": "A list; each item is the name of a component, with arguments below it if it gets any:",
    "list of": "A list; each item:",
    "named list of": "A list; each item is a name of your choice with the following below it:",
    "columns": "| argument | type | default | meaning |",
    "required": "required",
    "part": "a {kind}, see below",
    "section": "see below",
    "none": "It has no arguments.",
    "ignored": "Accepted without effect:",
    "refused": "Not accepted:",
    "unsupported": "Accepted without effect: {reason}.",
    "same as": "The same components as {path}.",
    "parts of": "Components for `{name}`:",
}
_CHINESE = {
    "title": "配置参考",
    "intro": "本页由 `python tools/config_reference.py --lang zh-CN` 从代码生成。"
    "配置是一个 YAML 文件，下面每一节对应其中的一个键。没有默认值的参数必须给出。"
    "参数说明取自代码中的英文文档。",
    "contents": "各节：{}",
    "chosen by": "用键 `{tag}` 指定组件：",
    "list": "列表，每一项是一个组件名，其参数缩进写在下面：",
    "list of names": "列表，每一项是一个组件名；有参数时缩进写在下面：",
    "list of": "列表，每一项：",
    "named list of": "列表，每一项是一个自选的名称，下面缩进写：",
    "columns": "| 参数 | 类型 | 默认值 | 说明 |",
    "required": "必填",
    "part": "一个组件（{kind}），见下文",
    "section": "见下文",
    "none": "没有参数。",
    "ignored": "可以写，但不起作用：",
    "refused": "不能写：",
    "unsupported": "可以写，但不起作用：{reason}。",
    "same as": "可用的组件与 {path} 相同。",
    "parts of": "`{name}` 可用的组件：",
}
# A dataclass may document its fields, which are its arguments, as attributes.
_ARGUMENTS = r"^(?:Args|Attributes):\n((?:[ \t]+.*(?:\n|$)|\n)+)"
_TEXTS = {"en": _ENGLISH, "zh-CN": _CHINESE}


def reference(lang: str = "en", root: Group = ROOT) -> str:
    """The whole reference.

    Args:
        lang: `en` or `zh-CN`, the language of headings and frame; what arguments mean stays English.
        root: the schema.
    """
    page = _Page(_TEXTS[lang])
    body = list(page.section(root, ()))
    headings = [line[3:] for line in body if line.startswith("## ")]
    contents = " · ".join(f"[{name}](#{_anchor(name)})" for name in headings)
    head = [f"# {page.text['title']}", page.text["intro"], page.text["contents"].format(contents)]
    lines = ["\n\n".join(head), "", *body]
    return "\n".join(lines).rstrip() + "\n"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def argument_texts(cls: type) -> dict[str, str]:
    """Argument name to its text in the Google docstring of a class, of its constructor or of its bases."""
    texts: dict[str, str] = {}
    for owner in reversed(cls.__mro__[:-1]):
        constructor = vars(owner).get("__init__")
        for document in (vars(owner).get("__doc__"), getattr(constructor, "__doc__", None)):
            for name, text in _parse_arguments(document or ""):
                if name not in texts or not text.startswith("see "):  # "see Base": the base's text stays
                    texts[name] = text
    return texts


def _parse_arguments(document: str) -> Iterator[tuple[str, str]]:
    sections = re.findall(_ARGUMENTS, inspect.cleandoc(document), re.MULTILINE)
    names: list[str] = []
    words: list[str] = []
    for line in "".join(sections).splitlines():
        start = re.match(r" {4}(\w+(?:, \w+)*)(?: \([^)]*\))?: *(.*)", line)
        if start:
            yield from ((name, " ".join(words)) for name in names)
            names, words = start.group(1).split(", "), [start.group(2)]
        elif line.strip():
            words.append(line.strip())
    yield from ((name, " ".join(words)) for name in names)


class _Page:
    """Writes the sections of a schema; a registry that several of them share is written once."""

    def __init__(self, text: Mapping[str, str]) -> None:
        self.text = text
        self.written: dict[int, str] = {}

    def heading(self, path: KeyNames) -> Lines:
        yield from (f"{'#' * (len(path) + 1)} {'.'.join(path)}", "")

    def section(self, section: Section, path: KeyNames) -> Lines:
        """Lines about a section, below the heading of `path`."""
        purpose = getattr(section, "purpose", "")
        if purpose:
            yield from (purpose, "")
        elif isinstance(section, Group) and section.settings:
            yield from _summary(section.settings)
        if isinstance(section, Component):
            yield from (self.text["chosen by"].format(tag=tag_of(section.registry)), "")
            yield from self.components(section.registry, path)
        elif isinstance(section, ComponentList):
            yield from (self.text["list of names" if section.plain_names else "list"], "")
            yield from self.components(section.registry, path)
        elif caption := getattr(section, "caption", ""):
            yield from (self.text[caption], "")
            yield from self.section(section.item, path)  # type: ignore[attr-defined]
        elif isinstance(section, Group):
            yield from self.group(section, path)
        elif isinstance(section, Unsupported):
            yield from (self.text["unsupported"].format(reason=section.reason), "")

    def group(self, group: Group, path: KeyNames) -> Lines:
        if group.settings:
            yield from self.arguments(group.settings, more=group.options_at_top())
        names_of: dict[int, list[str]] = {}  # train, valid and test are one section under three keys
        members = group.all_members()
        for name, section in members.items():
            names_of.setdefault(id(section), []).append(name)
        for names in names_of.values():
            here = (*path, " / ".join(names))
            yield from self.heading(here)
            yield from self.section(members[names[0]], here)

    def part(self, part: Section, path: KeyNames) -> Lines:
        """Lines about an argument that is, or holds, components."""
        if isinstance(part, Component):
            yield from (self.text["parts of"].format(name=path[-1]), "")
            yield from self.components(part.registry, path)
        else:
            yield from self.section(part, path)

    def components(self, registry: Registry, path: KeyNames) -> Lines:
        """All classes of a registry and their arguments; the second time, where they were written."""
        if id(registry) in self.written:
            yield from (self.text["same as"].format(path=self.written[id(registry)]), "")
            return
        self.written[id(registry)] = ".".join(path)
        parts: dict[str, Section] = {}
        for name in registry.names():
            cls = registry.get(name)
            yield from (f"{'#' * (len(path) + 2)} {name}", "", *_summary(cls))
            yield from self.arguments(cls)
            parts.update(parts_of(cls))
        for name, part in parts.items():
            yield from self.heading((*path, name))
            yield from self.part(part, (*path, name))

    def arguments(self, cls: type, more: Mapping[str, type] = MappingProxyType({})) -> Lines:
        """The table of what a config may set of a class, and of some arguments of others."""
        arguments = [(cls, item) for item in arguments_of(cls).values()]
        arguments += [(owner, arguments_of(owner)[name]) for name, owner in more.items()]
        if arguments:
            yield from (self.text["columns"], "|---|---|---|---|")
            for owner, argument in arguments:
                yield self._row(owner, argument, argument_texts(owner).get(argument.name, ""))
        else:
            yield self.text["none"]
        yield ""
        for kind in ("ignored", "refused"):
            reasons = getattr(cls, f"{kind}_arguments", {})
            if reasons:
                yield from (self.text[kind], "")
                yield from (f"- `{name}`: {reason}" for name, reason in reasons.items())
                yield ""

    def _row(self, cls: type, argument: Argument, meaning: str) -> str:
        part = parts_of(cls).get(argument.name)
        kind = describe(argument.hint)
        if isinstance(part, Component):
            named = self.text["part"].format(kind=part.registry.kind)
            kind = " / ".join([*plain_alternatives(argument.hint), named])
        elif part:
            kind = self.text["section"]
        default = self.text["required"] if argument.required else f"`{_yaml(argument.default)}`"
        cells = [f"`{argument.name}`", kind, default, meaning]
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _summary(cls: type) -> list[str]:
    document = inspect.cleandoc(vars(cls).get("__doc__") or "")
    paragraph = " ".join(document.split("\n\n")[0].split())
    return [paragraph, ""] if paragraph else []


def _yaml(value: Any) -> str:
    """A default as one would write it in YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_yaml(item) for item in value)}]"
    return repr(value)


def main() -> None:
    """Prints the reference."""
    parser = argparse.ArgumentParser(description="Prints the config reference as Markdown.")
    parser.add_argument("--lang", choices=sorted(_TEXTS), default="en", help="language of the headings")
    print(reference(parser.parse_args().lang), end="")


if __name__ == "__main__":
    main()

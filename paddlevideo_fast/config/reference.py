"""The config reference as Markdown, written from constructors and their docstrings.

`python -m paddlevideo_fast.config.reference [--lang zh-CN]` prints it.
"""

from __future__ import annotations

import argparse
import inspect
import re
from typing import Any, Dict, Iterator, List, Mapping, Tuple, Union

from paddlevideo_fast.config.sections import (
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
from paddlevideo_fast.config.types import Argument, arguments_of, describe, plain_alternatives
from paddlevideo_fast.registry import Registry

_ENGLISH = {
    "title": "Config reference",
    "intro": "This page is generated from the code by `python -m paddlevideo_fast.config.reference`. "
    "A config is a YAML file; each section below is one of its keys. "
    "An argument without a default has to be given.",
    "chosen by": "Names the component with the key `{tag}`:",
    "list": "A list; each item is the name of a component with its arguments below it:",
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
    "intro": "本页由 `python -m paddlevideo_fast.config.reference --lang zh-CN` 从代码生成。"
    "配置是一个 YAML 文件，下面每一节对应其中的一个键。没有默认值的参数必须给出。"
    "参数说明取自代码中的英文文档。",
    "chosen by": "用键 `{tag}` 指定组件：",
    "list": "列表，每一项是一个组件名，其参数缩进写在下面：",
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
    writer = _Writer(_TEXTS[lang])
    lines = [f"# {writer.text['title']}", "", writer.text["intro"], "", *writer.group(root, ())]
    return "\n".join(lines).rstrip() + "\n"


def argument_texts(cls: type) -> Dict[str, str]:
    """Argument name to its text in the Google docstring of a class, of its constructor or of its bases."""
    texts: Dict[str, str] = {}
    for owner in reversed(cls.__mro__[:-1]):
        constructor = vars(owner).get("__init__")
        for document in (vars(owner).get("__doc__"), getattr(constructor, "__doc__", None)):
            for name, text in _parse_arguments(document or ""):
                if not (
                    name in texts and text.startswith("see ")
                ):  # "see Base" stands in for the base's text
                    texts[name] = text
    return texts


def _parse_arguments(document: str) -> Iterator[Tuple[str, str]]:
    sections = re.findall(_ARGUMENTS, inspect.cleandoc(document), re.MULTILINE)
    names: List[str] = []
    words: List[str] = []
    for line in "".join(sections).splitlines():
        start = re.match(r" {4}(\w+(?:, \w+)*)(?: \([^)]*\))?: *(.*)", line)
        if start:
            yield from ((name, " ".join(words)) for name in names)
            names, words = start.group(1).split(", "), [start.group(2)]
        elif line.strip():
            words.append(line.strip())
    yield from ((name, " ".join(words)) for name in names)


class _Writer:
    """Turns the section tree into lines; a registry that several sections share is written out once."""

    def __init__(self, text: Mapping[str, str]) -> None:
        self.text = text
        self.written: Dict[int, str] = {}

    def group(self, group: Group, path: Tuple[str, ...]) -> Iterator[str]:
        if group.purpose:
            yield from (group.purpose, "")
        if group.settings:
            yield from self.table(group.settings)
        names_of: Dict[int, List[str]] = {}  # train, valid and test are one section under three keys
        for name, section in group.members.items():
            names_of.setdefault(id(section), []).append(name)
        for names in names_of.values():
            section, here = group.members[names[0]], (*path, " / ".join(names))
            yield from (_heading(here), "")
            yield from self.section(section, here)

    def section(self, section: Section, path: Tuple[str, ...]) -> Iterator[str]:
        if isinstance(section, Unsupported):
            yield from (self.text["unsupported"].format(reason=section.reason), "")
        elif isinstance(section, Group):
            yield from self.group(section, path)
        elif isinstance(section, (ListOf, NamedListOf)):
            named = isinstance(section, NamedListOf)
            yield from (self.text["named list of" if named else "list of"], "")
            yield from self.section(section.item, path)
        else:
            yield from self.components(section, path)

    def components(self, section: Any, path: Tuple[str, ...]) -> Iterator[str]:
        if section.purpose:
            yield from (section.purpose, "")
        injected: Tuple[str, ...] = ()
        if isinstance(section, ComponentList):
            yield from (self.text["list"], "")
        elif isinstance(section, Component):
            injected = section.injected
            yield from (self.text["chosen by"].format(tag=tag_of(section.registry)), "")
        yield from self.registry(section.registry, path, injected)

    def registry(
        self, registry: Registry, path: Tuple[str, ...], injected: Tuple[str, ...] = ()
    ) -> Iterator[str]:
        if id(registry) in self.written:
            yield from (self.text["same as"].format(path=self.written[id(registry)]), "")
            return
        self.written[id(registry)] = ".".join(path)
        parts: Dict[str, Union[Registry, Section]] = {}
        for name in registry.names():
            cls = registry.get(name)
            yield from (f"{'#' * (len(path) + 2)} {name}", "", *_summary(cls), *self.table(cls, injected))
            parts.update(parts_of(cls))
        for name, part in parts.items():
            yield from (_heading((*path, name)), "")
            if isinstance(part, Registry):
                yield from (self.text["parts of"].format(name=name), "")
                yield from self.registry(part, (*path, name))
            else:
                yield from self.section(part, (*path, name))

    def table(self, cls: type, injected: Tuple[str, ...] = ()) -> Iterator[str]:
        arguments = [item for item in arguments_of(cls).values() if item.name not in injected]
        meanings = argument_texts(cls)
        if arguments:
            yield from (self.text["columns"], "|---|---|---|---|")
            for argument in arguments:
                yield self.row(cls, argument, meanings.get(argument.name, ""))
        else:
            yield self.text["none"]
        yield ""
        for kind in ("ignored", "refused"):
            reasons = getattr(cls, f"{kind}_arguments", {})
            if reasons:
                yield from (self.text[kind], "")
                yield from (f"- `{name}`: {reason}" for name, reason in reasons.items())
                yield ""

    def row(self, cls: type, argument: Argument, meaning: str) -> str:
        part = parts_of(cls).get(argument.name)
        kind = self.text["section"] if part else describe(argument.hint)
        if isinstance(part, Registry):
            component = self.text["part"].format(kind=part.kind)
            kind = " / ".join([*plain_alternatives(argument.hint), component])
        default = self.text["required"] if argument.required else f"`{_yaml(argument.default)}`"
        cells = [f"`{argument.name}`", kind, default, meaning]
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _heading(path: Tuple[str, ...]) -> str:
    return f"{'#' * (len(path) + 1)} {'.'.join(path)}"


def _summary(cls: type) -> List[str]:
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

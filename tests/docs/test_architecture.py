"""docs/*/architecture.md: every file and every name that the page mentions exists."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.code_lines import code_lines
from tests.support.tiers import ANNEXES, PACKAGE

ROOT = Path(__file__).resolve().parents[2]
MAX_FILES, MAX_LINES = 25, 4000  # of the first afternoon
PAGES = [ROOT / "docs" / lang / "architecture.md" for lang in ("en", "zh-CN")]
_SPAN = re.compile(r"`([\w./-]+?/|(?:[\w.-]+/)*[\w-]+\.(?:py|md|yaml))(?::([\w.]+))?`")


class Reference(NamedTuple):
    """A file or folder that a page mentions, and a name in it such as `Trainer.fit`."""

    path: str
    name: str | None


def references(page: Path) -> list[Reference]:
    return [Reference(*found) for found in _SPAN.findall(page.read_text(encoding="utf-8"))]


def located(path: str) -> Path | None:
    """Where a mentioned path lies: in the package, else in the repository."""
    return next((base / path for base in (PACKAGE, ROOT) if (base / path).exists()), None)


def defined(body: list[ast.stmt]) -> Iterator[tuple]:
    """The names that the statements of a module or class define, each with its node."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, ast.Assign):
            yield from ((target.id, node) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node


@functools.cache
def statements(file: Path) -> list[ast.stmt]:
    return ast.parse(file.read_text(encoding="utf-8")).body


def has_name(file: Path, dotted: str) -> bool:
    """Whether a module defines a name, or a class in it a method or an attribute."""
    body = statements(file)
    for part in dotted.split("."):
        node = dict(defined(body)).get(part)
        if node is None:
            return False
        body = getattr(node, "body", [])
    return True


def test_both_languages_mention_the_same():
    english, chinese = map(references, PAGES)
    assert sorted(map(str, english)) == sorted(map(str, chinese))


def test_files_and_names_exist():
    found = references(PAGES[0])
    missing = []
    for path, name in found:
        file = located(path)
        if file is None or (name and not has_name(file, name)):
            missing.append(f"{path}:{name}" if name else path)
    assert not missing
    assert len(found) > 80


def test_the_map_is_complete():
    parts = {entry.path for entry in references(PAGES[0])}
    packages = [
        *PACKAGE.glob("*/__init__.py"),
        *(file for each in ANNEXES for file in PACKAGE.glob(f"{each}/*/__init__.py")),
    ]
    folders = {f"{path.parent.relative_to(PACKAGE).as_posix()}/" for path in packages}
    modules = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"}
    assert folders | modules <= parts


def test_the_first_afternoon_is_short():
    english, chinese = (
        re.findall(r"^\| `([\w/]+\.py)` \|", section, re.MULTILINE)
        for page, title in zip(PAGES, ("The first afternoon", "第一个下午"))
        for section in [
            page.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        ]
    )
    assert 0 < len(english) <= MAX_FILES
    assert chinese == english
    assert sum(code_lines((PACKAGE / file).read_text(encoding="utf-8")) for file in english) <= MAX_LINES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_registries_exist(page):
    named = set(re.findall(r"`@(\w+)\.register\(\)`", page.read_text(encoding="utf-8")))
    assert len(named) > 6
    homes = [PACKAGE / "registry.py", *PACKAGE.glob("extensions/*/*.py")]
    assert all(any(has_name(home, name) for home in homes) for name in named)

"""What `make site` adds to MkDocs: the pages in their places, the navigation, and the language of its texts.

The site is built from links to the pages of the repository, so no page is written twice, and the links from
page to page work as they do in the repository. The navigation of a language follows its index page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "build" / "site"
LANGUAGES = {"English": "docs/en", "简体中文": "docs/zh-CN"}
# What pages refer to.
_LINKED = ("docs", "benchmarks", "configs", "test_tipc", "LICENSE")
_LINKED += ("README.md", "README_cn.md", "CHANGELOG.md", "CONTRIBUTING.md")

_HEADING = re.compile(r"## (.+)")
_PAGE = re.compile(r"\[[^\]]+\]\((\w+\.md)\)")


def link_pages(source: Path = SOURCE) -> None:
    """Links the pages, and what they refer to, into the folder that MkDocs reads."""
    source.mkdir(parents=True, exist_ok=True)
    for name in _LINKED:
        link = source / name
        if not link.is_symlink():
            link.symlink_to(ROOT / name)


def navigation(folder: str) -> list[Any]:
    """The pages of a language in the sections of its index page, as MkDocs' `nav`.

    Args:
        folder: of the language, from the root of the repository.
    """
    pages: list[Any] = [f"{folder}/index.md"]
    seen = {"index.md"}
    section: list[str] = []
    for line in (ROOT / folder / "index.md").read_text(encoding="utf-8").splitlines():
        heading = _HEADING.match(line)
        if heading:
            section = []
            pages.append({heading[1]: section})
        for name in _PAGE.findall(line):
            if pages[1:] and name not in seen:  # the introduction names pages of the sections
                seen.add(name)
                section.append(f"{folder}/{name}")
    return pages


def on_page_context(context: dict[str, Any], page: Any, config: dict[str, Any], nav: Any) -> dict[str, Any]:
    """Called by MkDocs before it renders a page: the theme's own texts get the language of the page."""
    config["theme"]["language"] = "zh" if page.file.src_uri.startswith(LANGUAGES["简体中文"]) else "en"
    return context


def on_config(config: dict[str, Any]) -> dict[str, Any]:
    """Called by MkDocs before it looks for pages."""
    link_pages()
    decisions = sorted(path.name for path in (ROOT / "docs" / "adr").glob("*.md"))
    config["nav"] = [
        {"paddlevideo_fast": [*(name for name in _LINKED if name.endswith(".md")), "benchmarks/README.md"]},
        *({name: navigation(folder)} for name, folder in LANGUAGES.items()),
        {"Decisions": [f"docs/adr/{name}" for name in decisions]},
    ]
    return config

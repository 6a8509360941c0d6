"""The core stays small and names no option: import-linter holds the imports, this holds the rest."""

import re

from tests.support.code_lines import code_lines
from tests.support.tiers import ANNEXES, PACKAGE

MAX_LINES = 18_475  # of code; the goal is 18,500
MAX_NAMED = 3  # lines that mention one option, in the table of annexes


def core() -> dict[str, str]:
    """The files of the core, by their paths in the package."""
    paths = {path.relative_to(PACKAGE): path for path in PACKAGE.rglob("*.py")}
    return {
        path.as_posix(): file.read_text(encoding="utf-8")
        for path, file in paths.items()
        if path.parts[0] not in ANNEXES
    }


def test_the_core_does_not_grow():
    assert sum(map(code_lines, core().values())) <= MAX_LINES


def test_only_the_table_names_an_annex():
    named = re.compile(rf"[\"'.](?:{'|'.join(ANNEXES)})\.[a-z_]+")  # in a string, for import_module
    assert [path for path, text in core().items() if named.search(text)] == ["annexes.py"]


def test_the_core_does_not_know_lora():
    lines = [line for text in core().values() for line in text.splitlines() if "lora" in line.lower()]
    assert len(lines) <= MAX_NAMED

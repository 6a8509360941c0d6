"""The shipped recipes beside what was published."""

import re
from fnmatch import fnmatch

import pytest

from benchmarks import recipes, tables
from benchmarks.measuring import ROOT

PAGES = {lang: (ROOT / "docs" / lang / "recipes.md").read_text(encoding="utf-8") for lang in ("en", "zh-CN")}


@pytest.mark.parametrize("lang", PAGES)
def test_what_differs_from_what_was_published_has_a_note(lang):
    """The next test compares the other cells of these tables with the configs and with what was published."""
    for name, network in recipes.NAMES.items():
        table = PAGES[lang].partition(f"<!-- results: {name} -->\n\n")[2].partition("\n<!-- end -->")[0]
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
        assert len(rows) == len(network["rows"]), name
        for row, _, published, note in rows:
            assert published in ("the same", "相同", recipes.NOT_KNOWN, "未查到") or note, (name, row)


@pytest.mark.slow
def test_every_shipped_recipe_is_on_the_pages_or_is_paddlevideos():
    for page in tables.pages():
        if page.name == "recipes.md":
            text = page.read_text(encoding="utf-8")
            assert tables.updated(page) == text, "run: python tools/benchmark.py tables"
    named = [entry["config"] for entry in recipes.ENTRIES]
    assert len(named) == len(set(named))
    folder = ROOT / "configs" / "recognition"
    for path in sorted(folder.rglob("*.yaml")):
        config = path.relative_to(folder).with_suffix("").as_posix()
        if not any(fnmatch(config, pattern) for pattern in recipes.OF_PADDLEVIDEO):
            twin = re.sub("_frames(_nhwc)?$", "_videos", config)
            assert twin in named
            assert twin == config or recipes.effective(twin) == recipes.effective(config)


@pytest.mark.parametrize("lang", PAGES)
def test_the_page_has_the_table_and_the_links_of_each_network(lang):
    page = PAGES[lang]
    for entry in recipes.ENTRIES:
        assert f"(../../configs/recognition/{entry['config']}.yaml)" in page
    for name, network in recipes.NAMES.items():
        section = page.partition(f"<!-- results: {name} -->")[0].rpartition("\n## ")[2]
        assert f"(../../configs/recognition/{network['config']}.yaml)" in section
        assert network["source"].partition("](")[2] in section

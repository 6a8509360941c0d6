"""The shipped recipes beside what was published."""

import re
from fnmatch import fnmatch

import pytest

from benchmarks.measuring import ROOT
from tools import model_zoo, recipes

PAGES = {lang: page.read_text(encoding="utf-8") for lang, page in model_zoo.RECIPES.items()}


@pytest.mark.parametrize("lang", PAGES)
def test_what_differs_from_what_was_published_has_a_note(lang):
    """The next test compares the other cells of this table with the configs and with what was published."""
    table = PAGES[lang].partition("<!-- results: recipes -->\n\n")[2].partition("\n<!-- end -->")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert len(rows) > 40
    for config, what, here, published, note in rows:
        assert all((what, here)), config
        assert published in (recipes.NOT_KNOWN, "未查到") or note, (config, what)


@pytest.mark.slow
def test_every_shipped_recipe_is_on_the_pages_or_is_paddlevideos():
    for lang, text in PAGES.items():
        assert model_zoo.with_recipes(lang) == text, "run: python tools/model_zoo.py"
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
def test_the_page_names_the_source_of_each_recipe(lang):
    section = PAGES[lang].partition("<!-- results: recipes -->")[0]
    found = re.finditer(r"^.*\]\((\w+/\S+)\.yaml\).*$", section, re.M)
    lines = {match[1]: match[0] for match in found}
    for entry in recipes.ENTRIES:
        assert entry.get("source", "").partition("](")[2] in lines[entry["config"]]

"""The shipped recipes beside what was published."""

from __future__ import annotations

import re
from fnmatch import fnmatch

import pytest

from benchmarks import recipes
from benchmarks.measuring import ROOT

NETWORKS = {network["config"]: network for network in recipes.published()}


@pytest.mark.slow
@pytest.mark.parametrize("config", NETWORKS)
def test_what_differs_from_what_was_published_has_a_note(config):
    network, here = NETWORKS[config], recipes.effective(config)
    assert set(network["rows"]) == set(here)
    assert set(network.get("notes", {})) <= set(here)
    for row, text in here.items():
        note = network.get("notes", {}).get(row, {})
        known = network["rows"][row]
        assert known in (text, recipes.NOT_KNOWN) or (note.get("en") and note.get("zh")), row


@pytest.mark.slow
def test_every_shipped_recipe_is_on_the_page_or_is_paddlevideos():
    named = [entry["config"] for entry in (*recipes.published(), *recipes.unpublished())]
    assert len(named) == len(set(named))
    folder = ROOT / "configs" / "recognition"
    for path in sorted(folder.rglob("*.yaml")):
        config = path.relative_to(folder).with_suffix("").as_posix()
        if not any(fnmatch(config, pattern) for pattern in recipes.OF_PADDLEVIDEO):
            twin = re.sub("_frames(_nhwc)?$", "_videos", config)
            assert twin in named
            assert twin == config or recipes.effective(twin) == recipes.effective(config)


@pytest.mark.parametrize("lang", ["en", "zh-CN"])
def test_the_page_has_the_table_and_the_links_of_each_network(lang):
    page = (ROOT / "docs" / lang / "recipes.md").read_text(encoding="utf-8")
    for network in recipes.published():
        section = page.partition(f"<!-- results: {recipes.name_of(network)} -->")[0].rpartition("\n## ")[2]
        assert f"(../../configs/recognition/{network['config']}.yaml)" in section
        assert network["source"].partition("](")[2] in section
    assert "<!-- results: recipes_unpublished -->" in page

"""The shipped recipes beside what was published."""

from __future__ import annotations

import pytest

from benchmarks import recipes

NETWORKS = {network["config"]: network for network in recipes.published()}


@pytest.mark.parametrize("config", NETWORKS)
def test_what_differs_from_what_was_published_has_a_note(config):
    network, here = NETWORKS[config], recipes.effective(config)
    assert set(network["rows"]) == set(here)
    assert set(network.get("notes", {})) <= set(here)
    for row, text in here.items():
        note = network.get("notes", {}).get(row, {})
        assert text == network["rows"][row] or (note.get("en") and note.get("zh")), row

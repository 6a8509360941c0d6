"""The tables of the pages are what the result files say."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks import tables
from benchmarks.chart import draw_speed
from benchmarks.measuring import RESULTS

PAGES = tables.pages()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=f"{page.parent.name}/{page.name}",
            # those of the recipes build each network
            marks=[pytest.mark.slow] if page.name == "recipes.md" else [],
        )
        for page in PAGES
    ],
)
def test_the_pages_show_the_results(page):
    assert tables.updated(page) == page.read_text(encoding="utf-8"), "run: python tools/benchmark.py tables"


def test_every_table_stands_in_both_languages():
    shown = {
        language: [
            name
            for page in PAGES
            if page.parent.name == language
            for name in re.findall(r"<!-- results: (\w+) -->", page.read_text(encoding="utf-8"))
            if name in tables.TABLES
        ]
        for language in ("en", "zh-CN")
    }
    assert shown["en"] == shown["zh-CN"]
    assert set(shown["en"]) == set(tables.TABLES)


def test_every_result_names_its_environment():
    for file in RESULTS.glob("*.json"):
        record = json.loads(file.read_text(encoding="utf-8"))
        assert record["environment"]["machine"], file.name
        assert record["result"], file.name


def test_the_chart_is_a_picture(tmp_path):
    draw_speed(tmp_path / "speed.png")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")

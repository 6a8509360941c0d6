"""The tables of the pages are what the result files say; a call in a process that dies is lost alone."""

import json
import os
import re
import signal
import time

import pytest

from benchmarks import tables
from benchmarks.measuring import RESULTS
from paddlevideo_fast.errors import PaddleVideoFastError
from tests.support.isolated import Lost, map_isolated

PAGES = tables.pages()
KNOWN = {*tables.TABLES, "recipes"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_the_pages_show_the_results(page):
    assert tables.updated(page) == page.read_text(encoding="utf-8"), "run: python tools/benchmark.py tables"


def tables_of(pages):
    texts = [page.read_text(encoding="utf-8") for page in pages]
    return [name for text in texts for name in re.findall(r"<!-- results: (\w+) -->", text) if name in KNOWN]


def test_every_table_stands_in_both_languages_or_among_the_measurements():
    measurements = tables_of([tables.MEASUREMENTS])
    chinese = [page for page in PAGES if page.parent.name == "zh-CN" or page.stem == "README_cn"]
    shown = tables_of(page for page in PAGES if page not in chinese and page != tables.MEASUREMENTS)
    assert shown == tables_of(chinese)
    assert sorted(measurements + shown) == sorted(KNOWN)


def test_a_table_keeps_its_words_and_takes_its_numbers_from_the_results(tmp_path, monkeypatch):
    monkeypatch.setitem(tables.TABLES, "saving", lambda: [["", "-1.5%"], ["", "2"]])
    page = tmp_path / "page.md"
    text = (
        "<!-- results: saving -->\n\n| 检查点 | x |\n|---|---|\n| 直接 | 0 |\n| 后台 | 0 |\n\n<!-- end -->\n"
    )
    page.write_text(text, encoding="utf-8")
    expected = text.replace("直接 | 0", "直接 | −1.5 %").replace("后台 | 0", "后台 | 2")
    assert tables.updated(page) == expected
    page.write_text(text.replace("| 后台 | 0 |\n", ""), encoding="utf-8")
    with pytest.raises(PaddleVideoFastError, match="the table saving has other rows or columns"):
        tables.updated(page)


def test_every_result_names_its_environment():
    for file in RESULTS.glob("*.json"):
        record = json.loads(file.read_text(encoding="utf-8"))
        assert record["environment"]["machine"], file.name
        assert record["result"], file.name


@pytest.mark.parametrize("draw", [tables.draw_speed, tables.draw_learning])
def test_a_chart_is_a_picture(draw, tmp_path):
    draw(tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


# --- A call in a process of its own that dies or hangs is lost alone


def test_a_call_that_dies_or_hangs_is_lost_alone():
    assert list(map_isolated(_misbehave, range(4), limit_sec=3)) == [
        0,
        Lost("the process dies with -9"),
        Lost("hangs for 3 s"),
        3,
    ]


def _misbehave(task):
    if task == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if task == 2:
        time.sleep(60)
    return task

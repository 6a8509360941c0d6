"""The numbers in the text of the pages: those of our measurements are those of the result files.

A number looks measured if it has a decimal point, or a unit such as %, s, MB or "times" behind it. Each one
is computed from benchmarks/results in `held`, or stands in `NOT_MEASURED` with its reason. Tables between
`<!-- results -->` marks have tests of their own; only what the pages themselves write there is read here.
"""

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import geometric_mean, mean

import pytest

from benchmarks import tables
from benchmarks.measuring import RESULTS, ROOT, load
from tests.docs.test_docs import prose

PAGES = {page.stem: (page, ROOT / "docs/zh-CN" / page.name) for page in (ROOT / "docs/en").glob("*.md")}
PAGES["README"] = (ROOT / "README.md", ROOT / "README_cn.md")
PAGES["measurements"] = (tables.MEASUREMENTS,)
del PAGES["config_reference"]  # is generated from the code

# From the reason to the numbers of each page. Before you add one: is it not one of our measurements?
NOT_MEASURED = {
    "version of a library, capability of a device": {
        "README": "2.0 3.10 3.13",
        "benchmarks": "18.1",
        "measurements": "3.11 18.1",
        "fast_transformers": "8.0",
        "distributed": "2.6",
        "inference": "1.31 2.0 2.6",
        "quick_start": "3.10 3.13 11.8 3.2 4.8 6.0 8.6 8.9 9.0 12.0",
        "performance": "7.0 8.0",
        "extending": "2.6",
    },
    "setting, default or limit in code or in a recipe": {
        "augmentation": "0.1 0.2 0.5 0.65 0.75 1.0 30 0.25 0.999 2.3",
        "custom_dataset": "30 95",
        "data_loading": "5 64 95",
        "data_preparation": "0.25 0",
        "distributed": "1.92 2 30 64 200 900",
        "evaluation": "30 95",
        "faq": "0.1 95",
        "fast_transformers": "0.1",
        "few_videos": "0.9 8 256",
        "fine_tuning": "0.75 0.9",
        "inference": "1 2 5 15 20 30 16",
        "model_zoo": "0.5",
        "multigrid": "1.1 1.5",
        "migrating": "2",
        "performance": "0 1 2 4 200 512 4096",
        "prepared_packed": "0.25 4 10",
        "training": "0.1",
    },
    "setting of a measurement": {
        "benchmarks": "20",
        "prepared_packed": "20",
        "measurements": "0.05 2 2.5 4 0.7071",
    },
    "chance: 1 / number of classes": {
        "measurements": "12.5 16.7 25",
        "faq": "5",
        "quick_start": "12.5",
    },
    "computed from sizes that the page names": {
        "measurements": "800",
        "data_loading": "1.5 2 18 19.3 37 347",
        "README": "17",
        "faq": "12.3 0.75 0.30 0.95",
        "fine_tuning": "6",
        "few_videos": "2 3.2 8 64 347 770 2,048",
        "multigrid": "0.7143 1.5 3.4 5",
    },
    "published by others, with the source beside it": {
        "faq": "19 22.3",
        "multigrid": "76.07 76.34 76.6 76.8",
        "performance": "3.3",
        "custom_dataset": "7",
    },
}

_NUMBER = r"(?<![\w.])\d[\d,]*(?:\.\d+)*"
_WORDS = "times|ms|s|sec|seconds|minutes|hours|days|points|[kKMG]i?B|TB"
_UNIT = rf"(?:%|×(?!\d)|(?:{_WORDS})\b|倍|毫秒|秒|分钟|小时|天|个百分点)"
_WITH_UNIT = re.compile(rf"(?:({_NUMBER})\s?(?:to|and|or|–|至|到|和)\s?)?({_NUMBER})\s?{_UNIT}")


def measured(text: str) -> set[str]:
    """The numbers of a text that look measured; versions such as 2.6.2 and arXiv's numbers do not."""
    found = {number for match in _WITH_UNIT.findall(text) for number in match}
    found |= {number for number in re.findall(_NUMBER, text) if re.fullmatch(r"[\d,]+\.\d+", number)}
    return {number for number in found if number and not re.fullmatch(r"\d{4}\.\d{5}|.*\..*\..*", number)}


@cache
def rows_of(table: str) -> tables.Rows:
    """The rows of a table; some take seconds."""
    return tables.TABLES[table]()


def text_of(page: Path) -> str:
    """The text of a page without code, addresses and what a test fills in."""

    def own_cells(match: re.Match[str]) -> str:
        name, body = match[1], match[4]
        rows = rows_of(name) if name in tables.TABLES else []
        lines = [line.strip("|").split("|") for line in body.splitlines()]
        return "; ".join(mine for row, own in zip(rows, lines) for cell, mine in zip(row, own) if not cell)

    text = tables._BLOCK.sub(own_cells, prose(page))
    for filled in (
        r"<!-- (?:results|options).*?<!-- end -->",
        r"`[^`\n]*`",
        r"\]\([^)\s]*\)",
        r"https?://\S+",
    ):
        text = re.sub(filled, " ", text, flags=re.S)
    return text


def span(values: Iterable[float], form: str) -> list[str]:
    """The least and the largest value."""
    found = list(values)
    return [format(min(found), form), format(max(found), form)]


def gain(recipe: str) -> list[str]:
    """How many times less CPU time than in PaddleVideo a clip of the recipe takes."""
    rows = load("paddlevideo")["rows"]
    return span((row["cpu_ratio"] for row in rows if row["recipe"] == recipe), ".1f")


def held() -> dict[str, list[str]]:
    """The numbers of our measurements in the text of each page, from the result files."""
    means = load("reader")["means"]
    from_decord2 = [
        means[clip][group]["ours"] / means[clip][group]["decord2"]
        for clip in means
        for group in ("as_is", "one_stream")
    ]
    from_decord = [1 / means["sparse-8"]["one_stream"][reader] for reader in ("ours", "ours, prepared")]

    without_nasa = [
        geometric_mean(clip["ratio"] for name, clip in row["clips"].items() if name != "nasa.mp4")
        for row in load("clips_per_video")["rows"]
        if row["kind"] == "video"
    ]

    curves = {name: row["curves"][0] for name, row in load("multigrid_causes")["rows"].items()}
    both = "40 to 20 pixels, both cycles, last stride 1"
    causes = [curves["56 and 28 pixels"][3], curves["56 and 28 pixels, last stride 1"][3]]
    causes += [curves["40 and 28 pixels"][-1], curves["40 and 28 pixels, last stride 1"][-1]]
    causes += [curves[f"{both}, rate in proportion to the batch"][-1], curves[f"{both}, one rate"][-1]]
    causes += [curves["56 and 40 pixels, SGD, rate in proportion to the batch"][-1]]
    causes += [curves["56 pixels, plain, SGD"][-1]]

    multigrid = [load(name)["rows"] for name in ("multigrid_training_56", "multigrid_training_28")]
    times = [mean(row["multigrid"]["train_sec"]) / mean(row["plain"]["train_sec"]) for row in multigrid]
    worse = [100 * mean(load("multigrid_training")["rows"][name]["top1"]) for name in ("multigrid", "plain")]

    threads = load("cpu")["networks"]["tsm_r50_8f"]
    one, two = (threads[number]["now"]["step"][0] for number in ("1", "2"))
    scale, copies = load("scale"), load("duplicates")
    quickstart = load("quickstart")["rows"]
    top1 = [100 * value for value in quickstart["TSM"]["values"]]
    minutes = span((sec / 60 for row in quickstart.values() for sec in row["wall_sec"]), ".0f")
    remote, faster = load("remote"), load("remote_90ms")
    prefetch = {row["side"]: row["ratio"] for row in faster["rows"]}
    frames = [row for row in load("frames_cache")["rows"] if row["later_ms"]]
    to_keep = [(row["with_ms"] - row["later_ms"]) * row["clips"] / 24 for row in frames]  # of 24 videos
    (half,) = (row["ratio"] for row in load("frames_cache")["rows"] if row["share"] < 1)
    on_gpu = load("onnx_gpu")["networks"]
    new_shape = on_gpu["X3D-M, 16×224²"]["new_shape_ms"].values()
    compared = {(name, how): value for name in on_gpu for how, value in on_gpu[name]["deviation"].items()}
    assert compared.pop(("TSM-R50, 8×224²", "CUDA, 16 bits")) is None
    whole_runs = [
        f"{row['cpu_ratio']:.2f}" for row in load("paddlevideo_runs")["rows"] if row["part"] == "training"
    ]
    return {
        "README": [
            *(*whole_runs, *minutes, f"{mean(top1):.0f}", *span(top1, ".0f")),
            *(f"{ratio:.1f}" for ratio in from_decord),
        ],
        "measurements": [
            *(f"{mib:,.0f}" for both in load("paddlevideo_runs")["mib"].values() for mib in both),
            *(f"{value:.0f}" for value in (remote["delay_ms"], remote["step_ms"], faster["step_ms"])),
            f"{prefetch['no prefetch']:.2f}",
            *(f"{share:.2f}" for share in from_decord2),
            *(f"{ratio:.1f}" for ratio in without_nasa),
            *(f"{100 * top1:.1f}" for _, top1 in causes),
            *(f"{scale['clips_per_sec']['one']:.2f}", f"{one:.2f}"),
            *span(to_keep, ".0f"),
            *(*span((row["later_ms"] for row in frames), ".1f"), f"{half:.1f}"),
            f"{100 * max(compared.values()):.1f}",
            *(
                f"{100 * copies['recall']:.1f}",
                f"{100 * copies['precision']:.0f}",
                f"{copies['read_ms']:.0f}",
            ),
        ],
        "model_zoo": [f"{load('networks')['rows']['tsm_small']['macs'] / 1e9:.2f}"],
        "fast_transformers": _fast_transformers(),
        "data_preparation": [f"{100 * copies[share]:.0f}" for share in ("recall", "precision")],
        "data_loading": [
            f"{row['gain']:.1f}" for row in load("clips_per_video")["several"] if row["number"] > 1
        ],
        "inference": [
            *(f"{ms / 1e3:.1f}" for ms in new_shape),
            f"{on_gpu['TSM-R50, 8×224²']['ms']['1']['CUDA']:.1f}",
        ],
        "multigrid": [*(f"{share:.2f}" for share in times), *(f"{value:.1f}" for value in worse)],
        "migrating": gain("tsm"),
        "performance": [f"{one / two:.2f}", f"{scale['speedup']:.1f}"],
        "quick_start": minutes,
    }


def _fast_transformers() -> list[str]:
    """Least and largest times of each side, and the points that are lost where it does not pay."""
    sets = tables.trained_transformers()
    times = [
        text
        for side in ("RLT", "multigrid", "both")
        for text in span((one[side]["ratio"] for one in sets.values()), ".2f")
    ]
    costly = (
        ("real, from nothing", "RLT"),
        ("real, from nothing", "multigrid"),
        ("mt, fine-tuned", "multigrid"),
    )
    lost = [sets[name]["plain"]["mean_top1"] - sets[name][side]["mean_top1"] for name, side in costly]
    return [*times, *(f"{100 * share:.0f}" for share in lost)]


@pytest.fixture(scope="module")
def results() -> dict[str, list[str]]:
    return held()


@pytest.mark.parametrize("name", sorted(PAGES))
def test_numbers_of_measurements_are_those_of_the_results(name, results):
    allowed = {number for pages in NOT_MEASURED.values() for number in pages.get(name, "").split()}
    ours = set(results.get(name, []))
    found = [measured(text_of(page)) for page in PAGES[name]]
    for page, numbers in zip(PAGES[name], found):
        assert ours - numbers == set(), f"{page}: the results have these, the page does not"
        assert numbers - ours - allowed == set(), f"{page}: measured? see held and NOT_MEASURED"
    assert allowed - set().union(*found) == set(), f"NOT_MEASURED: {name} does not have these any more"


@pytest.mark.parametrize("page", PAGES["README"], ids=lambda page: page.name)
def test_the_readme_has_the_dates_and_the_counts_of_the_results(page):
    names = ("paddlevideo_runs", "reader", "exactness")
    expected = [json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["date"] for name in names]
    sums = load("exactness")["sums"]
    expected += [f"{sum(sums[reader].values()):,}" for reader in ("decord", "cv2 sequence")]
    text = page.read_text(encoding="utf-8")
    assert [number for number in expected if number not in text] == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("takes 3 to 7 minutes, 1,200 MB and 2.5× less", "3 7 1,200 2.5"),
        ("top-1 is 91 %, in place of 0.88", "91 0.88"),
        ("快 4 倍，用时 12 至 20 秒", "4 12 20"),
        ("Paddle 2.6.2, clips of 8×224², arXiv 1910.00932, 8 videos", ""),
    ],
)
def test_what_looks_measured(text, numbers):
    assert measured(text) == set(numbers.split())

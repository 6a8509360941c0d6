"""Writes the tables and charts of README and documentation from benchmarks/results.

A table lies between `<!-- results: NAME -->` and `<!-- end -->` in a page of docs/en or docs/zh-CN; NAME is a
key of `TABLES`, or "recipes". The page has the table's heading and its words, in its own language;
the cells that a table here gives as "" are the page's own. A result file has the values that a benchmark
returned ("result"), how they were measured ("command", "environment") and when ("date", and "revision", the
commit that brought the numbers).
"""

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks import recipes
from benchmarks.chart import RECIPES, draw_learning, draw_speed
from benchmarks.measuring import ROOT, load
from benchmarks.reader_trials import REFUSED, REPLACED, RIGHT, WITHOUT_A_WORD
from paddlevideo_fast.config.zoo import read_zoo
from paddlevideo_fast.errors import PaddleVideoFastError

_BLOCK = re.compile(r"<!-- results: (\w+) -->\n\n?(\|.*\n)(\|-.*\n)((?:\|.*\n)*)\n?(?=<!-- end -->)")
_VIDEOS = ("mma_demo.mp4", "nasa.mp4", "pancake.mkv")

Rows = Sequence[Sequence[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are no options."""


def run() -> None:
    """Writes all pages and the charts."""
    for page in pages():
        page.write_text(updated(page), encoding="utf-8")
    draw_speed(ROOT / "docs" / "images" / "speed.png")
    draw_learning(ROOT / "docs" / "images" / "quickstart.png")


def pages() -> list[Path]:
    """The pages with a marked table."""
    found = [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").glob("*/*.md"))]
    return [page for page in found if "<!-- results: " in page.read_text(encoding="utf-8")]


def updated(page: Path) -> str:
    """The text of a page with the numbers of the results.

    Raises:
        PaddleVideoFastError: a table of the page has other rows or columns than the results.
    """

    def block(match: re.Match[str]) -> str:
        name, head, rule, body = match.groups()
        if name in TABLES:
            rows = TABLES[name]()
        elif name == "recipes":
            rows = recipes.table(page.parent.name)
        else:
            return match[0]  # tools/model_zoo.py writes it
        own = [line.strip("|\n").split("|") for line in body.splitlines()]
        if [len(row) for row in own] != [len(row) for row in rows]:
            raise PaddleVideoFastError(f"{page}: the table {name} has other rows or columns than the results")
        cells = [
            [_typeset(cell) if cell else mine.strip() for cell, mine in zip(*both)] for both in zip(rows, own)
        ]
        lines = [f"| {' | '.join(row)} |\n" for row in cells]
        return f"<!-- results: {name} -->\n\n{head}{rule}{''.join(lines)}\n"

    return _BLOCK.sub(block, page.read_text(encoding="utf-8"))


def _typeset(cell: str) -> str:
    """With minus signs, and a space before the per cent sign."""
    return re.sub(r"(?<=\d)%", " %", re.sub(r"(?<![\w)])-(?=\d)", "−", cell))


def _lines(result: str, *rows: Sequence[str]) -> Rows:
    """Rows of formats that take the values of a result."""
    found = load(result)
    return [[cell.format(**found) for cell in row] for row in rows]


def _each(result: str, *cells: str, key: str = "rows") -> Rows:
    """One row for each row of a result; the cells are formats that take its values."""
    found = load(result)[key]
    rows = found.values() if isinstance(found, dict) else found
    return [[cell.format(**row) for cell in cells] for row in rows]


def _networks(*, of_readme: bool = False) -> Rows:
    """The networks of built-in configs, with what others published for the config as it is."""
    published = {entry.name: entry.published for entry in read_zoo()}
    rows = []
    for name, row in load("networks")["rows"].items():
        frames, height, _ = row["clip"]
        best = next((result for result in published[name] if not result.options), None)
        sizes = [f"{row[key] / unit:.3g}" for key, unit in (("parameters", 1e6), ("macs", 1e9))]
        results = ["–", "–"]
        if best is not None:
            results = [f"{best.top1:.1f}%", best.views]
            if of_readme:  # a narrow column: its head has the unit
                results = [f"{best.top1:.1f}", f"`{best.converter}`"]
        if best is not None or not of_readme:
            rows.append(["", f"`{name}`", f"{frames}×{height}²", *sizes, *results])
    return rows


def _precision() -> Rows:
    formats = ("float32", "bfloat16 O1", "bfloat16 O2")
    rows = load("precision")["top1_percent"]
    rows.append({key: mean(row[key] for row in rows) for key in formats})
    return [
        ["", f"{row[formats[0]]:.2f}%"]
        + [f"{row[key]:.2f}% ({row[key] - row[formats[0]]:+.2f})" for key in formats[1:]]
        for row in rows
    ]


def _processes() -> Rows:
    threads = load("cpu")["networks"]["tsm_r50_8f"]
    gain = threads["1"]["now"]["step"][0] / threads["2"]["now"]["step"][0]
    cells = ["", "", "{speedup:.2f}×", "{speedup_spread[0]:.2f}×–{speedup_spread[1]:.2f}×"]
    return [*_lines("scale", cells), ["", "", f"{gain:.2f}×", ""]]


def _of_networks(result: Mapping[str, Any], cells: Callable[[Any], Iterable[str]]) -> Rows:
    """Rows of networks and numbers of threads."""
    return [
        ["", threads, *cells(sides)]
        for by_threads in result.values()
        for threads, sides in by_threads.items()
    ]


def _cpu_cells(sides: Any) -> list[str]:
    cells = []
    before, now, torch = (sides[side] for side in ("before", "now", "torch"))
    for what in ("step", "predict"):
        first, own, other = (side[what][0] for side in (before, now, torch))
        cells += [f"{first:.2f} s", f"{own:.2f} s, {own / other:.2f}×", f"{other:.2f} s"]
    return [*cells, ", ".join(f"{each['peak_mb']:.0f}" for each in (before, now, torch))]


def _runtime_cells(runtimes: Any) -> list[str]:
    return [
        "–" if "error" in each else f"{each['predict'][0]:.2f} s, {each['peak_mb']:.0f} MB"
        for each in runtimes.values()
    ]


_PROGRAMS = ("Paddle", "Paddle, oneDNN", "float ONNX", "int8 ONNX")


def _int8() -> Rows:
    return [
        [name, *(f"{row['ms'][program]:.0f} ms" if program in row["ms"] else "–" for program in _PROGRAMS)]
        + [f"{row['ratio']:.1f}×", f"{row['mb']['float ONNX']:.0f}, {row['mb']['int8 ONNX']:.0f}"]
        for name, row in load("int8")["networks"].items()
    ]


def _int8_trained() -> Rows:
    return [
        [
            "",
            *(f"{row['top1'][name]:.1%}" for name in row["top1"]),
            f"{row['videos']}",
            f"{row['float_layers']}",
        ]
        for row in load("int8")["trained"].values()
    ]


def _prediction() -> Rows:
    return [
        [name if number == 0 else "", "", f"{row['files_per_sec']:.1f}", f"{row['ratio']:.2f}×"]
        for name, sides in load("prediction")["networks"].items()
        for number, row in enumerate(sides.values())
    ]


def _wrong_labels() -> Rows:
    found = load("wrong_labels")
    return [
        [
            *(f"{found[name]:,}" for name in ("videos", "wrong", "suggested")),
            f"{found['wrong_in_tenth']} / {found['first_tenth']}",
            f"{found['found']} / {found['wrong']}",
        ]
    ]


def _serving() -> Rows:
    return [
        ["", f"{part['answers_per_sec']:.0f}", ", ".join(f"{sec:.2f} s" for sec in part["sec"])]
        + [
            f"{part['clips_of_batch']:.1f}",
            *(f"{part['statuses'].get(status, 0):,}" for status in ("200", "503")),
        ]
        + [str(part["other"]), "–".join(map(str, part["memory_mib"]))]
        for part in load("serving")["parts"].values()
    ]


def _cpu_operators() -> Rows:
    return [
        [name, f"{before:.1f} ms", f"{now:.1f} ms, {now / torch:.2f}×", f"{torch:.1f} ms"]
        for name, sides in load("cpu")["operators"].items()
        for before, now, torch in [(sides["before"], sides["now"], sides["torch"])]
    ]


def _decoders() -> Rows:
    found, exact = load("reader"), load("exactness")
    rows = []
    for reader in ("OpenCV", "decord", "decord2", "PyAV in sequence", "ours", "ours, prepared"):
        ratios = [
            f"{found['means'][pattern][group][reader]:.2f}"
            for pattern in ("sparse-8", "32x2")
            for group in ("as_is", "one_stream")
        ]
        tally = exact["sums"].get({"OpenCV": "cv2 sequence"}.get(reader, reader), {})
        wrong = " + ".join(f"{number:,}" for number in tally.values() if number) or "0" * bool(tally)
        rows.append(["", found["versions"][reader], *ratios, wrong])
    return rows


def _videos() -> Rows:
    cells: dict[Any, dict[str, Any]] = {}
    for row in load("reader")["rows"]:
        cells.setdefault((row["clip"], row["pattern"]), {})[row["reader"]] = row
    own = "{ms:.1f}|{ratio:.2f}|{spread[0]:.2f}–{spread[1]:.2f}"
    return [
        [clip, "", f"{readers['decord']['ms']:.1f}", *own.format(**readers["ours"]).split("|")]
        for (clip, _), readers in cells.items()
    ]


def _formats() -> Rows:
    rows = []
    for row in load("pipeline")["rows"] + load("pipeline_dense")["rows"]:
        videos = [row["clips"][name] for name in _VIDEOS]
        spreads = ["{:.2f}–{:.2f}".format(*video["spread"]) for video in videos if "spread" in video]
        ms = ", ".join(f"{video['ms']:.2f}" for video in videos)
        cells = [f"{row['bytes']:,}", RECIPES[row["recipe"]], ms, f"{row['ratio']:.2f}×"]
        rows.append(["", *cells, "; ".join(spreads)])
    return rows


def _clips_per_video() -> Rows:
    rows = []
    for row in load("clips_per_video")["several"]:
        medians = ", ".join(f"{row['gains'][name]['median']:.2f}" for name in _VIDEOS)
        cells = [RECIPES[row["recipe"]], str(row["number"]), medians]
        rows.append([*cells, f"{row['gain']:.2f}×", f"{row['mib']:.0f}"])
    return rows


def _frames_cache() -> Rows:
    rows = []
    for row in load("frames_cache")["rows"]:
        costs = [f"{row['without_ms']:.0f}", f"{row['with_ms']:.0f}", f"{row['ratio']:.2f}"]
        later = f"{row['later_ms']:.1f} ({row['later_ratio']:.2f})" if row["later_ms"] else "–"
        rows.append(["", str(row["key_distance"]), str(row["runs"]), *costs, later, f"{row['kept_mb']:.0f}"])
    return rows


def _clip_ratios(name: str, kind: str) -> list[str]:
    """How many times less CPU time a TSM clip and a SlowFast clip of this kind take than the classic way."""
    rows = {row["recipe"]: row["ratio"] for row in load(name)["rows"] if row["kind"] == kind}
    return [f"{rows[recipe]:.1f}×" for recipe in RECIPES]


def _presets() -> Rows:
    clips = {
        "original": _clip_ratios("pipeline", "video"),
        "sparse": _clip_ratios("pipeline", "prepared"),
        "dense": _clip_ratios("pipeline_dense", "prepared"),
    }
    return [
        ["", "", f"{row['bytes']:.3g}", f"{row['sparse-8']:.1f}×", f"{row['32x2']:.1f}×"]
        + clips.get(row["preset"], ["", ""])
        for row in load("presets")["rows"]
    ]


def _packed() -> Rows:
    sizes = {row["kind"]: row["bytes"] for row in load("pipeline")["rows"]}
    return [
        ["", *_clip_ratios("pipeline", kind), f"{sizes[kind] / sizes['classic']:.1f}"]
        for kind in ("classic", "video", "packed")
    ]


def _saving() -> Rows:
    found = load("saving")
    return [
        ["", f"{found['plain_sec']:.2f} s", "1"],
        ["", f"{found['background_sec']:.2f} s", f"{found['ratio']:.3f}"],
        ["", f"{found['first_sec']:.2f} s", f"{found['first_sec'] / found['plain_sec']:.3f}"],
    ]


def _live() -> Rows:
    found = load("live")
    return [
        [
            *("", f"{side['seconds']}", f"{side['num_frames']:,}", f"{side['num_windows']}"),
            *(f"{side['delay_sec'][0]:.2g}, {side['delay_sec'][1]:.2g}", f"{side['num_dropped']}"),
            "–".join(f"{memory:.0f}" for memory in side["memory_mb"]),
        ]
        for side in (found["fast"], found["slow"])
    ]


def _dali(result: str) -> Rows:
    cells: dict[Any, dict[str, Any]] = {}
    for row in load(result)["rows"]:
        cells.setdefault((row["recipe"], row["clip"], row["codec"].upper()), {})[row["side"]] = row
    rows = []
    for (recipe, clip, codec), sides in cells.items():
        ours = sides.pop("ours")
        (dali,) = sides.values()
        spans = ["{ms:.1f} ({spread[0]:.1f}–{spread[1]:.1f})".format(**row) for row in (ours, dali)]
        rows.append([RECIPES[recipe], f"{clip}, {codec}", *spans, f"{dali['ratio']:.2f}×"])
    return rows


def _onnx_gpu() -> Rows:
    return [
        [
            "",
            *(f"{row['ms'][batch][name]:.1f}" for batch in row["ms"] for name in row["ms"][batch]),
            *(f"{row['new_shape_ms'][search]:.0f}" for search in row["new_shape_ms"]),
        ]
        for row in load("onnx_gpu")["networks"].values()
    ]


def _top1(row: Mapping[str, Any]) -> list[str]:
    """The mean over seeds, and each seed."""
    values = [100 * value for value in row.get("values") or row["top1"]]
    return [f"{mean(values):.1f}%", ", ".join(f"{value:.1f}" for value in values)]


def _runs(result: str) -> Rows:
    return [["", *_top1(row)] for row in load(result)["rows"].values()]


def _few_videos(*results: str) -> Rows:
    """The same rows of several results beside each other."""
    found = [load(result)["rows"].values() for result in results]
    return [["", *(cell for row in rows for cell in _top1(row))] for rows in zip(*found, strict=True)]


def _multigrid(result: str) -> Rows:
    """Costs are relative to the plain runs with the same seeds."""
    rows = load(result)["rows"]
    return [
        [name, str(row["epochs"]), str(row["steps"]), *_top1(row)]
        + [
            f"{mean(row[cost]) / mean(rows['plain'][cost][: len(row[cost])]):.2f}"
            for cost in ("train_sec", "wall_sec", "cpu_sec")
        ]
        for name, row in rows.items()
    ]


def _causes() -> Rows:
    """Runs of one seed, a row each, with top-1 after each epoch."""
    return [
        [name, ", ".join(f"{100 * top1:.1f}" for _, top1 in row["curves"][0])]
        for name, row in load("multigrid_causes")["rows"].items()
    ]


_TRIED = ("ours", "ours, checked", "ours, nearest", "decord", "OpenCV", "torchcodec")


def _wrong(outcomes: Mapping[str, int]) -> str:
    return str(sum(outcomes[outcome] for outcome in WITHOUT_A_WORD))


def _reader_trials() -> Rows:
    """Outcomes of reading damaged files, by reader."""
    readers = load("reader_trials")["parts"]["damage"]["readers"]
    outcomes = (*WITHOUT_A_WORD, REFUSED, REPLACED, RIGHT)
    return [
        ["", _wrong(readers[name]), *(str(readers[name][outcome]) for outcome in outcomes)] for name in _TRIED
    ]


def _reader_trials_files() -> Rows:
    """Files that were read wrong without a word, by their ending and by reader."""
    parts = load("reader_trials")["parts"]
    groups = [parts["whole"]["readers"], *parts["damage"]["groups"].values()]
    return [["", *(_wrong(readers[name]) for name in _TRIED)] for readers in groups]


def _reader_sequences() -> Rows:
    """Outcomes of reading intact files forth and back, by reader."""
    groups = load("reader_sequences")["parts"]["sequences"]["groups"]
    rows = []
    for name in _TRIED:
        counts = [groups[group][name] for group in ("joined", "of one encode")]
        rows.append(["", *(cell for c in counts for cell in (_wrong(c), str(c[REFUSED]), str(c[RIGHT])))])
    return rows


def _explain() -> Rows:
    """Explanations of each network by each method."""
    return [
        ["", "", str(row["hits"]), f"{row['ratio']:.2f}", str(row["untrained_hits"])]
        + [f"{row['untrained_ratio']:.2f}", f"{row['sec']:.2f}"]
        for network in load("explain")["networks"].values()
        for row in (network["gradcam"], network["occlusion"])
    ]


_SPREAD = "{spread[0]:.2f}–{spread[1]:.2f}"
TABLES: Mapping[str, Callable[[], Rows]] = {
    "networks": _networks,
    "networks_of_readme": partial(_networks, of_readme=True),
    "quickstart": partial(_runs, "quickstart"),
    "multigrid": partial(_multigrid, "multigrid_training"),
    "multigrid_56": partial(_multigrid, "multigrid_training_56"),
    "multigrid_28": partial(_multigrid, "multigrid_training_28"),
    "multigrid_causes": _causes,
    "trainer": partial(
        _lines,
        "trainer",
        ["", "{bare_steps_per_sec:.2f}", "", ""],
        ["", "{trainer_steps_per_sec:.2f}", "{cost:+.2%}", "{cost_spread[0]:+.1%} … {cost_spread[1]:+.1%}"],
    ),
    "saving": _saving,
    "live": _live,
    "remote": partial(
        _each,
        "remote",
        *("{workers}", "", "{clips_per_sec:.0f}", "{spread[0]:.0f}–{spread[1]:.0f}", "{ratio:.2f}"),
        *("{mb_fetched:.0f}", "{num_requests:.0f}"),
    ),
    "features": partial(
        _each, "features", "", "{network_sec:.2f} s", "{features_sec:.4f} s", "{ratio:.0f}×", key="networks"
    ),
    "shift": partial(_each, "shift", "", "", "", "{ms:.4g}", "{speedup:.1f}×", "{mib:.4g}"),
    "precision": _precision,
    "cpu": lambda: _of_networks(load("cpu")["networks"], _cpu_cells),
    "cpu_runtimes": lambda: _of_networks(load("cpu_runtimes"), _runtime_cells),
    "cpu_operators": _cpu_operators,
    "int8": _int8,
    "int8_trained": _int8_trained,
    "prediction": _prediction,
    "serving": _serving,
    "wrong_labels": _wrong_labels,
    "processes": _processes,
    "paddlevideo": partial(_each, "paddlevideo", "", "{clip}", "{cpu_ratio:.1f}×", "{wall_ratio:.1f}×"),
    "decoders": _decoders,
    "videos": _videos,
    "formats": _formats,
    "duplicates": partial(_each, "duplicates", "", "{copies}", "{found}", key="kinds"),
    "duplicates_lists": partial(
        _each,
        "duplicates",
        *("{videos:,}", "{cpu_sec:.1f} s", "{recall:.1%}", "{wrong}", "{memory_mib:.0f} MiB"),
        key="lists",
    ),
    "explain": _explain,
    "fine_tuning": partial(_each, "fine_tuning", "", "{memory_mib:.0f}"),
    "imbalance": partial(_runs, "imbalance"),
    "several_labels": partial(_runs, "several_labels"),
    "clips_per_video": _clips_per_video,
    "frames_cache": _frames_cache,
    "clips_per_video_training": partial(_runs, "clips_per_video_training"),
    "few_videos": partial(_few_videos, "few_videos_5", "few_videos_20"),
    "lora": partial(_each, "lora", "", "{memory_mib:.0f}", "{ratio:.2f}×"),
    "distillation": partial(_few_videos, "distillation_5", "distillation_20"),
    "presets": _presets,
    "packed": _packed,
    "loader": partial(
        _each,
        "loader",
        *("", "{workers}", "", "{batches_per_sec:.2f}", _SPREAD, "{ratio:.2f}×", "{cpu_ms:.1f}"),
        "{cpu_ratio:.2f}×",
    ),
    "dali": partial(_dali, "dali"),
    "dali_gpu": partial(_dali, "dali_gpu"),
    "onnx_gpu": _onnx_gpu,
    "reader_sequences": _reader_sequences,
    "reader_trials": _reader_trials,
    "reader_trials_files": _reader_trials_files,
}

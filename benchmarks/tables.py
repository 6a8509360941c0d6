"""Writes the tables and charts of README and documentation from benchmarks/results.

A table lies between `<!-- results: NAME -->` and `<!-- end -->` in a page of docs/en or docs/zh-CN, or in
benchmarks/README.md; NAME is a key of `TABLES`. The page has the table's heading and its words, in its own
language; the cells that a table here gives as "" are the page's own. A result file has the values that a
benchmark returned ("result"), how they were measured ("command", "environment") and when ("date", and
"revision", the commit that brought the numbers).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.claims import CLAIMS
from benchmarks.measuring import ROOT, load
from paddlevideo_fast.apps.zoo.zoo import read_zoo
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.extensions.report import picture
from tests.support.judged_readers import REFUSED, REPLACED, RIGHT, WITHOUT_A_WORD

_BLOCK = re.compile(r"<!-- results: (\w+) -->\n\n?(\|.*\n)(\|-.*\n)((?:\|.*\n)*)\n?(?=<!-- end -->)")
RECIPES = {"tsm": "TSM", "slowfast": "SlowFast"}
_CLIPS = {"mma_demo": "mma_demo\n340×256", "pancake": "pancake\n426×240", "nasa": "nasa*\n320×180"}
_FILES = {"mma_demo.mp4": "mma_demo", "pancake.mkv": "pancake", "nasa (stream 1).mp4": "nasa"}
MEASUREMENTS = ROOT / "benchmarks" / "README.md"
_VIDEOS = ("mma_demo.mp4", "nasa.mp4", "pancake.mkv")

Rows = Sequence[Sequence[str]]
Table = Callable[[], Rows]


def run() -> None:
    """Writes all pages and the charts."""
    for page in pages():
        page.write_text(updated(page), encoding="utf-8")
    draw_speed(ROOT / "docs" / "images" / "speed.png")
    draw_learning(ROOT / "docs" / "images" / "quickstart.png")


def pages() -> list[Path]:
    """The pages with a marked table."""
    found = [
        path
        for where in ("README*.md", "benchmarks/README.md", "docs/*/*.md", "configs/*/README*.md")
        for path in sorted(ROOT.glob(where))
    ]
    return [page for page in found if "<!-- results: " in page.read_text(encoding="utf-8")]


def updated(page: Path, tables: Mapping[str, Table] | None = None) -> str:
    """The text of a page with the numbers of the results.

    Args:
        page: in Markdown.
        tables: the rows of each; by default, `TABLES`.

    Raises:
        PaddleVideoFastError: a table of the page has other rows or columns than the results.
    """

    def block(match: re.Match[str]) -> str:
        name, head, rule, body = match.groups()
        table = (tables or TABLES).get(name)
        if table is None:
            return match[0]  # tools/model_zoo.py writes it
        rows = table()
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


def _cells(line: str, row: Any) -> list[str]:
    """The cells of a line of a table, whose formats take the values of a row."""
    return [cell.strip().format(**row) for cell in line.removeprefix("|").split("|")]


def _each(result: str, cells: str | Callable[[Any], Sequence[str]], key: str = "rows") -> Table:
    """A line for each row of a result, by `_cells` or by a function; rows of a mapping have their "name"."""

    def rows() -> Rows:
        found = load(result)[key]
        rows = [{"name": name, **row} for name, row in found.items()] if isinstance(found, dict) else found
        return [_cells(cells, row) if isinstance(cells, str) else cells(row) for row in rows]

    return rows


def _span(values: Sequence[float], form: str = ".2f") -> str:
    return "–".join(format(value, form) for value in values)


def trained_transformers() -> dict[str, Any]:
    """The trainings of the benchmark fast_transformers, motions fine-tuned from a source of a later run."""
    return {**load("fast_transformers")["trained"], **load("fast_transformers_tuned")["trained"]}


def _claims(topic: str) -> Rows:
    """The numbers of the page of claims; the claims, the baselines and the commands are the page's own."""
    return [["", number, "", ""] for number in CLAIMS[topic]()]


def _fast_transformers() -> Rows:
    """For each set and side: the top-1 of the seeds, their mean, and the shares of time and tokens."""
    rows = []
    for sides in trained_transformers().values():
        for row in sides.values():
            top1 = ", ".join(f"{100 * value:.0f}" for value in row["top1"])
            shares = [f"{row['ratio']:.2f}", f"{row['token_ratio']:.2f}"]
            rows.append(["", "", top1, f"{100 * row['mean_top1']:.0f}", *shares])
    return rows


_OF_README = (
    *("tsn_k400_videos", "tsm_k400_videos", "pptsm_lcnet_k400_8frames_uniform", "movinet_k400_frame"),
    *("x3d_m", "slowfast_8x8", "mvitv2_s_16x4", "videoswin_base_k400_videos", "videomae_vit_b_k400_videos"),
    "hiera_bplus_16x4",
)


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
                results = [f"{best.top1:.1f}"]
        if name in _OF_README or not of_readme:
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


def _trainer() -> Rows:
    found = load("trainer")
    spread = " … ".join(f"{cost:+.1%}" for cost in found["cost_spread"])
    own = [f"{found['trainer_steps_per_sec']:.2f}", f"{found['cost']:+.2%}", spread]
    return [["", f"{found['bare_steps_per_sec']:.2f}", "", ""], ["", *own]]


def _processes() -> Rows:
    found, threads = load("scale"), load("cpu")["networks"]["tsm_r50_8f"]
    spread = "–".join(f"{speedup:.2f}×" for speedup in found["speedup_spread"])
    gain = threads["1"]["now"]["step"][0] / threads["2"]["now"]["step"][0]
    return [["", "", f"{found['speedup']:.2f}×", spread], ["", "", f"{gain:.2f}×", ""]]


def _of_networks(result: str, cells: Callable[[Any], Iterable[str]]) -> Table:
    """Rows of networks and numbers of threads."""
    return lambda: [
        ["", threads, *cells(sides)]
        for by_threads in load(result)["networks"].values()
        for threads, sides in by_threads.items()
    ]


def _cpu_cells(sides: Any) -> list[str]:
    cells = []
    now, torch = sides["now"], sides["torch"]
    for what in ("step", "predict"):
        own, other = now[what][0], torch[what][0]
        cells += [f"{own:.2f} s, {own / other:.2f}×", f"{other:.2f} s"]
    return [*cells, f"{now['peak_mb']:.0f}, {torch['peak_mb']:.0f}"]


def _runtime_cells(runtimes: Any) -> list[str]:
    return [
        "–" if "error" in each else f"{each['predict'][0]:.2f} s, {each['peak_mb']:.0f} MB"
        for each in runtimes.values()
    ]


def _operator_cells(row: Any) -> list[str]:
    return _cells(f"{{name}} | {{now:.1f}} ms, {row['now'] / row['torch']:.2f}× | {{torch:.1f}} ms", row)


def _int8_cells(row: Any) -> list[str]:
    programs = ("Paddle", "Paddle, oneDNN", "float ONNX", "int8 ONNX")
    times = [f"{row['ms'][program]:.0f} ms" if program in row["ms"] else "–" for program in programs]
    return [row["name"], *times, *_cells("{ratio:.1f}× | {mb[float ONNX]:.0f}, {mb[int8 ONNX]:.0f}", row)]


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


def _crops() -> Rows:
    rows = [row for result in ("reader_crops", "reader_crops_1080p") for row in load(result)["rows"]]
    cells = {(row["clip"], row["pattern"], row["reader"]): row for row in rows}
    wrong = {key[:2]: row["wrong"] for key, row in cells.items() if key[2] == "decord"}
    return [
        [
            clip,
            "",
            *(
                f"{cells[clip, pattern, one]['ratio']:.2f}" if (clip, pattern, one) in cells else ""
                for one in ("OpenCV", "paddlecodec", "ours")
            ),
            _span(row["spread"]),
            f"{wrong[clip, pattern]} / {row['frames']}",
        ]
        for (clip, pattern, reader), row in cells.items()
        if reader == "ours"
    ]


def _videos() -> Rows:
    rows = load("reader")["rows"]
    decord = {(row["clip"], row["pattern"]): f"{row['ms']:.1f}" for row in rows if row["reader"] == "decord"}
    return [
        [row["clip"], "", decord[row["clip"], row["pattern"]]]
        + [f"{row['ms']:.1f}", f"{row['ratio']:.2f}", _span(row["spread"])]
        for row in rows
        if row["reader"] == "ours"
    ]


def _format_cells(row: Any) -> list[str]:
    videos = [row["clips"][name] for name in _VIDEOS]
    spreads = "; ".join(_span(video["spread"]) for video in videos if "spread" in video)
    ms = ", ".join(f"{video['ms']:.2f}" for video in videos)
    return ["", f"{row['bytes']:,}", RECIPES[row["recipe"]], ms, f"{row['ratio']:.2f}×", spreads]


def _clips_per_video_cells(row: Any) -> list[str]:
    medians = ", ".join(f"{row['gains'][name]['median']:.2f}" for name in _VIDEOS)
    return [RECIPES[row["recipe"]], *_cells(f"{{number}} | {medians} | {{gain:.2f}}× | {{mib:.0f}}", row)]


def _frames_cache_cells(row: Any) -> list[str]:
    later = "{later_ms:.1f} ({later_ratio:.2f})" if row["later_ms"] else "–"
    line = "{key_distance} | {runs} | {without_ms:.0f} | {with_ms:.0f} | {ratio:.2f}"
    return ["", *_cells(f"{line} | {later} | {{kept_mb:.0f}}", row)]


def _clip_ratios(name: str, kind: str) -> list[str]:
    """How many times less CPU time a TSM clip and a SlowFast clip of this kind take than the classic way."""
    rows = {row["recipe"]: row["ratio"] for row in load(name)["rows"] if row["kind"] == kind}
    return [f"{rows[recipe]:.1f}×" for recipe in RECIPES]


def _preset_cells(row: Any) -> list[str]:
    kinds = {"original": "video", "sparse": "prepared", "dense": "prepared"}
    result = "pipeline_dense" if row["preset"] == "dense" else "pipeline"
    clips = _clip_ratios(result, kinds[row["preset"]]) if row["preset"] in kinds else ["", ""]
    return ["", "", *_cells("{bytes:.3g} | {sparse-8:.1f}× | {32x2:.1f}×", row), *clips]


def _packed() -> Rows:
    sizes = {row["kind"]: row["bytes"] for row in load("pipeline")["rows"]}
    return [
        ["", *_clip_ratios("pipeline", kind), f"{sizes[kind] / sizes['classic']:.1f}"]
        for kind in ("classic", "video", "packed")
    ]


def _saving() -> Rows:
    found = load("saving")
    shares = {"plain": "1", "background": f"{found['ratio']:.3f}"}
    shares["first"] = f"{found['first_sec'] / found['plain_sec']:.3f}"
    return [["", f"{found[f'{kind}_sec']:.2f} s", share] for kind, share in shares.items()]


def _live() -> Rows:
    line = "| | {seconds} | {num_frames:,} | {num_windows} | {delay_sec[0]:.2g}, {delay_sec[1]:.2g}"
    line += " | {num_dropped} | {memory_mb[0]:.0f}–{memory_mb[1]:.0f}"
    return [_cells(line, load("live")[side]) for side in ("fast", "slow")]


def _windows_cells(row: Any) -> list[str]:
    least_sec = row["cpu_sec"] / load("windows")["cores"]
    return _cells(
        f"| | | {{windows:.0f}} | {{sec:.0f}} s | {{spread[0]:.0f}}–{{spread[1]:.0f}} s | {least_sec:.0f} s"
        " | {ratio:.2f}×",
        row,
    )


def _dali(result: str) -> Rows:
    found, rows = load(result)["rows"], []
    for ours, dali in zip(found[::2], found[1::2]):
        spans = ["{ms:.1f} ({spread[0]:.1f}–{spread[1]:.1f})".format(**row) for row in (ours, dali)]
        video = f"{dali['clip']}, {dali['codec'].upper()}"
        rows.append([RECIPES[dali["recipe"]], video, *spans, f"{dali['ratio']:.2f}×"])
    return rows


def _onnx_gpu_cells(row: Any) -> list[str]:
    times = [f"{ms:.1f}" for by_program in row["ms"].values() for ms in by_program.values()]
    return ["", *times, *(f"{ms:.0f}" for ms in row["new_shape_ms"].values())]


def _top1(row: Mapping[str, Any]) -> list[str]:
    """The mean over seeds, and each seed."""
    values = [100 * value for value in row.get("values") or row["top1"]]
    return [f"{mean(values):.1f}%", ", ".join(f"{value:.1f}" for value in values)]


def _runs(*results: str) -> Table:
    """Top-1 of the rows of a result; the same rows of several results stand beside each other."""

    def rows() -> Rows:
        found = [load(result)["rows"].values() for result in results]
        return [["", *(cell for row in rows for cell in _top1(row))] for rows in zip(*found, strict=True)]

    return rows


def _multigrid(result: str) -> Table:
    """Costs are relative to the plain runs with the same seeds."""

    def cells(row: Any) -> list[str]:
        plain = load(result)["rows"]["plain"]
        costs = ((row[cost], plain[cost]) for cost in ("train_sec", "wall_sec", "cpu_sec"))
        shares = [f"{mean(own) / mean(baseline[: len(own)]):.2f}" for own, baseline in costs]
        return [*_cells("{name} | {epochs} | {steps}", row), *_top1(row), *shares]

    return _each(result, cells)


def _cause_cells(row: Any) -> list[str]:
    """Of a run of one seed, with top-1 after each epoch."""
    return [row["name"], ", ".join(f"{100 * top1:.1f}" for _, top1 in row["curves"][0])]


_TRIED = ("ours", "ours, checked", "ours, nearest", "decord", "OpenCV", "torchcodec")


def _wrong(outcomes: Mapping[str, int]) -> str:
    return str(sum(outcomes[outcome] for outcome in WITHOUT_A_WORD))


def _reader_trials() -> Rows:
    """Outcomes of reading damaged files, by reader."""
    readers = load("reader_trials")["parts"]["damage"]["readers"]
    outcomes = (*WITHOUT_A_WORD, REFUSED, REPLACED, RIGHT)
    found = [readers[name] for name in _TRIED]
    return [["", _wrong(one), *(str(one[outcome]) for outcome in outcomes)] for one in found]


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
    line = "| | | {hits} | {ratio:.2f} | {untrained_hits} | {untrained_ratio:.2f} | {sec:.2f}"
    networks = load("explain")["networks"].values()
    return [_cells(line, network[way]) for network in networks for way in ("gradcam", "occlusion")]


TABLES: Mapping[str, Table] = {
    "networks": _networks,
    "networks_of_readme": partial(_networks, of_readme=True),
    **{f"claims_{topic}": partial(_claims, topic) for topic in CLAIMS},
    "quickstart": _runs("quickstart"),
    "multigrid": _multigrid("multigrid_training"),
    "multigrid_56": _multigrid("multigrid_training_56"),
    "multigrid_28": _multigrid("multigrid_training_28"),
    "multigrid_causes": _each("multigrid_causes", _cause_cells),
    "trainer": _trainer,
    "saving": _saving,
    "live": _live,
    "windows": _each("windows", _windows_cells),
    "remote": _each(
        "remote",
        "{workers} | | {clips_per_sec:.0f} | {spread[0]:.0f}–{spread[1]:.0f} | {ratio:.2f}"
        " | {mb_fetched:.0f} | {num_requests:.0f}",
    ),
    "features": _each(
        "features", "| | {network_sec:.2f} s | {features_sec:.4f} s | {ratio:.0f}×", "networks"
    ),
    "shift": _each("shift", "| | | | {ms:.4g} | {speedup:.1f}× | {mib:.4g}"),
    "precision": _precision,
    "cpu": _of_networks("cpu", _cpu_cells),
    "cpu_runtimes": _of_networks("cpu_runtimes", _runtime_cells),
    "cpu_runtimes_torch": _of_networks("cpu_runtimes_torch", _runtime_cells),
    "cpu_operators": _each("cpu", _operator_cells, "operators"),
    "int8": _each("int8", _int8_cells, "networks"),
    "int8_trained": _each(
        "int8",
        "| | {top1[Paddle]:.1%} | {top1[float ONNX]:.1%} | {top1[int8 ONNX]:.1%} | {videos} | {float_layers}",
        "trained",
    ),
    "processes": _processes,
    "paddlevideo": _each("paddlevideo", "| | {clip} | {cpu_ratio:.1f}× | {wall_ratio:.1f}×"),
    **{
        name: _each(
            name, "| | | {cpu_sec[0]:.1f} s | {cpu_sec[1]:.1f} s | {cpu_ratio:.2f} | {wall_ratio:.2f}"
        )
        for name in ("paddlevideo_runs", "paddlevideo_runs_defaults")
    },
    "decoders": _decoders,
    "videos": _videos,
    "crops": _crops,
    "formats": lambda: [
        row for result in ("pipeline", "pipeline_dense") for row in _each(result, _format_cells)()
    ],
    "duplicates": _each("duplicates", "| | {copies} | {found}", "kinds"),
    "explain": _explain,
    "fine_tuning": _each("fine_tuning", "| | {memory_mib:.0f}"),
    "imbalance": _runs("imbalance"),
    "several_labels": _runs("several_labels"),
    "clips_per_video": _each("clips_per_video", _clips_per_video_cells, "several"),
    "frames_cache": _each("frames_cache", _frames_cache_cells),
    "clips_per_video_training": _runs("clips_per_video_training"),
    "few_videos": _runs("few_videos_5", "few_videos_20"),
    "first_training": _runs("first_training_people", "first_training_videos", "first_training_motion"),
    "run_length_steps": _each(
        "fast_transformers",
        "| | {step_ms[plain]:.0f} | {step_ms[RLT]:.0f} | {ratio:.2f}× | {tokens:.0%}",
        "timed",
    ),
    "fast_transformers": _fast_transformers,
    "token_merging": _each("token_merging_vit_s", "| | {ms:.0f} | {ratio:.2f}×"),
    "lora": _each("lora", "| | {memory_mib:.0f} | {ratio:.2f}×"),
    "distillation": _runs("distillation_5", "distillation_20"),
    "presets": _each("presets", _preset_cells),
    "packed": _packed,
    "loader": _each(
        "loader",
        "| | {workers} | | {batches_per_sec:.2f} | {spread[0]:.2f}–{spread[1]:.2f} | {ratio:.2f}×"
        " | {cpu_ms:.1f} | {cpu_ratio:.2f}×",
    ),
    "dali": partial(_dali, "dali"),
    "dali_gpu": partial(_dali, "dali_gpu"),
    "onnx_gpu": _each("onnx_gpu", _onnx_gpu_cells, "networks"),
    "reader_sequences": _reader_sequences,
    "reader_trials": _reader_trials,
    "reader_trials_files": _reader_trials_files,
}


def draw_speed(path: Path) -> None:
    """Draws the CPU time of training clips and of reading frames, with PaddleVideo, decord and this toolkit.

    Raises:
        PaddleVideoFastError: the file cannot be written.
    """
    with picture(path, 1, 3, figsize=(11, 3.7)) as (figure, axes):
        for axis, (recipe, name) in zip(axes, RECIPES.items()):
            rows = {row["clip"]: row for row in load("paddlevideo")["rows"] if row["recipe"] == recipe}
            series = {
                "PaddleVideo": [rows[clip]["paddlevideo_ms"] for clip in _CLIPS],
                "paddlevideo_fast": [rows[clip]["ms"] for clip in _CLIPS],
            }
            _draw_bars(axis, series)
            axis.set_title(f"A {name} training clip", fontsize=11)
        reading: dict[str, dict[str, float]] = {"decord": {}, "paddlevideo_fast": {}}
        for row in load("reader")["rows"]:
            if row["pattern"] == "sparse-8" and row["clip"] in _FILES:
                reader = "decord" if row["reader"] == "decord" else "paddlevideo_fast"
                reading[reader][_FILES[row["clip"]]] = row["ms"]
        _draw_bars(axes[2], {name: [ms[clip] for clip in _CLIPS] for name, ms in reading.items()})
        axes[2].set_title("Reading 8 frames of a video", fontsize=11)
        axes[0].set_ylabel("CPU time in ms, less is better", fontsize=10)
        note = "* nasa.mp4 holds two video streams; its first one is measured, in a file of its own."
        figure.supxlabel(note, fontsize=8, x=0.01, ha="left", color="0.3")


def draw_learning(path: Path) -> None:
    """Draws the validation top-1 of the quick start's two configs after each epoch, of three seeds each.

    Raises:
        PaddleVideoFastError: the file cannot be written.
    """
    with picture(path, figsize=(6, 3.4)) as (_, axis):
        for name, row in load("quickstart")["rows"].items():
            epochs = range(1, row["epochs"] + 1)
            top1 = [[value for _, value in epoch] for epoch in zip(*row["curves"])]
            (line,) = axis.plot(epochs, [sum(values) / len(values) for values in top1], "o-", label=name)
            axis.fill_between(
                epochs, list(map(min, top1)), list(map(max, top1)), color=line.get_color(), alpha=0.2
            )
        axis.axhline(1 / 8, color="0.5", linestyle="--", linewidth=1, label="chance")
        axis.set(xlabel="epoch", ylabel="validation top-1", xticks=epochs, ylim=(0, 1))
        axis.grid(alpha=0.3)
        axis.legend()


def _draw_bars(axis: Any, series: Mapping[str, Sequence[float]]) -> None:
    """Draws a group of bars with their values for each clip."""
    width = 0.8 / len(series)
    for number, (label, values) in enumerate(series.items()):
        positions = [position + (number - (len(series) - 1) / 2) * width for position in range(len(_CLIPS))]
        color = "C2" if label == "paddlevideo_fast" else "0.6"
        bars = axis.bar(positions, values, 0.95 * width, label=label, color=color)
        axis.bar_label(bars, [f"{value:.0f}" for value in values], padding=2, fontsize=10)
    axis.set_xticks(range(len(_CLIPS)), list(_CLIPS.values()), fontsize=10)
    axis.margins(y=0.15)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=9, frameon=False)

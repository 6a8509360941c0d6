"""The numbers of docs/en/benchmarks.md, from benchmarks/results: one for each line of its tables.

Where a number is not a ratio, the baseline's number follows in brackets.
"""

from collections.abc import Iterable
from statistics import mean
from typing import Any

from benchmarks.measuring import load
from benchmarks.reader_trials import WITHOUT_A_WORD


def span(values: Iterable[float], form: str, unit: str = "") -> str:
    """The least and the largest value; one number if both are written alike."""
    ordered = sorted(values)
    return "–".join(dict.fromkeys(format(value, form) for value in (ordered[0], ordered[-1]))) + unit


def rows_of(result: str, key: str = "rows", **wanted: Any) -> list[Any]:
    """The rows of a result that have these values."""
    rows = load(result)[key]
    rows = rows.values() if isinstance(rows, dict) else rows
    return [row for row in rows if all(row[column] == value for column, value in wanted.items())]


def recipes(result: str, field: str, key: str = "rows", **wanted: Any) -> str:
    """A ratio of TSM's clips and of SlowFast's."""
    tsm, slowfast = (rows_of(result, key, recipe=recipe, **wanted) for recipe in ("tsm", "slowfast"))
    return ", ".join(
        f"{name} {span((row[field] for row in rows), '.1f', '×')}"
        for name, rows in (("TSM", tsm), ("SlowFast", slowfast))
    )


def top1(result: str, *names: str) -> str:
    """Top-1 of a row, the mean over its seeds; in brackets the same of its baseline."""
    rows = [load(result)["rows"][name] for name in names]
    own, baseline = (mean(row["values"] if "values" in row else row["top1"]) for row in rows)
    return f"{own:.1%} ({baseline:.1%})"


def multigrid(result: str) -> str:
    """The share of the time of training, then top-1."""
    own, plain = (mean(load(result)["rows"][name]["train_sec"]) for name in ("multigrid", "plain"))
    return f"{own / plain:.2f}×; {top1(result, 'multigrid', 'plain')}"


def against_decord(reader: str) -> str:
    """For 8 frames spread over a video, and for 32 frames two apart."""
    means = load("reader")["means"].values()
    return ", ".join(f"{1 / groups['one_stream'][reader]:.1f}×" for groups in means)


def against_pytorch(what: str, threads: str) -> str:
    """The time of a step or of a prediction, over all networks."""
    sides = [network[threads] for network in load("cpu")["networks"].values()]
    return span((side["now"][what][0] / side["torch"][what][0] for side in sides), ".2f", "×")


def wrong_files(groups: Iterable[dict[str, dict[str, int]]]) -> str:
    """Files that our reader, decord, OpenCV and torchcodec read wrong without an error."""
    groups = list(groups)
    ours, *others = (
        sum(group[reader][outcome] for group in groups for outcome in WITHOUT_A_WORD)
        for reader in ("ours", "decord", "OpenCV", "torchcodec")
    )
    return f"{ours} ({', '.join(f'{number:,}' for number in others)})"


def reading() -> list[str]:
    """Ratios of the CPU time or of clips a second."""
    caches = [rows_of("frames_cache", runs=4, key_distance=distance) for distance in (250, 12)]
    prefetched, fetched = (
        rows_of("remote", workers=0, side=side)[0]["ratio"] for side in ("prefetch", "no prefetch")
    )
    return [
        recipes("paddlevideo", "cpu_ratio"),
        against_decord("ours"),
        against_decord("ours, prepared"),
        *(recipes("pipeline", "ratio", kind=kind) for kind in ("video", "prepared", "packed")),
        *(recipes("clips_per_video", "gain", "several", number=number) for number in (2, 4)),
        *(span((row["ratio"] for row in rows), ".2f", "×") for rows in caches),
        span((row["ratio"] for row in rows_of("loader", source="read", side="uint8")), ".1f", "×"),
        f"{prefetched:.2f}× ({fetched:.2f}×)",
        span((row["ratio"] for row in rows_of("dali", side="DALI on CPU")), ".2f", "×"),
        span((row["ratio"] for row in rows_of("dali_gpu", side="DALI on GPU")), ".2f", "×"),
    ]


def exactness() -> list[str]:
    """Numbers of frames, files or copies."""
    wrong = {reader: sum(counts.values()) for reader, counts in load("exactness")["sums"].items()}
    trials, kills, copies = load("reader_trials")["parts"], load("saving")["kills"], load("duplicates")
    sequences = load("reader_sequences")["parts"]["sequences"]
    shown = [network["gradcam"] for network in rows_of("explain", "networks")]
    found, untrained = (span((row[key] for row in shown), "d") for key in ("hits", "untrained_hits"))
    return [
        f"{wrong['ours']} ({wrong['decord']:,}, {wrong['cv2 sequence']:,})",
        wrong_files([trials["whole"]["readers"]]),
        wrong_files(sequences["groups"].values()),
        wrong_files([trials["damage"]["readers"]]),
        f"{kills['whole']} / {kills['checkpoints']}",
        f"{copies['recall']:.1%}, {copies['precision']:.0%}",
        f"{found} ({untrained})",
    ]


def training() -> list[str]:
    """Costs and gains of a training; below 1, the time is less."""
    saving, precision = load("saving"), load("precision")["top1_percent"]
    one, two = (load("cpu")["networks"]["tsm_r50_8f"][threads]["now"]["step"][0] for threads in "12")
    shift = rows_of("shift", side="ours", **{"pass": "forward+backward"})
    parts = {(row["network"], row["part"]): f"{row['cpu_ratio']:.2f}×" for row in rows_of("paddlevideo_runs")}
    half, full = (mean(row[kind] for row in precision) for kind in ("bfloat16 O1", "float32"))
    return [
        f"TSM {parts['tsm', 'step']}, SlowFast {parts['slowfast', 'step']}",
        parts["tsm", "test"],
        f"{load('trainer')['cost']:+.2%}",
        f"{saving['background_sec']:.2f} s ({saving['plain_sec']:.2f} s)",
        f"{load('scale')['speedup']:.2f}×",
        f"{one / two:.2f}×",
        *(against_pytorch("step", threads) for threads in "12"),
        span((row["speedup"] for row in shift), ".1f", "×"),
        f"{half:.2f}% ({full:.2f}%)",
        *(multigrid(f"multigrid_training{size}") for size in ("_56", "_28", "")),
    ]


def transformers() -> list[str]:
    """Gains; or the share of the time, then the points of top-1 of each set."""
    trained = {**load("fast_transformers")["trained"], **load("fast_transformers_tuned")["trained"]}.values()
    lines = []
    for side in ("RLT", "multigrid", "both"):
        points = [100 * (sides[side]["mean_top1"] - sides["plain"]["mean_top1"]) for sides in trained]
        share = span((sides[side]["ratio"] for sides in trained), ".2f", "×")
        lines.append(f"{share}; {', '.join(f'{point:+.0f}' for point in points)}")
    return [
        span((row["ratio"] for row in rows_of("fast_transformers", "timed")), ".2f", "×"),
        *lines,
        f"{load('token_merging_vit_s')['rows']['128']['ratio']:.2f}×",
    ]


def accuracy() -> list[str]:
    """Top-1; in brackets top-1 of the baseline."""
    weights = ("ImageNet weights, tsm_lite0", "random weights, tsm_lite0")
    return [
        top1("quickstart", "TSM", "TSN"),
        *(top1(f"first_training_{data}", *weights) for data in ("people", "videos", "motion")),
        top1("few_videos_20", "fine-tuned", "from scratch"),
        top1("distillation_20", "student with teacher", "student alone"),
        top1("imbalance", "sampler: balanced", "plain"),
        top1("clips_per_video_training", "K=2", "K=1"),
    ]


def prediction() -> list[str]:
    """Ratios of times, points of top-1, times of a clip."""
    runtimes = [network["2"] for network in rows_of("cpu_runtimes", "networks")]
    onnx = [one["network"]["predict"][0] / one["onnxruntime"]["predict"][0] for one in runtimes]
    int8 = [row["top1"]["int8 ONNX"] - row["top1"]["float ONNX"] for row in rows_of("int8", "trained")]
    on_gpu = [network["ms"]["1"] for network in rows_of("onnx_gpu", "networks")]
    cuda, cpu = (span((ms[side] for ms in on_gpu), ".1f", " ms") for side in ("CUDA", "CPU"))
    live = load("live")["fast"]
    return [
        span(onnx, ".2f", "×"),
        *(against_pytorch("predict", threads) for threads in "12"),
        span((row["ratio"] for row in rows_of("int8", "networks")), ".1f", "×"),
        " … ".join(f"{100 * points:+.1f}" for points in (min(int8), max(int8))),
        f"{cuda} ({cpu})",
        span((row["ratio"] for row in rows_of("features", "networks")), ".0f", "×"),
        f"{live['delay_sec'][0]:.3f} s; {live['num_dropped']} / {live['num_frames']:,}",
    ]


CLAIMS = {
    function.__name__: function
    for function in (reading, exactness, training, transformers, accuracy, prediction)
}

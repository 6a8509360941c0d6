"""Writes the tables of the documentation and the chart of the README from the files in benchmarks/results.

A table lies between `<!-- results: NAME -->` and `<!-- end -->` in a page of docs/en or docs/zh-CN; NAME is a
key of `TABLES`. A result file has the values that a benchmark returned ("result"), how they were measured
("command", "environment") and when ("date", and "revision", the commit that brought the numbers).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks import recipes
from benchmarks.chart import CHART, RECIPES, draw_speed
from benchmarks.measuring import ROOT, load
from benchmarks.reader_trials import REFUSED, REPLACED, RIGHT, WITHOUT_A_WORD
from paddlevideo_fast.io.files import write_text_whole

_BLOCK = re.compile(r"(<!-- results: (\w+) -->\n)\n?(?:\|.*\n)*\n?(?=<!-- end -->)")
_VIDEOS = ("mma_demo.mp4", "nasa.mp4", "pancake.mkv")

# What the tables say, in English and in Chinese.
_WORDS: dict[str, str] = {
    "recipe": "项目",
    "here": "这里",
    "published": "公开的",
    "note": "说明",
    "the same": "相同",
    "its recipe": "采用的方案",
    "rate": "最高学习率",
    "schedule": "学习率曲线",
    "weight decay": "权重衰减",
    "gradients": "梯度",
    "regularisation": "正则化",
    "first weights": "初始权重",
    "augmentation": "数据增强（按顺序）",
    "test": "测试",
    "training": "训练方式",
    "all classes": "全部类别",
    "frequent half": "较多的一半",
    "rare half": "较少的一半",
    "rarest class": "最少的类别",
    "plain": "普通训练",
    "plain, then sampler: balanced": "先普通训练，再 `sampler: balanced`",
    "side": "实现",
    "part": "部分",
    "imports": "导入",
    "list": "列表",
    "network and optimizer": "网络和优化器",
    "order of the epoch": "一个 epoch 的顺序",
    "first batch": "第一个 batch",
    "all": "合计",
    "steps a second": "步/秒",
    "config": "配置",
    "time of a step": "每步时间",
    "plain training": "普通训练",
    "cost": "开销",
    "spread over rounds": "各轮范围",
    "bare loop": "裸循环",
    "checkpoint": "检查点",
    "training stands still": "训练停顿",
    "share": "占比",
    "written at once (baseline)": "直接写入（基准）",
    "in the background": "后台写入",
    "in the background, the first": "后台写入，第一次",
    "trainer": "训练器",
    "shape (N·T, C, H, W)": "形状（N·T, C, H, W）",
    "pass": "计算",
    "forward": "前向",
    "step": "训练步",
    "forward+backward": "前向 + 反向",
    "ours": "本工具",
    "paddle": "飞桨",
    "composed": "组合实现",
    "speed-up": "加速比",
    "seed {}": "种子 {}",
    "mean": "平均",
    "baseline": "基准",
    "against it": "对比",
    "ratio": "比值",
    "rounds": "各轮",
    "one process, {} clips a second": "单进程，每秒 {} 个片段",
    "two processes": "两个进程",
    "one thread, {} s a step": "单线程，每步 {} 秒",
    "threads": "线程数",
    "before": "之前",
    "step: before": "训练步：之前",
    "step: here": "训练步：现在",
    "step: PyTorch": "训练步：PyTorch",
    "prediction: before": "预测：之前",
    "prediction: here": "预测：现在",
    "prediction: PyTorch": "预测：PyTorch",
    "the network itself": "网络本身",
    "MB: before, here, PyTorch": "MB：之前、现在、PyTorch",
    "operator, forward and backward": "算子，前向 + 反向",
    "the default, {} threads": "默认设置，{} 个线程",
    "{} to {}": "{} 至 {}",
    "decoder": "解码库",
    "version": "版本",
    "sparse-8": "sparse-8",
    "sparse-8, one stream": "sparse-8，单一视频流",
    "32×2": "32×2",
    "32×2, one stream": "32×2，单一视频流",
    "wrong + not given, of {} frames": "{} 帧中的错帧 + 未给出",
    "OpenCV": "OpenCV",
    "decord (baseline)": "decord（基准）",
    "decord2 (through ours)": "decord2（经本工具折算）",
    "PyAV, in sequence": "PyAV 顺序解码",
    "ours, prepared videos": "本工具，预处理视频",
    "video": "视频",
    "pattern": "取帧方式",
    "decord, ms": "decord，毫秒",
    "ours, ms": "本工具，毫秒",
    "quartiles": "四分位数",
    "data": "数据格式",
    "bytes": "字节数",
    "clip": "片段",
    "ms a clip (mma_demo, nasa, pancake)": "每个片段毫秒（mma_demo、nasa、pancake）",
    "speed-up, geometric mean": "加速比，几何平均",
    "quartiles of each video": "各视频的四分位数",
    "raw video, classic path (baseline)": "原视频，传统方式（基准）",
    "raw video": "原视频",
    "prepared, `sparse`": "预处理，`sparse`",
    "prepared, `dense`": "预处理，`dense`",
    "JPEG files, quality 90": "JPEG 文件，质量 90",
    "packed, quality 90": "打包帧，质量 90",
    "of decord's time": "与 decord 时间之比",
    "of the time before": "与此前时间之比",
    "opening": "打开",
    "decoding": "解码",
    "colours": "颜色转换",
    "the rest": "其余",
    "clips from one pass": "一遍解码的片段数",
    "speed-up of each video (mma_demo, nasa, pancake)": "各视频的加速比（mma_demo、nasa、pancake）",
    "speed-up a clip, geometric mean": "每个片段的加速比，几何平均",
    "memory, MiB": "内存，MiB",
    "`clips_per_video`": "`clips_per_video`",
    "top-1, mean": "top-1，平均",
    "each seed": "各种子",
    "1 (batch_size 4)": "1（batch_size 4）",
    "ViT": "ViT",
    "from scratch": "从头训练",
    "pre-trained": "先预训练",
    "clips": "片段",
    "workers": "num_workers",
    "transport": "传输",
    "batches/s": "批次/秒",
    "spread": "范围",
    "shards": "分片",
    "clips/s": "片段/秒",
    "MB fetched": "下载的 MB",
    "requests": "请求数",
    "on a local disk (baseline)": "在本地磁盘（基准）",
    "in the store, first epoch": "在存储中，第一个 epoch",
    "in the store, first epoch, `prefetch: 0`": "在存储中，第一个 epoch，`prefetch: 0`",
    "in the store, second epoch": "在存储中，第二个 epoch",
    "CPU ms a batch": "每批 CPU 毫秒",
    "CPU speed-up": "CPU 加速比",
    "read": "读取",
    "synthetic": "合成",
    "float32 (baseline)": "float32（基准）",
    "uint8, Paddle's loader": "uint8，飞桨加载器",
    "uint8, ours": "uint8，本工具",
    "uint8, ours, and normalising": "uint8，本工具，含归一化",
    "ours, CPU ms": "本工具，CPU 毫秒",
    "DALI on CPU, ms": "DALI（CPU），毫秒",
    "DALI on a GPU": "DALI（GPU）",
    "not measured": "未测量",
    "for": "适用于",
    "8 sparse frames": "8 个稀疏帧",
    "window of 32×2": "32×2 窗口",
    "TSM clip": "TSM 片段",
    "SlowFast clip": "SlowFast 片段",
    "(original)": "（原文件）",
    "TSN, TSM: a few frames from all over a video": "TSN、TSM：从整个视频中取少数几帧",
    "SlowFast, I3D: windows of neighbouring frames": "SlowFast、I3D：相邻帧的窗口",
    "any single frame, at any cost of disk": "任意单帧，不计磁盘代价",
    "what is read": "读取内容",
    "TSM clip (8 frames)": "TSM 片段（8 帧）",
    "SlowFast clip (32×2)": "SlowFast 片段（32×2）",
    "videos, the classic way": "视频，传统方式",
    "videos": "视频",
    "packed frames": "打包帧",
    "CPU time": "CPU 时间",
    "wall time": "实际时间",
    "{} damaged files": "{} 个损坏的文件",
    "wrong without a word": "出错而不报告",
    "reader": "读取器",
    "joined files, {} times: wrong without a word": "拼接文件 {} 次：出错而不报告",
    "files of one encode, {} times: wrong without a word": "单次编码的文件 {} 次：出错而不报告",
    "another frame": "其中：另一帧",
    "spoilt picture": "画面损坏",
    "other number of frames": "帧数不对",
    "refused": "拒绝读取",
    "replaced and counted": "替换并计数",
    "right": "正确",
    "files": "文件",
    "ours, `raise`": "本工具，`raise`",
    "ours, `nearest`": "本工具，`nearest`",
    "ours, `raise`, after a check": "本工具，检查后 `raise`",
    "decord": "decord",
    "torchcodec": "torchcodec",
    "{} intact files": "{} 个完好的文件",
    "{} damaged .{}": "{} 个损坏的 .{}",
    "network": "网络",
    "through the network": "经过网络",
    "on features": "在特征上",
}

Word = Callable[..., str]
Table = Callable[[Word], list[list[str]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are no options."""


def main(args: argparse.Namespace) -> None:
    """Writes all pages and the chart."""
    for page in pages():
        write_text_whole(page, updated(page))
    draw_speed(CHART)


def pages() -> list[Path]:
    """The pages with a marked table."""
    found = sorted((ROOT / "docs").glob("*/*.md"))
    return [page for page in found if "<!-- results: " in page.read_text(encoding="utf-8")]


def updated(page: Path) -> str:
    """The text of a page with the tables of the results."""

    def word(text: str, *values: Any) -> str:
        return (_WORDS[text] if page.parent.name == "zh-CN" else text).format(*values)

    def block(match: re.Match[str]) -> str:
        if match[2] not in TABLES:
            return match[0]  # tools/model_zoo.py writes it
        head, *rows = TABLES[match[2]](word)
        lines = [head, ["---"] * len(head), *rows]
        return f"{match[1]}\n{''.join(map(_line, lines))}\n"

    return _BLOCK.sub(block, page.read_text(encoding="utf-8"))


def _line(cells: Sequence[str]) -> str:
    if set(cells) == {"---"}:
        return f"|{'|'.join(cells)}|\n"
    return f"| {' | '.join(cells)} |\n"


def _trainer(word: Word) -> list[list[str]]:
    found = load("trainer")
    low, high = (f"{value:+.1%}" for value in found["cost_spread"])
    return [
        [word("side"), word("steps a second"), word("cost"), word("spread over rounds")],
        [word("bare loop"), f"{found['bare_steps_per_sec']:.2f}", "", ""],
        [
            word("trainer"),
            f"{found['trainer_steps_per_sec']:.2f}",
            _signed(f"{found['cost']:+.2%}"),
            _signed(word("{} to {}", low, high)),
        ],
    ]


def _saving(word: Word) -> list[list[str]]:
    found = load("saving")
    return [
        [word("checkpoint"), word("training stands still"), word("share")],
        [word("written at once (baseline)"), f"{found['plain_sec']:.2f} s", "1"],
        [word("in the background"), f"{found['background_sec']:.2f} s", f"{found['ratio']:.3f}"],
        [
            word("in the background, the first"),
            f"{found['first_sec']:.2f} s",
            f"{found['first_sec'] / found['plain_sec']:.3f}",
        ],
    ]


def _startup(word: Word) -> list[list[str]]:
    found = load("startup")
    now, before = found["sec"]["this"], found["sec"]["baseline"]
    return [
        [word("part"), found["baseline"], word("ours"), word("ratio")],
        *(
            [word(part), f"{before[part]:.2f}", f"{now[part]:.2f}", f"{now[part] / before[part]:.2f}"]
            for part in now
        ),
    ]


def _remote(word: Word) -> list[list[str]]:
    rows = [list(map(word, ("workers", "shards", "clips/s", "spread", "ratio", "MB fetched", "requests")))]
    for row in load("remote")["rows"]:
        rows.append(
            [
                str(row["workers"]),
                word(_SHARDS[row["side"]]),
                f"{row['clips_per_sec']:.0f}",
                _span(word, row["spread"], 0),
                f"{row['ratio']:.2f}",
                f"{row['mb_fetched']:.0f}",
                f"{row['num_requests']:.0f}",
            ]
        )
    return rows


_SHARDS = {
    "local": "on a local disk (baseline)",
    "prefetch": "in the store, first epoch",
    "no prefetch": "in the store, first epoch, `prefetch: 0`",
    "second epoch": "in the store, second epoch",
}


def _finetuning(word: Word) -> list[list[str]]:
    rows = [list(map(word, ("config", "time of a step", "spread", "memory, MiB")))]
    for name, row in load("finetuning")["rows"].items():
        is_baseline = name == "plain"
        rows.append(
            [
                word("plain training") if is_baseline else f"`{name}`",
                "1" if is_baseline else f"{row['ratio']:.2f}",
                "" if is_baseline else _span(word, row["spread"], 2),
                f"{row['memory_mib']:.0f}",
            ]
        )
    return rows


def _signed(text: str) -> str:
    """With a minus sign, and a space before the per cent sign."""
    return text.replace("-", "−").replace("%", " %")


def _features(word: Word) -> list[list[str]]:
    rows = [[word("network"), word("through the network"), word("on features"), word("ratio")]]
    for name, row in load("features")["networks"].items():
        seconds = f"{row['network_sec']:.2f} s", f"{row['features_sec'] * 1000:.1f} ms"
        rows.append([name.replace("x", "×"), *seconds, f"{row['ratio']:.0f}×"])
    return rows


def _shift(word: Word) -> list[list[str]]:
    rows = [[word("shape (N·T, C, H, W)"), word("pass"), word("side"), "ms", word("speed-up"), "MiB"]]
    for row in load("shift")["rows"]:
        first = row["side"] == "ours"
        rows.append(
            [
                "×".join(map(str, row["shape"])) if first else "",
                word(row["pass"]) if first else "",
                word(row["side"]),
                f"{row['ms']:.2f}" if row["ms"] < 100 else f"{row['ms']:.0f}",
                f"{row['speedup']:.1f}×",
                f"{row['mib']:.1f}" if row["mib"] < 100 else f"{row['mib']:.0f}",
            ]
        )
    return rows


def _precision(word: Word) -> list[list[str]]:
    formats = ("float32", "bfloat16 O1", "bfloat16 O2")
    found = load("precision")["top1_percent"]
    means = {key: sum(row[key] for row in found) / len(found) for key in formats}
    rows = [["", *formats]]
    for name, row in [*((word("seed {}", row["seed"]), row) for row in found), (word("mean"), means)]:
        cells = [f"{row[key]:.2f} %" for key in formats]
        for place, key in enumerate(formats[1:], 1):
            cells[place] += f" ({row[key] - row['float32']:+.2f})".replace("-", "−")
        rows.append([name, *cells])
    return rows


def _processes(word: Word) -> list[list[str]]:
    scale, threads = load("scale"), load("cpu")["networks"]["tsm_r50_8f"]
    low, high = scale["speedup_spread"]
    return [
        [word("baseline"), word("against it"), word("ratio"), word("rounds")],
        [
            word("one process, {} clips a second", f"{scale['clips_per_sec']['one']:.2f}"),
            word("two processes"),
            f"{scale['speedup']:.2f}×",
            word("{} to {}", f"{low:.2f}×", f"{high:.2f}×"),
        ],
        [
            word("one thread, {} s a step", f"{threads['1']['now']['step'][0]:.2f}"),
            word("the default, {} threads", 2),
            f"{threads['1']['now']['step'][0] / threads['2']['now']['step'][0]:.2f}×",
            "",
        ],
    ]


_CPU_NETWORKS = {
    "tsm_r50_8f": "TSM-R50, 8×224²",
    "slowfast_r50_4x16": "SlowFast-R50 4×16, 32×224²",
    "x3d_s": "X3D-S, 13×160²",
    "video_swin_t": "Video Swin T, 32×224²",
    "mvit_v2_s": "MViTv2-S, 16×224²",
    "videomae_vit_s": "VideoMAE ViT-S, 16×224²",
}


def _cpu(word: Word) -> list[list[str]]:
    rows = [
        [
            word("network"),
            word("threads"),
            *(
                word(f"{what}: {side}")
                for what in ("step", "prediction")
                for side in ("before", "here", "PyTorch")
            ),
            word("MB: before, here, PyTorch"),
        ]
    ]
    for network, by_threads in load("cpu")["networks"].items():
        for threads, sides in by_threads.items():
            before, now, torch = (sides[side] for side in ("before", "now", "torch"))
            cells = []
            for what in ("step", "predict"):
                cells.append(f"{before[what][0]:.2f} s")
                cells.append(f"{now[what][0]:.2f} s, {now[what][0] / torch[what][0]:.2f}×")
                cells.append(f"{torch[what][0]:.2f} s")
            memory = ", ".join(f"{each['peak_mb']:.0f}" for each in (before, now, torch))
            rows.append([_CPU_NETWORKS[network], threads, *cells, memory])
    return rows


def _cpu_runtimes(word: Word) -> list[list[str]]:
    names = (word("the network itself"), "Paddle Inference", "Paddle Inference, oneDNN", "onnxruntime")
    rows = [[word("network"), word("threads"), *names]]
    for network, by_threads in load("cpu_runtimes").items():
        for threads, runtimes in by_threads.items():
            cells = [
                "–" if "error" in each else f"{each['predict'][0]:.2f} s, {each['peak_mb']:.0f} MB"
                for each in runtimes.values()
            ]
            rows.append([_CPU_NETWORKS[network], threads, *cells])
    return rows


def _cpu_operators(word: Word) -> list[list[str]]:
    rows = [[word("operator, forward and backward"), word("before"), word("here"), "PyTorch"]]
    for name, sides in load("cpu")["operators"].items():
        rows.append(
            [
                name,
                f"{sides['before']:.1f} ms",
                f"{sides['now']:.1f} ms, {sides['now'] / sides['torch']:.2f}×",
                f"{sides['torch']:.1f} ms",
            ]
        )
    return rows


_READERS = {
    "OpenCV": "OpenCV",
    "decord": "decord (baseline)",
    "decord2": "decord2 (through ours)",
    "PyAV in sequence": "PyAV, in sequence",
    "ours": "ours",
    "ours, prepared": "ours, prepared videos",
}


def _decoders(word: Word) -> list[list[str]]:
    found, exact = load("reader"), load("exactness")
    columns = [("sparse-8", "as_is"), ("sparse-8", "one_stream"), ("32x2", "as_is"), ("32x2", "one_stream")]
    names = ("sparse-8", "sparse-8, one stream", "32×2", "32×2, one stream")
    wrong = word("wrong + not given, of {} frames", f"{exact['num_frames']:,}")
    rows = [[word("decoder"), word("version"), *map(word, names), wrong]]
    for reader, name in _READERS.items():
        means = [f"{found['means'][pattern][group][reader]:.2f}" for pattern, group in columns]
        tally = exact["sums"].get({"OpenCV": "cv2 sequence"}.get(reader, reader))
        cell = "" if tally is None else f"{tally['wrong']:,}"
        if tally and tally["errors"]:
            cell += f" + {tally['errors']:,}"
        rows.append([word(name), found["versions"][reader], *means, cell])
    return rows


def _videos(word: Word) -> list[list[str]]:
    names = ("video", "pattern", "decord, ms", "ours, ms", "ratio", "quartiles")
    cells: dict[Any, dict[str, Any]] = {}
    for row in load("reader")["rows"]:
        cells.setdefault((row["clip"], row["pattern"]), {})[row["reader"]] = row
    return [list(map(word, names))] + [
        [
            clip,
            pattern.replace("x", "×"),
            f"{readers['decord']['ms']:.1f}",
            f"{readers['ours']['ms']:.1f}",
            f"{readers['ours']['ratio']:.2f}",
            _span(word, readers["ours"]["spread"], 2),
        ]
        for (clip, pattern), readers in cells.items()
    ]


def _span(word: Word, spread: Sequence[float], digits: int) -> str:
    low, high = (f"{value:.{digits}f}" for value in spread)
    return word("{} to {}", low, high)


_KINDS = {
    "classic": "raw video, classic path (baseline)",
    "video": "raw video",
    "prepared": "prepared, `sparse`",
    "jpeg": "JPEG files, quality 90",
    "packed": "packed, quality 90",
    "dense": "prepared, `dense`",
}


def _formats(word: Word) -> list[list[str]]:
    names = (
        *("data", "bytes", "clip", "ms a clip (mma_demo, nasa, pancake)", "speed-up, geometric mean"),
        "quartiles of each video",
    )
    found = load("pipeline")["rows"]
    found += [{**row, "kind": "dense"} for row in load("pipeline_dense")["rows"]]
    rows = [list(map(word, names))]
    for row in found:
        videos = [row["clips"][name] for name in _VIDEOS]
        spreads = [_span(word, video["spread"], 2) for video in videos if "spread" in video]
        rows.append(
            [
                word(_KINDS[row["kind"]]),
                f"{row['bytes']:,}",
                RECIPES[row["recipe"]],
                ", ".join(f"{video['ms']:.2f}" for video in videos),
                f"{row['ratio']:.2f}×",
                "; ".join(spreads),
            ]
        )
    return rows


def _reading_codecs(word: Word) -> list[list[str]]:
    names = ("video", "pattern", "ours, ms", "of decord's time", "of the time before", "opening")
    rows = [list(map(word, (*names, "decoding", "colours", "the rest")))]
    for row in load("reading")["codecs"]:
        ratios = [f"{row[side]:.2f}" if row[side] else "–" for side in ("decord", "baseline")]
        shares = [f"{100 * share:.0f} %" for share in row["shares"].values()]
        rows.append([row["clip"], row["pattern"].replace("x", "×"), f"{row['ms']:.1f}", *ratios, *shares])
    return rows


def _clips_per_video(word: Word) -> list[list[str]]:
    names = ("clip", "clips from one pass", "speed-up of each video (mma_demo, nasa, pancake)")
    rows = [list(map(word, (*names, "speed-up a clip, geometric mean", "memory, MiB")))]
    for row in load("clips_per_video")["several"]:
        medians = [f"{row['gains'][name]['median']:.2f}" for name in _VIDEOS]
        cells = [RECIPES[row["recipe"]], str(row["number"]), ", ".join(medians)]
        rows.append([*cells, f"{row['gain']:.2f}×", f"{row['mib']:.0f}"])
    return rows


def _variants(result: str, first: str, word: Word) -> list[list[str]]:
    """A table of what `tools/benchmark.py variants` measured: top-1 of each variant."""
    rows = [[word(name) for name in (first, "top-1, mean", "each seed")]]
    for name, row in load(result)["rows"].items():
        values = [100 * value for value in row["values"]]
        each = ", ".join(f"{value:.1f}" for value in values)
        label = name.removeprefix("K=")
        rows.append([label if label.isdigit() else word(label), f"{sum(values) / len(values):.1f} %", each])
    return rows


_PRESETS = {
    "original": "",
    "sparse": "TSN, TSM: a few frames from all over a video",
    "dense": "SlowFast, I3D: windows of neighbouring frames",
    "intra": "any single frame, at any cost of disk",
}


def _presets(word: Word) -> list[list[str]]:
    names = ("for", "bytes", "8 sparse frames", "window of 32×2", "TSM clip", "SlowFast clip")
    kinds = {"original": ("pipeline", "video"), "sparse": ("pipeline", "prepared")}
    kinds["dense"] = ("pipeline_dense", "prepared")
    rows = [["`--preset`", *map(word, names)]]
    for row in load("presets")["rows"]:
        preset, clips = row["preset"], ["", ""]
        if preset in kinds:
            clips = [f"{ratio:.1f}×" for ratio in _clip_ratios(*kinds[preset])]
        rows.append(
            [
                word("(original)") if preset == "original" else f"`{preset}`",
                word(_PRESETS[preset]) if _PRESETS[preset] else "",
                f"{row['bytes']:.2f}" if preset != "original" else "1",
                f"{row['sparse-8']:.1f}×",
                f"{row['32x2']:.1f}×",
                *clips,
            ]
        )
    return rows


def _clip_ratios(name: str, kind: str) -> list[float]:
    """How many times less CPU time a TSM clip and a SlowFast clip of this kind take than the classic way."""
    rows = {row["recipe"]: row["ratio"] for row in load(name)["rows"] if row["kind"] == kind}
    return [rows[recipe] for recipe in RECIPES]


def _packed(word: Word) -> list[list[str]]:
    sizes = {row["kind"]: row["bytes"] for row in load("pipeline")["rows"]}
    rows = [list(map(word, ("what is read", "TSM clip (8 frames)", "SlowFast clip (32×2)", "bytes")))]
    names = {"classic": "videos, the classic way", "video": "videos", "packed": "packed frames"}
    for kind, name in names.items():
        ratios = [f"{ratio:.1f}×" for ratio in _clip_ratios("pipeline", kind)]
        rows.append([word(name), *ratios, f"{sizes[kind] / sizes['classic']:.1f}"])
    return rows


_SIDES = {
    "float32": "float32 (baseline)",
    "uint8 paddle": "uint8, Paddle's loader",
    "uint8": "uint8, ours",
    "uint8 + norm": "uint8, ours, and normalising",
}


def _loader(word: Word) -> list[list[str]]:
    names = (
        *("clips", "workers", "transport", "batches/s", "spread", "speed-up", "CPU ms a batch"),
        "CPU speed-up",
    )
    return [list(map(word, names))] + [
        [
            word("read" if row["source"] == "read" else "synthetic"),
            str(row["workers"]),
            word(_SIDES[row["side"]]),
            f"{row['batches_per_sec']:.2f}",
            _span(word, row["spread"], 2),
            f"{row['ratio']:.2f}×",
            f"{row['cpu_ms']:.1f}",
            f"{row['cpu_ratio']:.2f}×",
        ]
        for row in load("loader")["rows"]
    ]


def _dali(word: Word) -> list[list[str]]:
    names = ("clip", "video", "ours, CPU ms", "DALI on CPU, ms", "speed-up", "DALI on a GPU")
    cells: dict[Any, dict[str, Any]] = {}
    for row in load("dali")["rows"]:
        video = f"{row['clip']}, {row['codec'].upper()}"
        cells.setdefault((row["recipe"], video), {})[row["side"]] = row
    return [list(map(word, names))] + [
        [
            RECIPES[recipe],
            video,
            *(f"{row['ms']:.1f} ({_span(word, row['spread'], 1)})" for row in sides.values()),
            f"{sides['DALI on CPU']['ratio']:.2f}×",
            word("not measured"),
        ]
        for (recipe, video), sides in cells.items()
    ]


def _paddlevideo(word: Word) -> list[list[str]]:
    rows = [list(map(word, ("clip", "video", "CPU time", "wall time")))]
    return rows + [
        [RECIPES[row["recipe"]], row["clip"], f"{row['cpu_ratio']:.1f}×", f"{row['wall_ratio']:.1f}×"]
        for row in load("paddlevideo")["rows"]
    ]


def _multigrid(name: str, word: Word) -> list[list[str]]:
    return multigrid_rows(load(name))  # in English on both pages


def multigrid_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Runs of `multigrid_training`, a row each; costs are relative to the plain runs with the same seeds."""
    costs = {"training": "train_sec", "whole run": "wall_sec", "CPU time": "cpu_sec"}
    rows = [["row", "epochs", "steps", "top-1, mean", "each seed", *costs]]
    plain = result["rows"]["plain"]
    for name, row in result["rows"].items():
        each = ", ".join(f"{100 * top1:.1f}" for top1 in row["top1"])
        shares = [mean(row[cost]) / mean(plain[cost][: len(row[cost])]) for cost in costs.values()]
        top1 = f"{100 * mean(row['top1']):.1f} %"
        rows.append([name, str(row["epochs"]), str(row["steps"]), top1, each, *(f"{s:.2f}" for s in shares)])
    return rows


def _causes(word: Word) -> list[list[str]]:
    """Runs of one seed, a row each, with top-1 after each epoch."""
    rows = [["row", "top-1 after each epoch"]]  # in English on both pages
    for name, row in load("multigrid_causes")["rows"].items():
        (curve,) = row["curves"]
        rows.append([name, ", ".join(f"{100 * top1:.1f}" for _, top1 in curve)])
    return rows


def _imbalance(word: Word) -> list[list[str]]:
    return imbalance_rows(load("imbalance"), word)


def imbalance_rows(result: Mapping[str, Any], word: Word) -> list[list[str]]:
    """What `imbalance` found: means over seeds, with the least and the greatest."""
    rows = [[word("training"), *map(word, ("all classes", "frequent half", "rare half", "rarest class"))]]
    for name, runs in result["rows"].items():
        shares = [(*(mean(part) for part in (each, *_halves(each))), each[-1]) for each in runs]
        cells = [
            f"{100 * mean(seeds):.0f} % ({100 * min(seeds):.0f}–{100 * max(seeds):.0f})"
            for seeds in zip(*shares)
        ]
        rows.append([word(name) if name.startswith("plain") else f"`{name}`", *cells])
    return rows


def _halves(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    return values[: len(values) // 2], values[len(values) // 2 :]


_TRIED = ("ours", "ours, checked", "ours, nearest", "decord", "OpenCV", "torchcodec")


def _reader_trials(word: Word) -> list[list[str]]:
    """Outcomes of reading damaged files, by reader."""
    found = load("reader_trials")
    part = found["parts"]["damage"]
    outcomes = [*WITHOUT_A_WORD, REFUSED, REPLACED, RIGHT]
    rows = [
        [
            word("{} damaged files", part["num_trials"]),
            word("wrong without a word"),
            *(word(outcome) for outcome in WITHOUT_A_WORD),
            *(word(outcome) for outcome in (REFUSED, "replaced and counted", RIGHT)),
        ]
    ]
    for reader in _TRIED:
        counted = part["readers"][reader]
        wrong = sum(counted[outcome] for outcome in WITHOUT_A_WORD)
        cells = (str(counted[outcome]) for outcome in outcomes)
        rows.append([_named(word, reader, found), str(wrong), *cells])
    return rows


_OURS_TRIED = {
    "ours": "ours, `raise`",
    "ours, checked": "ours, `raise`, after a check",
    "ours, nearest": "ours, `nearest`",
}


def _reader_trials_files(word: Word) -> list[list[str]]:
    """Files that were read wrong without a word, by their ending and by reader."""
    parts = load("reader_trials")["parts"]
    rows = [[word("files"), *(word(_OURS_TRIED.get(reader, reader)) for reader in _TRIED)]]
    groups = [(word("{} intact files", parts["whole"]["num_trials"]), parts["whole"]["readers"])]
    for group, readers in parts["damage"]["groups"].items():
        count = sum(readers["ours"].values())
        groups.append((word("{} damaged .{}", count, group), readers))
    for name, readers in groups:
        wrong = [sum(readers[reader][outcome] for outcome in WITHOUT_A_WORD) for reader in _TRIED]
        rows.append([name, *map(str, wrong)])
    return rows


def _reader_sequences(word: Word) -> list[list[str]]:
    """Outcomes of reading intact files forth and back, by reader."""
    found = load("reader_sequences")
    groups = found["parts"]["sequences"]["groups"]
    names = {
        "joined": "joined files, {} times: wrong without a word",
        "of one encode": "files of one encode, {} times: wrong without a word",
    }
    rows = [[word("reader")]]
    for group, name in names.items():
        rows[0].append(word(name, sum(groups[group]["ours"].values())))
        rows[0] += [word(REFUSED), word(RIGHT)]
    for reader in _TRIED:
        rows.append([_named(word, reader, found)])
        for group in names:
            counted = groups[group][reader]
            wrong = sum(counted[outcome] for outcome in WITHOUT_A_WORD)
            rows[-1] += [str(wrong), str(counted[REFUSED]), str(counted[RIGHT])]
    return rows


def _named(word: Word, reader: str, found: Any) -> str:
    version = found["versions"].get({"OpenCV": "cv2"}.get(reader, reader), "").split("+")[0]
    return f"{reader} {version}" if version else word(_OURS_TRIED[reader])


TABLES: Mapping[str, Table] = {
    **{recipes.name_of(network): partial(recipes.table, network) for network in recipes.published()},
    "recipes_unpublished": recipes.table_of_others,
    "imbalance": _imbalance,
    "multigrid": partial(_multigrid, "multigrid_training"),
    "multigrid_56": partial(_multigrid, "multigrid_training_56"),
    "multigrid_28": partial(_multigrid, "multigrid_training_28"),
    "multigrid_causes": _causes,
    "trainer": _trainer,
    "saving": _saving,
    "startup": _startup,
    "remote": _remote,
    "finetuning": _finetuning,
    "features": _features,
    "shift": _shift,
    "precision": _precision,
    "cpu": _cpu,
    "cpu_runtimes": _cpu_runtimes,
    "cpu_operators": _cpu_operators,
    "processes": _processes,
    "paddlevideo": _paddlevideo,
    "decoders": _decoders,
    "videos": _videos,
    "formats": _formats,
    "reading_codecs": _reading_codecs,
    "clips_per_video": _clips_per_video,
    "clips_per_video_training": partial(_variants, "clips_per_video_training", "`clips_per_video`"),
    "pretraining": partial(_variants, "pretraining", "ViT"),
    "presets": _presets,
    "packed": _packed,
    "loader": _loader,
    "dali": _dali,
    "reader_sequences": _reader_sequences,
    "reader_trials": _reader_trials,
    "reader_trials_files": _reader_trials_files,
}

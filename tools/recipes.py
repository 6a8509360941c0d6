"""What a shipped recipe amounts to, where that is not what was published: a table of configs/*/README*.md.

`published_recipes.yml` has for each network the config, the source and what was published. What the config
amounts to is computed here. Why it differs is written on the pages.
"""

import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from paddle import nn

from benchmarks.measuring import ROOT
from paddlevideo_fast.config import RunSpec, build, load_config
from paddlevideo_fast.loader.build import build_pipeline
from paddlevideo_fast.modeling import build_model
from paddlevideo_fast.registry import OPTIMIZERS
from paddlevideo_fast.solver.learning_rate import LearningRate, PiecewiseDecay

PUBLISHED = Path(__file__).with_name("published_recipes.yml")
# PaddleVideo's own networks, and its names of others: their recipes are PaddleVideo's.
OF_PADDLEVIDEO = (
    "movinet/*",
    "pptimesformer/*",
    "pptsm/*_k400_*",
    "pptsn/*",
    "slowfast/slowfast",
    "timesformer/tokshift_*",
)
NOT_KNOWN = "not known here"
_NOT_AUGMENTATION = ("Scale", "CenterCrop")


ENTRIES: list[dict[str, Any]] = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))
# The networks whose recipe is published.
NETWORKS = [entry for entry in ENTRIES if "rows" in entry]


def _spec(config: str) -> RunSpec:
    return RunSpec.of(load_config(ROOT / "configs" / "recognition" / f"{config}.yaml"))


@cache
def effective(config: str) -> dict[str, str]:
    """Row to what a config amounts to; numbers as %g."""
    spec = _spec(config)
    model = build_model(spec.model, load_pretrained=False)
    recipe = build(OPTIMIZERS, spec.optimizer or {})
    curve = recipe.learning_rate
    if not isinstance(curve, LearningRate):
        curve = PiecewiseDecay([], [curve])
    return {
        "rate": _rate(spec, curve),
        "schedule": _schedule(spec, curve),
        "weight decay": _decay(recipe, model),
        "gradients": _clip(recipe.grad_clip),
        "regularisation": _regularisation(spec, model),
        "first weights": _first_weights(spec, model),
        "augmentation": _augmentation(spec),
        "test": _test(spec),
    }


def _rate(spec: RunSpec, curve: LearningRate) -> str:
    section = spec.optimizer or {}
    accumulated = (spec.config.get("GRADIENT_ACCUMULATION") or {}).get("global_batch_size")
    clips = section.get("base_batch_size") or accumulated
    peak = max(curve.at(epoch / 4) for epoch in range(4 * spec.run.epochs))
    words = [f"{section['name']}, {peak:.3g} for {clips} clips"]
    words += [f"{key} {section[key]:g}" for key in ("momentum", "beta2", "layer_decay") if section.get(key)]
    words += ["Nesterov"] * bool(section.get("use_nesterov"))
    return ", ".join(words)


def _schedule(spec: RunSpec, curve: LearningRate) -> str:
    epochs = spec.run.epochs
    warmup = curve.warmup_epochs or getattr(curve, "warmup_iters", 0.0)
    at = (0.0, warmup, epochs / 2, epochs - 1e-3) if warmup else (0.0, epochs / 2, epochs - 1e-3)
    copies = spec.splits["train"].dataset.get("clips_per_video", 1)
    words = [f"{epochs / copies:g} epochs"] + [f"{warmup / copies:g} of warm-up"] * bool(warmup)
    return f"{', '.join(words)}; {' → '.join(f'{curve.at(epoch):.3g}' for epoch in at)}"


def _decay(recipe: Any, model: nn.Layer) -> str:
    value = recipe.weight_decay["value"] if isinstance(recipe.weight_decay, Mapping) else recipe.weight_decay
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    rules = recipe.rules(model)
    spared = [name for name, rule in rules.items() if not rule.decay]
    decayed = [name for name, rule in rules.items() if rule.decay]
    words = [f"{value or 0:g}"]
    if not any(len(shapes[name]) == 1 for name in decayed):
        words.append("none on biases and norms")
    tables = sorted({name.rpartition(".")[2] for name in spared if len(shapes[name]) > 1})
    return ", ".join(words + [f"none on {name}" for name in tables])


def _clip(section: Any) -> str:
    return f"norm up to {section['value']:g}" if section else "not clipped"


def _regularisation(spec: RunSpec, model: nn.Layer) -> str:
    backbone, head = spec.model["backbone"], spec.model["head"]
    dropout = getattr(getattr(model.head, "dropout", None), "p", 0.0)
    mix = spec.config.get("MIX") or {}
    words = [
        *[f"dropout {dropout:g}"] * bool(dropout),
        *(
            f"{word} {section[key]:g}"
            for word, section, key in (
                ("drop path", backbone, "drop_path_rate"),
                ("label smoothing", head, "ls_eps"),
                ("mixup", mix, "mixup_alpha"),
                ("cutmix", mix, "cutmix_alpha"),
            )
            if section.get(key)
        ),
    ]
    return ", ".join(words) or "none"


def _first_weights(spec: RunSpec, model: nn.Layer) -> str:
    start = spec.model["backbone"].get("pretrained")
    if start:
        return f"of {start.rpartition('/')[2]}"
    words = []
    linear = [layer for layer in model.backbone.sublayers() if isinstance(layer, nn.Linear)]
    if linear:
        words.append(f"linear σ {float(linear[-1].weight.std()):.2f}")
    kinds = (nn.Conv2D, nn.Conv3D)
    convolution = next((layer for layer in model.backbone.sublayers() if isinstance(layer, kinds)), None)
    if convolution is not None:
        deviation, shape = float(convolution.weight.std()), convolution.weight.shape
        he = math.sqrt(2 / (shape[0] * math.prod(shape[2:])))
        is_he = abs(deviation / he - 1) < 0.15  # it is drawn
        words.append("convolutions He, fan out" if is_he else f"convolution σ {deviation:.2f}")
    return ", ".join(words)


def _augmentation(spec: RunSpec) -> str:
    """In the order in which they work: what moves pixels is one resample of the decoded frame, and first."""
    pipeline = build_pipeline(spec.splits["train"].pipeline)
    names = [type(step).__name__ for step in (*pipeline.geometric, *pipeline.pixelwise)]
    return ", ".join(name for name in names if name not in _NOT_AUGMENTATION)


def _test(spec: RunSpec) -> str:
    split = spec.splits["test"]
    sampler = split.pipeline.get("decode_sampler") or split.pipeline["sample"]
    sizes, crops = [], 1
    for step in split.pipeline["transform"]:
        for name, arguments in step.items():
            keys = ("short_size", "min_size", "target_size")
            sizes += [str(arguments[key]) for key in keys if key in (arguments or {})]
            crops = 10 if name == "TenCrop" else crops
            if name == "UniformCrop" or (name == "MultiCrop" and (arguments or {}).get("test_mode")):
                crops = 3
    views = split.dataset.get("num_ensemble_views", 1) * build_pipeline(split.pipeline).sample.num_clips
    position = f", views: {sampler['view_position']}" if views > 1 and "view_position" in sampler else ""
    frames = sampler.get("num_frames") or sampler["num_seg"]
    return f"{views} × {crops} of {frames} frames, {' → '.join(sizes)} pixels{position}"


def differences() -> list[tuple[str, str, str, str]]:
    """(config, row, here, published) of each row in which a shipped recipe differs from the published one."""
    return [
        (entry["config"], what, text, entry["rows"][what])
        for entry in NETWORKS
        for what, text in effective(entry["config"]).items()
        if entry["rows"][what] != text
    ]


def table(language: str) -> list[list[str]]:
    """The cells of the table: config, row, here, published, note; "" for words of the page itself."""

    def translated(text: str) -> str:
        for pattern, chinese in _IN_CHINESE if language == "zh-CN" else ():
            text = re.sub(pattern, chinese, text)
        return text

    return [
        [
            f"[{config.rpartition('/')[2]}]({config}.yaml)",
            "" if language == "zh-CN" else what,
            translated(here),
            translated(there),
            "",
        ]
        for config, what, here, there in differences()
    ]


_IN_CHINESE = (
    (NOT_KNOWN, "未查到"),
    (r", then a cosine", "，之后为余弦"),
    (r"(\d+) clips of (\d+) frames, short side (\d+)", r"\1 个片段，每个 \2 帧，短边 \3"),
    (r" for (\d+) clips", r"（\1 个片段）"),
    (r"momentum", "动量"),
    (r"([\d.]+) epochs", r"\1 轮"),
    (r"([\d.]+) of warm-up", r"预热 \1 轮"),
    (r"none on biases and norms", "偏置和归一化层除外"),
    (r"none on norms", "归一化层除外"),
    (r"none on (\w+)", r"\1 除外"),
    (r"norm up to", "范数不超过"),
    (r"not clipped", "不裁剪"),
    (r"label smoothing", "标签平滑"),
    (r"^of (\S+)", r"取自 \1"),
    (r"linear σ", "线性层 σ"),
    (r"convolutions He, fan out", "卷积 He（fan out）"),
    (r"convolution σ", "卷积 σ"),
    (r" of (\d+) frames", r"，每个片段 \1 帧"),
    (r"pixels", "像素"),
    (r"views: ", "视图 "),
    (r"^none$", "无"),
    (r", ", "，"),
    (r"; ", "；"),
)

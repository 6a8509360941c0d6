"""Plans a multigrid run: its phases, its costs beside those of the plain run, and what speaks against it."""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.apps.doctor.timing import SyntheticLoader, time_steps
from paddlevideo_fast.assembly import Split, TrainingSetup
from paddlevideo_fast.assembly.build import batch_shapes
from paddlevideo_fast.assembly.classes import class_names
from paddlevideo_fast.assembly.plan import ClipShape, RunPlan, plain_clip, plan_run
from paddlevideo_fast.config import Config, RunSpec
from paddlevideo_fast.config.types import arguments_of
from paddlevideo_fast.loader import BadSamples, ClipBatchSampler, build_dataset
from paddlevideo_fast.modeling import MacCounter, Preprocess, build_for_clips
from paddlevideo_fast.modeling.contexts import hooked
from paddlevideo_fast.modeling.layers.attention import EncoderBlock
from paddlevideo_fast.modeling.layers.batch_norm import set_num_splits
from paddlevideo_fast.registry import BACKBONES
from paddlevideo_fast.schedule import Phase, plain_phases, rate_multiplier
from paddlevideo_fast.solver import build_optimizer

_NO_BUDGET = float("inf")
_FLOAT_BYTES = 4
_SUMS = ("iterations", "clips", "tokens", "flops", "train_sec")
# Below this gain, a shorter plain schedule or a better reader saves more than multigrid.
_PAYS = 1.1
# What a small shape may cost beyond its share of the pixels.
_DEAR = 1.15
_ADAPTIVE = ("Adam", "AdamW")
_SECTIONS = ("MODEL", "MULTIGRID", "OPTIMIZER", "PIPELINE")


@dataclass(frozen=True)
class PlanOptions:
    """What a plan assumes and measures.

    Attributes:
        num_clips: length of the training list; None: counted, where the list exists.
        num_steps: optimizer steps to time at each shape; 0: none.
        limit_sec: no step is timed where timing all shapes would take longer.
    """

    num_clips: int | None = None
    num_steps: int = 3
    limit_sec: float = 120.0


def make_plan(
    cfg: Config, options: PlanOptions, progress: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Plans the run of a config with `multigrid` on, for one process.

    Args:
        cfg: a checked config.
        options: what to assume and measure.
        progress: called with a line about each measurement that starts.

    Returns:
        The values of multigrid_plan.json, which docs/en/multigrid.md describes. "pays": whether the run is
        predicted at least 1.1 times as fast as the plain run, and as plain training cut to as many clips;
        None without times.

    Raises:
        ConfigError: as training does; also where the MULTIGRID section is missing.
        AnnotationError: the training list exists and cannot be read.
        LoaderError: a batch of some phase has more clips than the list.
    """
    cfg.require("a multigrid plan", *_SECTIONS)
    spec = RunSpec.of(cfg)
    run = plan_run(spec)
    (plain,) = plain_phases(spec.run.epochs)
    max_epoch = run.phases[-1].end_epoch
    options = replace(options, num_clips=options.num_clips or _listed_clips(run))
    pricing = Pricing(run, options, progress)
    pricing.measure([plain, *run.phases])
    described, plain_run = [pricing.describe(phase) for phase in run.phases], pricing.describe(plain)
    multigrid_run = {key: sum(phase[key] for phase in described) for key in _SUMS if key in plain_run}
    is_timed = "train_sec" in plain_run
    speed_up = plain_run["train_sec"] / multigrid_run["train_sec"] if is_timed else None
    plan = {
        "config": cfg.path,
        "device": paddle.get_device(),
        "paddle": paddle.__version__,
        "num_clips": options.num_clips,
        "max_epoch": max_epoch,
        "lr_at_epoch": [run.curve.at(epoch) for epoch in range(max_epoch)],
        "phases": described,
        "plain": plain_run,
        "multigrid": multigrid_run,
        "speed_up": speed_up,
    }
    pays = None if speed_up is None else min(speed_up, _gain_a_clip(plan)) >= _PAYS
    return {**plan, "pays": pays, "reasons": list(_reasons(cfg, plan))}


def _listed_clips(run: RunPlan) -> int | None:
    """The length of the training list; None where the list does not exist."""
    train = run.spec.splits["train"]
    if not Path(train.dataset.get("file_path") or "").is_file():
        return None
    return len(build_dataset(train.dataset, run.pipelines["train"], training=True, seed=0))


class Pricing:
    """Describes phases and their costs as JSON values.

    Args:
        run: whose phases they are.
        options: what to assume and measure; of no list whose clips are not counted.
        progress: called with a line about each measurement that starts.
    """

    def __init__(self, run: RunPlan, options: PlanOptions, progress: Callable[[str], None]) -> None:
        spec = run.spec
        self._options = options
        self._progress = progress
        self._batch_size = spec.data.batch_size
        self._clips_per_video = spec.splits["train"].dataset.get("clips_per_video", 1)
        self._accumulation = run.accumulate_steps
        self._clip = plain_clip(run.pipelines["train"])
        self._lr_scaling = spec.multigrid.lr_scaling if spec.multigrid else "none"
        self._costs = ShapeCosts(run, options.num_steps)
        self._timed = False

    def measure(self, phases: Sequence[Phase]) -> None:
        """Measures the shapes of the phases, and reports progress."""
        steps = sorted(
            {
                (batch_size, clip.num_frames, clip.crop_size, phase.bn_splits)
                for phase in phases
                for batch_size, clip in self._in_turn(phase)
            }
        )
        clips = sorted({step[1:3] for step in steps})
        for number, (num_frames, crop_size) in enumerate(clips, 1):
            self._progress(f"counting FLOPs, shape {number} of {len(clips)}: {num_frames}×{crop_size}²")
            self._costs.of_clip(num_frames, crop_size)
        if not self._options.num_steps:
            return
        expected_sec = sum(self._costs.timing_sec(*step[:3]) for step in steps)
        if expected_sec > self._options.limit_sec:
            minutes = f"{max(expected_sec / 60, 1):.0f} min"
            self._progress(f"no step is timed: that would take about {minutes}; raise --limit for a speed-up")
            return
        self._timed = True
        for number, (batch_size, num_frames, crop_size, bn_splits) in enumerate(steps, 1):
            clip = f"{num_frames}×{crop_size}²"
            self._progress(f"timing steps, shape {number} of {len(steps)}: {batch_size} clips of {clip}")
            self._costs.step_sec(batch_size, num_frames, crop_size, bn_splits)

    def describe(self, phase: Phase) -> dict[str, Any]:
        """A phase and its costs."""
        in_turn = self._in_turn(phase)
        batch_size, clip = in_turn[-1]
        shapes = [self._shape(*shape, phase.bn_splits) for shape in in_turn]
        values = {
            "start_epoch": phase.start_epoch,
            "end_epoch": phase.end_epoch,
            "batch_multiplier": phase.batch_multiplier,
            **clip._asdict(),
            "bn_splits": phase.bn_splits,
            "lr_multiplier": rate_multiplier(phase.batch_multiplier, self._lr_scaling),
            "batch_size": batch_size,
            "shapes": shapes,
            "activation_bytes": max(shape["activation_bytes"] for shape in shapes),
        }
        if self._options.num_clips:
            values.update(self._sums(phase, shapes, self._options.num_clips))
        return values

    def _in_turn(self, phase: Phase) -> list[tuple[int, ClipShape]]:
        """Batch size and clip of the steps that a phase takes in turn, its own last."""
        return [
            (
                shape.batch_size,
                ClipShape(
                    shape.num_frames or self._clip.num_frames,
                    shape.crop_size or self._clip.crop_size,
                    shape.sampling_rate or self._clip.sampling_rate,
                ),
            )
            for shape in batch_shapes(phase, self._batch_size)
        ]

    def _shape(self, batch_size: int, clip: ClipShape, bn_splits: int) -> dict[str, Any]:
        cost = self._costs.of_clip(clip.num_frames, clip.crop_size)
        values: dict[str, Any] = {
            "batch_size": batch_size,
            "num_frames": clip.num_frames,
            "crop_size": clip.crop_size,
            "flops": cost.flops * batch_size,
            "activation_bytes": cost.activation_bytes * batch_size,
            "smallest_map": cost.smallest_map,
        }
        if cost.tokens:
            values["tokens"] = cost.tokens * batch_size
        if self._timed:
            values["step_sec"] = self._costs.step_sec(batch_size, clip.num_frames, clip.crop_size, bn_splits)
        return values

    def _sums(self, phase: Phase, shapes: Sequence[Mapping[str, Any]], num_clips: int) -> dict[str, float]:
        """The costs of all epochs of a phase."""
        epochs = phase.end_epoch - phase.start_epoch
        in_turn = batch_shapes(phase, self._batch_size, self._accumulation)
        options: Any = {
            "shuffle": True,
            "drop_last": True,
            "seed": 0,
            "clips_per_video": self._clips_per_video,
        }
        sampler = ClipBatchSampler(num_clips, in_turn[0].batch_size, **options).reshaped(in_turn)
        turns = Counter(batch // self._accumulation % len(shapes) for batch in range(sampler.num_batches))

        def total(of_batch: Callable[[Mapping[str, Any]], float]) -> float:
            return epochs * sum(turns[turn] * of_batch(shape) for turn, shape in enumerate(shapes))

        sums = {
            "iterations": epochs * -(-sampler.num_batches // self._accumulation),
            "clips": total(lambda shape: shape["batch_size"]),
            "flops": total(lambda shape: shape["flops"]),
        }
        if "tokens" in shapes[0]:
            sums["tokens"] = total(lambda shape: shape["tokens"])
        if self._timed:
            sums["train_sec"] = total(lambda shape: shape["step_sec"]) / self._accumulation
        return sums


@dataclass(frozen=True)
class ClipCost:
    """The cost of one clip.

    Attributes:
        flops: multiply-adds of the forward pass.
        activation_bytes: float32 outputs of all layers; the backward pass needs most of them.
        forward_sec: a rough time of the forward pass: one call, without warm-up.
        smallest_map: side in values of the smallest feature map that a kernel larger than 1 makes. Where it
            makes one value, most of the kernel lies over padding and learns nothing. 0: no such kernel.
        tokens: that enter the first block of a transformer; 0: the network is none.
    """

    flops: int
    activation_bytes: int
    forward_sec: float
    smallest_map: int
    tokens: int


class ShapeCosts:
    """Costs by shape; each is measured once.

    Args:
        plan: of the run. Its network starts from random weights.
        num_steps: optimizer steps to time at each shape, after one for warm-up.
    """

    def __init__(self, plan: RunPlan, num_steps: int) -> None:
        self._num_steps = num_steps
        self._plan = plan
        self.of_clip = cache(self._of_clip)
        self._steps: dict[tuple[int, int, int, int], float] = {}

    @cached_property
    def _parts(self) -> TrainingSetup:
        return _setup_without_data(self._plan)

    def _of_clip(self, num_frames: int, crop_size: int) -> ClipCost:
        """The cost of a clip, from a forward pass of one."""
        model = self._parts.model
        clip = np.zeros((1, num_frames, crop_size, crop_size, 3), np.uint8)
        model.eval()
        began = time.perf_counter()
        with (
            MacCounter(model) as counter,
            output_shapes(model) as outputs,
            token_counts(model) as tokens,
            paddle.no_grad(),
        ):
            model(self._parts.split.preprocess(clip)).numpy()  # waits for the device
        forward_sec = time.perf_counter() - began
        activation_bytes = sum(math.prod(shape) for _, shape in outputs) * _FLOAT_BYTES
        maps = [_map_side(*each) for each in outputs if _sees_neighbours(each[0])]
        return ClipCost(counter.macs, activation_bytes, forward_sec, min(maps, default=0), *tokens or [0])

    def timing_sec(self, batch_size: int, num_frames: int, crop_size: int) -> float:
        """How long `step_sec` will take, roughly: a step counts as three forward passes."""
        return 3 * batch_size * self.of_clip(num_frames, crop_size).forward_sec * (self._num_steps + 1)

    def step_sec(self, batch_size: int, num_frames: int, crop_size: int, bn_splits: int) -> float:
        """Seconds of an optimizer step on made-up clips: the median of the timed steps."""
        key = batch_size, num_frames, crop_size, bn_splits
        if key not in self._steps:
            model = self._parts.model
            set_num_splits(model, bn_splits)
            loader = SyntheticLoader(batch_size, (num_frames, crop_size, crop_size, 3), model)
            times = time_steps(self._parts, loader, self._num_steps, num_warmup=1, budget_sec=_NO_BUDGET)
            self._steps[key] = times.median_sec
        return self._steps[key]


@contextlib.contextmanager
def output_shapes(model: nn.Layer) -> Iterator[list[tuple[nn.Layer, list[int]]]]:
    """Collects the layers without sublayers, with the shapes of their outputs, while the model runs."""
    shapes: list[tuple[nn.Layer, list[int]]] = []

    def note(layer: nn.Layer, inputs: Any, output: Any) -> None:
        shapes.append((layer, output.shape))

    inner = [layer for layer in model.sublayers() if not list(layer.children())]
    hooks = [layer.register_forward_post_hook(note) for layer in inner]
    with hooked(hooks):
        yield shapes


@contextlib.contextmanager
def token_counts(model: nn.Layer) -> Iterator[list[int]]:
    """Counts the tokens that enter the first block of a transformer, while the model runs."""
    counts: list[int] = []

    def note(block: nn.Layer, inputs: Any) -> None:
        counts.append(math.prod(inputs[0].shape[:-1]))

    blocks = [layer for layer in model.sublayers() if isinstance(layer, EncoderBlock)]
    with hooked([block.register_forward_pre_hook(note) for block in blocks[:1]]):
        yield counts


def _sees_neighbours(layer: nn.Layer) -> bool:
    return isinstance(layer, (nn.Conv2D, nn.Conv3D)) and max(layer.weight.shape[-2:]) > 1


def _map_side(layer: nn.Layer, shape: Sequence[int]) -> int:
    """The shorter side of a feature map, of those along which its kernel is larger than 1."""
    frame = shape[-2:] if layer._data_format.endswith("HW") else shape[-3:-1]
    return min(side for side, kernel in zip(frame, layer.weight.shape[-2:]) if kernel > 1)


def _setup_without_data(plan: RunPlan) -> TrainingSetup:
    spec = plan.spec
    paddle.seed(spec.run.seed)
    model = build_for_clips(spec.model, spec.run.amp, load_pretrained=False)
    optimizer, _ = build_optimizer(spec.optimizer or {}, model)
    pipeline = plan.pipelines["train"]
    unread: Any = None  # the shapes are timed on made-up batches
    preprocess = Preprocess(*pipeline.normalization, model.layout)
    split = Split(unread, unread, preprocess, BadSamples(None, total=0), make_loader=unread)
    return TrainingSetup(plan, model, class_names(spec), optimizer, plan.curve, split)


def _gain_a_clip(plan: Mapping[str, Any]) -> float:
    return float(plan["speed_up"] * plan["multigrid"]["clips"] / plan["plain"]["clips"])


def _reasons(cfg: Config, plan: Mapping[str, Any]) -> Iterator[str]:
    """What speaks against the shapes and rates of a plan."""
    (plain,) = plan["plain"]["shapes"]
    # by batch size, frames and side; of one shape, the phase with the most splits stays
    keys = ("num_frames", "crop_size", "batch_size")
    splits = sorted(plan["phases"], key=lambda phase: phase["bn_splits"])
    shape_of = {tuple(map(shape.get, keys)): shape for phase in splits for shape in phase["shapes"]}
    shapes = [shape_of[key] for key in sorted(shape_of)]
    if plan["speed_up"] is not None and _gain_a_clip(plan) < _PAYS <= plan["speed_up"]:
        share = plan["multigrid"]["clips"] / plan["plain"]["clips"]
        yield f"the gain comes from fewer clips: plain training with {share:.2f} of its epochs gains as much"
    yield from _dear_shapes(plain, shapes)
    yield from _maps_of_one(cfg, plain, shapes)
    yield from _grown_rate(cfg, plan)


def _dear_shapes(plain: Mapping[str, Any], shapes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Shapes that cost more than their share of the pixels."""
    for shape in shapes if "step_sec" in plain else ():
        cost = _sec_a_pixel(shape) / _sec_a_pixel(plain)
        if cost > _DEAR:
            clips = f"{shape['batch_size']} clips of {shape['num_frames']}×{shape['crop_size']}²"
            yield f"{clips} cost {cost:.2f} of the plain step's time a pixel"


def _sec_a_pixel(shape: Mapping[str, Any]) -> float:
    return float(shape["step_sec"] / (shape["batch_size"] * shape["num_frames"] * shape["crop_size"] ** 2))


def _maps_of_one(cfg: Config, plain: Mapping[str, Any], shapes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Crops at which kernels meet a feature map of one value, where they do not in plain training."""
    crops = sorted({shape["crop_size"] for shape in shapes if shape["smallest_map"] == 1})
    if crops and plain["smallest_map"] >= 2:
        sides = " and ".join(map(str, crops))
        has_strides = "spatial_strides" in arguments_of(BACKBONES.get(cfg["MODEL"]["backbone"]["name"]))
        remedy = "; see MODEL.backbone.spatial_strides" if has_strides else ""
        yield (
            f"at crops of {sides} pixels the last feature maps have one value: most of a kernel there lies "
            f"over padding and learns nothing{remedy}"
        )


def _grown_rate(cfg: Config, plan: Mapping[str, Any]) -> Iterator[str]:
    name = cfg["OPTIMIZER"].get("name")
    highest = max(phase["lr_multiplier"] for phase in plan["phases"])
    if name in _ADAPTIVE and highest > 1:
        yield (
            f"{name} wants nearly the same learning rate at all batches; the schedule multiplies it by "
            f"up to {highest:g}, see MULTIGRID.lr_scaling"
        )


def report(plan: Mapping[str, Any]) -> str:
    """The plan as text."""
    lines = [
        f"{plan['config']} on {plan['device']}, Paddle {plan['paddle']}",
        f"{plan['max_epoch']} epochs; plain training has {plan['plain']['end_epoch']}",
        "",
        f"{'epochs':<11}{'batch':>13}{'frames':>8}{'crop':>13}{'rate':>8}{'BN splits':>11}"
        f"{'learning rate':>17}{'activations':>13}",
        *(_line(phase, plan) for phase in plan["phases"]),
        "",
        *_comparison(plan),
    ]
    if plan["pays"] is False:
        lines += [
            "",
            f"Multigrid does not pay here: a gain below {_PAYS:g} is no reason for another schedule.",
        ]
    if plan["reasons"]:
        lines += ["", "What speaks against this schedule:", *(f"- {reason}" for reason in plan["reasons"])]
    return "\n".join(lines)


def _line(phase: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    shapes, rates = phase["shapes"], plan["lr_at_epoch"][phase["start_epoch"] : phase["end_epoch"]]
    lowest, highest = plan["plain"]["sampling_rate"], phase["sampling_rate"]

    def in_turn(key: str) -> str:
        return "/".join(str(shape[key]) for shape in shapes)

    def span(first: float, last: float) -> str:
        return f"{first:.4g}" if first == last else f"{first:.4g} to {last:.4g}"

    epochs = span(phase["start_epoch"] + 1, phase["end_epoch"])
    return (
        f"{epochs:<11}{in_turn('batch_size'):>13}{phase['num_frames']:>8}{in_turn('crop_size'):>13}"
        f"{span(lowest, highest):>8}{phase['bn_splits']:>11}{span(rates[0], rates[-1]):>17}"
        f"{_amount(phase['activation_bytes']):>13}"
    )


def _comparison(plan: Mapping[str, Any]) -> list[str]:
    plain, multigrid = plan["plain"], plan["multigrid"]
    if not multigrid:
        return ["The training list is not there: give --clips for the costs against the plain run."]
    lines = [f"{plan['num_clips']:,} clips{'plain':>19}{'multigrid':>14}{'plain / multigrid':>20}"]
    for key, (name, shown) in _ROWS.items():
        if key in multigrid:
            ratio = plain[key] / multigrid[key]
            lines.append(f"{name:<16}{shown(plain[key]):>14}{shown(multigrid[key]):>14}{ratio:>20.2f}")
    if plan["speed_up"] is not None:
        rate = max(phase["clips"] / phase["train_sec"] for phase in plan["phases"])
        more = rate * plain["train_sec"] / plain["clips"]
        lines.append("")
        lines.append(
            f"Predicted: {plan['speed_up']:.2f} times as fast as the plain run, where reading keeps up with "
            f"training:\nit must deliver up to {more:.1f} times as many clips a second."
        )
    return lines


def _amount(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.3g} PB"


def _duration(sec: float) -> str:
    """A time as people say it, such as "8.5 min"."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if sec >= 2 * length:
            return f"{sec / length:.1f} {unit}"
    return f"{sec:.1f} s"


_ROWS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "iterations": ("steps", "{:,}".format),
    "clips": ("clips", "{:,}".format),
    "tokens": ("tokens", "{:.3g}".format),
    "flops": ("forward FLOPs", "{:.3g}".format),
    "train_sec": ("training", _duration),
}

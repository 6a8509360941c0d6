"""What a multigrid run will do and cost, before it is started."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Tuple

import numpy as np
import paddle

from paddlevideo_fast.bench.charts import pyplot, whole
from paddlevideo_fast.config import Config, DatasetSettings, RunSettings, accumulation_of, build
from paddlevideo_fast.errors import AnnotationError
from paddlevideo_fast.loader import ClipBatchSampler, build_dataset, build_pipeline
from paddlevideo_fast.modeling import MacCounter, build_model
from paddlevideo_fast.planning import batch_shapes, plan_run
from paddlevideo_fast.registry import LEARNING_RATES
from paddlevideo_fast.schedule import Phase, plain_phases
from paddlevideo_fast.solver import build_optimizer

_CHANNELS = 3
_KEYS = [field.name for field in fields(Phase) if field.name != "short_cycle"]

ClipsShape = Tuple[int, int, int]  # clips of a batch, their frames, their side


def schedule_of(cfg: Config) -> Dict[str, Any]:
    """The schedule of a config that has `multigrid` on; reads no data and builds no network.

    Returns:
        `max_epoch`; `lr_at_epoch`, the rate at the start of each; and `phases`, each with `start_epoch`,
        `end_epoch` (exclusive), `batch_multiplier`, `num_frames`, `crop_size`, `sampling_rate` (the widest),
        `bn_splits` and `lr_multiplier`.

    Raises:
        ConfigError: as `plan_run`.
    """
    plan = plan_run(cfg)
    curve = plan.curve or _configured_curve(cfg)
    full = _full_shape(cfg)
    phases = []
    for phase in plan.phases:
        values = {key: getattr(phase, key) for key in _KEYS}
        values.update({key: value for key, value in full.items() if values[key] is None})
        phases.append({**values, "lr_multiplier": phase.batch_multiplier if plan.curve else 1})
    max_epoch = plan.phases[-1].end_epoch
    return {
        "max_epoch": max_epoch,
        "lr_at_epoch": [curve.at(epoch) for epoch in range(max_epoch)],
        "phases": phases,
    }


def num_clips_of(cfg: Config) -> Optional[int]:
    """Clips of the training list, None where it cannot be read."""
    try:
        dataset = build_dataset(cfg["DATASET"]["train"], cfg["PIPELINE"]["train"], training=True, seed=0)
    except AnnotationError:
        return None
    return len(dataset)


def cost_of(cfg: Config, num_clips: int, measure: bool = False) -> Dict[str, Dict[str, float]]:
    """What the run and the plain one cost, on one process.

    Args:
        cfg: has `multigrid` on.
        num_clips: of the training list.
        measure: builds the network, counts its multiply-adds and times one step at each shape.

    Returns:
        "plain" and "multigrid", each with `iterations` (batches), `clips` and `clip_bytes` (pixels that reach
        the network); measured also `flops` (multiply-adds of the forward pass) and `sec`.
    """
    phases = {"plain": plain_phases(RunSettings.from_config(cfg).epochs), "multigrid": plan_run(cfg).phases}
    shapes = {name: _batches(cfg, of_run, num_clips) for name, of_run in phases.items()}
    costs = {name: _sizes(counted) for name, counted in shapes.items()}
    if measure:
        probe = _Probe(cfg)
        prices = {shape: probe.price(shape) for counted in shapes.values() for shape in counted}
        for name, counted in shapes.items():
            for key in ("flops", "sec"):
                costs[name][key] = sum(count * prices[shape][key] for shape, count in counted.items())
    return costs


def table(schedule: Dict[str, Any], costs: Optional[Dict[str, Dict[str, float]]]) -> str:
    """A schedule and its cost as text."""
    rates = schedule["lr_at_epoch"]
    lines = ["   epochs    batch  frames  crop   rate  BN splits  learning rate"]
    for phase in schedule["phases"]:
        first, end = phase["start_epoch"], phase["end_epoch"]
        lines.append(
            f"{first + 1:>4} to {end:<4}{'×' + str(phase['batch_multiplier']):>6}{phase['num_frames']:>8}"
            f"{phase['crop_size']:>6}{phase['sampling_rate']:>7.3g}{phase['bn_splits']:>11}"
            f"  {rates[first]:.4g} to {rates[end - 1]:.4g}"
        )
    if costs is None:
        return "\n".join(
            [*lines, "give --num_clips for iterations and costs: the training list is not there"]
        )
    lines.append(f"\n{'':<12}{'plain':>12}{'multigrid':>12}{'plain/multigrid':>17}")
    for key, plain in costs["plain"].items():
        multigrid = costs["multigrid"][key]
        lines.append(f"{key:<12}{plain:>12.4g}{multigrid:>12.4g}{plain / multigrid:>17.2f}")
    return "\n".join(lines)


def draw(schedule: Dict[str, Any], path: Path) -> None:
    """Draws batch, frames, crop and learning rate over the epochs.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    plot = pyplot("the picture of the schedule")
    figure, axes = plot.subplots(4, 1, figsize=(8, 7), sharex=True, layout="constrained")
    phases = schedule["phases"]
    edges = [phase["start_epoch"] for phase in phases] + [schedule["max_epoch"]]
    for axis, key in zip(axes, ("batch_multiplier", "num_frames", "crop_size")):
        axis.stairs([phase[key] for phase in phases], edges, fill=True, alpha=0.6)
        axis.set_ylabel(key.replace("_", " "))
    axes[3].plot(schedule["lr_at_epoch"])
    axes[3].set(yscale="log", ylabel="learning rate", xlabel="epoch")
    with whole(path) as partial:
        figure.savefig(partial, dpi=110, format="png")
    plot.close(figure)


def _configured_curve(cfg: Config) -> Any:
    rate = cfg["OPTIMIZER"]["learning_rate"]
    section = rate if isinstance(rate, dict) else {"name": "Constant", "learning_rate": rate}
    return build(LEARNING_RATES, section)


def _full_shape(cfg: Config) -> Dict[str, Any]:
    section = cfg["PIPELINE"]["train"]
    sampler = section.get("decode_sampler") or section["sample"]
    return {
        "num_frames": sampler["num_frames"],
        "crop_size": build_pipeline(section).crop_size,
        "sampling_rate": sampler["sampling_rate"],
    }


def _batches(cfg: Config, phases: Sequence[Phase], num_clips: int) -> Dict[ClipsShape, int]:
    """How often a run makes a batch of which shape."""
    full = _full_shape(cfg)
    batch_size = DatasetSettings.from_config(cfg).batch_size
    counted: Counter[ClipsShape] = Counter()
    for phase in phases:
        shapes = batch_shapes(phase, batch_size, accumulation_of(cfg))
        sampler = ClipBatchSampler(num_clips, shapes, shuffle=True, drop_last=True, seed=0)
        for place, shape in enumerate(shapes):
            num_frames, crop_size = (
                shape.num_frames or full["num_frames"],
                shape.crop_size or full["crop_size"],
            )
            times = len(range(place, sampler.num_batches, len(shapes)))
            counted[shape.batch_size, num_frames, crop_size] += times * (phase.end_epoch - phase.start_epoch)
    return counted


def _sizes(counted: Dict[ClipsShape, int]) -> Dict[str, float]:
    return {
        "iterations": sum(counted.values()),
        "clips": sum(times * batch for (batch, _, _), times in counted.items()),
        "clip_bytes": sum(
            times * batch * num_frames * side**2 * _CHANNELS
            for (batch, num_frames, side), times in counted.items()
        ),
    }


class _Probe:
    """The network of a config, trained on made-up clips at a learning rate of 0."""

    def __init__(self, cfg: Config) -> None:
        self._model = build_model(cfg["MODEL"], load_pretrained=False)
        self._optimizer, _ = build_optimizer(cfg["OPTIMIZER"], self._model)
        self._optimizer.set_lr(0.0)

    def price(self, shape: ClipsShape) -> Dict[str, float]:
        """`flops` of the forward pass of a batch, and `sec` of a training step."""
        batch, num_frames, side = shape
        size = (batch, _CHANNELS, num_frames, side, side)
        clips = paddle.to_tensor(np.random.default_rng(0).standard_normal(size, np.float32))
        labels = paddle.zeros([batch], "int64")
        self._model.train()
        with MacCounter(self._model) as counter:
            self._step(clips, labels)
        return {"flops": counter.macs, "sec": self._step(clips, labels)}

    def _step(self, clips: Any, labels: Any) -> float:
        began = time.perf_counter()
        loss = self._model.loss(self._model(clips), labels)
        loss.backward()
        self._optimizer.step()
        self._optimizer.clear_grad()
        float(loss)  # waits for the device
        return time.perf_counter() - began

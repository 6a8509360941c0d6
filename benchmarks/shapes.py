"""What a pixel of multigrid's smallest clips costs in a step, and what splits of batch norms add."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, Dict, List, NamedTuple

import paddle
import paddle.nn.functional as F
from paddle import nn

from benchmarks.measuring import add_output_arguments, in_turn, show
from paddlevideo_fast.assembly.plan import batch_shapes, plain_clip, plan_phases
from paddlevideo_fast.cli import add_config_arguments, count
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.modeling import build_model
from paddlevideo_fast.modeling.layers import set_num_splits
from paddlevideo_fast.solver import build_optimizer


class _Side(NamedTuple):
    batch_size: int
    num_frames: int
    crop_size: int
    splits: int

    @property
    def pixels(self) -> int:
        return self.batch_size * self.num_frames * self.crop_size**2

    def __str__(self) -> str:
        return f"{self.batch_size} of {self.num_frames}×{self.crop_size}², splits: {self.splits}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    add_config_arguments(parser)
    parser.add_argument("--batch-size", type=count(1), default=1, help="clips of a full step (default 1)")
    parser.add_argument("--splits", type=count(2), default=2, help="splits to compare with one (default 2)")
    parser.add_argument("--rounds", type=count(1), default=5, help="timed steps of each kind (default 5)")
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    show(run(args), args, table)


def run(args: argparse.Namespace) -> Dict[str, Any]:
    """Measures whole steps (forward, backward, optimizer) of a config with a MULTIGRID section, in turn.

    All steps have as many pixels, up to the rounding of batches. Times are CPU time of the process: give one
    thread (`-o num_threads=1`).

    Returns:
        "config"; "rows", one a kind of step, the full clips first: "step", "batch_size", "num_frames",
        "crop_size", "splits", "seconds" of each step, "sec" (their median), "per_pixel" (relative to the full
        clips); and "layers": for each kind of layer, its "share" of a forward pass of full clips and
        "per_pixel", the cost at the smallest clips relative to the full ones.
    """
    spec = RunSpec.of(load_config(args.config, [*args.override, "multigrid=true"]))
    sides = _sides(spec, args.batch_size, args.splits)
    paddle.seed(0)
    model = build_model(spec.model, load_pretrained=False)
    optimizer, _ = build_optimizer(spec.optimizer or {}, model)
    seconds: Dict[str, List[float]] = {str(side): [] for side in sides}
    by_name = {str(side): side for side in sides}
    for turn, name in in_turn(by_name, args.rounds, warmup=1):
        side = by_name[name]
        set_num_splits(model, side.splits)
        clips, labels = _made_up(side)
        began = time.process_time()
        F.cross_entropy(model(clips), labels).mean().backward()
        optimizer.step()
        optimizer.clear_grad()
        if turn >= 0:
            seconds[name].append(time.process_time() - began)
    full = sides[0]
    of_full = statistics.median(seconds[str(full)]) / full.pixels
    rows = []
    for side in sides:
        sec = statistics.median(seconds[str(side)])
        values = {"step": str(side), **side._asdict(), "seconds": seconds[str(side)], "sec": sec}
        rows.append({**values, "per_pixel": sec / side.pixels / of_full})
    return {"config": args.config, "rows": rows, "layers": _layers(model, full, sides[1], args.rounds)}


def _sides(spec: RunSpec, batch_size: int, splits: int) -> List[_Side]:
    """Full clips, the smallest ones, and the smallest ones with splits."""
    clip = plain_clip(spec)
    shapes = [shape for phase in plan_phases(spec).phases for shape in batch_shapes(phase, batch_size)]
    smallest = min(shapes, key=lambda shape: (shape.num_frames or 0) * (shape.crop_size or 0) ** 2)
    size = smallest.num_frames or clip.num_frames, smallest.crop_size or clip.crop_size
    full = _Side(batch_size, clip.num_frames, clip.crop_size, 1)
    return [full, _Side(smallest.batch_size, *size, 1), _Side(smallest.batch_size, *size, splits)]


def _made_up(side: _Side) -> Any:
    clips = paddle.randn([side.batch_size, 3, side.num_frames, side.crop_size, side.crop_size])
    return clips, paddle.zeros([side.batch_size], "int64")


def _layers(model: nn.Layer, full: _Side, small: _Side, rounds: int) -> List[Dict[str, Any]]:
    """Forward time of each kind of layer without sublayers, full clips against small ones."""
    began = [0.0]
    spent: Dict[str, float] = {}

    def start(layer: nn.Layer, inputs: Any) -> None:
        began[0] = time.process_time()

    def stop(layer: nn.Layer, inputs: Any, output: Any) -> None:
        kind = _kind(layer)
        spent[kind] = spent.get(kind, 0.0) + time.process_time() - began[0]

    leaves = [layer for layer in model.sublayers() if not list(layer.children())]
    hooks = [layer.register_forward_pre_hook(start) for layer in leaves]
    hooks += [layer.register_forward_post_hook(stop) for layer in leaves]
    found: Dict[str, Dict[str, List[float]]] = {"full": {}, "small": {}}
    sides = {"full": full, "small": small}
    set_num_splits(model, 1)
    with paddle.no_grad():
        for turn, name in in_turn(sides, rounds, warmup=1):
            spent.clear()
            model(_made_up(sides[name])[0])
            for kind, sec in spent.items() if turn >= 0 else ():
                found[name].setdefault(kind, []).append(sec / sides[name].pixels)
    for hook in hooks:
        hook.remove()
    medians = {
        name: {kind: statistics.median(each) for kind, each in of.items()} for name, of in found.items()
    }
    whole = sum(medians["full"].values())
    rows = [
        {"kind": kind, "share": cost / whole, "per_pixel": medians["small"][kind] / cost}
        for kind, cost in medians["full"].items()
    ]
    return sorted(rows, key=lambda row: -row["share"])


def _kind(layer: nn.Layer) -> str:
    kernel = getattr(layer, "_kernel_size", None)
    name = type(layer).__name__.replace("SubBatchNorm", "BatchNorm")
    return f"{name} {'×'.join(map(str, kernel))}" if isinstance(kernel, (list, tuple)) else name


def table(result: Dict[str, Any]) -> str:
    """The result as Markdown tables."""
    lines = ["| clips of a step | s a step | cost of a pixel |", "|---|---|---|"]
    lines += [f"| {row['step']} | {row['sec']:.2f} | {row['per_pixel']:.2f} |" for row in result["rows"]]
    lines += ["", "| layers, forward | share | cost of a pixel, smallest clips |", "|---|---|---|"]
    lines += [
        f"| {row['kind']} | {row['share']:.1%} | {row['per_pixel']:.2f} |"
        for row in result["layers"]
        if row["share"] >= 0.01
    ]
    return "\n".join(lines)

"""A step of VideoMAE's pre-training, whose encoder sees few tokens, against steps over all tokens."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, Callable, Dict, List

import paddle

from benchmarks.measuring import add_output_arguments, in_turn, show
from paddlevideo_fast.modeling import Pretrain, build_model
from paddlevideo_fast.solver import build_optimizer

_TITLES = {
    "unmasked": "the same network, its encoder over all tokens",
    "fine-tuning": "the same encoder and a classifier over all tokens",
    "masked": "pre-training, its encoder over visible tokens",
}


class _EncodesAll(Pretrain):
    """Pre-training whose encoder computes the hidden tokens, too, which are then thrown away."""

    def _encoded(self, tubelets: paddle.Tensor, visible: paddle.Tensor) -> paddle.Tensor:
        tokens = self.backbone.encode(tubelets)
        return paddle.take_along_axis(
            tokens, visible.unsqueeze(2).expand([-1, -1, tokens.shape[2]]), axis=1, broadcast=False
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument("--channels", type=int, default=384, help="of the encoder (default 384, ViT-S)")
    parser.add_argument("--depth", type=int, default=12, help="blocks of the encoder (default 12)")
    parser.add_argument("--frames", type=int, default=16, help="of a clip (default 16)")
    parser.add_argument("--size", type=int, default=112, help="side of a clip in pixels (default 112)")
    parser.add_argument("--batch-size", type=int, default=2, help="clips of a step (default 2)")
    parser.add_argument("--mask-ratio", type=float, default=0.9, help="share that is hidden (default 0.9)")
    parser.add_argument("--rounds", type=int, default=5, help="timed steps of each kind (default 5)")
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    show(run(args), args, table)


def run(args: argparse.Namespace) -> Dict[str, Any]:
    """Measures whole steps (forward, backward, AdamW), of all kinds in turn.

    Returns:
        "device", "clock" ("cpu": time of the processor, which other processes do not change; "wall" on a
        device), the options, and "rows", one a kind of step: "side", "seconds" of each step, "sec" (their
        median) and "ratio", of the medians, to the "unmasked" step.
    """
    paddle.seed(0)
    steps = {"unmasked": _pretraining(args, _EncodesAll), "masked": _pretraining(args, Pretrain)}
    steps["fine-tuning"] = _fine_tuning(args)
    on_cpu = paddle.get_device() == "cpu"
    clock = time.process_time if on_cpu else time.perf_counter
    seconds: Dict[str, List[float]] = {name: [] for name in steps}
    clips = paddle.randn([args.batch_size, 3, args.frames, args.size, args.size])
    for turn, name in in_turn(steps, args.rounds, warmup=1):
        began = clock()
        steps[name](clips)
        if not on_cpu:
            paddle.device.synchronize()
        if turn >= 0:
            seconds[name].append(clock() - began)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    options = ("channels", "depth", "frames", "size", "batch_size", "mask_ratio", "rounds")
    return {
        "device": paddle.get_device(),
        "clock": "cpu" if on_cpu else "wall",
        **{name: getattr(args, name) for name in options},
        "rows": [
            {
                "side": name,
                "seconds": seconds[name],
                "sec": medians[name],
                "ratio": medians[name] / medians["unmasked"],
            }
            for name in _TITLES
        ],
    }


def table(result: Dict[str, Any]) -> str:
    """The result of `run` as text."""
    lines = [
        f"steps over {result['batch_size']} clips of {result['frames']}x{result['size']}² px, "
        f"{result['channels']} channels, {result['depth']} blocks, {result['mask_ratio']:.0%} hidden, "
        f"on {result['device']} ({result['clock']} time)",
        f"{'step':<52}{'s':>9}{'ratio':>8}",
    ]
    for row in result["rows"]:
        lines.append(f"{_TITLES[row['side']]:<52}{row['sec']:>9.3f}{row['ratio']:>8.3f}")
    return "\n".join(lines)


def _backbone(args: argparse.Namespace) -> Dict[str, Any]:
    heads = max(args.channels // 64, 1)
    return {"name": "VideoMAEViT", "embed_dim": args.channels, "depth": args.depth, "num_heads": heads}


def _pretraining(args: argparse.Namespace, kind: type) -> Callable[[paddle.Tensor], None]:
    """A step with VideoMAE's decoder: half of the channels, 4 blocks."""
    channels = args.channels // 2
    decoder = {"name": "VideoMAEDecoder", "in_channels": args.channels, "embed_dim": channels}
    model = build_model(
        {
            "framework": "Pretrain",
            "backbone": _backbone(args),
            "head": {**decoder, "num_heads": max(channels // 64, 1)},
            "mask_ratio": args.mask_ratio,
        }
    )
    return _step(kind(model.backbone, model.head, args.mask_ratio))


def _fine_tuning(args: argparse.Namespace) -> Callable[[paddle.Tensor], None]:
    head = {"name": "VideoMAEHead", "num_classes": 400, "in_channels": args.channels}
    return _step(
        build_model({"framework": "RecognizerTransformer", "backbone": _backbone(args), "head": head})
    )


def _step(model: Any) -> Callable[[paddle.Tensor], None]:
    optimizer, _ = build_optimizer({"name": "AdamW", "learning_rate": 1e-4, "weight_decay": 0.05}, model)
    model.train()

    def step(clips: paddle.Tensor) -> None:
        if hasattr(model, "key_clips"):
            model.key_clips([(0, 0, index, 0) for index in range(len(clips))])
        model.loss(model(clips), paddle.zeros([len(clips)], "int64")).backward()
        optimizer.step()
        optimizer.clear_grad()

    return step

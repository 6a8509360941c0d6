"""What a clip or a training step of one shape costs a config's network; no data is read."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.assembly import Split, TrainingParts, precision_of
from paddlevideo_fast.bench.training import SyntheticLoader, time_steps
from paddlevideo_fast.config import Config, RunSettings
from paddlevideo_fast.loader import BadSamples, build_pipeline
from paddlevideo_fast.modeling import MacCounter, Preprocess, build_model, count_parameters
from paddlevideo_fast.modeling.layers import set_num_splits
from paddlevideo_fast.planning import plan_run
from paddlevideo_fast.solver import build_optimizer

_NO_BUDGET = float("inf")
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class ClipCost:
    """What one clip costs.

    Attributes:
        flops: multiply-adds of the forward pass.
        activation_bytes: float32 outputs of all layers, most of which the backward pass needs.
        forward_sec: time of the forward pass, once and without a first one to warm up: a rough one.
    """

    flops: int
    activation_bytes: int
    forward_sec: float


class ShapeCosts:
    """Costs by shape, each found once.

    Args:
        cfg: checked. Its network starts from random weights.
        num_steps: optimizer steps to time at each shape, after one that is not timed.
    """

    def __init__(self, cfg: Config, num_steps: int) -> None:
        self._num_steps = num_steps
        self._parts = _parts_without_data(cfg)
        self._clips: Dict[Tuple[int, int], ClipCost] = {}
        self._steps: Dict[Tuple[int, int, int, int], float] = {}

    @property
    def num_parameters(self) -> int:
        """Numbers that a step changes."""
        return count_parameters(self._parts.model)

    def of_clip(self, num_frames: int, crop_size: int) -> ClipCost:
        """The cost of a clip, from a forward pass of one."""
        key = num_frames, crop_size
        if key not in self._clips:
            model = self._parts.model
            clip = np.zeros((1, num_frames, crop_size, crop_size, 3), np.uint8)
            model.eval()
            began = time.perf_counter()
            with MacCounter(model) as counter, output_sizes(model) as sizes, paddle.no_grad():
                model(self._parts.split.preprocess(clip)).numpy()  # waits for the device
            forward_sec = time.perf_counter() - began
            self._clips[key] = ClipCost(counter.macs, sum(sizes) * _FLOAT_BYTES, forward_sec)
        return self._clips[key]

    def timing_sec(self, batch_size: int, num_frames: int, crop_size: int) -> float:
        """About how long `step_sec` will take; a step is taken for three forward passes."""
        return 3 * batch_size * self.of_clip(num_frames, crop_size).forward_sec * (self._num_steps + 1)

    def step_sec(self, batch_size: int, num_frames: int, crop_size: int, bn_splits: int) -> float:
        """Seconds of an optimizer step of the trainer on made-up clips, the median of some."""
        key = batch_size, num_frames, crop_size, bn_splits
        if key not in self._steps:
            model = self._parts.model
            set_num_splits(model, bn_splits)
            shape = (num_frames, crop_size, crop_size, 3)
            loader = SyntheticLoader(batch_size, shape, model.num_classes)
            self._steps[key] = time_steps(
                self._parts, loader, self._num_steps, num_warmup=1, budget_sec=_NO_BUDGET
            ).median_sec
        return self._steps[key]


@contextlib.contextmanager
def output_sizes(model: nn.Layer) -> Iterator[List[int]]:
    """Numbers in the outputs of the layers that have no layers in them, as they run."""
    sizes: List[int] = []

    def note(layer: nn.Layer, inputs: Any, output: Any) -> None:
        sizes.append(output.size)

    hooks = [
        layer.register_forward_post_hook(note) for layer in model.sublayers() if not list(layer.children())
    ]
    try:
        yield sizes
    finally:
        for hook in hooks:
            hook.remove()


def _parts_without_data(cfg: Config) -> TrainingParts:
    settings = RunSettings.from_config(cfg)
    plan = plan_run(cfg)
    paddle.seed(settings.seed)
    model = build_model(cfg["MODEL"], load_pretrained=False)
    optimizer, curve = build_optimizer(cfg["OPTIMIZER"], model)
    pipeline = build_pipeline(cfg["PIPELINE"]["train"])
    split = Split(None, Preprocess(*pipeline.normalization, model.layout), BadSamples(None, total=0))
    return TrainingParts(cfg, settings, plan, model, optimizer, plan.curve or curve, split, precision_of(cfg))

"""Costs of a clip and of a training step at one shape, for a config's network. No data is read."""

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.assembly import RunPlan, Split, TrainingSetup
from paddlevideo_fast.doctor.timing import SyntheticLoader, time_steps
from paddlevideo_fast.loader import BadSamples
from paddlevideo_fast.modeling import (
    MacCounter,
    Preprocess,
    build_model,
    take_network_layout,
)
from paddlevideo_fast.modeling.layers import set_num_splits
from paddlevideo_fast.solver import build_optimizer

_NO_BUDGET = float("inf")
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class ClipCost:
    """The cost of one clip.

    Attributes:
        flops: multiply-adds of the forward pass.
        activation_bytes: float32 outputs of all layers; the backward pass needs most of them.
        forward_sec: a rough time of the forward pass: one call, without warm-up.
        smallest_map: side in values of the smallest feature map that a kernel larger than 1 makes. Where it
            makes one value, most of the kernel lies over padding and learns nothing. 0: no such kernel.
    """

    flops: int
    activation_bytes: int
    forward_sec: float
    smallest_map: int


class ShapeCosts:
    """Costs by shape; each is measured once.

    Args:
        plan: of the run. Its network starts from random weights.
        num_steps: optimizer steps to time at each shape, after one for warm-up.
    """

    def __init__(self, plan: RunPlan, num_steps: int) -> None:
        self._num_steps = num_steps
        self._plan = plan
        self._clips: dict[tuple[int, int], ClipCost] = {}
        self._steps: dict[tuple[int, int, int, int], float] = {}

    @cached_property
    def _parts(self) -> TrainingSetup:
        return _parts_without_data(self._plan)

    def of_clip(self, num_frames: int, crop_size: int) -> ClipCost:
        """The cost of a clip, from a forward pass of one."""
        key = num_frames, crop_size
        if key not in self._clips:
            model = self._parts.model
            clip = np.zeros((1, num_frames, crop_size, crop_size, 3), np.uint8)
            model.eval()
            began = time.perf_counter()
            with MacCounter(model) as counter, output_shapes(model) as outputs, paddle.no_grad():
                model(self._parts.split.preprocess(clip)).numpy()  # waits for the device
            forward_sec = time.perf_counter() - began
            activation_bytes = sum(math.prod(shape) for _, shape in outputs) * _FLOAT_BYTES
            maps = [_map_side(*each) for each in outputs if _sees_neighbours(each[0])]
            self._clips[key] = ClipCost(counter.macs, activation_bytes, forward_sec, min(maps, default=0))
        return self._clips[key]

    def timing_sec(self, batch_size: int, num_frames: int, crop_size: int) -> float:
        """How long `step_sec` will take, roughly: a step counts as three forward passes."""
        return 3 * batch_size * self.of_clip(num_frames, crop_size).forward_sec * (self._num_steps + 1)

    def step_sec(self, batch_size: int, num_frames: int, crop_size: int, bn_splits: int) -> float:
        """Seconds of an optimizer step on made-up clips: the median of the timed steps."""
        key = batch_size, num_frames, crop_size, bn_splits
        if key not in self._steps:
            model = self._parts.model
            set_num_splits(model, bn_splits)
            shape = (num_frames, crop_size, crop_size, 3)
            loader = SyntheticLoader(batch_size, shape, model)
            self._steps[key] = time_steps(
                self._parts, loader, self._num_steps, num_warmup=1, budget_sec=_NO_BUDGET
            ).median_sec
        return self._steps[key]


@contextlib.contextmanager
def output_shapes(model: nn.Layer) -> Iterator[list[tuple[nn.Layer, list[int]]]]:
    """Collects the layers without sublayers, with the shapes of their outputs, while the model runs."""
    found: list[tuple[nn.Layer, list[int]]] = []

    def note(layer: nn.Layer, inputs: Any, output: Any) -> None:
        found.append((layer, output.shape))

    inner = [layer for layer in model.sublayers() if not list(layer.children())]
    hooks = [layer.register_forward_post_hook(note) for layer in inner]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _sees_neighbours(layer: nn.Layer) -> bool:
    return isinstance(layer, (nn.Conv2D, nn.Conv3D)) and max(layer.weight.shape[-2:]) > 1


def _map_side(layer: nn.Layer, shape: Sequence[int]) -> int:
    """The shorter side of a feature map, of those along which its kernel is larger than 1."""
    frame = shape[-2:] if layer._data_format.endswith("HW") else shape[-3:-1]
    return min(side for side, kernel in zip(frame, layer.weight.shape[-2:]) if kernel > 1)


def _parts_without_data(plan: RunPlan) -> TrainingSetup:
    spec = plan.spec
    paddle.seed(spec.run.seed)
    model = build_model(spec.model, load_pretrained=False)
    take_network_layout(model)
    optimizer, _ = build_optimizer(spec.optimizer or {}, model)
    _, pipeline = plan.pipelines["train"]
    unread: Any = None  # the shapes are timed on made-up batches
    split = Split(
        unread, unread, Preprocess(*pipeline.normalization, model.layout), BadSamples(None, total=0)
    )
    return TrainingSetup(plan, model, optimizer, plan.curve, split)

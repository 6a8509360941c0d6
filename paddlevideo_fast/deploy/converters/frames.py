"""Converters of 2D ResNets (MIT, MMAction2, torchvision).

The temporal shift of MIT and MMAction2 is mirrored. With f = channels / 8, their first fold of channels takes
frame t+1 and the second t-1; `paddle.nn.functional.temporal_shift` has it the other way round:

    channel        0 ... f-1     f ... 2f-1     2f ...
    theirs         x(t+1)        x(t-1)         x(t)
    Paddle's       x(t-1)        x(t+1)         x(t)

So the converter exchanges the two folds in the weights. The shifted tensor is the residual stream, and all of
its readers must see the same order. Therefore the exchange covers every convolution and batch norm that
writes to the stream (output channels) and every layer that reads from it (input channels): the first
convolution of each block, the shortcut, the classifier. The network then computes the same function.
"""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from paddlevideo_fast.deploy.converters.base import LEAVES, Converter, Network, Place, Step

_EPSILON = 1e-5


class _Layer(NamedTuple):
    """A source name taken apart; stage None is the stem, layer 3 the shortcut."""

    stage: int | None
    block: int
    layer: int
    kind: str
    leaf: str


_SHORTCUT = 3


class FrameConverter(Converter):
    """What the converters of 2D ResNets share.

    Attributes:
        classifiers: names of the linear layer that gives the logits.
    """

    classifiers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, state: Mapping[str, np.ndarray], network: Network) -> None:
        super().__init__(state, network)
        self._is_shifted = any(".net." in name for name in state)
        layers = [self._layer(name) for name in state]
        self._last_layer = max(
            (layer.layer for layer in layers if layer and layer.layer < _SHORTCUT), default=0
        )

    def _layer(self, name: str) -> _Layer | None:
        raise NotImplementedError

    def place(self, name: str) -> Place | None:
        owner, _, leaf = name.rpartition(".")
        if owner in self.classifiers:
            return self.linear(leaf, *self._exchanges(1))
        layer = self._layer(name)
        if layer is None or layer.leaf not in (LEAVES if layer.kind == "bn" else ("weight",)):
            return None
        return Place(self._our_name(layer), self._steps(layer))

    def differences(self) -> Sequence[str]:
        if self._is_shifted and not self.network.shift_ratio:
            return ["the file's network shifts channels in time (TSM), the config's does not"]
        if self.network.shift_ratio and not self._is_shifted:
            return ["the config's network shifts channels in time (TSM), the file's does not (TSN)"]
        return []

    def added(self) -> dict[str, np.ndarray]:
        """Depths 18 and 34 have a 1x1 shortcut in their first block here, and an identity there."""
        places = {name: self.place(name) for name in self.state}
        names = {place.name for place in places.values() if place is not None}
        shortcut = _Layer(0, 0, _SHORTCUT, "conv", "weight")
        first = self._our_name(_Layer(0, 0, 0, "conv", "weight"))
        if first not in names or self._our_name(shortcut) in names:
            return {}
        source = next(name for name, place in places.items() if place is not None and place.name == first)
        channels = self.state[source].shape[1]
        ones, zeros = np.ones(channels, "float32"), np.zeros(channels, "float32")
        norm = {
            "weight": ones * np.float32(np.sqrt(1 + _EPSILON)),
            "bias": zeros,
            "running_mean": zeros,
            "running_var": ones,
        }
        made = {self._our_name(shortcut): np.eye(channels, dtype="float32")[:, :, None, None]}
        for leaf, value in norm.items():
            made[self._our_name(shortcut._replace(kind="bn", leaf=leaf))] = value
        return made

    def _our_name(self, layer: _Layer) -> str:
        inner = "_conv.weight" if layer.kind == "conv" else f"_batch_norm.{LEAVES[layer.leaf]}"
        if layer.stage is None:
            return f"backbone.conv.{inner}"
        part = "short" if layer.layer == _SHORTCUT else f"conv{layer.layer}"
        return f"backbone.{self.network.block_name(layer.stage, layer.block)}.{part}.{inner}"

    def _steps(self, layer: _Layer) -> tuple[Step, ...]:
        """Exchanges in the channels that the layer writes to, or reads from, the residual stream."""
        steps: list[Step] = []
        if layer.stage is None or layer.layer in (self._last_layer, _SHORTCUT):
            steps += self._exchanges(0)
        if layer.stage is not None and layer.layer in (0, _SHORTCUT) and layer.kind == "conv":
            steps += self._exchanges(1)
        return tuple(steps)

    def _exchanges(self, axis: int) -> list[Step]:
        ratio = self.network.shift_ratio
        if not (ratio and self._is_shifted):
            return []

        def exchanged(value: np.ndarray) -> np.ndarray:
            channels = value.shape[axis]
            first, second = int(channels * ratio), int(channels * 2 * ratio)
            order = [*range(first, second), *range(first), *range(second, channels)]
            return np.take(value, order, axis=axis)

        return [Step(f"folds of axis {axis} exchanged", exchanged)]


class TorchvisionConverter(FrameConverter):
    """torchvision's ResNets, trained on ImageNet: weights for a backbone, inflated where it is 3D."""

    backbone_only = True
    classifiers = ("fc",)

    def _layer(self, name: str) -> _Layer | None:
        return torchvision_layer(name)

    def differences(self) -> Sequence[str]:
        return []  # a shift or none: these weights have seen no time


class MitConverter(FrameConverter):
    """TSM (blockres) and TSN of MIT's temporal-shift-module."""

    classifiers = ("new_fc", "base_model.fc")

    def _layer(self, name: str) -> _Layer | None:
        return torchvision_layer(name[len("base_model.") :]) if name.startswith("base_model.") else None


def torchvision_layer(name: str) -> _Layer | None:
    """`layer1.0.conv1.weight`; with a shift `layer1.0.conv1.net.weight`."""
    stem = re.fullmatch(r"(conv|bn)1\.(\w+)", name)
    if stem:
        return _Layer(None, 0, 0, stem[1], stem[2])
    inner = re.fullmatch(r"layer([1-4])\.(\d+)\.(conv|bn)([1-3])\.(?:net\.)?(\w+)", name)
    if inner:
        return _Layer(int(inner[1]) - 1, int(inner[2]), int(inner[4]) - 1, inner[3], inner[5])
    shortcut = re.fullmatch(r"layer([1-4])\.(\d+)\.downsample\.([01])\.(\w+)", name)
    if shortcut:
        kind = ("conv", "bn")[int(shortcut[3])]
        return _Layer(int(shortcut[1]) - 1, int(shortcut[2]), _SHORTCUT, kind, shortcut[4])
    return None


class MMAction2FrameConverter(FrameConverter):
    """TSM and TSN of MMAction2."""

    classifiers = ("cls_head.fc_cls",)

    def _layer(self, name: str) -> _Layer | None:
        stem = re.fullmatch(r"backbone\.conv1\.(conv|bn)\.(\w+)", name)
        if stem:
            return _Layer(None, 0, 0, stem[1], stem[2])
        pattern = r"backbone\.layer([1-4])\.(\d+)\.(?:conv([1-3])|downsample)\.(conv|bn)\.(?:net\.)?(\w+)"
        inner = re.fullmatch(pattern, name)
        if inner:
            layer = int(inner[3]) - 1 if inner[3] else _SHORTCUT
            return _Layer(int(inner[1]) - 1, int(inner[2]), layer, inner[4], inner[5])
        return torchvision_layer(name[len("backbone.") :]) if name.startswith("backbone.") else None

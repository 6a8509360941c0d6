"""2D ResNets: plain (TSN), with the temporal shift (TSM), and ResNet-vd (ppTSN, ppTSM).

At the end are the converters of other toolkits' weights for them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.config.types import FixedFrames, Range, Size
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.backbones.base import Backbone
from paddlevideo_fast.modeling.converters import LEAVES, Converter, Network, Renames, Step, Target, Weights
from paddlevideo_fast.modeling.freezing import set_frozen
from paddlevideo_fast.modeling.layers.conv_bn import ConvBN
from paddlevideo_fast.modeling.layers.operators import activation, temporal_shift
from paddlevideo_fast.registry import BACKBONES

ShiftRatio = Annotated[float, Range(0.0, 0.5)]


@dataclass(frozen=True)
class BlockStyle:
    """What all blocks of one network have in common.

    Attributes:
        act: activation, a name in `paddle.nn.functional`.
        num_seg: frames of a clip for the temporal shift; None: no shift.
        shift_ratio: share of the channels in each of the two folds.
        pooled_shortcut: ResNet-D: a shortcut of stride 2 pools first, then convolves with stride 1.
        data_format: "NCHW" or "NHWC".
    """

    act: str = "relu"
    num_seg: int | None = None
    shift_ratio: float = 0.125
    pooled_shortcut: bool = False
    data_format: Literal["NCHW", "NHWC"] = "NCHW"


class ResidualBlock(nn.Layer):
    """Shift, a chain of convolutions, and the sum with a shortcut that sees no shift ("residual shift").

    Here the chain is two 3x3 convolutions (ResNet-18 and -34).

    Args:
        in_channels: channels of the input.
        channels: channels of the inner convolutions; the output has `channels * expansion`.
        stride: stride of the block, which its first 3x3 convolution has.
        project: the shortcut is a 1x1 convolution instead of the identity.
        style: see `BlockStyle`.
    """

    kernels: ClassVar[tuple[int, ...]] = (3, 3)
    expansion: ClassVar[int] = 1

    def __init__(
        self, in_channels: int, channels: int, stride: int, project: bool, style: BlockStyle
    ) -> None:
        super().__init__()
        self._style = style
        self._act = activation(style.act)
        out_channels, data_format = channels * self.expansion, style.data_format
        widths = [in_channels, *[channels] * (len(self.kernels) - 1), out_channels]
        self._names = [f"conv{number}" for number in range(len(self.kernels))]
        for number, (name, kernel) in enumerate(zip(self._names, self.kernels)):
            step = stride if number == self.kernels.index(3) else 1
            act = None if name == self._names[-1] else style.act
            convolution = ConvBN(
                widths[number], widths[number + 1], kernel, step, act, data_format=data_format
            )
            self.add_sublayer(name, convolution)
        self.short = None
        if project:
            pool = style.pooled_shortcut and stride == 2
            stride = 1 if pool else stride
            self.short = ConvBN(in_channels, out_channels, 1, stride, pool=pool, data_format=data_format)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[N*T, C, H, W] (or [N*T, H, W, C]) to the same with the block's channels and stride."""
        style, y = self._style, x
        if style.num_seg is not None:
            y = temporal_shift(x, style.num_seg, style.shift_ratio, style.data_format)
        short = x if self.short is None else self.short(x)
        for name in self._names:
            y = getattr(self, name)(y)
        return self._act(short + y)


class BottleneckBlock(ResidualBlock):
    """1x1, 3x3 and 1x1 convolutions (ResNet-50 and deeper)."""

    kernels = (1, 3, 1)
    expansion = 4


STAGE_BLOCKS: dict[int, Sequence[int]] = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


def block_name(depth: int, stage: int, index: int) -> str:
    """PaddleVideo's name of a block: res2a, res2b, ...; res4b1, ... in stage 4 of depth 101 and 152."""
    if depth >= 101 and stage == 2 and index > 0:
        return f"res{stage + 2}b{index}"
    return f"res{stage + 2}{chr(ord('a') + index)}"


def name_of_paddleclas(key: str, stem: Sequence[str], block_names: Sequence[str] = ()) -> str:
    """Our name for one of PaddleClas since 2.1: `stem.0.conv.weight`, `blocks.3.conv1.bn._mean`.

    Args:
        key: the name.
        stem: names of the convolutions of the stem.
        block_names: names of the blocks of all stages, in order.
    """
    match = re.fullmatch(r"(stem|blocks)\.(\d+)\.((?:conv\d|short)\.)?(conv|bn)\.(\w+)", key)
    if not match:
        return key
    part, number, layer, kind, leaf = match.groups()
    owners = stem if part == "stem" else block_names
    inner = f"{layer or ''}{'_conv' if kind == 'conv' else '_batch_norm'}.{leaf}"
    return f"{owners[int(number)]}.{inner}" if int(number) < len(owners) else key


class FrameResNet(Backbone):
    """Stem, pooling and four stages of residual blocks; what the registered ResNets share.

    Args:
        style: see `BlockStyle`; its data format is `data_format`.
        depth: 18, 34 (basic blocks), 50, 101 or 152 (bottlenecks).
        pretrained: path or URL of weights; null or "": random weights. `build_model` reads the file when the
            network is built, so building one to load other weights needs no file.
        data_format: layout of the network's inner tensors.
        width: channels of the stem; every stage scales with it.
        stage_blocks: blocks in each of the four stages; null: what the depth says.
        partial_bn: all batch norms but the first use and keep their running statistics, and are not trained.

    Raises:
        ConfigError: a depth that does not exist.

    Reference: He et al., "Deep Residual Learning for Image Recognition", arXiv 1512.03385; the stride sits
    in the 3x3 convolution.
    """

    injected: ClassVar[tuple[str, ...]] = ("style",)
    stem: ClassVar[dict[str, tuple[int, int]]] = {"conv": (7, 1)}  # sides of kernels, and parts of the width

    def __init__(
        self,
        style: BlockStyle,
        depth: int,
        pretrained: str | None = None,
        data_format: Literal["NCHW", "NHWC"] = "NCHW",
        width: Size = 64,
        stage_blocks: Sequence[Size] | None = None,
        partial_bn: bool = False,
    ) -> None:
        super().__init__()
        style = replace(style, data_format=data_format)
        if depth not in STAGE_BLOCKS:
            depths = ", ".join(map(str, STAGE_BLOCKS))
            raise ConfigError(f"MODEL.backbone.depth={depth}: there is no such ResNet; use one of {depths}")
        self.depth = depth
        self.pretrained = pretrained
        self.num_seg = style.num_seg
        self.shift_ratio = style.shift_ratio if style.num_seg is not None else 0.0
        self.data_format = style.data_format
        self._add_stem(width, style)
        self.pool2D_max = nn.MaxPool2D(3, stride=2, padding=1, data_format=style.data_format)
        block = BottleneckBlock if depth >= 50 else ResidualBlock
        self.block_names: list[str] = []
        self.stage_layers: dict[str, list[str]] = {"stem": [*self.stem]}
        self._add_stages(block, width, stage_blocks or STAGE_BLOCKS[depth], style)
        self.out_channels = width * 8 * block.expansion
        if partial_bn:
            norms = [name for name, layer in self.named_sublayers() if isinstance(layer, nn.BatchNorm2D)]
            set_frozen(self, [f"{norm}.{kind}" for norm in norms[1:] for kind in ("weight", "bias")])

    def translate(self, name: str) -> str:
        return name_of_paddleclas(name, [*self.stem], self.block_names)

    def _add_stem(self, width: int, style: BlockStyle) -> None:
        channels, stride = 3, 2
        for name, (side, parts) in self.stem.items():
            out_channels = width // parts
            convolution = ConvBN(
                channels, out_channels, side, stride, style.act, data_format=style.data_format
            )
            self.add_sublayer(name, convolution)
            channels, stride = out_channels, 1

    def _add_stages(
        self, block: type[ResidualBlock], width: int, stage_blocks: Sequence[int], style: BlockStyle
    ) -> None:
        in_channels = width
        for stage, num_blocks in enumerate(stage_blocks):
            channels = width * 2**stage
            names = [self._block_name(stage, index) for index in range(num_blocks)]
            for index, name in enumerate(names):
                stride = 2 if index == 0 and stage > 0 else 1
                self.add_sublayer(name, block(in_channels, channels, stride, index == 0, style))
                in_channels = channels * block.expansion
            self.block_names += names
            self.stage_layers[f"res{stage + 2}"] = names

    def _block_name(self, stage: int, index: int) -> str:
        return block_name(self.depth, stage, index)

    def forward(self, frames: paddle.Tensor) -> paddle.Tensor:
        """Frames to features.

        Args:
            frames: float [N*T, 3, H, W], or [N*T, H, W, 3] where `input_format` is "NHWC".

        Returns:
            [N*T, out_channels, H/32, W/32], or [N*T, H/32, W/32, out_channels] where `data_format` is "NHWC".
        """
        x = frames if self.data_format == self.input_format else frames.transpose([0, 2, 3, 1])
        for name in self.stem:
            x = getattr(self, name)(x)
        x = self.pool2D_max(x)
        for name in self.block_names:
            x = getattr(self, name)(x)
        return x


@BACKBONES.register()
class ResNet(FrameResNet):
    """ResNet without any exchange between frames (TSN)."""

    def __init__(self, **shared: Any) -> None:
        super().__init__(BlockStyle(), **shared)


@BACKBONES.register()
class ResNetTSM(FrameResNet):
    """ResNet whose blocks shift a quarter of their input channels along time.

    Args:
        num_seg: frames of a clip.
        shift_ratio: share of the channels that moves each way. PaddleVideo has 1/num_seg, the same at its
            usual 8 frames; weights that it trained with 16 need 0.0625 here.

    Reference: Lin, Gan, Han, "TSM: Temporal Shift Module for Efficient Video Understanding", arXiv
    1811.08383.
    """

    def __init__(self, num_seg: FixedFrames = 8, shift_ratio: ShiftRatio = 0.125, **shared: Any) -> None:
        super().__init__(BlockStyle(num_seg=num_seg, shift_ratio=shift_ratio), **shared)


class TweakedResNet(FrameResNet):
    """ResNet-vd: three 3x3 convolutions as stem, and shortcuts that pool before they convolve.

    Basic blocks (depth 18 and 34) have the pooled shortcut as well, as ResNet-D and PaddleClas have it;
    PaddleVideo's ResNetTweaksTSM has a convolution of stride 2 there. The weights have the same names.

    Reference: He et al., "Bag of Tricks for Image Classification with Convolutional Neural Networks",
    arXiv 1812.01187, section 4.
    """

    stem = {"conv1_1": (3, 2), "conv1_2": (3, 2), "conv1_3": (3, 1)}

    def _block_name(self, stage: int, index: int) -> str:
        return f"bb_{stage}_{index}"


@BACKBONES.register()
class ResNetTweaksTSM(TweakedResNet):
    """The ppTSM backbone: ResNet-vd with leaky ReLU and the temporal shift.

    Args:
        num_seg: frames of a clip.
        shift_ratio: share of the channels that moves each way; see `ResNetTSM`.
    """

    def __init__(self, num_seg: FixedFrames = 8, shift_ratio: ShiftRatio = 0.125, **shared: Any) -> None:
        super().__init__(BlockStyle("leaky_relu", num_seg, shift_ratio, pooled_shortcut=True), **shared)


@BACKBONES.register()
class ResNetTweaksTSN(TweakedResNet):
    """The ppTSN backbone: ResNet-vd.

    Args:
        layers: 18, 34, 50, 101 or 152.
    """

    injected = ("style", "depth")
    ignored_arguments: ClassVar[dict[str, str]] = {
        "lr_mult_list": "OPTIMIZER.lr_multipliers sets factors on the learning rate"
    }

    def __init__(self, layers: int = 50, **shared: Any) -> None:
        super().__init__(BlockStyle(pooled_shortcut=True), depth=layers, **shared)


_EPSILON = 1e-5
_SHORTCUT = 3  # the number of a block's layer


class _Layer(NamedTuple):
    """A name of torchvision's taken apart; stage None is the stem, layer 3 the shortcut."""

    stage: int | None
    block: int
    layer: int
    kind: str
    leaf: str


def _layer(name: str) -> _Layer | None:
    """`layer1.0.conv1.weight`; with a shift `layer1.0.conv1.net.weight`."""
    stem = re.fullmatch(r"(conv|bn)1\.(?:net\.)?(\w+)", name)
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


class TorchvisionConverter(Converter):
    """torchvision's ResNets, trained on ImageNet: weights for a backbone, inflated where it is 3D.

    The temporal shift of MIT and MMAction2, whose converters are below, is mirrored. With f = channels / 8,
    their first fold of channels takes frame t+1 and the second t-1; `paddle.nn.functional.temporal_shift` has
    it the other way round:

        channel        0 ... f-1     f ... 2f-1     2f ...
        theirs         x(t+1)        x(t-1)         x(t)
        Paddle's       x(t-1)        x(t+1)         x(t)

    So the converter exchanges the two folds in the weights. The shifted tensor is the residual stream, and
    all of its readers must see the same order. Therefore the exchange covers every convolution and batch norm
    that writes to the stream (output channels) and every layer that reads from it (input channels): the first
    convolution of each block, the shortcut, the classifier. The network then computes the same function.

    Attributes:
        renames: what makes torchvision's names of the file's; see `RenamingConverter`.
        classifiers: names of the linear layer that gives the logits, in the file.
    """

    backbone_only = True
    renames: ClassVar[Renames] = ()
    classifiers: ClassVar[tuple[str, ...]] = ("fc",)

    def __init__(self, state: Weights, network: Network) -> None:
        super().__init__(state, network)
        self._is_shifted = any(".net." in name for name in state)
        layers = [self._layer(name) for name in state]
        self._last_layer = max(
            (layer.layer for layer in layers if layer and layer.layer < _SHORTCUT), default=0
        )

    def _layer(self, name: str) -> _Layer | None:
        for pattern, theirs in self.renames:
            name = re.sub(pattern, theirs, name)
        return _layer(name)

    def target(self, name: str) -> Target | None:
        owner, _, leaf = name.rpartition(".")
        if owner in self.classifiers:
            return self.linear(leaf, *self._exchanges(1))
        layer = self._layer(name)
        if layer is None or layer.leaf not in (LEAVES if layer.kind == "bn" else ("weight",)):
            return None
        return Target(self._our_name(layer), self._steps(layer))

    def added(self) -> dict[str, np.ndarray]:
        """Depths 18 and 34 have a 1x1 shortcut in their first block here, and an identity there."""
        names = {target.name: name for name in self.state if (target := self.target(name)) is not None}
        shortcut = _Layer(0, 0, _SHORTCUT, "conv", "weight")
        first = self._our_name(_Layer(0, 0, 0, "conv", "weight"))
        if first not in names or self._our_name(shortcut) in names:
            return {}
        channels = self.state[names[first]].shape[1]
        ones, zeros = np.ones(channels, "float32"), np.zeros(channels, "float32")
        norm = {
            "weight": ones * np.float32(np.sqrt(1 + _EPSILON)),
            "bias": zeros,
            "running_mean": zeros,
            "running_var": ones,
        }
        added = {self._our_name(shortcut): np.eye(channels, dtype="float32")[:, :, None, None]}
        for leaf, value in norm.items():
            added[self._our_name(shortcut._replace(kind="bn", leaf=leaf))] = value
        return added

    def _our_name(self, layer: _Layer) -> str:
        inner = "_conv.weight" if layer.kind == "conv" else f"_batch_norm.{LEAVES[layer.leaf]}"
        if layer.stage is None:
            return f"backbone.conv.{inner}"
        part = "short" if layer.layer == _SHORTCUT else f"conv{layer.layer}"
        depth = vars(self.network.backbone).get("depth", 50)
        name = block_name(depth if layer.block < 26 else 152, layer.stage, layer.block)
        return f"backbone.{name}.{part}.{inner}"

    def _steps(self, layer: _Layer) -> tuple[Step, ...]:
        """Exchanges in the channels that the layer writes to, or reads from, the residual stream."""
        steps: list[Step] = []
        if layer.stage is None or layer.layer in (self._last_layer, _SHORTCUT):
            steps += self._exchanges(0)
        if layer.stage is not None and layer.layer in (0, _SHORTCUT) and layer.kind == "conv":
            steps += self._exchanges(1)
        return tuple(steps)

    def _exchanges(self, axis: int) -> list[Step]:
        ratio = self.network.backbone.shift_ratio
        if not (ratio and self._is_shifted):
            return []

        def exchanged(value: np.ndarray) -> np.ndarray:
            channels = value.shape[axis]
            first, second = int(channels * ratio), int(channels * 2 * ratio)
            order = [*range(first, second), *range(first), *range(second, channels)]
            return np.take(value, order, axis=axis)

        return [Step(f"folds of axis {axis} exchanged", exchanged)]


class MitConverter(TorchvisionConverter):
    """TSM (blockres) and TSN of MIT's temporal-shift-module."""

    backbone_only = False
    renames: ClassVar[Renames] = ((r"^base_model\.", ""),)
    classifiers: ClassVar[tuple[str, ...]] = ("new_fc", "base_model.fc")

    def differences(self) -> Sequence[str]:
        has_shift = bool(self.network.backbone.shift_ratio)
        if self._is_shifted and not has_shift:
            return ["the file's network shifts channels in time (TSM), the config's does not"]
        if has_shift and not self._is_shifted:
            return ["the config's network shifts channels in time (TSM), the file's does not (TSN)"]
        return []


class MMAction2FrameConverter(MitConverter):
    """TSM and TSN of MMAction2."""

    renames = (
        (r"^backbone\.", ""),
        (r"\.downsample\.conv\.", ".downsample.0."),
        (r"\.downsample\.bn\.", ".downsample.1."),
        (r"\bconv([1-3])\.conv\.", r"conv\1."),
        (r"\bconv([1-3])\.bn\.", r"bn\1."),
    )
    classifiers = ("cls_head.fc_cls",)

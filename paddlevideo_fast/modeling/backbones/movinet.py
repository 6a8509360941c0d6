"""MoViNet: small networks for mobile devices, found by a search. Layers have PaddleVideo's names."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.config.types import Size
from paddlevideo_fast.modeling.backbones.base import Backbone
from paddlevideo_fast.modeling.backbones.blocks3d import Kernel
from paddlevideo_fast.modeling.layers.batch_norm import SubBatchNorm3D
from paddlevideo_fast.modeling.layers.conv_bn import SqueezeExcitation3D, make_divisible
from paddlevideo_fast.modeling.layers.cpu import Conv3D
from paddlevideo_fast.modeling.stages import HEAD
from paddlevideo_fast.registry import BACKBONES


class _Row(NamedTuple):
    """A block: channels, expanded channels, frames and side of the depthwise kernel, stride in space.

    `padded` is false where neither the kernel nor the shortcut's pooling reaches beyond the picture.
    """

    channels: int
    expanded: int
    frames: int
    side: int
    stride: int = 1
    padded: bool = True


# By stage, from the second one on: the paper's table of MoViNet-A0, with PaddleVideo's paddings.
_BLOCKS: dict[str, Sequence[Sequence[_Row]]] = {
    "A0": (
        (_Row(8, 24, 1, 5, 2),),
        (_Row(32, 80, 3, 3, 2, padded=False), _Row(32, 80, 3, 3), _Row(32, 80, 3, 3)),
        (_Row(56, 184, 5, 3, 2, padded=False), _Row(56, 112, 3, 3), _Row(56, 184, 3, 3)),
        (_Row(56, 184, 5, 3), *[_Row(56, 184, 3, 3)] * 3),
        (_Row(104, 384, 5, 3, 2), _Row(104, 280, 1, 5), _Row(104, 280, 1, 5), _Row(104, 344, 1, 5)),
    )
}
_STEM_CHANNELS, _LAST_CHANNELS = 8, 480


class _Style(NamedTuple):
    """What all layers of a network share: where its convolutions look, whether they are factorized."""

    causal: bool
    factorized: bool

    def act(self, x: paddle.Tensor) -> paddle.Tensor:
        return F.hardswish(x) if self.factorized else F.swish(x)

    def gate(self, x: paddle.Tensor) -> paddle.Tensor:
        return F.hardsigmoid(x) if self.factorized else F.sigmoid(x)


class ConvBlock3D(nn.Layer):
    """A 3D convolution, its batch norm and an activation; factorized, one in space and one in time.

    Args:
        style: of the network.
        in_channels, out_channels: channels.
        kernel, stride: in time and space.
        padded: pixels beyond the picture count as zeros, so that a stride of 1 keeps the size.
        groups: groups of the convolutions.
        act: the style's activation, not none.
    """

    def __init__(
        self,
        style: _Style,
        in_channels: int,
        out_channels: int,
        kernel: Kernel = (1, 1, 1),
        stride: Kernel = (1, 1, 1),
        padded: bool = True,
        groups: int = 1,
        act: bool = True,
    ) -> None:
        super().__init__()
        self._act = style.act if act else None
        frames, height, width = kernel
        self._earlier = frames - 1 if style.causal else 0
        inside = (height // 2, width // 2) if padded else (0, 0)
        over_frames = 0 if style.causal else frames // 2
        kernels = [((1, height, width), (0, *inside))]
        if not style.factorized:
            kernels = [(kernel, (over_frames, *inside))]
        elif frames > 1:
            kernels.append(((frames, 1, 1), (over_frames, 0, 0)))
        self._names = [f"conv_{number}" for number in range(1, len(kernels) + 1)]
        for name, (size, padding) in zip(self._names, kernels):
            convolution = Conv3D(
                in_channels,
                out_channels,
                size,
                stride if name == "conv_1" else 1,
                padding,
                groups=groups,
                weight_attr=paddle.ParamAttr(initializer=nn.initializer.KaimingNormal()),
                bias_attr=False,
            )
            self.add_sublayer(name, nn.Sequential(convolution, SubBatchNorm3D(out_channels)))
            in_channels = out_channels

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[N, C, T, H, W] to the same with `out_channels` and the stride."""
        for name in self._names:
            if self._earlier and name == self._names[-1]:
                x = F.pad(x, [0, 0, 0, 0, self._earlier, 0], data_format="NCDHW")
            x = getattr(self, name)(x)
            x = x if self._act is None else self._act(x)
        return x


def _only(layer: nn.Layer) -> nn.Sequential:
    """A layer under the name `conv_1.0`, where a convolution without batch norm has it."""
    return nn.Sequential(("conv_1", nn.Sequential(layer)))


class _Attention(SqueezeExcitation3D):
    """Channel attention over the clip; causal: over the frame, and over the frames up to it.

    Reference: Kondratyuk et al., arXiv 2103.11511, section 3.2, "Causal SE".
    """

    def __init__(self, style: _Style, channels: int) -> None:
        num_squeezed = 2 if style.causal else 1
        inner = make_divisible(channels // 4 * num_squeezed)
        super().__init__(channels, style.gate, inner, style.act, num_squeezed)
        self._causal = style.causal

    def pointwise(self, in_channels: int, out_channels: int) -> nn.Layer:
        return _only(super().pointwise(in_channels, out_channels))

    def squeezed(self, x: paddle.Tensor) -> paddle.Tensor:
        if not self._causal:
            return super().squeezed(x)
        of_frame = x.mean(axis=[3, 4], keepdim=True)
        so_far = of_frame.cumsum(axis=2) / paddle.ones_like(of_frame).cumsum(axis=2)
        return paddle.concat([so_far, of_frame], axis=1)


class BasicBneck(nn.Layer):
    """1×1×1 to more channels, a depthwise convolution, channel attention, 1×1×1 back, scaled by `alpha`.

    `alpha` starts at 0, so the block adds nothing at first.

    Reference: Bachlechner et al., "ReZero is All You Need", arXiv 2003.04887.
    """

    def __init__(self, style: _Style, in_channels: int, row: _Row) -> None:
        super().__init__()
        kernel, stride = (row.frames, row.side, row.side), (1, row.stride, row.stride)
        self.expand = ConvBlock3D(style, in_channels, row.expanded)
        self.deep = ConvBlock3D(
            style, row.expanded, row.expanded, kernel, stride, row.padded, groups=row.expanded
        )
        self.se = _Attention(style, row.expanded)
        self.project = ConvBlock3D(style, row.expanded, row.channels, act=False)
        self.res: nn.Layer | None = None
        if row.stride > 1 or in_channels != row.channels:
            pooling = nn.AvgPool3D((1, 3, 3), stride, (0, 1, 1) if row.padded else 0)
            shortcut = ConvBlock3D(style, in_channels, row.channels, act=False)
            self.res = nn.Sequential(*([pooling] if row.stride > 1 else []), shortcut)
        self.alpha = self.create_parameter([1], default_initializer=nn.initializer.Constant(0.0))

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[N, C, T, H, W] to the same with the row's channels and stride."""
        short = x if self.res is None else self.res(x)
        return short + self.alpha * self.project(self.se(self.deep(self.expand(x))))


@BACKBONES.register()
class MoViNet(Backbone):
    """MoViNet-A0. It ends in its own classifier and takes `MoViNetHead`, in `MoViNetRecognizerFrame`.

    Args:
        model_type: size of the network.
        hidden_dim: channels of the layer before the classifier.
        causal: no frame sees a later one, up to the mean over all frames.
        num_classes: classes.
        conv_type: "3d", or "2plus1d": convolutions in space and time one after the other, with cheaper
            activations.
        pretrained: weights to start from.

    Reference: Kondratyuk et al., "MoViNets: Mobile Video Networks for Efficient Video Recognition", arXiv
    2103.11511.
    """

    data_format = "NCDHW"
    classifiers = ("classifier.3.conv_1.0",)

    def __init__(
        self,
        model_type: Literal["A0"] = "A0",
        hidden_dim: Size = 2048,
        causal: bool = True,
        num_classes: Size = 400,
        conv_type: Literal["3d", "2plus1d"] = "3d",
        pretrained: str | None = None,
    ) -> None:
        super().__init__()
        self.pretrained = pretrained
        self.num_classes = self.out_channels = num_classes
        style = _Style(causal, conv_type == "2plus1d")
        self.conv1 = ConvBlock3D(style, 3, _STEM_CHANNELS, (1, 3, 3), (1, 2, 2))
        channels = _STEM_CHANNELS
        blocks: list[nn.Layer] = []
        self.stage_layers: dict[str, list[str]] = {"stem": ["conv1"]}
        for number, rows in enumerate(_BLOCKS[model_type], 2):
            first = len(blocks)
            for row in rows:
                blocks.append(BasicBneck(style, channels, row))
                channels = row.channels
            self.stage_layers[f"stage{number}"] = [f"blocks.{index}" for index in range(first, len(blocks))]
        self.blocks = nn.Sequential(*blocks)
        self.conv7 = ConvBlock3D(style, channels, _LAST_CHANNELS)
        self.classifier = nn.Sequential(
            _only(nn.Linear(_LAST_CHANNELS, hidden_dim)),
            nn.Swish(),
            nn.Dropout(0.2),
            _only(nn.Linear(hidden_dim, num_classes)),
        )
        self.stage_layers["last"] = ["conv7", "classifier.0"]
        self.stage_layers[HEAD] = ["classifier.3"]

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor:
        """Clips, float [N, 3, T, H, W], to logits [N, num_classes]; any T, H and W."""
        x = self.conv7(self.blocks(self.conv1(clips)))
        return self.classifier(x.mean(axis=[2, 3, 4]))

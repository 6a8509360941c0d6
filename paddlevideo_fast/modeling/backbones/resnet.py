"""2D ResNets: plain (TSN), with the temporal shift (TSM), and ResNet-vd (ppTSN, ppTSM)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import paddle
from paddle import nn

from paddlevideo_fast.config.types import Range, Size
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.freezing import set_frozen
from paddlevideo_fast.modeling.layers import ConvBN, activation, temporal_shift
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
    data_format: str = "NCHW"


class ResidualBlock(nn.Layer):
    """Shift, a chain of convolutions, and the sum with a shortcut that sees no shift ("residual shift").

    Args:
        in_channels: channels of the input.
        channels: channels of the inner convolutions; the output has `channels * expansion`.
        stride: stride of the block, which its first 3x3 convolution has.
        project: the shortcut is a 1x1 convolution instead of the identity.
        style: see `BlockStyle`.
    """

    expansion: ClassVar[int] = 1

    def __init__(
        self, in_channels: int, channels: int, stride: int, project: bool, style: BlockStyle
    ) -> None:
        super().__init__()
        self._style = style
        self._act = activation(style.act)
        self._add_convolutions(in_channels, channels, stride)
        self.short = None
        if project:
            pool = style.pooled_shortcut and stride == 2
            self.short = ConvBN(
                in_channels,
                channels * self.expansion,
                kernel_size=1,
                stride=1 if pool else stride,
                pool=pool,
                data_format=style.data_format,
            )

    def _add_convolutions(self, in_channels: int, channels: int, stride: int) -> None:
        raise NotImplementedError

    def _convolve(self, x: paddle.Tensor) -> paddle.Tensor:
        raise NotImplementedError

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[N*T, C, H, W] (or [N*T, H, W, C]) to the same with the block's channels and stride."""
        style = self._style
        shifted = x
        if style.num_seg is not None:
            shifted = temporal_shift(x, style.num_seg, style.shift_ratio, style.data_format)
        short = x if self.short is None else self.short(x)
        return self._act(short + self._convolve(shifted))


class BasicBlock(ResidualBlock):
    """Two 3x3 convolutions (ResNet-18 and -34)."""

    def _add_convolutions(self, in_channels: int, channels: int, stride: int) -> None:
        act, data_format = self._style.act, self._style.data_format
        self.conv0 = ConvBN(in_channels, channels, 3, stride, act, data_format=data_format)
        self.conv1 = ConvBN(channels, channels, 3, data_format=data_format)

    def _convolve(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.conv1(self.conv0(x))


class BottleneckBlock(ResidualBlock):
    """1x1, 3x3 and 1x1 convolutions (ResNet-50 and deeper)."""

    expansion = 4

    def _add_convolutions(self, in_channels: int, channels: int, stride: int) -> None:
        act, data_format = self._style.act, self._style.data_format
        self.conv0 = ConvBN(in_channels, channels, 1, 1, act, data_format=data_format)
        self.conv1 = ConvBN(channels, channels, 3, stride, act, data_format=data_format)
        self.conv2 = ConvBN(channels, channels * self.expansion, 1, data_format=data_format)

    def _convolve(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.conv2(self.conv1(self.conv0(x)))


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


class FrameResNet(nn.Layer):
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

    Attributes:
        out_channels: channels of the feature map.
        num_seg: frames in a clip if the network mixes frames, else None.
        shift_ratio: share of the channels in each fold of the temporal shift; 0.0 if there is none.
        stage_layers: `stem`, `res2` to `res5`; see `modeling.stages`.

    Raises:
        ConfigError: a depth that does not exist.

    Reference: He et al., "Deep Residual Learning for Image Recognition", arXiv 1512.03385; the stride sits
    in the 3x3 convolution.
    """

    injected: ClassVar[tuple[str, ...]] = ("style",)

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
            raise ConfigError([f"MODEL.backbone.depth={depth}: there is no such ResNet; use one of {depths}"])
        self.depth = depth
        self.pretrained = pretrained
        self.num_seg = style.num_seg
        self.shift_ratio = style.shift_ratio if style.num_seg is not None else 0.0
        self.data_format = style.data_format
        self.input_format = "NCHW"
        self._add_stem(width, style)
        self.pool2D_max = nn.MaxPool2D(3, stride=2, padding=1, data_format=style.data_format)
        block = BottleneckBlock if depth >= 50 else BasicBlock
        self.block_names: list[str] = []
        self.stage_layers: dict[str, list[str]] = {"stem": self.stem_names}
        self._add_stages(block, width, stage_blocks or STAGE_BLOCKS[depth], style)
        self.out_channels = width * 8 * block.expansion
        if partial_bn:
            self.set_partial_bn(True)

    def _add_stem(self, width: int, style: BlockStyle) -> None:
        self.stem_names = ["conv"]
        self.conv = ConvBN(3, width, 7, stride=2, act=style.act, data_format=style.data_format)

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

    def set_partial_bn(self, on: bool) -> None:
        """Freezes all batch norms but the first, or frees them again.

        A later `train()` or `eval()` does not change that, also inside `paddle.DataParallel`.

        Reference: Wang et al., "Temporal Segment Networks", arXiv 1608.00859, section 3.3.
        """
        norms = [name for name, layer in self.named_sublayers() if isinstance(layer, nn.BatchNorm2D)]
        frozen = [f"{norm}.{kind}" for norm in norms[1:] for kind in ("weight", "bias")]
        set_frozen(self, frozen if on else ())

    def forward(self, frames: paddle.Tensor) -> paddle.Tensor:
        """Frames to features.

        Args:
            frames: float [N*T, 3, H, W], or [N*T, H, W, 3] where `input_format` is "NHWC".

        Returns:
            [N*T, out_channels, H/32, W/32], or [N*T, H/32, W/32, out_channels] where `data_format` is "NHWC".
        """
        x = frames if self.data_format == self.input_format else frames.transpose([0, 2, 3, 1])
        for name in self.stem_names:
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

    def __init__(self, num_seg: Size = 8, shift_ratio: ShiftRatio = 0.125, **shared: Any) -> None:
        super().__init__(BlockStyle(num_seg=num_seg, shift_ratio=shift_ratio), **shared)


class TweakedResNet(FrameResNet):
    """ResNet-vd: three 3x3 convolutions as stem, and shortcuts that pool before they convolve.

    Basic blocks (depth 18 and 34) have the pooled shortcut as well, as ResNet-D and PaddleClas have it;
    PaddleVideo's ResNetTweaksTSM has a convolution of stride 2 there. The weights have the same names.

    Reference: He et al., "Bag of Tricks for Image Classification with Convolutional Neural Networks",
    arXiv 1812.01187, section 4.
    """

    def _add_stem(self, width: int, style: BlockStyle) -> None:
        self.stem_names = ["conv1_1", "conv1_2", "conv1_3"]
        half, data_format = width // 2, style.data_format
        self.conv1_1 = ConvBN(3, half, 3, stride=2, act=style.act, data_format=data_format)
        self.conv1_2 = ConvBN(half, half, 3, act=style.act, data_format=data_format)
        self.conv1_3 = ConvBN(half, width, 3, act=style.act, data_format=data_format)

    def _block_name(self, stage: int, index: int) -> str:
        return f"bb_{stage}_{index}"


@BACKBONES.register()
class ResNetTweaksTSM(TweakedResNet):
    """The ppTSM backbone: ResNet-vd with leaky ReLU and the temporal shift.

    Args:
        num_seg: frames of a clip.
        shift_ratio: share of the channels that moves each way; see `ResNetTSM`.
    """

    def __init__(self, num_seg: Size = 8, shift_ratio: ShiftRatio = 0.125, **shared: Any) -> None:
        super().__init__(BlockStyle("leaky_relu", num_seg, shift_ratio, pooled_shortcut=True), **shared)


@BACKBONES.register()
class ResNetTweaksTSN(TweakedResNet):
    """The ppTSN backbone: ResNet-vd.

    Args:
        layers: 18, 34, 50, 101 or 152.
    """

    injected = ("style", "depth")
    ignored_arguments: ClassVar[dict[str, str]] = {
        "lr_mult_list": "OPTIMIZER.lr_multipliers sets factors on the learning rate",
    }

    def __init__(self, layers: int = 50, **shared: Any) -> None:
        super().__init__(BlockStyle(pooled_shortcut=True), depth=layers, **shared)

"""What 3D networks with residual blocks are made of.

Layers have PySlowFast's names: `s2.pathway0_res0.branch2.a`, `s2.pathway0_res0.branch1_bn`.
"""

import math
from collections.abc import Callable, Sequence

import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.backbones.base import Backbone
from paddlevideo_fast.modeling.layers import Conv3D, SubBatchNorm3D

Kernel = tuple[int, int, int]


def conv3d(
    in_channels: int, out_channels: int, kernel: Kernel, stride: Kernel = (1, 1, 1), groups: int = 1
) -> nn.Conv3D:
    """A 3D convolution without bias whose padding keeps the size; first weights as in He et al."""
    std = math.sqrt(2 / (out_channels * math.prod(kernel)))
    return Conv3D(
        in_channels,
        out_channels,
        kernel,
        stride=stride,
        padding=tuple(size // 2 for size in kernel),
        groups=groups,
        weight_attr=paddle.ParamAttr(initializer=nn.initializer.Normal(0.0, std)),
        bias_attr=False,
    )


class Branch(nn.Layer):
    """The convolutions `a`, `b` and so on of a residual block, each with a batch norm, and ReLU between them.

    The last batch norm starts at 0, so the block adds nothing at first.

    Args:
        convolutions: two or three layers without bias.
        channels: output channels of each.
    """

    def __init__(self, convolutions: Sequence[nn.Layer], channels: Sequence[int]) -> None:
        super().__init__()
        self._names = "abc"[: len(convolutions)]
        for name, convolution, width in zip(self._names, convolutions, channels):
            is_last = name == self._names[-1]
            zero = paddle.ParamAttr(initializer=nn.initializer.Constant(0.0)) if is_last else None
            self.add_sublayer(name, convolution)
            self.add_sublayer(f"{name}_bn", SubBatchNorm3D(width, weight_attr=zero))

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[N, C, T, H, W] to the same with the channels of the last convolution and the strides of all."""
        for name in self._names:
            x = getattr(self, f"{name}_bn")(getattr(self, name)(x))
            if name != self._names[-1]:
                x = F.relu(x)
        return x


class Block(nn.Layer):
    """A residual block; its shortcut is a convolution where the number of channels or the size changes.

    Args:
        in_channels, out_channels: channels.
        stride: of the shortcut and of the branch, in time and space.
        make_branch: makes the layers beside the shortcut.
        norm_shortcut: a batch norm after the shortcut's convolution, where it has one.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: Kernel,
        make_branch: Callable[[], nn.Layer],
        norm_shortcut: bool = True,
    ) -> None:
        super().__init__()
        self._shortcut: tuple[str, ...] = ()
        if in_channels != out_channels or max(stride) > 1:
            self.branch1 = conv3d(in_channels, out_channels, (1, 1, 1), stride)
            self._shortcut = ("branch1",)
            if norm_shortcut:
                self.branch1_bn = SubBatchNorm3D(out_channels)
                self._shortcut = ("branch1", "branch1_bn")
        self.branch2 = make_branch()

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[N, C, T, H, W] to the same with `out_channels` and the stride."""
        short = x
        for name in self._shortcut:
            short = getattr(self, name)(short)
        return F.relu(short + self.branch2(x))


class Stage(nn.Layer):
    """Layers that each pathway passes on its own, called `pathway0_res0` and so on."""

    def __init__(self, pathways: Sequence[Sequence[tuple[str, nn.Layer]]]) -> None:
        super().__init__()
        self._names: list[list[str]] = []
        for number, layers in enumerate(pathways):
            self._names.append([f"pathway{number}_{name}" for name, _ in layers])
            for name, layer in layers:
                self.add_sublayer(f"pathway{number}_{name}", layer)

    def forward(self, tensors: Sequence[paddle.Tensor]) -> list[paddle.Tensor]:
        """For each pathway a tensor, to the outputs of its last layer."""
        results = []
        for names, x in zip(self._names, tensors):
            for name in names:
                x = getattr(self, name)(x)
            results.append(x)
        return results


class StagedNetwork(Backbone):
    """A 3D network of a stem `s1` and four stages `s2` to `s5`, each a `Stage`."""

    data_format = "NCDHW"

    def add_stages(self, stem: nn.Layer, stages: Sequence[Sequence[nn.Layer]]) -> None:
        """Adds the layers of a network of one pathway: its stem, and the blocks of each stage."""
        self.s1 = Stage([[("stem", stem)]])
        self.stage_layers: dict[str, list[str]] = {"stem": self.blocks_of(1)}
        for number, blocks in enumerate(stages, 2):
            named = [(f"res{index}", block) for index, block in enumerate(blocks)]
            self.add_sublayer(f"s{number}", Stage([named]))
            self.stage_layers[f"res{number}"] = self.blocks_of(number)

    def blocks_of(self, number: int) -> list[str]:
        """Names of the layers of the stage `s{number}`."""
        return [f"s{number}.{name}" for name, _ in getattr(self, f"s{number}").named_children()]

    def forward(self, clips: paddle.Tensor) -> list[paddle.Tensor]:
        """Clips, float [N, 3, T, H, W], to one feature map [N, out_channels, T', H', W']."""
        tensors = self._split(clips)
        for number in range(1, 6):
            tensors = getattr(self, f"s{number}")(tensors)
        return tensors

    def _split(self, clips: paddle.Tensor) -> list[paddle.Tensor]:
        """What each pathway takes of clips [N, 3, T, H, W].

        Raises:
            ConfigError: the clips have too few frames.
        """
        num_frames = clips.shape[2]
        if num_frames < self.least_frames:
            raise ConfigError(
                [
                    f"MODEL.backbone: clips have {num_frames} frame, and {type(self).__name__} needs "
                    f"{self.least_frames}; change num_frames of the sampler in PIPELINE"
                ]
            )
        return [clips]

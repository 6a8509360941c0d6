"""What 3D networks with residual blocks are made of.

Layers have PySlowFast's names: `s2.pathway0_res0.branch2.a`, `s2.pathway0_res0.branch1_bn`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.backbones.base import Backbone
from paddlevideo_fast.modeling.layers.batch_norm import SubBatchNorm3D
from paddlevideo_fast.modeling.layers.cpu import Conv3D

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


class Stem(nn.Layer):
    """A convolution, batch norm and ReLU: [N, 3, T, H, W] to [N, channels, T', H/2, W/2].

    Args:
        convolution: without bias; it has the stride in space.
        pool_stride: stride in time of a pooling that halves the sides once more; None: there is none.
    """

    def __init__(self, convolution: Any, pool_stride: int | None = None) -> None:
        super().__init__()
        self._conv = convolution
        self._bn = SubBatchNorm3D(convolution._out_channels)
        self._pool_stride = pool_stride

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        x = F.relu(self._bn(self._conv(x)))
        if self._pool_stride is None:
            return x
        return F.max_pool3d(x, kernel_size=(1, 3, 3), stride=(self._pool_stride, 2, 2), padding=(0, 1, 1))


class Branch(nn.Layer):
    """The convolutions `a`, `b` and so on of a residual block, each with a batch norm, and ReLU between them.

    The last batch norm starts at 0, so the block adds nothing at first.

    Args:
        convolutions: two or three layers without bias.
    """

    def __init__(self, *convolutions: Any) -> None:
        super().__init__()
        self._names = "abc"[: len(convolutions)]
        for name, convolution in zip(self._names, convolutions):
            is_last = name == self._names[-1]
            zero = paddle.ParamAttr(initializer=nn.initializer.Constant(0.0)) if is_last else None
            self.add_sublayer(name, convolution)
            self.add_sublayer(f"{name}_bn", SubBatchNorm3D(convolution._out_channels, weight_attr=zero))

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
        make_branch: makes the layers beside the shortcut of these three.
        norm_shortcut: a batch norm after the shortcut's convolution, where it has one.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: Kernel,
        make_branch: Callable[[int, int, Kernel], nn.Layer],
        norm_shortcut: bool = True,
    ) -> None:
        super().__init__()
        self.out_channels = out_channels
        self._shortcut: tuple[str, ...] = ()
        if in_channels != out_channels or max(stride) > 1:
            self.branch1 = conv3d(in_channels, out_channels, (1, 1, 1), stride)
            self._shortcut = ("branch1",)
            if norm_shortcut:
                self.branch1_bn = SubBatchNorm3D(out_channels)
                self._shortcut = ("branch1", "branch1_bn")
        self.branch2 = make_branch(in_channels, out_channels, stride)

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

    def add_stages(
        self,
        stems: Sequence[tuple[nn.Layer, int]],
        stage_blocks: Sequence[int],
        strides: Sequence[Kernel],
        make_block: Callable[[int, int, int, int, Kernel], Block],
        fuse: Callable[[int], Any] | None = None,
    ) -> None:
        """Adds all layers.

        Args:
            stems: the stem of each pathway, and its channels.
            stage_blocks: number of blocks of each stage.
            strides: of each stage, which its first block has.
            make_block: makes a block of the numbers of its pathway, its stage and its place in the stage, and
                its input's channels and stride.
            fuse: makes the layer before a stage that joins the channels of the second pathway to the first;
                None: there is none.
        """
        self.s1 = Stage([[("stem", stem)] for stem, _ in stems])
        channels = [width for _, width in stems]
        self._order = ["s1"]
        self.stage_layers: dict[str, list[str]] = {"stem": self._layers_of("s1")}
        for stage, num_blocks in enumerate(stage_blocks):
            joined, name = [], f"s{stage + 2}"
            if fuse is not None:
                layer = fuse(channels[1])
                joined = [f"s{stage + 1}_fuse"]
                self.add_sublayer(joined[0], layer)
                channels[0] += layer.out_channels
            pathways: list[list[tuple[str, nn.Layer]]] = [[] for _ in channels]
            for pathway, blocks in enumerate(pathways):
                for index in range(num_blocks):
                    stride = (1, 1, 1) if index else strides[stage]
                    block = make_block(pathway, stage, index, channels[pathway], stride)
                    blocks.append((f"res{index}", block))
                    channels[pathway] = block.out_channels
            self.add_sublayer(name, Stage(pathways))
            self._order += [*joined, name]
            self.stage_layers[f"res{stage + 2}"] = [*joined, *self._layers_of(name)]
        self.out_channels = sum(channels)

    def _layers_of(self, stage: str) -> list[str]:
        return [f"{stage}.{name}" for name, _ in getattr(self, stage).named_children()]

    def last_layers(self, stage: str) -> Sequence[str]:
        by_pathway = {name.split("_")[0]: name for name in self.stage_layers[stage]}
        return list(by_pathway.values())

    def forward(self, clips: paddle.Tensor) -> list[paddle.Tensor]:
        """Clips, float [N, 3, T, H, W], to a feature map of each pathway, [N, channels, T', H', W'].

        Raises:
            ConfigError: the clip's frames are too few, or do not divide into the pathways.
        """
        tensors = self._split(clips)
        for name in self._order:
            tensors = getattr(self, name)(tensors)
        return tensors

    def _split(self, clips: paddle.Tensor) -> list[paddle.Tensor]:
        """What each pathway takes of clips [N, 3, T, H, W].

        Raises:
            ConfigError: the clips have too few frames.
        """
        num_frames = clips.shape[2]
        if num_frames < self.least_frames:
            raise ConfigError(
                f"MODEL.backbone: clips have {num_frames} frame, and {type(self).__name__} needs "
                f"{self.least_frames}; change num_frames of the sampler in PIPELINE"
            )
        return [clips]

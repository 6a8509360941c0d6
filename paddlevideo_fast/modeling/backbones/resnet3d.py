"""3D ResNets: SlowFast, Slow-only and I3D.

Layers have PaddleVideo's and PySlowFast's names: `s1.pathway0_stem`, `s2.pathway0_res0.branch2.a`, `s2_fuse`.
At the end are the converters of other toolkits' weights for them.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.config.types import FrameDivisor, Size
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.backbones.blocks3d import Block, Branch, Kernel, StagedNetwork, Stem, conv3d
from paddlevideo_fast.modeling.backbones.resnet import STAGE_BLOCKS, name_of_paddleclas
from paddlevideo_fast.modeling.converters import Network, Renames, RenamingConverter, Step, Weights
from paddlevideo_fast.modeling.layers.batch_norm import SubBatchNorm3D
from paddlevideo_fast.modeling.layers.operators import constant
from paddlevideo_fast.registry import BACKBONES

_EXPANSION = 4
_STEM_STRIDE = 4


@dataclass(frozen=True)
class Pathway:
    """What one pathway looks like.

    Attributes:
        width: channels of its stem; every stage scales with it.
        stem_frames: frames that the stem's convolution spans.
        stage_frames: for each of the four stages, the frames that its blocks span, in turn, over and over.
        inflate: which convolution of a block spans frames: the first, 1×1 in space ("3x1x1"), or the 3×3
            convolution in the middle ("3x3x3").
        stem_strides: strides in time of the stem's convolution and its pooling.
    """

    width: int
    stem_frames: int
    stage_frames: Sequence[Sequence[int]]
    inflate: str = "3x1x1"
    stem_strides: tuple[int, int] = (1, 1)

    def kernels(self, stage: int, index: int) -> tuple[Kernel, Kernel]:
        """Kernels (T, H, W) of the first and the second convolution of block `index` in `stage`."""
        frames = self.stage_frames[stage][index % len(self.stage_frames[stage])]
        return ((frames, 1, 1), (1, 3, 3)) if self.inflate == "3x1x1" else ((1, 1, 1), (frames, 3, 3))

    def stem(self) -> Stem:
        """A new stem: [N, 3, T, H, W] to [N, width, T', H/4, W/4]."""
        conv_stride, pool_stride = self.stem_strides
        return Stem(conv3d(3, self.width, (self.stem_frames, 7, 7), (conv_stride, 2, 2)), pool_stride)


class FuseFastToSlow(nn.Layer):
    """Joins the fast pathway's features, strided in time, to the slow pathway's channels.

    Args:
        channels: of the fast pathway.
        alpha: fast frames for one slow frame; the stride in time.
        kernel_frames: frames that the convolution spans.
        ratio: channels that the convolution gives for each fast channel.
        normalize: batch norm and ReLU after it.
    """

    def __init__(self, channels: int, alpha: int, kernel_frames: int, ratio: int, normalize: bool) -> None:
        super().__init__()
        self.out_channels = channels * ratio
        self._conv_f2s = conv3d(channels, self.out_channels, (kernel_frames, 1, 1), (alpha, 1, 1))
        self._bn = SubBatchNorm3D(self.out_channels) if normalize else None

    def forward(self, tensors: Sequence[paddle.Tensor]) -> list[paddle.Tensor]:
        slow, fast = tensors
        lateral = self._conv_f2s(fast)
        if self._bn is not None:
            lateral = F.relu(self._bn(lateral))
        return [paddle.concat([slow, lateral], axis=1), fast]


class PathwayResNet(StagedNetwork):
    """Stem, four stages, and fusions between them; what the registered 3D networks share.

    Args:
        pathways: the slow one first.
        fuse: makes the fusions after the stem and all stages but the last; None for one pathway.
        depth: 50 or 101.
        stage_blocks: blocks in each of the four stages; null: what the depth says.
        spatial_strides: strides in space of the four stages, after the stem's 4. [1, 2, 2, 1] keeps the last
            feature map of small clips, such as 28², larger than one value.
        pretrained: weights to start from: of this network, or of a 2D ResNet, which are inflated.

    Raises:
        ConfigError: a depth that does not exist, or strides for fewer or more stages.
    """

    injected: ClassVar[tuple[str, ...]] = ("pathways", "fuse")

    def __init__(
        self,
        pathways: Sequence[Pathway],
        fuse: Callable[[int], FuseFastToSlow] | None = None,
        depth: int = 50,
        stage_blocks: Sequence[Size] | None = None,
        spatial_strides: Sequence[Size] = (1, 2, 2, 2),
        pretrained: str | None = None,
    ) -> None:
        super().__init__()
        if depth not in (50, 101):
            raise ConfigError(f"MODEL.backbone.depth={depth}: the 3D networks have depth 50 or 101")
        if len(spatial_strides) != 4:
            text = f"has {len(spatial_strides)} strides, and the network four stages"
            raise ConfigError(f"MODEL.backbone.spatial_strides={list(spatial_strides)}: {text}")
        self.spatial_stride = _STEM_STRIDE * math.prod(spatial_strides)
        self.pretrained = pretrained

        def block(pathway: int, stage: int, index: int, in_channels: int, stride: Kernel) -> Block:
            own = pathways[pathway]
            branch = partial(_bottleneck, kernels=own.kernels(stage, index))
            return Block(in_channels, own.width * 2**stage * _EXPANSION, stride, branch)

        strides = [(1, side, side) for side in spatial_strides]
        stems = [(own.stem(), own.width) for own in pathways]
        self.add_stages(stems, stage_blocks or STAGE_BLOCKS[depth], strides, block, fuse)

    def translate(self, name: str) -> str:
        """The name in the slow pathway of a tensor of a 2D ResNet."""
        return _in_slow_pathway(name_of_paddleclas(name, ["conv"]))


_LAYERS_3D = {
    "conv0": ("branch2.a", "branch2.a_bn"),
    "conv1": ("branch2.b", "branch2.b_bn"),
    "conv2": ("branch2.c", "branch2.c_bn"),
    "short": ("branch1", "branch1_bn"),
}


def _in_slow_pathway(name: str) -> str:
    """`res4b1.conv0._conv.weight` of a 2D ResNet is `s4.pathway0_res1.branch2.a.weight` here."""
    stem = re.fullmatch(r"conv1?\._(conv|batch_norm)\.(\w+)", name)
    if stem:
        return f"s1.pathway0_stem.{'_conv' if stem[1] == 'conv' else '_bn'}.{stem[2]}"
    block = re.fullmatch(r"res(\d)([a-z])(\d*)\.(\w+)\._(conv|batch_norm)\.(\w+)", name)
    if not block or block[4] not in _LAYERS_3D:
        return name
    index = int(block[3]) if block[3] else ord(block[2]) - ord("a")
    layer = _LAYERS_3D[block[4]][block[5] == "batch_norm"]
    return f"s{block[1]}.pathway0_res{index}.{layer}.{block[6]}"


def _bottleneck(
    in_channels: int, out_channels: int, stride: Kernel, kernels: tuple[Kernel, Kernel]
) -> Branch:
    """Three convolutions; the second one has the stride, the third one four times the channels."""
    channels = out_channels // _EXPANSION
    return Branch(
        conv3d(in_channels, channels, kernels[0]),
        conv3d(channels, channels, kernels[1], stride),
        conv3d(channels, out_channels, (1, 1, 1)),
    )


class HalveFrames(nn.Layer):
    """Pools pairs of frames of each pathway."""

    def forward(self, tensors: Sequence[paddle.Tensor]) -> list[paddle.Tensor]:
        return [F.max_pool3d(x, kernel_size=(2, 1, 1), stride=(2, 1, 1)) for x in tensors]


_SLOW_FRAMES = ((1,), (1,), (3,), (3,))
_FAST_FRAMES = ((3,), (3,), (3,), (3,))
_EVERY_OTHER = ((3,), (3, 1), (3, 1), (1, 3))


@BACKBONES.register()
class ResNetSlowFast(PathwayResNet):
    """SlowFast: few frames with many channels, many frames with few, and connections from fast to slow.

    The clip is the fast pathway's; the slow pathway sees one in alpha of its frames.

    Args:
        alpha: fast frames for one slow frame; the clips' frames must be a multiple of it.
        beta: slow channels for one fast channel.
        width_per_group: channels of the slow stem.
        fusion_kernel_sz: frames that the connections' convolutions span.
        fusion_conv_channel_ratio: channels that a connection gives for each fast channel.
        fuse_bn_relu: batch norm and ReLU in the connections; MMAction2's networks have neither.
        slow_frames: "spread" takes the slow pathway's frames from the first to the last; "strided" every
            alpha-th one, as MMAction2's networks do.

    Reference: Feichtenhofer et al., "SlowFast Networks for Video Recognition", arXiv 1812.03982, section 3.
    """

    cpu_runtime = "onednn"
    ignored_arguments: ClassVar[dict[str, str]] = {
        "bn_norm_type": "the batch norms follow the schedule of the run",
        "bn_num_splits": "the batch norms follow the schedule of the run",
        "num_pathways": "SlowFast has two",
    }

    def __init__(
        self,
        alpha: FrameDivisor,
        beta: Size,
        width_per_group: Size = 64,
        fusion_kernel_sz: Size = 7,
        fusion_conv_channel_ratio: Size = 2,
        fuse_bn_relu: bool = True,
        slow_frames: Literal["spread", "strided"] = "spread",
        **shared: Any,
    ) -> None:
        if width_per_group % beta:
            raise ConfigError(
                f"MODEL.backbone.beta={beta}: does not divide width_per_group={width_per_group}"
            )
        pathways = [
            Pathway(width_per_group, 1, _SLOW_FRAMES),
            Pathway(width_per_group // beta, 5, _FAST_FRAMES),
        ]
        fuse = partial(
            FuseFastToSlow,
            alpha=alpha,
            kernel_frames=fusion_kernel_sz,
            ratio=fusion_conv_channel_ratio,
            normalize=fuse_bn_relu,
        )
        super().__init__(pathways, fuse, **shared)
        self.alpha = alpha
        self.slow_frames = slow_frames

    def _split(self, clips: paddle.Tensor) -> list[paddle.Tensor]:
        num_frames = clips.shape[2]
        if num_frames % self.alpha:
            raise ConfigError(
                f"MODEL.backbone.alpha={self.alpha}: clips have {num_frames} frames, not a multiple; "
                "change num_frames of the sampler in PIPELINE, or alpha"
            )
        chosen = constant(_slow_frames, num_frames, self.alpha, self.slow_frames == "spread")
        return [paddle.index_select(clips, chosen, axis=2), clips]


def _slow_frames(num_frames: int, alpha: int, are_spread: bool) -> paddle.Tensor:
    """Numbers of the slow pathway's frames: each `alpha`th, or as many from the first to the last."""
    chosen = np.arange(0, num_frames, alpha)
    if are_spread:  # the integer part of equal steps
        chosen = np.arange(len(chosen)) * (num_frames - 1) // max(len(chosen) - 1, 1)
    return paddle.to_tensor(chosen)


@BACKBONES.register()
class ResNetSlow(PathwayResNet):
    """Slow-only: SlowFast's slow pathway alone.

    Args:
        width_per_group: channels of the stem.

    Reference: Feichtenhofer et al., "SlowFast Networks for Video Recognition", arXiv 1812.03982, section 4.1.
    """

    def __init__(self, width_per_group: Size = 64, **shared: Any) -> None:
        super().__init__([Pathway(width_per_group, 1, _SLOW_FRAMES)], **shared)


@BACKBONES.register()
class ResNetI3D(PathwayResNet):
    """I3D on a ResNet: 2D convolutions inflated to 3D, and pairs of frames pooled after the first stage.

    Args:
        inflate: "3x1x1" spans frames in a block's first, 1×1 convolution; "3x3x3" in its 3×3 one.
        inflate_all: all blocks span frames, not every other one from the second stage on.
        width_per_group: channels of the stem.
        conv1_stride_t, pool1_stride_t: stride in time of the stem's convolution and pooling; 2 in MMAction2's
            networks.

    Reference: Carreira, Zisserman, "Quo Vadis, Action Recognition?", arXiv 1705.07750, section 2.4; the two
    inflations: Wang et al., "Non-local Neural Networks", arXiv 1711.07971, section 4.1.
    """

    least_frames = 2

    def __init__(
        self,
        inflate: Literal["3x1x1", "3x3x3"] = "3x1x1",
        inflate_all: bool = False,
        width_per_group: Size = 64,
        conv1_stride_t: Size = 1,
        pool1_stride_t: Size = 1,
        **shared: Any,
    ) -> None:
        frames = _FAST_FRAMES if inflate_all else _EVERY_OTHER
        pathway = Pathway(width_per_group, 5, frames, inflate, (conv1_stride_t, pool1_stride_t))
        super().__init__([pathway], **shared)
        self.s2_pool = HalveFrames()
        self._order.insert(2, "s2_pool")
        self.conv1_stride_t, self.pool1_stride_t = conv1_stride_t, pool1_stride_t


_SETTINGS: Mapping[str, Any] = {"slow_frames": "spread", "conv1_stride_t": 1, "pool1_stride_t": 1}
_CAFFE2_LEAVES = {"s": "weight", "b": "bias", "rm": "running_mean", "riv": "running_var"}
_FAST_CLASSIFIED = "backbone.fast_path.layer4.0.conv3.conv.weight"


class PySlowFastConverter(RenamingConverter):
    """PySlowFast's networks, from its own checkpoints or the Caffe2 ones in its model zoo."""

    classifier = "head.projection"
    settings: ClassVar[Mapping[str, Any]] = _SETTINGS
    pooling = "probabilities"
    layers: ClassVar[Renames] = (
        (r"(s1\.pathway[01]_stem)\.(conv|bn)", r"\1._\2"),
        (r"(s[1-4]_fuse)\.(conv_f2s|bn)", r"\1._\2"),
        (r"(s[2-5]\.pathway[01]_res\d+\.(?:branch1|branch2\.[abc])(?:_bn)?)", r"\1"),
    )

    def normalized(self, name: str) -> str:
        return _from_caffe2(name) or name


def _from_caffe2(name: str) -> str | None:
    """`t_res3_1_branch2b_bn_riv` is `s3.pathway1_res1.branch2.b_bn.running_var`; t_ is the fast pathway."""
    match = re.fullmatch(
        r"(?P<fast>t_)?(?:"
        r"(?P<stem>conv1|res_conv1)|"
        r"res(?P<stage>[2-5])_(?P<block>\d+)_branch(?:1|2(?P<layer>[abc]))|"
        r"(?:pool1|res(?P<fused>[2-4])_\d+_branch2c_bn)_subsample|"
        r"(?P<linear>pred))"
        r"(?P<bn>_bn)?_(?P<leaf>w|s|b|rm|riv)",
        name,
    )
    if not match:
        return None
    leaf = "weight" if match["leaf"] == "w" else _CAFFE2_LEAVES[match["leaf"]]
    pathway = 1 if match["fast"] else 0
    if match["linear"]:
        return f"head.projection.{leaf}"
    if match["stem"]:
        return f"s1.pathway{pathway}_stem.{'bn' if match['bn'] else 'conv'}.{leaf}"
    if match["stage"]:
        layer = f"branch2.{match['layer']}" if match["layer"] else "branch1"
        block = f"s{match['stage']}.pathway{pathway}_res{match['block']}"
        return f"{block}.{layer}{match['bn'] or ''}.{leaf}"
    return f"s{match['fused'] or 1}_fuse.{'bn' if match['bn'] else 'conv_f2s'}.{leaf}"


class PyTorchVideoConverter(RenamingConverter):
    """PyTorchVideo's networks. They number all their parts; parts without weights leave gaps."""

    classifier = "s6.0.proj"
    settings: ClassVar[Mapping[str, Any]] = _SETTINGS
    pooling = "logits"
    layers: ClassVar[Renames] = (
        (r"s1\.([01])\.conv", r"s1.pathway\1_stem._conv"),
        (r"s1\.([01])\.norm", r"s1.pathway\1_stem._bn"),
        (r"(s\d)\.0\.multipathway_fusion\.conv_fast_to_slow", r"\1_fuse._conv_f2s"),
        (r"(s\d)\.0\.multipathway_fusion\.norm", r"\1_fuse._bn"),
        (r"(s\d)\.([01])\.res_blocks\.(\d+)\.branch1_conv", r"\1.pathway\2_res\3.branch1"),
        (r"(s\d)\.([01])\.res_blocks\.(\d+)\.branch1_norm", r"\1.pathway\2_res\3.branch1_bn"),
        (r"(s\d)\.([01])\.res_blocks\.(\d+)\.branch2\.conv_([abc])", r"\1.pathway\2_res\3.branch2.\4"),
        (r"(s\d)\.([01])\.res_blocks\.(\d+)\.branch2\.norm_([abc])", r"\1.pathway\2_res\3.branch2.\4_bn"),
    )

    def __init__(self, state: Weights, network: Network) -> None:
        super().__init__(state, network)
        numbers = {int(match[1]) for match in (re.match(r"blocks\.(\d+)\.", name) for name in state) if match}
        self._stages = {str(number): stage for stage, number in enumerate(sorted(numbers), start=1)}

    def normalized(self, name: str) -> str:
        """`blocks.0.multipathway_blocks.1.conv.weight` to `s1.1.conv.weight`; a single pathway is 0."""
        match = re.fullmatch(r"blocks\.(\d+)\.(?:multipathway_blocks\.([01])\.)?(.+)", name)
        return f"s{self._stages[match[1]]}.{match[2] or 0}.{match[3]}" if match else name


class MMAction2ClipConverter(RenamingConverter):
    """SlowFast, Slow-only and I3D of MMAction2.

    It joins the features of the pathways as [fast, slow] before the classifier; here, as elsewhere, the order
    is [slow, fast].
    """

    classifier = "cls_head.fc_cls"
    layers = (
        (r"([01])\.conv1\.(conv|bn)", r"s1.pathway\1_stem._\2"),
        (r"[01]\.(s\d)_lateral\.conv", r"\1_fuse._conv_f2s"),
        (r"[01]\.(s\d)_lateral\.bn", r"\1_fuse._bn"),
        (r"([01])\.(s\d)\.(\d+)\.downsample\.conv", r"\2.pathway\1_res\3.branch1"),
        (r"([01])\.(s\d)\.(\d+)\.downsample\.bn", r"\2.pathway\1_res\3.branch1_bn"),
        (r"([01])\.(s\d)\.(\d+)\.([abc])\.conv", r"\2.pathway\1_res\3.branch2.\4"),
        (r"([01])\.(s\d)\.(\d+)\.([abc])\.bn", r"\2.pathway\1_res\3.branch2.\4_bn"),
    )
    settings: ClassVar[Mapping[str, Any]] = {
        "slow_frames": "strided",
        "conv1_stride_t": 2,
        "pool1_stride_t": 2,
    }
    pooling = "global"

    def normalized(self, name: str) -> str:
        """`backbone.fast_path.layer1.0.conv2.bn.weight` to `1.s2.0.b.bn.weight`; a single pathway is 0."""
        match = re.fullmatch(r"backbone\.(?:(slow|fast)_path\.)?(.+)", name)
        if not match:
            return name
        layer = re.sub(r"^conv1(?=_lateral)", "s1", match[2])
        layer = re.sub(r"^layer([1-4])", lambda stage: f"s{int(stage[1]) + 1}", layer)
        layer = re.sub(r"(?<=\.)conv([1-3])(?=\.)", lambda number: "abc"[int(number[1]) - 1], layer)
        return f"{int(match[1] == 'fast')}.{layer}"

    def classifier_steps(self) -> Sequence[Step]:
        if _FAST_CLASSIFIED not in self.state:
            return ()
        num_fast = self.state[_FAST_CLASSIFIED].shape[0]
        return [Step("pathways exchanged", lambda value: np.roll(value, -num_fast, axis=1))]

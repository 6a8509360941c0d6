"""The 3D networks: SlowFast, Slow-only and I3D."""

from __future__ import annotations

from typing import ClassVar, Dict, List, Literal, Optional, Sequence

import paddle

from paddlevideo_fast.config.types import PositiveInt
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.backbones.pathways import Fusion, Pathway, PathwayResNet
from paddlevideo_fast.registry import BACKBONES

_SLOW_FRAMES = ((1,), (1,), (3,), (3,))
_FAST_FRAMES = ((3,), (3,), (3,), (3,))
_EVERY_OTHER = ((3,), (3, 1), (3, 1), (1, 3))


@BACKBONES.register()
class ResNetSlowFast(PathwayResNet):
    """SlowFast: few frames with many channels, many frames with few, and connections from fast to slow.

    It takes the fast pathway's clip; the slow pathway sees one in alpha of its frames.

    Args:
        alpha: fast frames for one slow frame; the clips' frames must be a multiple of it.
        beta: slow channels for one fast channel.
        depth: 50 or 101.
        width_per_group: channels of the slow stem.
        fusion_kernel_sz: frames that the connections' convolutions span.
        fusion_conv_channel_ratio: channels that a connection gives for each fast channel.
        fuse_bn_relu: batch norm and ReLU in the connections; MMAction2's networks have neither.
        slow_frames: "spread" takes the slow pathway's frames from the first to the last; "strided" every
            alpha-th one, as MMAction2's networks do.
        stage_blocks: blocks in each of the four stages; null: what the depth says.
        pretrained: weights to start from.

    Reference: Feichtenhofer et al., "SlowFast Networks for Video Recognition", arXiv 1812.03982, section 3.
    """

    ignored_arguments: ClassVar[Dict[str, str]] = {
        "bn_norm_type": "the batch norms follow the schedule of the run",
        "bn_num_splits": "the batch norms follow the schedule of the run",
        "num_pathways": "SlowFast has two",
    }

    def __init__(
        self,
        alpha: PositiveInt,
        beta: PositiveInt,
        depth: int = 50,
        width_per_group: PositiveInt = 64,
        fusion_kernel_sz: PositiveInt = 7,
        fusion_conv_channel_ratio: PositiveInt = 2,
        fuse_bn_relu: bool = True,
        slow_frames: Literal["spread", "strided"] = "spread",
        stage_blocks: Optional[Sequence[PositiveInt]] = None,
        pretrained: Optional[str] = None,
    ) -> None:
        if width_per_group % beta:
            raise ConfigError(
                [f"MODEL.backbone.beta={beta}: does not divide width_per_group={width_per_group}"]
            )
        super().__init__(
            [
                Pathway(width_per_group, 1, _SLOW_FRAMES),
                Pathway(width_per_group // beta, 5, _FAST_FRAMES),
            ],
            depth,
            stage_blocks,
            Fusion(alpha, fusion_kernel_sz, fusion_conv_channel_ratio, fuse_bn_relu),
            pretrained=pretrained,
        )
        self.alpha = alpha
        self.slow_frames = slow_frames

    def _split(self, clips: paddle.Tensor) -> List[paddle.Tensor]:
        num_frames = clips.shape[2]
        if num_frames % self.alpha:
            raise ConfigError(
                [
                    f"MODEL.backbone.alpha={self.alpha}: clips have {num_frames} frames, not a multiple; "
                    "change num_frames of the sampler in PIPELINE, or alpha"
                ]
            )
        chosen = list(range(0, num_frames, self.alpha))
        if self.slow_frames == "spread":
            # the integer part of equal steps from the first frame to the last
            last, steps = num_frames - 1, max(len(chosen) - 1, 1)
            chosen = [step * last // steps for step in range(len(chosen))]
        return [paddle.index_select(clips, paddle.to_tensor(chosen), axis=2), clips]


@BACKBONES.register()
class ResNetSlow(PathwayResNet):
    """Slow-only: SlowFast's slow pathway alone.

    Args:
        depth: 50 or 101.
        width_per_group: channels of the stem.
        stage_blocks: blocks in each of the four stages; null: what the depth says.
        pretrained: weights to start from: of this network, or of a 2D ResNet, which are inflated.

    Reference: Feichtenhofer et al., "SlowFast Networks for Video Recognition", arXiv 1812.03982, section 4.1.
    """

    def __init__(
        self,
        depth: int = 50,
        width_per_group: PositiveInt = 64,
        stage_blocks: Optional[Sequence[PositiveInt]] = None,
        pretrained: Optional[str] = None,
    ) -> None:
        pathway = Pathway(width_per_group, 1, _SLOW_FRAMES)
        super().__init__([pathway], depth, stage_blocks, pretrained=pretrained)


@BACKBONES.register()
class ResNetI3D(PathwayResNet):
    """I3D on a ResNet: 2D convolutions inflated to 3D, and pairs of frames pooled after the first stage.

    Args:
        depth: 50 or 101.
        inflate: "3x1x1" spans frames in a block's first, 1×1 convolution; "3x3x3" in its 3×3 one.
        inflate_all: all blocks span frames, not every other one from the second stage on.
        width_per_group: channels of the stem.
        stage_blocks: blocks in each of the four stages; null: what the depth says.
        conv1_stride_t, pool1_stride_t: stride in time of the stem's convolution and pooling; 2 in MMAction2's
            networks.
        pretrained: weights to start from: of this network, or of a 2D ResNet, which are inflated.

    Reference: Carreira, Zisserman, "Quo Vadis, Action Recognition?", arXiv 1705.07750, section 2.4; the two
    inflations: Wang et al., "Non-local Neural Networks", arXiv 1711.07971, section 4.1.
    """

    least_frames: ClassVar[int] = 2

    def __init__(
        self,
        depth: int = 50,
        inflate: Literal["3x1x1", "3x3x3"] = "3x1x1",
        inflate_all: bool = False,
        width_per_group: PositiveInt = 64,
        stage_blocks: Optional[Sequence[PositiveInt]] = None,
        conv1_stride_t: PositiveInt = 1,
        pool1_stride_t: PositiveInt = 1,
        pretrained: Optional[str] = None,
    ) -> None:
        frames = _FAST_FRAMES if inflate_all else _EVERY_OTHER
        stem_strides = (conv1_stride_t, pool1_stride_t)
        pathway = Pathway(width_per_group, 5, frames, inflate, stem_strides)
        super().__init__([pathway], depth, stage_blocks, halve_frames=True, pretrained=pretrained)
        self.stem_strides = stem_strides

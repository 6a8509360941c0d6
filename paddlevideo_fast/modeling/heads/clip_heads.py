"""Heads over whole clips: the mean of each pathway over time and space, dropout, a linear layer."""

from __future__ import annotations

from typing import ClassVar, Dict, Optional, Sequence

import paddle
from paddle import nn

from paddlevideo_fast.config.types import NonNegative, PositiveInt, Share
from paddlevideo_fast.modeling.heads.base import LinearHead
from paddlevideo_fast.registry import HEADS

_SLOW_CHANNELS = 32  # of the last stage, for one channel of the stem


def _pooled(features: Sequence[paddle.Tensor]) -> paddle.Tensor:
    """Features [N, C, T, H, W] of each pathway to [N, sum of C]; any T, H and W."""
    return paddle.concat([x.mean(axis=[2, 3, 4]) for x in features], axis=1)


@HEADS.register()
class SlowFastHead(LinearHead):
    """SlowFast's head. Its outputs are logits, in training and in evaluation.

    Args:
        num_classes: classes; any number from 1.
        width_per_group: channels of the slow stem, as the backbone's.
        beta: slow channels for one fast channel, as the backbone's.
        dropout_rate: dropout before the linear layer.
        std: standard deviation of the linear layer's first weights.
        loss_cfg: the loss; null: cross entropy.
        ls_eps: label smoothing; in training only.

    Reference: Feichtenhofer et al., "SlowFast Networks for Video Recognition", arXiv 1812.03982, section 3.
    """

    data_format = "NCDHW"
    ignored_arguments: ClassVar[Dict[str, str]] = {
        "alpha": "the head takes clips of any number of frames",
        "num_frames": "the head takes clips of any number of frames",
        "crop_size": "the head takes clips of any size",
        "pool_size_ratio": "the head takes clips of any size",
        "multigrid_short": "the head takes clips of any size",
    }

    def __init__(
        self,
        num_classes: PositiveInt,
        width_per_group: PositiveInt = 64,
        beta: PositiveInt = 8,
        dropout_rate: Share = 0.5,
        std: NonNegative = 0.01,
        loss_cfg: Optional[nn.Layer] = None,
        ls_eps: Share = 0.0,
    ) -> None:
        in_channels = width_per_group * _SLOW_CHANNELS + width_per_group // beta * _SLOW_CHANNELS
        super().__init__(num_classes, in_channels, loss_cfg, dropout_rate, ls_eps)
        self.projection = self.linear(std)

    def forward(self, features: Sequence[paddle.Tensor]) -> paddle.Tensor:
        """Features [N, C, T, H, W] of the slow and the fast pathway to logits [N, num_classes]."""
        return self.projection(self.dropout(_pooled(features)))


@HEADS.register()
class I3DHead(LinearHead):
    """The head of I3D and Slow-only.

    Args:
        num_classes: classes; any number from 1.
        in_channels: channels of the backbone's feature map.
        loss_cfg: the loss; null: cross entropy.
        drop_ratio: dropout before the linear layer.
        std: standard deviation of the linear layer's first weights.
        ls_eps: label smoothing; in training only.
    """

    data_format = "NCDHW"
    ignored_arguments: ClassVar[Dict[str, str]] = {
        "spatial_type": "the mean over time and space is the only pooling",
    }

    def __init__(
        self,
        num_classes: PositiveInt,
        in_channels: PositiveInt = 2048,
        loss_cfg: Optional[nn.Layer] = None,
        drop_ratio: Share = 0.5,
        std: NonNegative = 0.01,
        ls_eps: Share = 0.0,
    ) -> None:
        super().__init__(num_classes, in_channels, loss_cfg, drop_ratio, ls_eps)
        self.fc = self.linear(std)

    def forward(self, features: Sequence[paddle.Tensor]) -> paddle.Tensor:
        """Features [N, C, T, H, W] of the pathways to logits [N, num_classes]."""
        return self.fc(self.dropout(_pooled(features)))

"""Heads over the frames of a clip: global pooling, dropout, a linear layer, and the mean over frames."""

from __future__ import annotations

from typing import ClassVar, Dict, Literal, Optional

import paddle
from paddle import nn

from paddlevideo_fast.config.types import NonNegative, PositiveInt, Share
from paddlevideo_fast.modeling.heads.base import Head, LinearHead
from paddlevideo_fast.registry import HEADS

_FC_LR_MULTIPLIERS = {"fc.weight": 5.0, "fc.bias": 10.0}


class FrameHead(LinearHead):
    """What the registered heads share; see `LinearHead` for the other arguments.

    Args:
        std: standard deviation of the linear layer's first weights.
        data_format: layout of the feature map.
        fclr5: train the linear layer's weight at 5 times the learning rate and its bias at 10 times.
    """

    ignored_arguments: ClassVar[Dict[str, str]] = {
        "num_seg": "the head takes the number of frames from the clip",
    }
    drop_before_mean: ClassVar[bool] = False

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        loss_cfg: Optional[nn.Layer],
        drop_ratio: float,
        std: float,
        data_format: str,
        fclr5: bool,
        ls_eps: float,
    ) -> None:
        super().__init__(num_classes, in_channels, loss_cfg, drop_ratio, ls_eps)
        self.data_format = data_format
        self.fc = self.linear(std)
        if fclr5:
            self.lr_multipliers = dict(_FC_LR_MULTIPLIERS)

    def forward(self, features: paddle.Tensor, num_frames: int) -> paddle.Tensor:
        """Features of frames to logits of clips.

        Args:
            features: float [N*T, C, H, W], or [N*T, H, W, C] where `data_format` is "NHWC".
            num_frames: T, over all views; the mean over them is the mean of the frames' logits.

        Returns:
            [N, num_classes].
        """
        pooled = features.mean(axis=[2, 3] if self.data_format == "NCHW" else [1, 2])
        if self.drop_before_mean:
            pooled = self.dropout(pooled)
        clips = pooled.reshape([-1, num_frames, self.in_channels]).mean(axis=1)
        # The linear layer comes after the mean: it commutes with it, and runs once a clip.
        return self.fc(clips if self.drop_before_mean else self.dropout(clips))


@HEADS.register()
class TSNHead(FrameHead):
    """TSN: dropout on the mean feature of the clip; see `FrameHead` for the arguments.

    Reference: Wang et al., "Temporal Segment Networks", arXiv 1608.00859.
    """

    def __init__(
        self,
        num_classes: PositiveInt,
        in_channels: PositiveInt,
        loss_cfg: Optional[nn.Layer] = None,
        drop_ratio: Share = 0.4,
        std: NonNegative = 0.01,
        data_format: Literal["NCHW", "NHWC"] = "NCHW",
        fclr5: bool = False,
        ls_eps: Share = 0.0,
    ) -> None:
        super().__init__(num_classes, in_channels, loss_cfg, drop_ratio, std, data_format, fclr5, ls_eps)


@HEADS.register()
class ppTSNHead(FrameHead):
    """TSN's head with a faster linear layer; see `FrameHead` for the arguments."""

    def __init__(
        self,
        num_classes: PositiveInt,
        in_channels: PositiveInt,
        loss_cfg: Optional[nn.Layer] = None,
        drop_ratio: Share = 0.4,
        std: NonNegative = 0.01,
        data_format: Literal["NCHW", "NHWC"] = "NCHW",
        fclr5: bool = True,
        ls_eps: Share = 0.0,
    ) -> None:
        super().__init__(num_classes, in_channels, loss_cfg, drop_ratio, std, data_format, fclr5, ls_eps)


@HEADS.register()
class TSMHead(FrameHead):
    """TSM: dropout on each frame's feature, then the mean of the frames' logits; arguments as for
    `FrameHead`.

    Reference: Lin, Gan, Han, "TSM: Temporal Shift Module for Efficient Video Understanding", arXiv
    1811.08383.
    """

    drop_before_mean = True

    def __init__(
        self,
        num_classes: PositiveInt,
        in_channels: PositiveInt,
        loss_cfg: Optional[nn.Layer] = None,
        drop_ratio: Share = 0.5,
        std: NonNegative = 0.001,
        data_format: Literal["NCHW", "NHWC"] = "NCHW",
        fclr5: bool = True,
        ls_eps: Share = 0.0,
    ) -> None:
        super().__init__(num_classes, in_channels, loss_cfg, drop_ratio, std, data_format, fclr5, ls_eps)


@HEADS.register()
class ppTSMHead(FrameHead):
    """TSM's head with ppTSM's defaults; arguments as for `FrameHead`."""

    drop_before_mean = True

    def __init__(
        self,
        num_classes: PositiveInt,
        in_channels: PositiveInt,
        loss_cfg: Optional[nn.Layer] = None,
        drop_ratio: Share = 0.8,
        std: NonNegative = 0.01,
        data_format: Literal["NCHW", "NHWC"] = "NCHW",
        fclr5: bool = True,
        ls_eps: Share = 0.0,
    ) -> None:
        super().__init__(num_classes, in_channels, loss_cfg, drop_ratio, std, data_format, fclr5, ls_eps)


@HEADS.register()
class MoViNetHead(Head):
    """The mean over frames, for backbones that classify them; it has no parameters.

    Args:
        loss_cfg: the loss; null: cross entropy.
        ls_eps: label smoothing; in training only.
    """

    data_format = "NCHW"

    def __init__(self, loss_cfg: Optional[nn.Layer] = None, ls_eps: Share = 0.0) -> None:
        super().__init__(None, None, loss_cfg, ls_eps)

    def forward(self, logits: paddle.Tensor, num_frames: int) -> paddle.Tensor:
        """Logits of frames [N*T, num_classes] to those of clips [N, num_classes]; T is `num_frames`."""
        return logits.reshape([-1, num_frames, logits.shape[-1]]).mean(axis=1)

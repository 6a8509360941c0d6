"""What all heads share: the loss; and what most of them have, a linear layer."""

from __future__ import annotations

from typing import ClassVar, Dict, Optional, Union

import paddle
from paddle import nn

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.losses import CrossEntropyLoss
from paddlevideo_fast.modeling.mix import MixedLabels
from paddlevideo_fast.registry import LOSSES, Registry


class Head(nn.Layer):
    """A loss on logits.

    Args:
        num_classes: classes; any number from 1. None: the backbone's.
        in_channels: channels of the backbone's features.
        loss_cfg: the loss; None: cross entropy.
        ls_eps: label smoothing; in training only.

    Attributes:
        lr_multipliers: structured parameter name in the head to factor on the learning rate.

    Raises:
        ConfigError: fewer than one class.
    """

    parts: ClassVar[Dict[str, Registry]] = {"loss_cfg": LOSSES}

    def __init__(
        self,
        num_classes: Optional[int],
        in_channels: Optional[int],
        loss_cfg: Optional[nn.Layer],
        ls_eps: float,
    ) -> None:
        super().__init__()
        if num_classes is not None and num_classes < 1:
            raise ConfigError([f"MODEL.head.num_classes={num_classes}: must be at least 1"])
        self.num_classes = num_classes
        self.in_channels = in_channels
        self.ls_eps = ls_eps
        self.lr_multipliers: Dict[str, float] = {}
        self.loss_func = loss_cfg if loss_cfg is not None else CrossEntropyLoss()

    def loss(self, logits: paddle.Tensor, labels: Union[paddle.Tensor, MixedLabels]) -> paddle.Tensor:
        """Scalar loss of logits [N, num_classes] and labels (int64 [N] or mixed)."""
        return self.loss_func(logits, labels, ls_eps=self.ls_eps if self.training else 0.0)


class LinearHead(Head):
    """Dropout, one linear layer, a loss; see `Head` for the other arguments.

    Args:
        drop_ratio: dropout before the linear layer.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        loss_cfg: Optional[nn.Layer],
        drop_ratio: float,
        ls_eps: float,
    ) -> None:
        super().__init__(num_classes, in_channels, loss_cfg, ls_eps)
        self.dropout = nn.Dropout(drop_ratio)

    def linear(self, std: float) -> nn.Linear:
        """The linear layer; its first weights are normal with `std`, its bias starts at 0."""
        return nn.Linear(
            self.in_channels,
            self.num_classes,
            weight_attr=paddle.ParamAttr(initializer=nn.initializer.Normal(0.0, std)),
            bias_attr=paddle.ParamAttr(initializer=nn.initializer.Constant(0.0)),
        )

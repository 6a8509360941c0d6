"""Cross entropy, with label smoothing and mixed labels."""

from __future__ import annotations

from typing import Union

import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.modeling.mix import MixedLabels
from paddlevideo_fast.registry import LOSSES


@LOSSES.register()
class CrossEntropyLoss(nn.Layer):
    """Mean cross entropy of softmax(logits).

    Args:
        loss_weight: factor on the loss.
    """

    def __init__(self, loss_weight: float = 1.0) -> None:
        super().__init__()
        self.loss_weight = loss_weight

    def forward(
        self, logits: paddle.Tensor, labels: Union[paddle.Tensor, MixedLabels], ls_eps: float = 0.0
    ) -> paddle.Tensor:
        """The loss of a batch.

        Args:
            logits: float [N, num_classes]; computed with in float32.
            labels: int64 [N], or what `Mixup` gave.
            ls_eps: share of the target that is spread evenly over all classes.

        Returns:
            Scalar float32.

        Reference: Szegedy et al., "Rethinking the Inception Architecture", arXiv 1512.00567, section 7.
        """
        log_prob = F.log_softmax(logits.astype("float32"), axis=-1)
        if isinstance(labels, MixedLabels):
            hard = labels.lam * F.nll_loss(log_prob, labels.a) + (1 - labels.lam) * F.nll_loss(
                log_prob, labels.b
            )
        else:
            hard = F.nll_loss(log_prob, labels)
        loss = hard if ls_eps == 0 else (1 - ls_eps) * hard - ls_eps * log_prob.mean()
        return loss * self.loss_weight

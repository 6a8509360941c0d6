"""Losses: cross entropy, and the losses of mutual distillation."""

from __future__ import annotations

from typing import Any, Callable, List, Literal, Mapping, Optional, Tuple, Union

import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.preprocess import MixedLabels
from paddlevideo_fast.registry import DISTILLATION_LOSSES, LOSSES


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
            logits: float [N, num_classes]; the loss is computed in float32.
            labels: int64 [N], or the labels that `Mixup` gave.
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

    def each(self, logits: paddle.Tensor, labels: paddle.Tensor, ls_eps: float = 0.0) -> paddle.Tensor:
        """The loss of each clip alone, float32 [N]; see `forward`."""
        log_prob = F.log_softmax(logits.astype("float32"), axis=-1)
        hard = F.nll_loss(log_prob, labels, reduction="none")
        loss = hard if ls_eps == 0 else (1 - ls_eps) * hard - ls_eps * log_prob.mean(axis=-1)
        return loss * self.loss_weight


def loss_of_each(
    loss: Callable[..., paddle.Tensor],
    each: Optional[Callable[..., paddle.Tensor]],
    logits: Any,
    labels: paddle.Tensor,
    **options: Any,
) -> paddle.Tensor:
    """The loss of each clip alone, float32 [N]; it may be averaged with the losses of other batches.

    Args:
        loss: gives the scalar loss of a batch.
        each: gives the losses [N] of a batch in one call; None: `loss` is called once a clip.
        logits: [N, num_classes].
        labels: [N, ...].
        options: further arguments of both.
    """
    if each is not None:
        return each(logits, labels, **options).astype("float32")
    pairs = zip(logits.split(len(labels)), labels.split(len(labels)))
    return paddle.stack([loss(*pair, **options) for pair in pairs]).astype("float32").reshape([-1])


LABELS = "GroundTruth"


@DISTILLATION_LOSSES.register()
class DistillationCELoss(nn.Layer):
    """Mean cross entropy of a network and the labels.

    Args:
        model_name_pairs: the network's name and `GroundTruth`.
        loss_weight: factor on the loss.

    Attributes:
        models: names of the networks whose logits the loss needs.

    Raises:
        ConfigError: the second name is not `GroundTruth`, or the first is.
    """

    def __init__(self, model_name_pairs: Tuple[str, str], loss_weight: float = 1.0) -> None:
        super().__init__()
        name, target = model_name_pairs
        if target != LABELS or name == LABELS:
            raise ConfigError([f"model_name_pairs={list(model_name_pairs)}: expected [a model, {LABELS}]"])
        self.models: List[str] = [name]
        self._cross_entropy = CrossEntropyLoss(loss_weight)

    def forward(self, logits: Mapping[str, paddle.Tensor], labels: Any) -> paddle.Tensor:
        """Scalar float32.

        Args:
            logits: float [N, num_classes] of each network.
            labels: int64 [N], or the labels that `Mixup` gave.
        """
        return self._cross_entropy(logits[self.models[0]], labels)

    def each(self, logits: Mapping[str, paddle.Tensor], labels: paddle.Tensor) -> paddle.Tensor:
        """The loss of each clip alone, float32 [N]; see `forward`."""
        return self._cross_entropy.each(logits[self.models[0]], labels)


@DISTILLATION_LOSSES.register()
class DistillationDMLLoss(nn.Layer):
    """Mean of the two Kullback-Leibler divergences between two networks; both learn from it.

    Args:
        model_name_pairs: names of the two networks.
        act: makes probabilities of logits; null: the networks give probabilities.
        eps: keeps the logarithms finite.
        loss_weight: factor on the loss.

    Attributes:
        models: names of the networks whose logits the loss needs.

    Raises:
        ConfigError: one of the names is `GroundTruth`.

    Reference: Zhang et al., "Deep Mutual Learning", arXiv 1706.00384, section 3.2; here in
    both directions at once, as PaddleVideo has it.
    """

    def __init__(
        self,
        model_name_pairs: Tuple[str, str],
        act: Optional[Literal["softmax", "sigmoid"]] = "softmax",
        eps: float = 1e-12,
        loss_weight: float = 1.0,
    ) -> None:
        super().__init__()
        if LABELS in model_name_pairs:
            raise ConfigError([f"model_name_pairs={list(model_name_pairs)}: expected two models"])
        self.models: List[str] = list(model_name_pairs)
        self._act = getattr(F, act) if act else None
        self._eps = eps
        self._loss_weight = loss_weight

    def forward(self, logits: Mapping[str, paddle.Tensor], labels: Any) -> paddle.Tensor:
        """Scalar float32; see `DistillationCELoss` for the arguments."""
        outputs = [logits[name].astype("float32") for name in self.models]
        p, q = outputs if self._act is None else map(self._act, outputs)
        # p log(p/q) + q log(q/p), summed over the classes
        divergences = (p - q) * (paddle.log(p + self._eps) - paddle.log(q + self._eps))
        return divergences.sum(axis=-1).mean() * (self._loss_weight / 2)

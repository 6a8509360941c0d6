"""Losses: of one class a video, of several classes, and of mutual distillation."""

from __future__ import annotations

from typing import Any, Callable, ClassVar, List, Literal, Mapping, Optional, Tuple, Union

import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.config.types import Activation, NonNegative, Share
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.preprocess import MixedLabels
from paddlevideo_fast.registry import DISTILLATION_LOSSES, LOSSES


@LOSSES.register()
class CrossEntropyLoss(nn.Layer):
    """Mean cross entropy of softmax(logits).

    Args:
        loss_weight: factor on the loss.

    Attributes:
        activation: of the heads that the loss is for.
    """

    activation: ClassVar[Activation] = "softmax"

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


_LEAST = 1e-8  # keeps the derivative of a power finite where its base is 0


class _LossOfEachClass(nn.Layer):
    """The mean over the videos of a loss that each class of a video has by itself.

    Args:
        loss_weight: factor on the loss.
        reduction: "mean" or "sum" over the classes of a video. With "sum" the gradients of a logit do not
            become smaller with the number of classes.

    Attributes:
        activation: of the heads that the loss is for.
    """

    activation: ClassVar[Activation] = "sigmoid"

    def __init__(self, loss_weight: float = 1.0, reduction: Literal["mean", "sum"] = "mean") -> None:
        super().__init__()
        self.loss_weight = loss_weight
        self.reduction = reduction

    def forward(
        self, logits: paddle.Tensor, labels: Union[paddle.Tensor, MixedLabels], ls_eps: float = 0.0
    ) -> paddle.Tensor:
        """The loss of a batch.

        Args:
            logits: float [N, num_classes]; the loss is computed in float32.
            labels: float32 [N, num_classes], 1 where a video has the class, or those that `Mixup` gave.
            ls_eps: label smoothing: targets go from `ls_eps` / 2 to 1 - `ls_eps` / 2. Each class is a choice
                of two, and this share of its target is spread evenly over both.

        Returns:
            Scalar float32.
        """
        return self.each(logits, labels, ls_eps).mean()

    def each(
        self, logits: paddle.Tensor, labels: Union[paddle.Tensor, MixedLabels], ls_eps: float = 0.0
    ) -> paddle.Tensor:
        """The loss of each clip alone, float32 [N]; see `forward`."""
        targets = labels.blended() if isinstance(labels, MixedLabels) else labels
        if ls_eps:
            targets = targets * (1 - ls_eps) + ls_eps / 2
        if_there, if_not = self._losses(logits.astype("float32"))
        losses = targets * if_there + (1 - targets) * if_not
        return (losses.mean(axis=-1) if self.reduction == "mean" else losses.sum(axis=-1)) * self.loss_weight

    def _losses(self, logits: paddle.Tensor) -> Tuple[paddle.Tensor, paddle.Tensor]:
        """Losses of classes that are there, and of classes that are not: float32 [N, num_classes] each."""
        raise NotImplementedError


@LOSSES.register()
class BinaryCrossEntropyLoss(_LossOfEachClass):
    """Mean binary cross entropy of sigmoid(logits): each class of a video is there or not."""

    def _losses(self, logits: paddle.Tensor) -> Tuple[paddle.Tensor, paddle.Tensor]:
        return -F.log_sigmoid(logits), -F.log_sigmoid(-logits)


@LOSSES.register()
class AsymmetricLoss(_LossOfEachClass):
    """Binary cross entropy with less weight on easy classes, above all on the many that are not there.

    With p = sigmoid(logit) and q = max(p - margin, 0), a class that is there has the loss
    -(1 - p)^gamma_pos log(p), and one that is not has -q^gamma_neg log(1 - q). The defaults are the paper's.

    Args:
        gamma_pos: how fast the loss of a class that is there falls with its probability; 0: as in binary
            cross entropy.
        gamma_neg: the same for a class that is not there.
        margin: probabilities up to this value have no loss where the class is not there.
        reduction: "mean" or "sum" over the classes of a video; the paper's is the sum.

    Reference: Ridnik et al., "Asymmetric Loss For Multi-Label Classification", arXiv 2009.14119, section 2.
    """

    def __init__(
        self,
        gamma_pos: NonNegative = 0.0,
        gamma_neg: NonNegative = 4.0,
        margin: Share = 0.05,
        reduction: Literal["mean", "sum"] = "sum",
        **shared: Any,
    ) -> None:
        super().__init__(reduction=reduction, **shared)
        self.gamma_pos = gamma_pos
        self.gamma_neg = gamma_neg
        self.margin = margin

    def _losses(self, logits: paddle.Tensor) -> Tuple[paddle.Tensor, paddle.Tensor]:
        if_there = -F.log_sigmoid(logits)
        if self.gamma_pos:
            if_there = F.sigmoid(-logits).clip(min=_LEAST) ** self.gamma_pos * if_there
        shifted = (F.sigmoid(logits) - self.margin).clip(min=0.0)
        # without a margin 1 - p may round to 0, and its logarithm is taken of the logit
        if_not = -paddle.log(1 - shifted) if self.margin else -F.log_sigmoid(-logits)
        if self.gamma_neg:
            if_not = shifted.clip(min=_LEAST) ** self.gamma_neg * if_not
        return if_there, if_not


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

"""Losses: of one class a video, of several classes, and of mutual distillation."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.config.types import Activation, NonNegative, Range, Share
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.log import get_logger, warn_once
from paddlevideo_fast.modeling.preprocess import MixedLabels
from paddlevideo_fast.registry import LOSSES

_LOSS = "MODEL.head.loss_cfg"
_WEIGHTS = f"{_LOSS}.class_weights"
_UNTOLD = "call set_class_counts of the loss before training"
_BETA = 0.999
_LEAST = 1e-8  # keeps the derivative of a power finite where its base is 0


class ClassLoss(nn.Layer):
    """What losses over classes share: a weight for each class, in training only.

    The weights are scaled to a mean of 1 over the clips of an epoch, so the loss and its gradient keep their
    size, and only the ratios of given weights count. A loss is the mean over clips, not over weights: the
    batches of several processes then add up to the batch of one.

    Args:
        loss_weight: factor on the loss.
        class_weights: factors on the classes in training, not in validation: a list; `balanced`, the inverse
            of the number of clips; `effective`, the inverse of the effective number of clips; null: none.
        beta: of `effective`, below 1. With n clips in a class, its effective number is
            (1 - beta^n) / (1 - beta). With 0 all weights are equal, and close to 1 they are as `balanced`.

    Raises:
        ConfigError: all weights are 0.

    Reference: Cui et al., "Class-Balanced Loss Based on Effective Number of Samples", arXiv 1901.05555.
    """

    refused_arguments: ClassVar[dict[str, str]] = {
        "weight": "unknown key; factors on the classes are class_weights, a factor on the loss is loss_weight"
    }

    def __init__(
        self,
        loss_weight: float = 1.0,
        *,
        class_weights: Literal["balanced", "effective"] | Sequence[NonNegative] | None = None,
        beta: Annotated[float, Range(0.0, below=1.0)] = _BETA,
    ) -> None:
        super().__init__()
        if class_weights is not None and not any(class_weights):
            raise ConfigError(f"{_WEIGHTS}={list(class_weights)}: no class has a weight above 0")
        if class_weights != "effective" and beta != _BETA:
            text = f"{_LOSS}.beta has no effect without class_weights: effective"
            warn_once(get_logger(__name__), text)
        self.loss_weight = loss_weight
        self.class_weights = class_weights
        self.beta = beta
        # no buffer: it belongs to the data and not to the network, and amp O2 leaves it in float32
        self._weights: paddle.Tensor | None = None

    @property
    def method(self) -> str:
        """What the loss does about classes of different size, for the log; empty: nothing."""
        if self.class_weights is None:
            return ""
        beta = f" with beta {self.beta:g}" if self.class_weights == "effective" else ""
        kind = self.class_weights if isinstance(self.class_weights, str) else "as listed"
        return f"class_weights {kind}{beta}"

    def set_class_counts(self, counts: Sequence[float]) -> None:
        """Tells the loss how many clips of each class an epoch has; training does so before its first step.

        Args:
            counts: for each class ≥ 0; the mean over epochs where a sampler draws at random.

        Raises:
            ConfigError: `class_weights` is a list of another length, or is 0 for all classes that have clips.
        """
        if self.class_weights is not None:
            weights = self._scaled_weights(np.asarray(counts, np.float64))
            self._weights = _tensor(weights)
            _tell_equal(weights, "class_weights")

    @property
    def weights(self) -> paddle.Tensor | None:
        """Factors on the classes, float32 [num_classes]; None in evaluation and without `class_weights`.

        Raises:
            ConfigError: the loss does not know the number of clips of each class.
        """
        if self.class_weights is None or not self.training:
            return None
        if self._weights is None:
            raise ConfigError(f"{_WEIGHTS}: {_UNTOLD}")
        return self._weights

    def _scaled_weights(self, counts: np.ndarray) -> np.ndarray:
        if self.class_weights == "balanced":
            weights = 1 / _present(counts)
        elif self.class_weights == "effective":
            weights = (1 - self.beta) / (1 - self.beta ** _present(counts))
        else:
            weights = np.array(self.class_weights, np.float64)
            if len(weights) != len(counts):
                raise ConfigError(f"{_WEIGHTS}: has {len(weights)} weights for {len(counts)} classes")
        total = (weights * counts).sum()
        if not total:
            raise ConfigError(f"{_WEIGHTS}: the classes with a weight above 0 have no clip to train on")
        return weights * counts.sum() / total


def _present(counts: np.ndarray) -> np.ndarray:
    """The counts, with the count of the rarest other class for classes without clips."""
    if not counts.any():
        raise ConfigError(f"{_WEIGHTS}: no clip to train on has a class")
    return np.where(counts > 0, counts, counts[counts > 0].min())


def _tell_equal(values: np.ndarray, argument: str) -> None:
    if np.allclose(values, values[0]):
        text = f"{_LOSS}.{argument} has no effect: it treats all classes of the clips to train on alike"
        warn_once(get_logger(__name__), text)


def tell_class_counts(model: nn.Layer, counts: Sequence[float]) -> list[str]:
    """Tells all losses of a network how many clips of each class an epoch has.

    Args:
        model: a network whose losses may be `ClassLoss` or have a method `set_class_counts` of their own.
        counts: for each class.

    Returns:
        What the losses do about classes of different size, in words.

    Raises:
        ConfigError: a loss cannot be trained with them.
    """
    losses = [layer for layer in model.sublayers() if hasattr(layer, "set_class_counts")]
    for loss in losses:
        loss.set_class_counts(counts)
    return [loss.method for loss in losses if getattr(loss, "method", "")]


def _tensor(values: np.ndarray) -> paddle.Tensor:
    return paddle.to_tensor(values.astype("float32"))


@LOSSES.register()
class CrossEntropyLoss(ClassLoss):
    """Mean cross entropy of softmax(logits).

    Args:
        logit_adjustment: the paper's tau. Training adds tau times log(share of the class among the clips)
            to the logits. Validation and prediction do not, so they take frequent and rare classes as equally
            likely. 1 is usual; 0: off.

    Raises:
        ConfigError: all weights are 0.

    Attributes:
        activation: of the heads that the loss is for.

    Reference: `logit_adjustment`: Menon et al., "Long-tail Learning via Logit Adjustment", arXiv 2007.07314,
        section 4.2.
    """

    activation: ClassVar[Activation] = "softmax"

    def __init__(
        self, loss_weight: float = 1.0, *, logit_adjustment: NonNegative = 0.0, **shared: Any
    ) -> None:
        super().__init__(loss_weight, **shared)
        self.logit_adjustment = logit_adjustment
        self._shift: paddle.Tensor | None = None

    @property
    def method(self) -> str:
        """See `ClassLoss.method`."""
        adjusted = f"logit_adjustment {self.logit_adjustment:g}" if self.logit_adjustment else ""
        return ", ".join(filter(None, [super().method, adjusted]))

    def set_class_counts(self, counts: Sequence[float]) -> None:
        """See `ClassLoss.set_class_counts`."""
        super().set_class_counts(counts)
        if self.logit_adjustment:
            present = _present(np.asarray(counts, np.float64))
            self._shift = _tensor(self.logit_adjustment * np.log(present / present.sum()))
            _tell_equal(present, "logit_adjustment")

    def forward(
        self, logits: paddle.Tensor, labels: paddle.Tensor | MixedLabels, ls_eps: float = 0.0
    ) -> paddle.Tensor:
        """The loss of a batch.

        With q the target, the labels mixed and smoothed, the loss of a clip is
        -sum over classes c of weights[c] * q[c] * log(softmax(logits)[c]).

        Args:
            logits: float [N, num_classes]; the loss is computed in float32.
            labels: int64 [N], or the labels that a mix gave.
            ls_eps: share of the target that is spread evenly over all classes.

        Returns:
            Scalar float32.

        Raises:
            ConfigError: the loss does not know the number of clips of each class.

        Reference: Szegedy et al., "Rethinking the Inception Architecture", arXiv 1512.00567, section 7.
        """
        terms = self._weighted_terms(logits)
        if isinstance(labels, MixedLabels):
            hard = labels.lam * F.nll_loss(terms, labels.a) + (1 - labels.lam) * F.nll_loss(terms, labels.b)
        else:
            hard = F.nll_loss(terms, labels)
        loss = hard if ls_eps == 0 else (1 - ls_eps) * hard - ls_eps * terms.mean()
        return loss * self.loss_weight

    def each(self, logits: paddle.Tensor, labels: paddle.Tensor, ls_eps: float = 0.0) -> paddle.Tensor:
        """The loss of each clip alone, float32 [N]; see `forward`."""
        terms = self._weighted_terms(logits)
        hard = F.nll_loss(terms, labels, reduction="none")
        loss = hard if ls_eps == 0 else (1 - ls_eps) * hard - ls_eps * terms.mean(axis=-1)
        return loss * self.loss_weight

    def _weighted_terms(self, logits: paddle.Tensor) -> paddle.Tensor:
        """What each class takes from the loss where it is the target, float32 [N, num_classes]."""
        logits = logits.astype("float32")
        if self.training and self.logit_adjustment:
            if self._shift is None:
                raise ConfigError(f"{_LOSS}.logit_adjustment: {_UNTOLD}")
            logits = logits + self._shift
        terms, weights = self.terms(F.log_softmax(logits, axis=-1)), self.weights
        return terms if weights is None else terms * weights

    def terms(self, log_prob: paddle.Tensor) -> paddle.Tensor:
        """What each class takes from the loss, before weights; of log(softmax) and of its shape."""
        return log_prob


@LOSSES.register()
class FocalLoss(CrossEntropyLoss):
    """Cross entropy that counts less where the network is right already.

    With p the probability of the target, the loss of a clip is -weight * (1 - p)^gamma * log(p). With mixed
    or smoothed labels each class adds its term by its share.

    Args:
        gamma: how much less; 0 is cross entropy.

    Raises:
        ConfigError: all weights are 0.

    Reference: Lin et al., "Focal Loss for Dense Object Detection", arXiv 1708.02002, section 3.2; here over
        softmax. Their alpha is `class_weights`.
    """

    refused_arguments: ClassVar[dict[str, str]] = {
        "alpha": "the factors on the classes are class_weights: balanced, effective or a list; a factor on "
        "the whole loss is loss_weight"
    }

    def __init__(self, gamma: NonNegative = 2.0, **shared: Any) -> None:
        super().__init__(**shared)
        self.gamma = gamma

    @property
    def method(self) -> str:
        """See `ClassLoss.method`."""
        return ", ".join(filter(None, [f"focal loss with gamma {self.gamma:g}", super().method]))

    def terms(self, log_prob: paddle.Tensor) -> paddle.Tensor:
        """See `CrossEntropyLoss.terms`."""
        return (-paddle.expm1(log_prob)).clip(min=_LEAST) ** self.gamma * log_prob


def loss_of_each(
    loss: Callable[..., paddle.Tensor],
    each: Callable[..., paddle.Tensor] | None,
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


class _LossOfEachClass(ClassLoss):
    """The mean over the videos of a loss that each class of a video has by itself.

    Args:
        class_weights: factors in training on the losses of classes that are there: a list; `balanced`, the
            inverse of the number of clips; `effective`, the inverse of the effective number of clips; null:
            none. The losses of classes that are not there have no such factor.
        reduction: "mean" or "sum" over the classes of a video. With "sum" the gradients of a logit do not
            become smaller with the number of classes.

    Attributes:
        activation: of the heads that the loss is for.
    """

    activation: ClassVar[Activation] = "sigmoid"

    def __init__(
        self, loss_weight: float = 1.0, reduction: Literal["mean", "sum"] = "mean", **shared: Any
    ) -> None:
        super().__init__(loss_weight, **shared)
        self.reduction = reduction

    def forward(
        self, logits: paddle.Tensor, labels: paddle.Tensor | MixedLabels, ls_eps: float = 0.0
    ) -> paddle.Tensor:
        """The loss of a batch.

        Args:
            logits: float [N, num_classes]; the loss is computed in float32.
            labels: float32 [N, num_classes], 1 where a video has the class, or those that a mix gave.
            ls_eps: label smoothing: targets go from `ls_eps` / 2 to 1 - `ls_eps` / 2. Each class is a choice
                of two, and this share of its target is spread evenly over both.

        Returns:
            Scalar float32.
        """
        return self.each(logits, labels, ls_eps).mean()

    def each(
        self, logits: paddle.Tensor, labels: paddle.Tensor | MixedLabels, ls_eps: float = 0.0
    ) -> paddle.Tensor:
        """The loss of each clip alone, float32 [N]; see `forward`."""
        targets = labels.blended() if isinstance(labels, MixedLabels) else labels
        if ls_eps:
            targets = targets * (1 - ls_eps) + ls_eps / 2
        if_there, if_not = self._losses(logits.astype("float32"))
        if self.weights is not None:
            if_there = if_there * self.weights
        losses = targets * if_there + (1 - targets) * if_not
        return (losses.mean(axis=-1) if self.reduction == "mean" else losses.sum(axis=-1)) * self.loss_weight

    def _losses(self, logits: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Losses of classes that are there, and of classes that are not: float32 [N, num_classes] each."""
        raise NotImplementedError


@LOSSES.register()
class BinaryCrossEntropyLoss(_LossOfEachClass):
    """Mean binary cross entropy of sigmoid(logits): each class of a video is there or not."""

    def _losses(self, logits: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
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

    def _losses(self, logits: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
        if_there = -F.log_sigmoid(logits)
        if self.gamma_pos:
            if_there = F.sigmoid(-logits).clip(min=_LEAST) ** self.gamma_pos * if_there
        shifted = (F.sigmoid(logits) - self.margin).clip(min=0.0)
        # without a margin 1 - p may round to 0, and its logarithm is taken of the logit
        if_not = -paddle.log(1 - shifted) if self.margin else -F.log_sigmoid(-logits)
        if self.gamma_neg:
            if_not = shifted.clip(min=_LEAST) ** self.gamma_neg * if_not
        return if_there, if_not

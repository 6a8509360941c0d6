"""Networks over frames that learn from each other, and the losses between them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.config.sections import Component, Group, Section
from paddlevideo_fast.config.types import Activation
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.extensions.distillation.sections import ListOf, NamedListOf
from paddlevideo_fast.modeling.freezing import Freezable, set_frozen
from paddlevideo_fast.modeling.losses import CrossEntropyLoss, loss_of_each
from paddlevideo_fast.modeling.preprocess import MixedLabels
from paddlevideo_fast.modeling.recognizers import Recognizer2D
from paddlevideo_fast.modeling.stages import Stage, learned_parameters
from paddlevideo_fast.modeling.weights import ClassNames, WeightReport
from paddlevideo_fast.registry import BACKBONES, HEADS, RECOGNIZERS, Registry, did_you_mean

DISTILLATION_LOSSES = Registry("distillation loss", __name__)
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

    def __init__(self, model_name_pairs: tuple[str, str], loss_weight: float = 1.0) -> None:
        super().__init__()
        name, target = model_name_pairs
        if target != LABELS or name == LABELS:
            raise ConfigError(f"model_name_pairs={list(model_name_pairs)}: expected [a model, {LABELS}]")
        self.models: list[str] = [name]
        self._cross_entropy = CrossEntropyLoss(loss_weight)

    def forward(self, logits: Mapping[str, paddle.Tensor], labels: Any) -> paddle.Tensor:
        """Scalar float32.

        Args:
            logits: float [N, num_classes] of each network.
            labels: int64 [N], or the labels that a mix gave.
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
        model_name_pairs: tuple[str, str],
        act: Literal["softmax", "sigmoid"] | None = "softmax",
        eps: float = 1e-12,
        loss_weight: float = 1.0,
    ) -> None:
        super().__init__()
        if LABELS in model_name_pairs:
            raise ConfigError(f"model_name_pairs={list(model_name_pairs)}: expected two models")
        self.models: list[str] = list(model_name_pairs)
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


STUDENT = "Student"
_NETWORK = Group({"backbone": Component(BACKBONES), "head": Component(HEADS)}, required=("backbone", "head"))
_LOSSES = ListOf(Component(DISTILLATION_LOSSES))


@RECOGNIZERS.register()
class RecognizerDistillation(Freezable):
    """Networks over frames that learn from each other; the network called `Student` is the result.

    In evaluation, export and prediction only the student runs and gives the logits. A checkpoint holds all
    networks; the plain config of the student takes its weights from there.

    Args:
        models: the networks by name; one is called `Student`. The losses of their heads are not used.
        loss: the losses in training (`Train`), whose sum is minimised, and in validation (`Val`), where the
            student is the only network.
        freeze_params_list: for each network, whether its parameters and statistics stay as they are; null:
            all networks learn.

    Attributes:
        layout: layout of the clips that `forward` takes.
        stages: of all networks, by names such as `Student.stem`; see `modeling.stages`.

    Raises:
        ConfigError: there is no student, a loss names an unknown network, a network is in no loss of the
            training, or the parts of a network do not fit.

    References:
        Hinton et al., "Distilling the Knowledge in a Neural Network", arXiv 1503.02531.
        Zhang et al., "Deep Mutual Learning", arXiv 1706.00384.
    """

    layout = "NTCHW"
    activation: ClassVar[Activation] = "softmax"
    parts: ClassVar[dict[str, Section]] = {
        "models": NamedListOf(_NETWORK),
        "loss": Group({"Train": _LOSSES, "Val": _LOSSES}, required=("Train", "Val")),
    }
    ignored_arguments: ClassVar[dict[str, str]] = Recognizer2D.ignored_arguments

    def __init__(
        self,
        models: Sequence[tuple[str, Mapping[str, nn.Layer]]],
        loss: Mapping[str, Sequence[nn.Layer]],
        freeze_params_list: Sequence[bool] | None = None,
    ) -> None:
        super().__init__()
        names = [name for name, _ in models]
        frozen = list(freeze_params_list or [False] * len(names))
        problems = _problems(names, loss, frozen, taken=dir(self))
        if problems:
            raise ConfigError(problems)
        for name, network in zip(names, _networks(models)):
            self.add_sublayer(name, network)
        # the student's logits come first in what `forward` gives
        self._names = [STUDENT, *(name for name in names if name != STUDENT)]
        self._losses = {True: list(loss["Train"]), False: list(loss["Val"])}
        self.stages: dict[str, Stage] = {
            f"{name}.{stage}": Stage(tuple(f"{name}.{layer}" for layer in layers), num_later)
            for name in names
            for stage, (layers, num_later) in getattr(self, name).stages.items()
        }
        for name, is_frozen in zip(names, frozen):
            if is_frozen:
                network = getattr(self, name)
                set_frozen(network, learned_parameters(network))
        self.train()

    @property
    def num_classes(self) -> int:
        """Length of the logits."""
        return getattr(self, STUDENT).num_classes

    @classmethod
    def classes_of(cls, section: Mapping[str, Any]) -> int:
        """`num_classes` of the network that a checked MODEL section describes, without building it."""
        models = {name: parts for item in section["models"] for name, parts in item.items()}
        if STUDENT not in models:
            raise ConfigError(_no_student(models))
        return Recognizer2D.classes_of(models[STUDENT])

    @property
    def lr_multipliers(self) -> dict[str, float]:
        """Structured parameter name to the factor on the learning rate that its part asks for."""
        return {
            f"{model}.{name}": factor
            for model in self._names
            for name, factor in getattr(self, model).lr_multipliers.items()
        }

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor | tuple[paddle.Tensor, ...]:
        """Clips, normalised float [N, T, 3, H, W], to logits.

        Returns:
            The student's logits, [N, num_classes]; in training the logits of all networks, student first.
        """
        if not self.training:
            return getattr(self, STUDENT)(clips)
        return tuple(getattr(self, name)(clips) for name in self._names)

    def loss(
        self, outputs: paddle.Tensor | Sequence[paddle.Tensor], labels: paddle.Tensor | MixedLabels
    ) -> paddle.Tensor:
        """Scalar loss of what `forward` gave in the same mode and labels (int64 [N] or `MixedLabels`)."""
        logits = dict(zip(self._names, outputs)) if self.training else {STUDENT: outputs}
        return paddle.add_n([loss(logits, labels) for loss in self._losses[self.training]])

    def loss_of_each(self, logits: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
        """The loss of each clip alone in evaluation, float32 [N], of the student's logits."""

        def of_each(loss: Any) -> paddle.Tensor:
            each = getattr(loss, "each", None)
            return loss_of_each(
                lambda logits, labels: loss({STUDENT: logits}, labels),
                each and (lambda logits, labels: each({STUDENT: logits}, labels)),
                logits,
                labels,
            )

        return paddle.add_n([of_each(loss) for loss in self._losses[False]])

    @property
    def classifiers(self) -> list[str]:
        """Names of the linear layers that give the logits."""
        return [f"{model}.{name}" for model in self._names for name in getattr(self, model).classifiers]

    def load_pretrained(self, classes: ClassNames | None = None) -> list[WeightReport]:
        """Loads the files that the backbones' `pretrained` name; see `Recognizer.load_pretrained`."""
        return [report for name in self._names for report in getattr(self, name).load_pretrained(classes)]


def _networks(models: Sequence[tuple[str, Mapping[str, nn.Layer]]]) -> list[Recognizer2D]:
    networks, problems = [], []
    for index, (name, parts) in enumerate(models):
        head, at = parts["head"], f"MODEL.models.{index}.{name}.head"
        given = {"ls_eps": head.ls_eps, "loss_cfg": getattr(head.loss_func, "method", "")}
        problems += [
            f"{at}.{key}: the losses are in MODEL.loss; leave it out" for key, value in given.items() if value
        ]
        if head.activation != "softmax":
            problems.append(
                f"{at}.activation: the losses of distillation compare softmax scores, of one class a video; "
                "leave it out, or train the network alone with Recognizer2D"
            )
        try:
            networks.append(Recognizer2D(**parts))
        except ConfigError as error:
            problems += [f"MODEL.models.{index}.{name}: {text}" for text in error.problems]
    if not problems and len({network.num_classes for network in networks}) > 1:
        counts = [f"{name} {network.num_classes}" for (name, _), network in zip(models, networks)]
        problems.append(f"MODEL.models: have different numbers of classes: {', '.join(counts)}")
    if problems:
        raise ConfigError(problems)
    return networks


def _no_student(names: Iterable[str]) -> str:
    return f"MODEL.models: none of {', '.join(names)} is called {STUDENT}, which is the network that is kept"


def _problems(
    names: Sequence[str], loss: Mapping[str, Sequence[nn.Layer]], frozen: Sequence[bool], taken: Sequence[str]
) -> list[str]:
    problems = [
        f"MODEL.models.{index}.{name}: a network cannot be called so; take another name"
        for index, name in enumerate(names)
        if not name.isidentifier() or name.startswith("_") or name in taken or name in names[:index]
    ]
    if STUDENT not in names:
        problems.append(_no_student(names))
    elif len(frozen) != len(names):
        problems.append(f"MODEL.freeze_params_list: has {len(frozen)} items for {len(names)} models")
    elif frozen[names.index(STUDENT)]:
        problems.append(f"MODEL.freeze_params_list: freezes {STUDENT}, which is to learn")
    for part, known in (("Train", names), ("Val", [STUDENT])):  # validation runs the student alone
        if not loss[part]:
            problems.append(f"MODEL.loss.{part}: is empty")
        problems += [
            f"MODEL.loss.{part}.{index}.model_name_pairs: there is no {name} in it{did_you_mean(name, known)}"
            for index, item in enumerate(loss[part])
            for name in item.models
            if name not in known
        ]
    learning = {name for item in loss["Train"] for name in item.models}
    problems += [
        f"MODEL.loss.Train: has no loss of {name}; add one, or leave the network out"
        for name in names
        if loss["Train"] and name not in learning
    ]
    return problems

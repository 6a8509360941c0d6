"""Networks that are trained together, of which one is kept."""

from __future__ import annotations

from typing import Any, ClassVar, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import paddle
from paddle import nn

from paddlevideo_fast.config.sections import Component, Group, ListOf, NamedListOf, Section
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.mix import MixedLabels
from paddlevideo_fast.modeling.recognizers.recognizer2d import Recognizer2D
from paddlevideo_fast.modeling.weights import WeightReport
from paddlevideo_fast.registry import BACKBONES, DISTILLATION_LOSSES, HEADS, RECOGNIZERS, did_you_mean

STUDENT = "Student"
_NETWORK = Group({"backbone": Component(BACKBONES), "head": Component(HEADS)}, required=("backbone", "head"))
_LOSSES = ListOf(Component(DISTILLATION_LOSSES))


@RECOGNIZERS.register()
class RecognizerDistillation(nn.Layer):
    """Networks over frames that learn from each other; the one called `Student` is the result.

    In evaluation, export and prediction the student is alone: it gives the logits, and the others do not
    run. A checkpoint holds all of them; the plain config of the student takes its weights from there.

    Args:
        models: the networks by name; one is called `Student`. The losses of their heads are not used.
        loss: what is minimised in training (`Train`), a sum, and shown in validation (`Val`), where the
            student is the only network.
        freeze_params_list: for each network, whether its parameters and statistics stay as they are; null:
            all of them learn.

    Attributes:
        layout: of the clips that `forward` takes.

    Raises:
        ConfigError: there is no student, a loss names a network that is not there, a network is in no loss of
            the training, or the parts of one do not fit.

    References:
        Hinton et al., "Distilling the Knowledge in a Neural Network", arXiv 1503.02531.
        Zhang et al., "Deep Mutual Learning", arXiv 1706.00384.
    """

    layout = "NTCHW"
    parts: ClassVar[Dict[str, Section]] = {
        "models": NamedListOf(_NETWORK),
        "loss": Group({"Train": _LOSSES, "Val": _LOSSES}, required=("Train", "Val")),
    }
    ignored_arguments: ClassVar[Dict[str, str]] = Recognizer2D.ignored_arguments

    def __init__(
        self,
        models: Sequence[Tuple[str, Mapping[str, nn.Layer]]],
        loss: Mapping[str, Sequence[nn.Layer]],
        freeze_params_list: Optional[Sequence[bool]] = None,
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
        self._frozen = [name for name, is_frozen in zip(names, frozen) if is_frozen]
        self._losses = {True: list(loss["Train"]), False: list(loss["Val"])}
        for name in self._frozen:
            _freeze(getattr(self, name))
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
            raise ConfigError([_no_student(models)])
        return Recognizer2D.classes_of(models[STUDENT])

    @property
    def lr_multipliers(self) -> Dict[str, float]:
        """Structured parameter name to the factor on the learning rate that its part asks for."""
        return {
            f"{model}.{name}": factor
            for model in self._names
            for name, factor in getattr(self, model).lr_multipliers.items()
        }

    def train(self) -> None:
        """To training mode; the frozen networks stay as in evaluation, without dropout."""
        super().train()
        for name in self._frozen:
            getattr(self, name).eval()

    def forward(self, clips: paddle.Tensor) -> Union[paddle.Tensor, Tuple[paddle.Tensor, ...]]:
        """Clips, normalised float [N, T, 3, H, W], to logits.

        Returns:
            The student's, [N, num_classes]; in training those of all networks, the student's first.
        """
        if not self.training:
            return getattr(self, STUDENT)(clips)
        return tuple(getattr(self, name)(clips) for name in self._names)

    def loss(
        self,
        outputs: Union[paddle.Tensor, Sequence[paddle.Tensor]],
        labels: Union[paddle.Tensor, MixedLabels],
    ) -> paddle.Tensor:
        """Scalar loss of what `forward` gave in the same mode and labels (int64 [N] or `MixedLabels`)."""
        logits = dict(zip(self._names, outputs)) if self.training else {STUDENT: outputs}
        return paddle.add_n([loss(logits, labels) for loss in self._losses[self.training]])

    def load_pretrained(self) -> List[WeightReport]:
        """Loads the files that the backbones' `pretrained` name; see `Recognizer.load_pretrained`."""
        return [report for name in self._names for report in getattr(self, name).load_pretrained()]


def _networks(models: Sequence[Tuple[str, Mapping[str, nn.Layer]]]) -> List[Recognizer2D]:
    networks, problems = [], []
    for index, (name, parts) in enumerate(models):
        if parts["head"].ls_eps:
            problems.append(
                f"MODEL.models.{index}.{name}.head.ls_eps: the losses are in MODEL.loss; leave it out"
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


def _freeze(model: nn.Layer) -> None:
    for parameter in model.parameters():
        parameter.stop_gradient = True
    for layer in model.sublayers():
        if isinstance(layer, nn.BatchNorm2D):
            layer._use_global_stats = True


def _no_student(names: Iterable[str]) -> str:
    return f"MODEL.models: none of {', '.join(names)} is called {STUDENT}, which is the network that is kept"


def _problems(
    names: Sequence[str],
    loss: Mapping[str, Sequence[nn.Layer]],
    frozen: Sequence[bool],
    taken: Sequence[str],
) -> List[str]:
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

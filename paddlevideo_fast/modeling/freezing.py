"""Parameters that training leaves as they are, with the statistics of their batch norms.

There is one way to freeze: `set_frozen`. `partial_bn` of a backbone, `freeze_params_list` of a distillation
and the section FINETUNE use it.
"""

import math
from collections.abc import Collection, Mapping, Sequence

from paddle import nn

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.layers.batch_norm import BATCH_NORMS
from paddlevideo_fast.modeling.stages import learned_parameters, parameters_in


def set_frozen(model: nn.Layer, names: Collection[str]) -> None:
    """Freezes the parameters with these structured names, and frees all others.

    A frozen parameter gets no gradient, so the optimizer neither updates nor decays it. Where all parameters
    of a batch norm are frozen, it uses and keeps its running statistics. A later `train()` or `eval()` does
    not change that, also inside `paddle.DataParallel`. Frozen leading layers build no graph for the backward
    pass: they cost their forward pass alone.
    """
    for name, parameter in learned_parameters(model).items():
        parameter.stop_gradient = name in names
    for layer in model.sublayers():
        if isinstance(layer, BATCH_NORMS):
            layer._use_global_stats = True if _is_frozen(layer) else None
    if model.training:
        model.train()  # a `Freezable` chooses the mode of its parts


def frozen_parameters(model: nn.Layer) -> frozenset[str]:
    """Structured names of the frozen parameters."""
    return frozenset(name for name, parameter in learned_parameters(model).items() if parameter.stop_gradient)


class Freezable(nn.Layer):
    """A network whose frozen layers stay in evaluation mode, without dropout, while the others train."""

    def train(self) -> None:
        """Switches to training mode all layers but those whose parameters are all frozen."""
        super().train()
        for layer in self.sublayers():
            if _is_frozen(layer):
                layer.eval()


class Freezing:
    """Which parameters of a network are frozen in which epoch: the section FINETUNE.

    What is frozen before (`partial_bn`, the teacher of a distillation) stays frozen in all epochs.

    Args:
        model: is frozen as in the first epoch.
        parts: names of stages, names or patterns of parameters; see `parameters_in`.
        unfreeze_at: how many epochs pass before all parts train; or a mapping of some of the parts to their
            epochs; None: never.

    Attributes:
        later: names of the parameters that are frozen in the first epoch and train later.

    Raises:
        ConfigError: a part fits nothing, or is not in `parts`; or nothing is left to train.
    """

    def __init__(
        self, model: nn.Layer, parts: Sequence[str], unfreeze_at: int | Mapping[str, int] | None = None
    ) -> None:
        self._model = model
        epochs = unfreeze_at if isinstance(unfreeze_at, Mapping) else dict.fromkeys(parts, unfreeze_at)
        unknown = [
            f"FINETUNE.unfreeze_at.{part}: FINETUNE.freeze has no {part}"
            for part in epochs
            if part not in parts
        ]
        if unknown:
            raise ConfigError(unknown)
        self._ends: dict[str, float] = dict.fromkeys(frozen_parameters(model), math.inf)
        for number, part in enumerate(parts):
            end = epochs.get(part) or math.inf
            for name in parameters_in(model, part, f"FINETUNE.freeze.{number}"):
                self._ends[name] = max(end, self._ends.get(name, 0))
        if len(self._ends) == len(learned_parameters(model)):
            raise ConfigError("FINETUNE.freeze: freezes all parameters; leave some out, such as head")
        self._frozen = self.frozen_in(0)
        self.later = frozenset(name for name, end in self._ends.items() if end < math.inf)
        set_frozen(model, self._frozen)

    def frozen_in(self, epoch: int) -> frozenset[str]:
        """Names of the parameters that are frozen in an epoch, counted from 0."""
        return frozenset(name for name, end in self._ends.items() if epoch < end)

    def begin(self, epoch: int) -> frozenset[str]:
        """Freezes what is frozen in an epoch, counted from 0. Returns the names that train from here on."""
        frozen = self.frozen_in(epoch)
        freed = self._frozen - frozen
        if frozen != self._frozen:
            self._frozen = frozen
            set_frozen(self._model, frozen)
        return freed


def _is_frozen(layer: nn.Layer) -> bool:
    """Whether a layer has parameters, and all of them are frozen."""
    parameters = learned_parameters(layer).values()
    return bool(parameters) and all(parameter.stop_gradient for parameter in parameters)

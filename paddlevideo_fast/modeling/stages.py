"""The stages of a network, from clip to logits: what a config names to freeze, slow down or recompute."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

import paddle
from paddle import nn

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.backbones.base import Backbone

HEAD = "head"


class Stage(NamedTuple):
    """A part of a network that computes after the stages before it.

    Attributes:
        layers: structured names of its layers, in the order in which they compute.
        num_later: how many stages follow, up to the logits.
    """

    layers: tuple[str, ...]
    num_later: int


def stages_of(backbone: Backbone) -> dict[str, Stage]:
    """The stages of a recognizer with this backbone: the backbone's, and the head, which comes last.

    A backbone declares them in its attribute `stage_layers`. Layers that belong to the classifier are its
    stage `head`. A backbone that declares none is one stage, `backbone`.
    """
    own = backbone.stage_layers or {"backbone": [name for name, _ in backbone.named_children()]}
    layers = {name: [f"backbone.{layer}" for layer in names] for name, names in own.items()}
    layers[HEAD] = [*layers.pop(HEAD, ()), HEAD]
    last = len(layers) - 1
    return {name: Stage(tuple(names), last - at) for at, (name, names) in enumerate(layers.items())}


def learned_parameters(model: nn.Layer) -> dict[str, paddle.Tensor]:
    """Structured name to parameter, frozen ones included, without the running statistics of batch norms.

    Paddle counts the statistics among the parameters.
    """
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if name.rpartition(".")[2] not in ("_mean", "_variance")
    }


def parameters_in(model: nn.Layer, part: str, key: str) -> list[str]:
    """Structured names of the parameters in a part of a model.

    Args:
        model: a recognizer; its `stages` have names.
        part: the name of a stage, the name of a parameter or its start up to a dot, or a pattern of these
            with `*`, `?` and `[...]`.
        key: the config key that holds `part`, for the message.

    Raises:
        ConfigError: the part fits nothing.
    """
    matching = names_in(model, part, learned_parameters(model))
    if not matching:
        stages = ", ".join(getattr(model, "stages", {}))
        raise ConfigError(
            f"{key}={part}: fits no stage ({stages}) and no name of a parameter; a name may have * "
            "in it, as in backbone.*.bias"
        )
    return matching


def names_in(model: nn.Layer, part: str, names: Iterable[str]) -> list[str]:
    """The structured names of parameters or layers that a part of a model has; see `parameters_in`."""
    stages: Mapping[str, Stage] = getattr(model, "stages", {})
    starts = stages[part].layers if part in stages else (part,)
    return [
        name
        for name in names
        if any(f"{name}.".startswith(f"{start}.") or fnmatchcase(name, start) for start in starts)
    ]

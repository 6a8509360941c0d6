"""LoRA: a network keeps its weights and learns through two small matrices beside each of some linear layers.

A layer with the weight W [in, out] gives

    x·W + bias + scale / rank · (x·A)·B        A [in, rank], B [rank, out]

B starts at zero, so before its first step the network gives what it gave without A and B. The matrices are
parameters `lora_a` and `lora_b` of the layer; all other names stay. W + scale / rank · A·B is the weight of a
plain layer that computes the same.

Weight files hold the small part: A and B, what trains beside them, and what the base does not have. Under
`RECORD` they name the base, a weight file that holds the rest; `modeling.weights` reads both.

Reference: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv 2106.09685, section 4.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.freezing import frozen_parameters, set_frozen
from paddlevideo_fast.modeling.stages import learned_parameters, names_in, parameters_in

RECORD = "LoRA@@"  # the entry of a weight file that is no tensor: see `Lora.record`
A, B = "lora_a", "lora_b"
# of TimeSformer, temporal_fc too: it starts at zero, and without it temporal attention would learn nothing
_ATTENTION = ("*attn.qkv", "*attn.proj", "*temporal_fc")
_NUM_SHOWN = 6


@dataclass(frozen=True)
class LoraBase:
    """The weight file that a network with LoRA started from.

    Attributes:
        path: absolute, or a URL.
        sha256: of the file.
        size: of the file in bytes.
        part: what it was loaded into, the backbone or the whole network.
    """

    path: str
    sha256: str
    size: int
    part: Literal["backbone", "network"]


@dataclass
class Lora:
    """The LoRA of a network, its attribute `lora`.

    Attributes:
        scale: see the module's text.
        layers: names of the layers that have matrices, and their ranks.
        base: where the frozen weights come from; None: the files of the network hold them, too.
        from_base: names of the tensors that stay as the base has them.
    """

    scale: float
    layers: dict[str, int]
    base: LoraBase | None = None
    from_base: frozenset[str] = frozenset()

    def record(self) -> dict[str, Any]:
        """What a weight file says of it."""
        return {"scale": self.scale, "base": self.base and asdict(self.base)}

    def keep_base(self, model: nn.Layer, base: LoraBase, names: Iterable[str]) -> None:
        """Leaves out of the network's files what a base holds and the training does not change.

        Args:
            model: the network, frozen as it will train.
            base: the file.
            names: of the network's tensors that have the values of the file.
        """
        learned = learned_parameters(model)
        trained = {name for name, each in learned.items() if not each.stop_gradient}
        owners = {_owner(name) for name in learned} - {_owner(name) for name in trained}
        classifiers = tuple(f"{name}." for name in getattr(model, "classifiers", ()))  # of other classes
        self.base = base
        self.from_base = frozenset(
            name
            for name in names
            # a running statistic stays where its norm is frozen
            if (name not in trained if name in learned else _owner(name) in owners)
            and not name.startswith(classifiers or ("\n",))
        )


def add_lora(
    model: nn.Layer,
    rank: int = 8,
    scale: float = 16.0,
    layers: Sequence[str] | None = None,
    train: Sequence[str] = ("head",),
) -> Lora:
    """Gives linear layers of a recognizer their matrices and freezes all else but `train`.

    Args:
        model: the recognizer; gets the attribute `lora`.
        rank: of the matrices.
        scale: the product counts scale / rank times.
        layers: parts of the model whose linear layers get matrices: names of stages, names of layers or their
            starts up to a dot, or patterns; None: the attention's. Layers that train in full get none.
        train: parts that train in full; see `parameters_in`.

    Raises:
        ConfigError: a part fits nothing, or the rank is larger than a side of a layer's weight.
    """
    in_full = {
        name
        for number, part in enumerate(train)
        for name in parameters_in(model, part, f"LORA.train.{number}")
    }
    linear = {
        name: layer
        for name, layer in model.named_sublayers()
        if isinstance(layer, nn.Linear) and f"{name}.weight" not in in_full
    }
    chosen: dict[str, int] = {}
    if layers is None:
        chosen = {name: rank for part in _ATTENTION for name in names_in(model, part, linear)}
        if not chosen:
            text = f"the network has no attention; name some of its linear layers: {_some(linear)}"
            raise ConfigError(f"LORA.layers: {text}")
    for number, part in enumerate(layers or ()):
        found = names_in(model, part, linear)
        if not found:
            raise ConfigError(f"LORA.layers.{number}={part}: fits no linear layer; there are {_some(linear)}")
        chosen.update(dict.fromkeys(found, rank))
    for name in chosen:
        if rank > min(linear[name].weight.shape):
            inputs, outputs = linear[name].weight.shape
            text = f"larger than a side of the weight [{inputs}, {outputs}] of {name}; take a smaller rank"
            raise ConfigError(f"LORA.rank={rank}: {text}")
    for name in chosen:
        _attach(linear[name], rank, scale / rank)
    model.lora = Lora(scale, chosen)
    small = {f"{name}.{each}" for name in chosen for each in (A, B)}
    others = learned_parameters(model).keys() - small - in_full
    set_frozen(model, frozen_parameters(model) | others)
    return model.lora


def _attach(layer: nn.Linear, rank: int, factor: float) -> None:
    """Gives a layer its matrices, whose product counts `factor` times."""
    inputs, outputs = layer.weight.shape
    bound = inputs**-0.5  # as the authors' code: Kaiming's uniform with a slope of sqrt(5)
    first = nn.initializer.Uniform(-bound, bound)
    layer.add_parameter(A, layer.create_parameter([inputs, rank], default_initializer=first))
    zeros = nn.initializer.Constant(0.0)
    layer.add_parameter(B, layer.create_parameter([rank, outputs], default_initializer=zeros))
    layer.lora_factor = factor
    # a hook leaves class, names and forward of the layer as they are, for any subclass of Linear
    layer.register_forward_post_hook(_with_product)


def _with_product(layer: Any, inputs: tuple[paddle.Tensor, ...], output: paddle.Tensor) -> paddle.Tensor:
    product = paddle.matmul(paddle.matmul(inputs[0], layer.lora_a), layer.lora_b)
    return output + product * layer.lora_factor


def stored_state(model: nn.Layer) -> dict[str, Any]:
    """What weight files of a model hold: its state dict; with LoRA the small part, and the record."""
    state = model.state_dict()
    lora: Lora | None = getattr(model, "lora", None)
    if lora is None:
        return state
    return {
        **{name: value for name, value in state.items() if name not in lora.from_base},
        RECORD: lora.record(),
    }


def merged(weight: np.ndarray, a: np.ndarray, b: np.ndarray, scale: float) -> np.ndarray:
    """The weight [in, out] of a plain layer that computes the same as one with A and B."""
    product = a.astype(np.float64) @ b.astype(np.float64)
    return (weight + scale / a.shape[1] * product).astype(np.float32)


def pairs_of(names: Iterable[str]) -> list[str]:
    """Names of the layers whose A a weight file holds."""
    return [_owner(name) for name in names if name.endswith(f".{A}")]


def is_lora(name: str) -> bool:
    """Whether a parameter is an A or a B."""
    return name.rpartition(".")[2] in (A, B)


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _some(names: Iterable[str]) -> str:
    shown = list(names)
    more = f", … ({len(shown) - _NUM_SHOWN} more)" if len(shown) > _NUM_SHOWN else ""
    return ", ".join(shown[:_NUM_SHOWN]) + more if shown else "none"

"""What a converter of weights is: where a tensor of another toolkit goes, and what happens to it.

The converters of a family of networks are in the file of the family, in `modeling/backbones/`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from paddle import nn

# PyTorch's names of what a layer holds to Paddle's.
LEAVES = {"weight": "weight", "bias": "bias", "running_mean": "_mean", "running_var": "_variance"}
Weights = Mapping[str, np.ndarray]
Renames = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Step:
    """One change of a tensor on its way into our network.

    Attributes:
        label: text for the report ("transposed").
        apply: array to array.
        num_axes: of the arrays that it can change; None: as many as our tensor has, or one fewer.
    """

    label: str
    apply: Callable[[np.ndarray], np.ndarray]
    num_axes: int | None = None

    def takes(self, value: np.ndarray, wanted: Sequence[int]) -> bool:
        """Whether it can change a value on its way to this shape: it may ask for any axis."""
        axes = (len(wanted), len(wanted) - 1) if self.num_axes is None else (self.num_axes,)
        return value.ndim in axes


TRANSPOSED = Step("transposed", np.transpose)  # PyTorch's linear layers hold [out, in], Paddle's [in, out]


@dataclass(frozen=True)
class Target:
    """Where a tensor goes: our name, and the steps on the way."""

    name: str
    steps: tuple[Step, ...] = ()


class Network:
    """The network that gets the weights.

    Attributes:
        model: a recognizer.
        backbone, head: its parts.
        shapes: shapes of its parameters and buffers, by name.
        linear_layers: names of its linear layers.
        classifier: name of the linear layer that gives the logits, such as "head.fc"; "": there is none.
    """

    def __init__(self, model: nn.Layer) -> None:
        self.model, self.backbone, self.head = model, model.backbone, model.head
        self.shapes: dict[str, tuple[int, ...]] = {
            name: tuple(value.shape) for name, value in model.state_dict().items()
        }
        self.linear_layers: frozenset[str] = frozenset(
            name for name, layer in model.named_sublayers() if isinstance(layer, nn.Linear)
        )
        self.classifier: str = next(iter(model.classifiers), "")


class Converter:
    """Maps the weights of one file to one network.

    Args:
        state: names of the other toolkit to arrays.
        network: the network that gets them.

    Attributes:
        backbone_only: leave the rest out, because such files were trained for another task.
        left_out: what the rest is, for the report.
        unused: pattern of names to what these tensors belong to, which the network does without; they have
            one row of the report together.
        settings: arguments of the backbone that the toolkit's networks are built with, and no tensor shows.
        pooling: how the toolkit's heads pool clips larger than the training crops; see `Head.pooling`. None:
            as any head does.
        training_crop: side in pixels of the crops that the toolkit trains on.
    """

    backbone_only: bool = False
    left_out: ClassVar[str] = "the classifier of another task"
    unused: ClassVar[Mapping[str, str]] = {}
    settings: ClassVar[Mapping[str, Any]] = {}
    pooling: ClassVar[str | None] = None
    training_crop: ClassVar[str] = "224"

    def __init__(self, state: Weights, network: Network) -> None:
        self.state = state
        self.network = network

    def target(self, name: str) -> Target | None:
        """Where the tensor `name` goes; None: the converter does not know the name."""
        raise NotImplementedError

    def added(self) -> dict[str, np.ndarray]:
        """Tensors that our network needs and the other toolkit's network does without."""
        return {}

    def differences(self) -> Sequence[str]:
        """Differences between the networks that names and shapes do not show, a line each."""
        own = vars(self.network.backbone)
        wrong = [(key, value) for key, value in self.settings.items() if own.get(key, value) != value]
        texts = [f"MODEL.backbone.{key}={value}" for key, value in wrong]
        return [f"this toolkit's network is built otherwise; set {' and '.join(texts)}"] if texts else []

    def notes(self) -> Sequence[str]:
        """What to set in a config so that it also tests as the other toolkit does, a line each."""
        if self.pooling in (None, self.network.head.pooling):
            return []
        if self.pooling == "global":
            return [
                "this toolkit takes one global mean of clips larger than the training crops; set "
                "MODEL.head.crop_size=null"
            ]
        return [
            f"this toolkit averages {self.pooling} over windows of clips larger than the training crops; set "
            f"MODEL.head.crop_size={self.training_crop} and MODEL.head.window_average={self.pooling}"
        ]

    def linear(self, leaf: str, *steps: Step) -> Target:
        """The place of the classifier's weight or bias; `steps` are for [out, in] weights."""
        return Target(f"{self.network.classifier}.{leaf}", (*steps, TRANSPOSED) if leaf == "weight" else ())


class RenamingConverter(Converter):
    """A converter that renames layers by patterns; weights of linear layers are transposed.

    Attributes:
        classifier: the classifier's name in the file.
        layers: pairs of a pattern and our name. The pattern matches the whole name of a layer, or of a tensor
            that is not a layer's weight, bias or statistics. Our name is one in the backbone, unless it
            starts with "head.".
        renames: pairs of a pattern and what takes the place of what it matches, one after the other; they
            come before `layers`.
        projections: pattern of the name of an attention to the names of its layers that are one layer here,
            such as its queries, keys and values. The joined layer is called `….{query,key,value}`.
    """

    classifier: str
    layers: ClassVar[Renames]
    renames: Renames = ()
    projections: ClassVar[Mapping[str, Sequence[str]]] = {}

    def __init__(self, state: Weights, network: Network) -> None:
        joined = _with_joined_projections(state, self.projections) if self.projections else state
        super().__init__(joined, network)

    def normalized(self, name: str) -> str:
        """The name of a tensor in the form that `classifier` and `layers` expect."""
        for pattern, theirs in self.renames:
            name = re.sub(pattern, theirs, name)
        return name

    def classifier_steps(self) -> Sequence[Step]:
        """What happens to the classifier's weight besides its transposition."""
        return ()

    def target(self, name: str) -> Target | None:
        name = self.normalized(name)
        owner, _, leaf = name.rpartition(".")
        if owner == self.classifier:
            return self.linear(leaf, *self.classifier_steps()) if leaf in ("weight", "bias") else None
        ours = self._renamed(owner) if leaf in LEAVES else None
        if ours is not None:
            is_transposed = leaf == "weight" and ours in self.network.linear_layers
            return Target(f"{ours}.{LEAVES[leaf]}", (TRANSPOSED,) if is_transposed else ())
        ours = self._renamed(name)
        return None if ours is None else Target(ours)

    def _renamed(self, name: str) -> str | None:
        for pattern, ours in self.layers:
            match = re.fullmatch(pattern, name)
            if match:
                expanded = match.expand(ours)
                return expanded if expanded.startswith("head.") else f"backbone.{expanded}"
        return None


def _with_joined_projections(
    state: Weights, projections: Mapping[str, Sequence[str]]
) -> dict[str, np.ndarray]:
    joined: dict[str, np.ndarray] = {}
    for name, value in state.items():
        owner, _, leaf = name.rpartition(".")
        attention, _, layer = owner.rpartition(".")
        layers = next(
            (
                names
                for pattern, names in projections.items()
                if layer in names and re.fullmatch(pattern, attention)
            ),
            (),
        )
        parts = [f"{attention}.{each}.{leaf}" for each in layers]
        if not parts or not all(part in state for part in parts):
            joined[name] = value
        elif layer == layers[0]:
            arrays = [state[part] for part in parts]
            joined[f"{attention}.{{{','.join(layers)}}}.{leaf}"] = np.concatenate(arrays)
    return joined

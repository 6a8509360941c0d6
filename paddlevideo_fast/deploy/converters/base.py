"""What every converter of weights is: where a tensor of another toolkit goes, and what happens to it."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from paddle import nn

from paddlevideo_fast.modeling.backbones.resnet import block_name

# PyTorch's names of what a layer holds to Paddle's.
LEAVES = {"weight": "weight", "bias": "bias", "running_mean": "_mean", "running_var": "_variance"}


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
class Place:
    """Where a tensor goes: our name, and the steps on the way."""

    name: str
    steps: tuple[Step, ...] = ()


class Network:
    """What converters and the report need to know about the network that gets the weights.

    Attributes:
        model: the network.
        backbone: name of its backbone's class.
        shapes: shapes of its parameters and buffers, by name.
        linear_layers: names of its linear layers.
        blocks: names of the residual blocks of a 2D network, in order.
        classifier: name of the linear layer that gives the logits, such as "head.fc"; "": there is none.
        shift_ratio: share of the channels in a fold of the temporal shift; 0: there is no shift.
        slow_frames, stem_strides: as of `ResNetSlowFast` and `ResNetI3D`; None: it is neither.
        pooling: how its head pools clips that are larger than 224²: "global", or what it averages over
            windows, "probabilities" or "logits"; None: no head for 3D networks.
    """

    def __init__(self, model: nn.Layer) -> None:
        self.model = model
        self.backbone = type(model.backbone).__name__
        self.shapes: dict[str, tuple[int, ...]] = {
            name: tuple(value.shape) for name, value in model.state_dict().items()
        }
        self.linear_layers: frozenset[str] = frozenset(
            name for name, layer in model.named_sublayers() if isinstance(layer, nn.Linear)
        )
        self.blocks: list[str] = list(getattr(model.backbone, "block_names", []))
        self.classifier = next(
            (
                name[: -len(".weight")]
                for name, shape in self.shapes.items()
                if name.endswith(".weight") and len(shape) == 2 and shape[1] == model.num_classes
            ),
            "",
        )
        self.classifier = next(iter(model.classifiers), self.classifier)
        self.shift_ratio: float = getattr(model.backbone, "shift_ratio", 0.0)
        self.slow_frames: str | None = getattr(model.backbone, "slow_frames", None)
        self.stem_strides: tuple[int, int] | None = getattr(model.backbone, "stem_strides", None)
        self.pooling: str | None = None
        if hasattr(model.head, "window"):
            self.pooling = "global" if model.head.window is None else model.head.window_average
        self._depth: int = getattr(model.backbone, "depth", 50)

    def block_name(self, stage: int, index: int) -> str:
        """Name of a block of a 2D network, also where this network is too shallow to have the block."""
        return block_name(self._depth if index < 26 else 152, stage, index)


class Converter:
    """Maps the weights of one file to one network.

    Args:
        state: names of the other toolkit to arrays.
        network: the network that gets them.

    Attributes:
        backbone_only: leave the rest out, because such files were trained for another task.
        left_out: what the rest is, for the report.
    """

    backbone_only: bool = False
    left_out: ClassVar[str] = "the classifier of another task"

    def __init__(self, state: Mapping[str, np.ndarray], network: Network) -> None:
        self.state = state
        self.network = network

    def place(self, name: str) -> Place | None:
        """Where the tensor `name` goes; None: the converter does not know the name."""
        raise NotImplementedError

    def added(self) -> dict[str, np.ndarray]:
        """Tensors that our network needs and the other toolkit's network does without."""
        return {}

    def differences(self) -> Sequence[str]:
        """Differences between the networks that names and shapes do not show, a line each."""
        return []

    def notes(self) -> Sequence[str]:
        """What to set in a config so that it also tests as the other toolkit does, a line each."""
        return []

    def linear(self, leaf: str, *steps: Step) -> Place:
        """The place of the classifier's weight or bias; `steps` are for [out, in] weights."""
        return Place(f"{self.network.classifier}.{leaf}", (*steps, TRANSPOSED) if leaf == "weight" else ())


Renames = Sequence[tuple[str, str]]


class RenamingConverter(Converter):
    """A converter that renames layers by patterns; weights of linear layers are transposed.

    Attributes:
        classifier: the classifier's name in the file.
        layers: pairs of a pattern and our name. The pattern matches the whole name of a layer, or of a tensor
            that is not a layer's weight, bias or statistics. Our name is one in the backbone, unless it
            starts with "head.".
        renames: pairs of a pattern and what takes the place of what it matches, one after the other; they
            come before `layers`.
    """

    classifier: str
    layers: ClassVar[Sequence[tuple[str, str]]]
    renames: Renames = ()

    def normalized(self, name: str) -> str:
        """The name of a tensor in the form that `classifier` and `layers` expect."""
        for pattern, theirs in self.renames:
            name = re.sub(pattern, theirs, name)
        return name

    def classifier_steps(self) -> Sequence[Step]:
        """What happens to the classifier's weight besides its transposition."""
        return ()

    def place(self, name: str) -> Place | None:
        name = self.normalized(name)
        owner, _, leaf = name.rpartition(".")
        if owner == self.classifier:
            return self.linear(leaf, *self.classifier_steps()) if leaf in ("weight", "bias") else None
        ours = self._renamed(owner) if leaf in LEAVES else None
        if ours is not None:
            is_transposed = leaf == "weight" and ours in self.network.linear_layers
            return Place(f"{ours}.{LEAVES[leaf]}", (TRANSPOSED,) if is_transposed else ())
        ours = self._renamed(name)
        return None if ours is None else Place(ours)

    def _renamed(self, name: str) -> str | None:
        for pattern, ours in self.layers:
            found = re.fullmatch(pattern, name)
            if found:
                expanded = found.expand(ours)
                return expanded if expanded.startswith("head.") else f"backbone.{expanded}"
        return None


def with_joined_projections(state: Mapping[str, np.ndarray], pattern: str) -> dict[str, np.ndarray]:
    """Tensors in which queries, keys and values are one; in `state` they are `….{query,key,value}.…`.

    Args:
        state: names of the other toolkit to arrays.
        pattern: of a whole name; its groups are what stands before the word, the word, and the leaf.
    """
    joined: dict[str, np.ndarray] = {}
    for name, value in state.items():
        found = re.fullmatch(pattern, name)
        parts = [f"{found[1]}{part}.{found[3]}" for part in ("query", "key", "value")] if found else []
        if not found or not all(part in state for part in parts):
            joined[name] = value
        elif found[2] == "query":
            arrays = [state[part] for part in parts]
            joined[f"{found[1]}{{query,key,value}}.{found[3]}"] = np.concatenate(arrays)
    return joined


class PaddleVideoConverter(Converter):
    """PaddleVideo's names are ours."""

    def place(self, name: str) -> Place:
        return Place(name)

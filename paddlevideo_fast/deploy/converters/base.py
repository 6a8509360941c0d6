"""What a converter is: a map of names, and what happens to a tensor on its way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from paddle import nn

from paddlevideo_fast.modeling.backbones.resnet import block_name

# PyTorch's names of what a layer holds to Paddle's.
LEAVES = {"weight": "weight", "bias": "bias", "running_mean": "_mean", "running_var": "_variance"}


@dataclass(frozen=True)
class Step:
    """One change of a tensor.

    Attributes:
        label: for the report ("transposed").
        apply: array to array.
    """

    label: str
    apply: Callable[[np.ndarray], np.ndarray]


TRANSPOSED = Step("transposed", np.transpose)  # PyTorch's linear layers hold [out, in], Paddle's [in, out]


@dataclass(frozen=True)
class Place:
    """Where a tensor goes: our name, and the steps on the way."""

    name: str
    steps: Tuple[Step, ...] = ()


class Network:
    """What converters and the report need to know of the network that the weights are for.

    Attributes:
        shapes: of its parameters and buffers, by name.
        blocks: names of the residual blocks of a 2D network, in order.
        classifier: name of the linear layer that gives the logits, such as "head.fc".
        shift_ratio: share of the channels in a fold of the temporal shift; 0: there is no shift.
        slow_frames, stem_strides: as of `ResNetSlowFast` and `ResNetI3D`; None: it is neither.
    """

    def __init__(self, model: nn.Layer) -> None:
        self.shapes: Dict[str, Tuple[int, ...]] = {
            name: tuple(value.shape) for name, value in model.state_dict().items()
        }
        self.blocks: List[str] = list(getattr(model.backbone, "block_names", []))
        self.classifier = next(
            name[: -len(".weight")]
            for name, shape in self.shapes.items()
            if name.endswith(".weight") and len(shape) == 2 and shape[1] == model.num_classes
        )
        self.shift_ratio: float = getattr(model.backbone, "shift_ratio", 0.0)
        self.slow_frames: Optional[str] = getattr(model.backbone, "slow_frames", None)
        self.stem_strides: Optional[Tuple[int, int]] = getattr(model.backbone, "stem_strides", None)
        self._depth: int = getattr(model.backbone, "depth", 50)

    def block_name(self, stage: int, index: int) -> str:
        """Name of a block of a 2D network, also of blocks that this network is too shallow to have."""
        return block_name(self._depth if index < 26 else 152, stage, index)


class Converter:
    """The weights of one file on their way to one network.

    Args:
        state: names of the other toolkit to arrays.
        network: what they are for.

    Attributes:
        backbone_only: the classifier of such files is of another task, and stays out.
    """

    backbone_only: ClassVar[bool] = False

    def __init__(self, state: Mapping[str, np.ndarray], network: Network) -> None:
        self.state = state
        self.network = network

    def place(self, name: str) -> Optional[Place]:
        """Where the tensor `name` goes; None: nowhere that this converter knows."""
        raise NotImplementedError

    def added(self) -> Dict[str, np.ndarray]:
        """Tensors that the network here has and the other computes without."""
        return {}

    def differences(self) -> Sequence[str]:
        """What names and shapes do not show of why the networks are not the same, a line each."""
        return []

    def linear(self, leaf: str, *steps: Step) -> Place:
        """The place of the classifier's weight or bias; `steps` are for [out, in] weights."""
        return Place(f"{self.network.classifier}.{leaf}", (*steps, TRANSPOSED) if leaf == "weight" else ())

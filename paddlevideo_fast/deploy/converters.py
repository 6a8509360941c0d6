"""Where the tensors of other toolkits' weights go: our names, and our order of channels.

2D networks (MIT, MMAction2, torchvision). The temporal shift of MIT and MMAction2 is mirrored. With
f = channels / 8, their first fold of channels takes frame t+1 and the second t-1;
`paddle.nn.functional.temporal_shift` has it the other way round:

    channel        0 ... f-1     f ... 2f-1     2f ...
    theirs         x(t+1)        x(t-1)         x(t)
    Paddle's       x(t-1)        x(t+1)         x(t)

So the converter exchanges the two folds in the weights. The shifted tensor is the residual stream, and all of
its readers must see the same order. Therefore the exchange covers every convolution and batch norm that
writes to the stream (output channels) and every layer that reads from it (input channels): the first
convolution of each block, the shortcut, the classifier. The network then computes the same function.

3D networks (PySlowFast, PyTorchVideo, MMAction2: SlowFast, Slow-only, I3D). The networks are the same, the
names differ. MMAction2 joins the features of the pathways as [fast, slow] before the classifier; here, as
elsewhere, the order is [slow, fast]. Two properties of MMAction2's networks have no weights, so the config
has to set them: which frames are slow, and the strides in time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, ClassVar, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

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
    """What converters and the report need to know about the network that gets the weights.

    Attributes:
        shapes: shapes of its parameters and buffers, by name.
        blocks: names of the residual blocks of a 2D network, in order.
        classifier: name of the linear layer that gives the logits, such as "head.fc".
        shift_ratio: share of the channels in a fold of the temporal shift; 0: there is no shift.
        slow_frames, stem_strides: as of `ResNetSlowFast` and `ResNetI3D`; None: it is neither.
        pooling: how its head pools clips that are larger than 224²: "global", or what it averages over
            windows, "probabilities" or "logits"; None: no head for 3D networks.
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
        self.pooling: Optional[str] = None
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
        backbone_only: leave the classifier out, because such files were trained for another task.
    """

    backbone_only: ClassVar[bool] = False

    def __init__(self, state: Mapping[str, np.ndarray], network: Network) -> None:
        self.state = state
        self.network = network

    def place(self, name: str) -> Optional[Place]:
        """Where the tensor `name` goes; None: the converter does not know the name."""
        raise NotImplementedError

    def added(self) -> Dict[str, np.ndarray]:
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


_EPSILON = 1e-5


class _Layer(NamedTuple):
    """A source name taken apart; stage None is the stem, layer 3 the shortcut."""

    stage: Optional[int]
    block: int
    layer: int
    kind: str
    leaf: str


_SHORTCUT = 3


class FrameConverter(Converter):
    """What the converters of 2D ResNets share.

    Attributes:
        classifiers: names of the linear layer that gives the logits.
    """

    classifiers: ClassVar[Tuple[str, ...]] = ()

    def __init__(self, state: Mapping[str, np.ndarray], network: Network) -> None:
        super().__init__(state, network)
        self._is_shifted = any(".net." in name for name in state)
        layers = [self._layer(name) for name in state]
        self._last_layer = max(
            (layer.layer for layer in layers if layer and layer.layer < _SHORTCUT), default=0
        )

    def _layer(self, name: str) -> Optional[_Layer]:
        raise NotImplementedError

    def place(self, name: str) -> Optional[Place]:
        owner, _, leaf = name.rpartition(".")
        if owner in self.classifiers:
            return self.linear(leaf, *self._exchanges(1))
        layer = self._layer(name)
        if layer is None or layer.leaf not in (LEAVES if layer.kind == "bn" else ("weight",)):
            return None
        return Place(self._our_name(layer), self._steps(layer))

    def differences(self) -> Sequence[str]:
        if self._is_shifted and not self.network.shift_ratio:
            return ["the file's network shifts channels in time (TSM), the config's does not"]
        if self.network.shift_ratio and not self._is_shifted:
            return ["the config's network shifts channels in time (TSM), the file's does not (TSN)"]
        return []

    def added(self) -> Dict[str, np.ndarray]:
        """Depths 18 and 34 have a 1x1 shortcut in their first block here, and an identity there."""
        places = {name: self.place(name) for name in self.state}
        names = {place.name for place in places.values() if place is not None}
        shortcut = _Layer(0, 0, _SHORTCUT, "conv", "weight")
        first = self._our_name(_Layer(0, 0, 0, "conv", "weight"))
        if first not in names or self._our_name(shortcut) in names:
            return {}
        source = next(name for name, place in places.items() if place is not None and place.name == first)
        channels = self.state[source].shape[1]
        ones, zeros = np.ones(channels, "float32"), np.zeros(channels, "float32")
        norm = {
            "weight": ones * np.float32(np.sqrt(1 + _EPSILON)),
            "bias": zeros,
            "running_mean": zeros,
            "running_var": ones,
        }
        made = {self._our_name(shortcut): np.eye(channels, dtype="float32")[:, :, None, None]}
        for leaf, value in norm.items():
            made[self._our_name(shortcut._replace(kind="bn", leaf=leaf))] = value
        return made

    def _our_name(self, layer: _Layer) -> str:
        inner = "_conv.weight" if layer.kind == "conv" else f"_batch_norm.{LEAVES[layer.leaf]}"
        if layer.stage is None:
            return f"backbone.conv.{inner}"
        part = "short" if layer.layer == _SHORTCUT else f"conv{layer.layer}"
        return f"backbone.{self.network.block_name(layer.stage, layer.block)}.{part}.{inner}"

    def _steps(self, layer: _Layer) -> Tuple[Step, ...]:
        """Exchanges in the channels that the layer writes to, or reads from, the residual stream."""
        steps: List[Step] = []
        if layer.stage is None or layer.layer in (self._last_layer, _SHORTCUT):
            steps += self._exchanges(0)
        if layer.stage is not None and layer.layer in (0, _SHORTCUT) and layer.kind == "conv":
            steps += self._exchanges(1)
        return tuple(steps)

    def _exchanges(self, axis: int) -> List[Step]:
        ratio = self.network.shift_ratio
        if not (ratio and self._is_shifted):
            return []

        def exchanged(value: np.ndarray) -> np.ndarray:
            channels = value.shape[axis]
            first, second = int(channels * ratio), int(channels * 2 * ratio)
            order = [*range(first, second), *range(first), *range(second, channels)]
            return np.take(value, order, axis=axis)

        return [Step(f"folds of axis {axis} exchanged", exchanged)]


class TorchvisionConverter(FrameConverter):
    """torchvision's ResNets, trained on ImageNet: weights for a backbone, inflated where it is 3D."""

    backbone_only = True
    classifiers = ("fc",)

    def _layer(self, name: str) -> Optional[_Layer]:
        return torchvision_layer(name)

    def differences(self) -> Sequence[str]:
        return []  # a shift or none: these weights have seen no time


class MitConverter(FrameConverter):
    """TSM (blockres) and TSN of MIT's temporal-shift-module."""

    classifiers = ("new_fc", "base_model.fc")

    def _layer(self, name: str) -> Optional[_Layer]:
        return torchvision_layer(name[len("base_model.") :]) if name.startswith("base_model.") else None


def torchvision_layer(name: str) -> Optional[_Layer]:
    """`layer1.0.conv1.weight`; with a shift `layer1.0.conv1.net.weight`."""
    stem = re.fullmatch(r"(conv|bn)1\.(\w+)", name)
    if stem:
        return _Layer(None, 0, 0, stem[1], stem[2])
    inner = re.fullmatch(r"layer([1-4])\.(\d+)\.(conv|bn)([1-3])\.(?:net\.)?(\w+)", name)
    if inner:
        return _Layer(int(inner[1]) - 1, int(inner[2]), int(inner[4]) - 1, inner[3], inner[5])
    shortcut = re.fullmatch(r"layer([1-4])\.(\d+)\.downsample\.([01])\.(\w+)", name)
    if shortcut:
        kind = ("conv", "bn")[int(shortcut[3])]
        return _Layer(int(shortcut[1]) - 1, int(shortcut[2]), _SHORTCUT, kind, shortcut[4])
    return None


class MMAction2FrameConverter(FrameConverter):
    """TSM and TSN of MMAction2."""

    classifiers = ("cls_head.fc_cls",)

    def _layer(self, name: str) -> Optional[_Layer]:
        stem = re.fullmatch(r"backbone\.conv1\.(conv|bn)\.(\w+)", name)
        if stem:
            return _Layer(None, 0, 0, stem[1], stem[2])
        pattern = r"backbone\.layer([1-4])\.(\d+)\.(?:conv([1-3])|downsample)\.(conv|bn)\.(?:net\.)?(\w+)"
        inner = re.fullmatch(pattern, name)
        if inner:
            layer = int(inner[3]) - 1 if inner[3] else _SHORTCUT
            return _Layer(int(inner[1]) - 1, int(inner[2]), layer, inner[4], inner[5])
        return torchvision_layer(name[len("backbone.") :]) if name.startswith("backbone.") else None


_CAFFE2_LEAVES = {"s": "weight", "b": "bias", "rm": "running_mean", "riv": "running_var"}
_FAST_CLASSIFIED = "backbone.fast_path.layer4.0.conv3.conv.weight"


class ClipConverter(Converter):
    """What the converters of 3D networks share: they rename layers by patterns.

    Attributes:
        classifier: the classifier's name in the file.
        layers: pairs of a pattern that matches the whole name of a layer, and its name in our backbone.
        slow_frames, stem_strides, pooling: properties of the toolkit's networks that no tensor shows; see
            `Network`.
    """

    classifier: ClassVar[str]
    layers: ClassVar[Sequence[Tuple[str, str]]]
    slow_frames: ClassVar[str] = "spread"
    stem_strides: ClassVar[Tuple[int, int]] = (1, 1)
    pooling: ClassVar[str] = "probabilities"

    def normalized(self, name: str) -> str:
        """The name of a tensor in the form that `classifier` and `layers` expect."""
        return name

    def classifier_steps(self) -> Sequence[Step]:
        """What happens to the classifier's weight besides its transposition."""
        return ()

    def place(self, name: str) -> Optional[Place]:
        owner, _, leaf = self.normalized(name).rpartition(".")
        if leaf not in LEAVES:
            return None
        if owner == self.classifier:
            return self.linear(leaf, *self.classifier_steps()) if leaf in ("weight", "bias") else None
        for pattern, ours in self.layers:
            found = re.fullmatch(pattern, owner)
            if found:
                return Place(f"backbone.{found.expand(ours)}.{LEAVES[leaf]}")
        return None

    def differences(self) -> Sequence[str]:
        if self.network.slow_frames not in (None, self.slow_frames):
            key = f"MODEL.backbone.slow_frames={self.slow_frames}"
            return [f"this toolkit's slow pathway takes other frames; set {key}"]
        if self.network.stem_strides not in (None, self.stem_strides):
            conv, pool = self.stem_strides
            return [
                "this toolkit's stem has other strides in time; set "
                f"MODEL.backbone.conv1_stride_t={conv} and MODEL.backbone.pool1_stride_t={pool}"
            ]
        return []

    def notes(self) -> Sequence[str]:
        if self.network.pooling == self.pooling:
            return []
        if self.pooling == "global":
            return [
                "this toolkit takes one global mean of clips larger than 224²; set MODEL.head.crop_size=null"
            ]
        return [
            f"this toolkit averages {self.pooling} over windows of clips larger than 224²; set "
            f"MODEL.head.crop_size=224 and MODEL.head.window_average={self.pooling}"
        ]


class PySlowFastConverter(ClipConverter):
    """PySlowFast's networks, from its own checkpoints or the Caffe2 ones in its model zoo."""

    classifier = "head.projection"
    layers = (
        (r"(s1\.pathway[01]_stem)\.(conv|bn)", r"\1._\2"),
        (r"(s[1-4]_fuse)\.(conv_f2s|bn)", r"\1._\2"),
        (r"(s[2-5]\.pathway[01]_res\d+\.(?:branch1|branch2\.[abc])(?:_bn)?)", r"\1"),
    )

    def normalized(self, name: str) -> str:
        return _from_caffe2(name) or name


def _from_caffe2(name: str) -> Optional[str]:
    """`t_res3_1_branch2b_bn_riv` is `s3.pathway1_res1.branch2.b_bn.running_var`; t_ is the fast pathway."""
    found = re.fullmatch(
        r"(?P<fast>t_)?(?:"
        r"(?P<stem>conv1|res_conv1)|"
        r"res(?P<stage>[2-5])_(?P<block>\d+)_branch(?:1|2(?P<layer>[abc]))|"
        r"(?:pool1|res(?P<fused>[2-4])_\d+_branch2c_bn)_subsample|"
        r"(?P<linear>pred))"
        r"(?P<bn>_bn)?_(?P<leaf>w|s|b|rm|riv)",
        name,
    )
    if not found:
        return None
    leaf = "weight" if found["leaf"] == "w" else _CAFFE2_LEAVES[found["leaf"]]
    pathway = 1 if found["fast"] else 0
    if found["linear"]:
        return f"head.projection.{leaf}"
    if found["stem"]:
        return f"s1.pathway{pathway}_stem.{'bn' if found['bn'] else 'conv'}.{leaf}"
    if found["stage"]:
        layer = f"branch2.{found['layer']}" if found["layer"] else "branch1"
        block = f"s{found['stage']}.pathway{pathway}_res{found['block']}"
        return f"{block}.{layer}{found['bn'] or ''}.{leaf}"
    return f"s{found['fused'] or 1}_fuse.{'bn' if found['bn'] else 'conv_f2s'}.{leaf}"


class PyTorchVideoConverter(ClipConverter):
    """PyTorchVideo's networks. They number all their parts; parts without weights leave gaps."""

    classifier = "s6.0.proj"
    pooling = "logits"
    layers = (
        (r"s1\.([01])\.conv", r"s1.pathway\1_stem._conv"),
        (r"s1\.([01])\.norm", r"s1.pathway\1_stem._bn"),
        (r"(s\d)\.0\.multipathway_fusion\.conv_fast_to_slow", r"\1_fuse._conv_f2s"),
        (r"(s\d)\.0\.multipathway_fusion\.norm", r"\1_fuse._bn"),
        (r"(s\d)\.([01])\.res_blocks\.(\d+)\.branch1_conv", r"\1.pathway\2_res\3.branch1"),
        (r"(s\d)\.([01])\.res_blocks\.(\d+)\.branch1_norm", r"\1.pathway\2_res\3.branch1_bn"),
        (r"(s\d)\.([01])\.res_blocks\.(\d+)\.branch2\.conv_([abc])", r"\1.pathway\2_res\3.branch2.\4"),
        (r"(s\d)\.([01])\.res_blocks\.(\d+)\.branch2\.norm_([abc])", r"\1.pathway\2_res\3.branch2.\4_bn"),
    )

    def __init__(self, state: Mapping[str, np.ndarray], network: Network) -> None:
        super().__init__(state, network)
        numbers = {int(found[1]) for found in (re.match(r"blocks\.(\d+)\.", name) for name in state) if found}
        self._stages = {str(number): stage for stage, number in enumerate(sorted(numbers), start=1)}

    def normalized(self, name: str) -> str:
        """`blocks.0.multipathway_blocks.1.conv.weight` to `s1.1.conv.weight`; a single pathway is 0."""
        found = re.fullmatch(r"blocks\.(\d+)\.(?:multipathway_blocks\.([01])\.)?(.+)", name)
        return f"s{self._stages[found[1]]}.{found[2] or 0}.{found[3]}" if found else name


class MMAction2ClipConverter(ClipConverter):
    """SlowFast, Slow-only and I3D of MMAction2."""

    classifier = "cls_head.fc_cls"
    layers = (
        (r"([01])\.conv1\.(conv|bn)", r"s1.pathway\1_stem._\2"),
        (r"[01]\.(s\d)_lateral\.conv", r"\1_fuse._conv_f2s"),
        (r"[01]\.(s\d)_lateral\.bn", r"\1_fuse._bn"),
        (r"([01])\.(s\d)\.(\d+)\.downsample\.conv", r"\2.pathway\1_res\3.branch1"),
        (r"([01])\.(s\d)\.(\d+)\.downsample\.bn", r"\2.pathway\1_res\3.branch1_bn"),
        (r"([01])\.(s\d)\.(\d+)\.([abc])\.conv", r"\2.pathway\1_res\3.branch2.\4"),
        (r"([01])\.(s\d)\.(\d+)\.([abc])\.bn", r"\2.pathway\1_res\3.branch2.\4_bn"),
    )
    slow_frames = "strided"
    stem_strides = (2, 2)
    pooling = "global"

    def normalized(self, name: str) -> str:
        """`backbone.fast_path.layer1.0.conv2.bn.weight` to `1.s2.0.b.bn.weight`; a single pathway is 0."""
        found = re.fullmatch(r"backbone\.(?:(slow|fast)_path\.)?(.+)", name)
        if not found:
            return name
        layer = re.sub(r"^conv1(?=_lateral)", "s1", found[2])
        layer = re.sub(r"^layer([1-4])", lambda stage: f"s{int(stage[1]) + 1}", layer)
        layer = re.sub(r"(?<=\.)conv([1-3])(?=\.)", lambda number: "abc"[int(number[1]) - 1], layer)
        return f"{int(found[1] == 'fast')}.{layer}"

    def classifier_steps(self) -> Sequence[Step]:
        if _FAST_CLASSIFIED not in self.state:
            return ()
        num_fast = self.state[_FAST_CLASSIFIED].shape[0]
        return [Step("pathways exchanged", lambda value: np.roll(value, -num_fast, axis=1))]


class PaddleVideoConverter(Converter):
    """PaddleVideo's names are ours."""

    def place(self, name: str) -> Place:
        return Place(name)


def _mmaction2(state: Mapping[str, np.ndarray], network: Network) -> Converter:
    has_clips = any(value.ndim == 5 for value in state.values())
    return (MMAction2ClipConverter if has_clips else MMAction2FrameConverter)(state, network)


CONVERTERS: Dict[str, Callable[[Mapping[str, np.ndarray], Network], Converter]] = {
    "mit-tsm": MitConverter,
    "mmaction2": _mmaction2,
    "pyslowfast": PySlowFastConverter,
    "pytorchvideo": PyTorchVideoConverter,
    "torchvision": TorchvisionConverter,
    "paddlevideo": PaddleVideoConverter,
}

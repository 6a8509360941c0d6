"""Converters of SlowFast, Slow-only and I3D (PySlowFast, PyTorchVideo, MMAction2).

The networks are the same, the names differ.
MMAction2 joins the features of the pathways as [fast, slow] before the classifier; here, as
elsewhere, the order is [slow, fast]. Two properties of MMAction2's networks have no weights, so the config
has to set them: which frames are slow, and the strides in time.
"""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from paddlevideo_fast.deploy.converters.base import Network, RenamingConverter, Step

_CAFFE2_LEAVES = {"s": "weight", "b": "bias", "rm": "running_mean", "riv": "running_var"}
_FAST_CLASSIFIED = "backbone.fast_path.layer4.0.conv3.conv.weight"


class ClipConverter(RenamingConverter):
    """What the converters of SlowFast, Slow-only and I3D share.

    Attributes:
        slow_frames, stem_strides, pooling: properties of the toolkit's networks that no tensor shows; see
            `Network`.
        training_crop: side in pixels of the crops that the toolkit trains on.
    """

    slow_frames: ClassVar[str] = "spread"
    stem_strides: ClassVar[tuple[int, int]] = (1, 1)
    pooling: ClassVar[str] = "probabilities"
    training_crop: ClassVar[str] = "224"

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
                "this toolkit takes one global mean of clips larger than the training crops; set "
                "MODEL.head.crop_size=null"
            ]
        return [
            f"this toolkit averages {self.pooling} over windows of clips larger than the training crops; set "
            f"MODEL.head.crop_size={self.training_crop} and MODEL.head.window_average={self.pooling}"
        ]


class PySlowFastConverter(ClipConverter):
    """PySlowFast's networks, from its own checkpoints or the Caffe2 ones in its model zoo."""

    classifier = "head.projection"
    layers: ClassVar[Sequence[tuple[str, str]]] = (
        (r"(s1\.pathway[01]_stem)\.(conv|bn)", r"\1._\2"),
        (r"(s[1-4]_fuse)\.(conv_f2s|bn)", r"\1._\2"),
        (r"(s[2-5]\.pathway[01]_res\d+\.(?:branch1|branch2\.[abc])(?:_bn)?)", r"\1"),
    )

    def normalized(self, name: str) -> str:
        return _from_caffe2(name) or name


def _from_caffe2(name: str) -> str | None:
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
    layers: ClassVar[Sequence[tuple[str, str]]] = (
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

"""3D networks of PyTorch: SlowFast, Slow-only and I3D of PySlowFast, PyTorchVideo and MMAction2.

The networks are the same, the names differ. MMAction2 joins the pathways' features as [fast, slow] before
the classifier; here, as elsewhere, it is [slow, fast]. What its networks do otherwise has no weights, so it
is for the config to say: which frames are slow, and strides in time.
"""

from __future__ import annotations

import re
from typing import ClassVar, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from paddlevideo_fast.deploy.converters.base import LEAVES, Converter, Network, Place, Step

_CAFFE2_LEAVES = {"s": "weight", "b": "bias", "rm": "running_mean", "riv": "running_var"}


def _stem(pathway: int, part: str, leaf: str) -> Place:
    """`part` is conv or bn."""
    return Place(f"backbone.s1.pathway{pathway}_stem._{part}.{LEAVES[leaf]}")


def _block(stage: int, pathway: int, block: int, layer: str, leaf: str) -> Place:
    """`layer` is branch1, branch1_bn, branch2.a, branch2.a_bn, ...; stages count from 2."""
    return Place(f"backbone.s{stage}.pathway{pathway}_res{block}.{layer}.{LEAVES[leaf]}")


def _fusion(stage: int, part: str, leaf: str) -> Place:
    """`part` is conv or bn; stages count from 1."""
    return Place(f"backbone.s{stage}_fuse.{'_bn' if part == 'bn' else '_conv_f2s'}.{LEAVES[leaf]}")


_LEAF = f"({'|'.join(LEAVES)})"


class ClipConverter(Converter):
    """What the 3D networks share.

    Attributes:
        slow_frames, stem_strides: what the toolkit's networks have; no tensor's shape tells.
    """

    slow_frames: ClassVar[str] = "spread"
    stem_strides: ClassVar[Tuple[int, int]] = (1, 1)

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


class PySlowFastConverter(ClipConverter):
    """PySlowFast's networks, from its own checkpoints or the Caffe2 ones in its model zoo."""

    def place(self, name: str) -> Optional[Place]:
        name = _from_caffe2(name) or name
        found = re.fullmatch(rf"s1\.pathway([01])_stem\.(conv|bn)\.{_LEAF}", name)
        if found:
            return _stem(int(found[1]), found[2], found[3])
        found = re.fullmatch(rf"s([1-4])_fuse\.(conv_f2s|bn)\.{_LEAF}", name)
        if found:
            return _fusion(int(found[1]), found[2], found[3])
        layers = r"(branch1|branch1_bn|branch2\.[abc]|branch2\.[abc]_bn)"
        found = re.fullmatch(rf"s([2-5])\.pathway([01])_res(\d+)\.{layers}\.{_LEAF}", name)
        if found:
            return _block(int(found[1]), int(found[2]), int(found[3]), found[4], found[5])
        found = re.fullmatch(r"head\.projection\.(weight|bias)", name)
        return self.linear(found[1]) if found else None


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
    """PyTorchVideo's networks. They number all their parts; those without weights leave gaps."""

    def __init__(self, state: Mapping[str, np.ndarray], network: Network) -> None:
        super().__init__(state, network)
        numbers = {int(found[1]) for found in (re.match(r"blocks\.(\d+)\.", name) for name in state) if found}
        self._stages = {str(number): stage for stage, number in enumerate(sorted(numbers), start=1)}

    def place(self, name: str) -> Optional[Place]:
        found = re.fullmatch(r"blocks\.(\d+)\.(.+)", name)
        if not found:
            return None
        stage, rest = self._stages[found[1]], found[2]
        linear = re.fullmatch(r"proj\.(weight|bias)", rest)
        if linear and stage == 6:
            return self.linear(linear[1])
        fusion = re.fullmatch(rf"multipathway_fusion\.(conv_fast_to_slow|norm)\.{_LEAF}", rest)
        if fusion:
            return _fusion(stage, "bn" if fusion[1] == "norm" else "conv", fusion[2])
        pathway = re.match(r"multipathway_blocks\.([01])\.", rest)
        number, rest = (int(pathway[1]), rest[pathway.end() :]) if pathway else (0, rest)
        stem = re.fullmatch(rf"(conv|norm)\.{_LEAF}", rest)
        if stem and stage == 1:
            return _stem(number, "bn" if stem[1] == "norm" else "conv", stem[2])
        pattern = rf"res_blocks\.(\d+)\.(branch1_(?:conv|norm)|branch2\.(?:conv|norm)_[abc])\.{_LEAF}"
        block = re.fullmatch(pattern, rest)
        return _block(stage, number, int(block[1]), _BLOCK_LAYERS[block[2]], block[3]) if block else None


_BLOCK_LAYERS = {"branch1_conv": "branch1", "branch1_norm": "branch1_bn"}
for _letter in "abc":
    _BLOCK_LAYERS[f"branch2.conv_{_letter}"] = f"branch2.{_letter}"
    _BLOCK_LAYERS[f"branch2.norm_{_letter}"] = f"branch2.{_letter}_bn"


class MMAction2ClipConverter(ClipConverter):
    """SlowFast, Slow-only and I3D of MMAction2."""

    slow_frames = "strided"
    stem_strides = (2, 2)

    def place(self, name: str) -> Optional[Place]:
        linear = re.fullmatch(r"cls_head\.fc_cls\.(weight|bias)", name)
        if linear:
            return self.linear(linear[1], *self._slow_first())
        found = re.fullmatch(r"backbone\.(?:(slow|fast)_path\.)?(.+)\.(conv|bn)\.(\w+)", name)
        if not found or found[4] not in LEAVES:
            return None
        pathway, layer, part, leaf = int(found[1] == "fast"), found[2], found[3], found[4]
        if layer == "conv1":
            return _stem(pathway, part, leaf)
        lateral = re.fullmatch(r"(?:conv|layer)([1-4])_lateral", layer)
        if lateral:
            stage = 1 if layer.startswith("conv") else int(lateral[1]) + 1
            return _fusion(stage, part, leaf)
        block = re.fullmatch(r"layer([1-4])\.(\d+)\.(?:conv([1-3])|downsample)", layer)
        if not block:
            return None
        ours = f"branch2.{'abc'[int(block[3]) - 1]}" if block[3] else "branch1"
        ours += "_bn" if part == "bn" else ""
        return _block(int(block[1]) + 1, pathway, int(block[2]), ours, leaf)

    def _slow_first(self) -> List[Step]:
        last = "backbone.fast_path.layer4.0.conv3.conv.weight"
        if last not in self.state:
            return []
        num_fast = self.state[last].shape[0]
        return [Step("pathways exchanged", lambda value: np.roll(value, -num_fast, axis=1))]

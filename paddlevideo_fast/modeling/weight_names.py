"""Names of the same weights in other files."""

from __future__ import annotations

import re
from typing import List, Sequence

_BACKBONE = "backbone."
_STUDENT = "Student."


def candidate_names(key: str, block_names: Sequence[str]) -> List[str]:
    """Names under which a network here may have the weight that a file calls `key`, the likeliest first.

    Args:
        key: name in the file.
        block_names: the network's residual blocks, in order.

    Returns:
        `key` itself, without a wrapper's "_layers.", PaddleClas' newer names in ours, and the name in the
        slow pathway of a 3D network; each with and without "backbone.". Of the student of a distillation,
        also the names in the student alone.
    """
    key = _from_sequential(key[len("_layers.") :] if key.startswith("_layers.") else key)
    names = []
    frames_name = _from_paddleclas(key, block_names)
    for name in (key, frames_name, _in_slow_pathway(frames_name)):
        bare = name[len(_BACKBONE) :] if name.startswith(_BACKBONE) else name
        names += [name, bare, _BACKBONE + bare]
    if key.startswith(_STUDENT):
        names += candidate_names(key[len(_STUDENT) :], block_names)
    return list(dict.fromkeys(names))


def _from_sequential(key: str) -> str:
    """PaddleVideo's distillation numbers the parts of a network: `Student.0.` is `Student.backbone.` here."""
    found = re.fullmatch(r"(Teacher\.|Student\.|)([01])\.(.*)", key)
    return f"{found[1]}{('backbone', 'head')[int(found[2])]}.{found[3]}" if found else key


def _from_paddleclas(key: str, block_names: Sequence[str]) -> str:
    """PaddleClas since 2.1: `stem.0.conv.weight`, `blocks.3.conv1.bn._mean` counted over all stages."""
    found = re.fullmatch(r"(stem|blocks)\.(\d+)\.((?:conv\d|short)\.)?(conv|bn)\.(\w+)", key)
    if not found:
        return key
    part, number, layer, kind, leaf = found.groups()
    inner = f"{layer or ''}{'_conv' if kind == 'conv' else '_batch_norm'}.{leaf}"
    if part == "stem":
        three_convolutions = any(name.startswith("bb_") for name in block_names)
        return f"conv1_{int(number) + 1}.{inner}" if three_convolutions else f"conv.{inner}"
    return f"{block_names[int(number)]}.{inner}" if int(number) < len(block_names) else key


_LAYERS_3D = {
    "conv0": ("branch2.a", "branch2.a_bn"),
    "conv1": ("branch2.b", "branch2.b_bn"),
    "conv2": ("branch2.c", "branch2.c_bn"),
    "short": ("branch1", "branch1_bn"),
}


def _in_slow_pathway(name: str) -> str:
    """`res4b1.conv0._conv.weight` of a 2D ResNet is `s4.pathway0_res1.branch2.a.weight` in a 3D one."""
    stem = re.fullmatch(r"(?:backbone\.)?conv1?\._(conv|batch_norm)\.(\w+)", name)
    if stem:
        return f"s1.pathway0_stem.{'_conv' if stem[1] == 'conv' else '_bn'}.{stem[2]}"
    block = re.fullmatch(r"(?:backbone\.)?res(\d)([a-z])(\d*)\.(\w+)\._(conv|batch_norm)\.(\w+)", name)
    if not block or block[4] not in _LAYERS_3D:
        return name
    index = int(block[3]) if block[3] else ord(block[2]) - ord("a")
    layer = _LAYERS_3D[block[4]][block[5] == "batch_norm"]
    return f"s{block[1]}.pathway0_res{index}.{layer}.{block[6]}"

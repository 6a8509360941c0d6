"""Names of the same weights in other files."""

from __future__ import annotations

import re
from typing import List, Sequence

_BACKBONE = "backbone."


def candidate_names(key: str, block_names: Sequence[str]) -> List[str]:
    """Names under which a network here may have the weight that a file calls `key`, the likeliest first.

    Args:
        key: name in the file.
        block_names: the network's residual blocks, in order.

    Returns:
        `key` itself, without a wrapper's "_layers.", and PaddleClas' newer names in ours; each with and
        without "backbone.".
    """
    key = key[len("_layers.") :] if key.startswith("_layers.") else key
    names = []
    for name in (key, _from_paddleclas(key, block_names)):
        bare = name[len(_BACKBONE) :] if name.startswith(_BACKBONE) else name
        names += [name, bare, _BACKBONE + bare]
    return list(dict.fromkeys(names))


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

"""How two networks differ, told from the names and shapes of their tensors."""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, Optional, Set, Tuple

from paddlevideo_fast.deploy.converters import Network
from paddlevideo_fast.modeling.backbones.resnet import STAGE_BLOCKS

Shapes = Mapping[str, Tuple[int, ...]]
_BLOCK_2D = re.compile(r"backbone\.res([2-5])([a-z])(\d*)\.(\w+)\.")
_BLOCK_3D = re.compile(r"backbone\.s([2-5])\.pathway([01])_res(\d+)\.(\w+(?:\.\w)?)")


def differences(file: Shapes, network: Network) -> List[str]:
    """What the file's network has otherwise than the config's, a line each, with the key to change.

    Args:
        file: shapes of the file's tensors, under our names.
        network: the config's.
    """
    ours = network.shapes
    found = [
        _difference("blocks in its stages", _depth(file), _depth(ours), "MODEL.backbone.depth"),
        _difference("pathways", _pathways(file), _pathways(ours), "MODEL.backbone.name"),
        _difference("classes", _classes(file, network), _classes(ours, network), "MODEL.head.num_classes"),
    ]
    if _pathways(file) == _pathways(ours) == "2":
        what, key = "batch norm between the pathways", "MODEL.backbone.fuse_bn_relu"
        found.append(_difference(what, _lateral_norm(file), _lateral_norm(ours), key))
    return [line for line in found if line]


def _difference(what: str, theirs: str, ours: str, key: str) -> str:
    if not theirs or not ours or theirs == ours:
        return ""
    return f"{what}: the file has {theirs}, the config's network {ours}; see {key}"


def _depth(shapes: Shapes) -> str:
    blocks: Dict[int, Set[int]] = {}
    is_bottleneck = False
    for name in shapes:
        found = _block(name)
        if found is not None:
            stage, index, layer = found
            blocks.setdefault(stage, set()).add(index)
            is_bottleneck |= layer in ("conv2", "branch2.c")
    counts = [len(blocks[stage]) for stage in sorted(blocks)]
    known = [depth for depth, each in STAGE_BLOCKS.items() if list(each) == counts]
    names = [f"ResNet-{depth}" for depth in known if (depth >= 50) == is_bottleneck]
    kind = f" {'bottleneck' if is_bottleneck else 'basic'} blocks" + "".join(f" ({name})" for name in names)
    return ", ".join(map(str, counts)) + kind if counts else ""


def _block(name: str) -> Optional[Tuple[int, int, str]]:
    """(stage, index, layer) of a block's tensor, of the slow pathway where there are two."""
    found = _BLOCK_2D.match(name)
    if found:
        return int(found[1]), int(found[3]) if found[3] else ord(found[2]) - ord("a"), found[4]
    found = _BLOCK_3D.match(name)
    return (int(found[1]), int(found[3]), found[4]) if found and found[2] == "0" else None


def _pathways(shapes: Shapes) -> str:
    numbers = {found[1] for found in (re.search(r"\.pathway([01])_", name) for name in shapes) if found}
    return str(len(numbers)) if numbers else ""


def _classes(shapes: Shapes, network: Network) -> str:
    shape = shapes.get(f"{network.classifier}.bias")
    return str(shape[0]) if shape else ""


def _lateral_norm(shapes: Shapes) -> str:
    return "one" if any(re.search(r"_fuse\._bn\.", name) for name in shapes) else "none"

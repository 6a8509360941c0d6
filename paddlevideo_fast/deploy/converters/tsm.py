"""TSM and TSN weights of MIT's and MMAction2's PyTorch networks.

Their shift is mirrored. With f = channels / 8, their first fold of channels takes frame t+1 and the second
t-1; `paddle.nn.functional.temporal_shift` has it the other way round:

    channel        0 ... f-1     f ... 2f-1     2f ...
    theirs         x(t+1)        x(t-1)         x(t)
    Paddle's       x(t-1)        x(t+1)         x(t)

So the two folds change places here, in the weights. The shifted tensor is the residual stream, and its other
readers must see the same order, so the swap covers every convolution and batch norm that writes to the stream
(output channels) and every layer that reads from it (input channels): the first convolution of each block,
the shortcut, the classifier. The network computes the same function afterwards.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, List, Mapping, Optional, Tuple

import numpy as np

from paddlevideo_fast.errors import WeightError
from paddlevideo_fast.modeling.backbones.resnet import STAGE_BLOCKS, block_name

_BN_LEAVES = {"weight": "weight", "bias": "bias", "running_mean": "_mean", "running_var": "_variance"}
_BN_EPSILON = 1e-5
# A source name taken apart: (stage from 0 or None for the stem, block, layer, "conv" or "bn", leaf).
_Place = Tuple[Optional[int], int, str, str, str]


def convert_mit_tsm(state: Mapping[str, np.ndarray], shift_ratio: float = 0.125) -> Dict[str, np.ndarray]:
    """Weights of MIT's temporal-shift-module, TSM (blockres) or TSN, for `ResNetTSM`/`ResNet` and their
    heads.

    Args:
        state: PyTorch names (`base_model.layer1.0.conv1.net.weight`, `new_fc.weight`) to arrays.
        shift_ratio: of the network; only for weights with a shift.

    Returns:
        Our names to float32 arrays, a whole recognizer's.

    Raises:
        WeightError: a name that such a network does not have.
    """
    shifted = any(".net." in name for name in state)
    return _convert(state, _mit_place, ("new_fc", "base_model.fc"), shift_ratio if shifted else 0.0)


def convert_mmaction2_tsm(
    state: Mapping[str, np.ndarray], shift_ratio: float = 0.125
) -> Dict[str, np.ndarray]:
    """Weights of MMAction2's TSM or TSN; as `convert_mit_tsm`."""
    shifted = any(".net." in name for name in state)
    return _convert(state, _mmaction2_place, ("cls_head.fc_cls",), shift_ratio if shifted else 0.0)


def _convert(
    state: Mapping[str, np.ndarray],
    place_of: Callable[[str], Optional[_Place]],
    classifiers: Tuple[str, ...],
    shift_ratio: float,
) -> Dict[str, np.ndarray]:
    places: Dict[_Place, np.ndarray] = {}
    converted: Dict[str, np.ndarray] = {}
    for source, value in state.items():
        name = source[len("module.") :] if source.startswith("module.") else source
        owner, _, leaf = name.rpartition(".")
        if leaf == "num_batches_tracked":
            continue
        place = place_of(name)
        if owner in classifiers:
            converted[f"head.fc.{leaf}"] = np.asarray(value, "float32").T
        elif place is not None:
            places[place] = np.asarray(value, "float32")
        else:
            raise WeightError(f"'{source}' is no weight of a TSM or TSN ResNet; choose another converter")
    depth, last_layer = _depth_of(places)
    _add_identity_shortcut(places)
    for place, value in places.items():
        converted[_our_name(place, depth)] = _reordered(value, place, last_layer, shift_ratio)
    if "head.fc.weight" in converted:
        converted["head.fc.weight"] = _swap_folds(converted["head.fc.weight"], 0, shift_ratio)
    return converted


def _mit_place(name: str) -> Optional[_Place]:
    found = re.fullmatch(r"base_model\.(conv|bn)1\.(\w+)", name)
    if found:
        return None, 0, "conv", found.group(1), found.group(2)
    found = re.fullmatch(r"base_model\.layer(\d)\.(\d+)\.(conv|bn)(\d)\.(?:net\.)?(\w+)", name)
    if found:
        stage, block, kind, layer, leaf = found.groups()
        return int(stage) - 1, int(block), f"conv{int(layer) - 1}", kind, leaf
    found = re.fullmatch(r"base_model\.layer(\d)\.(\d+)\.downsample\.([01])\.(\w+)", name)
    if found:
        stage, block, part, leaf = found.groups()
        return int(stage) - 1, int(block), "short", ("conv", "bn")[int(part)], leaf
    return None


def _mmaction2_place(name: str) -> Optional[_Place]:
    found = re.fullmatch(r"backbone\.conv1\.(conv|bn)\.(\w+)", name)
    if found:
        return None, 0, "conv", found.group(1), found.group(2)
    pattern = r"backbone\.layer(\d)\.(\d+)\.(?:conv(\d)|downsample)\.(conv|bn)\.(?:net\.)?(\w+)"
    found = re.fullmatch(pattern, name)
    if found:
        stage, block, layer, kind, leaf = found.groups()
        return int(stage) - 1, int(block), f"conv{int(layer) - 1}" if layer else "short", kind, leaf
    return None


def _depth_of(places: Mapping[_Place, np.ndarray]) -> Tuple[int, str]:
    """(depth, last layer of a block)."""
    blocks = [len({place[1] for place in places if place[0] == stage}) for stage in range(4)]
    bottleneck = any(place[2] == "conv2" for place in places)
    for depth, expected in STAGE_BLOCKS.items():
        if list(expected) == blocks and (depth >= 50) == bottleneck:
            return depth, "conv2" if bottleneck else "conv1"
    raise WeightError(f"no ResNet has {blocks} blocks in its stages; is the file complete?")


def _add_identity_shortcut(places: Dict[_Place, np.ndarray]) -> None:
    """Depths 18 and 34 have a 1x1 shortcut in their first block here, and an identity there."""
    if any(place[:3] == (0, 0, "short") for place in places):
        return
    channels = places[0, 0, "conv0", "conv", "weight"].shape[1]
    zeros, ones = np.zeros(channels, "float32"), np.ones(channels, "float32")
    values: List[Tuple[str, str, np.ndarray]] = [
        ("conv", "weight", np.eye(channels, dtype="float32")[:, :, None, None]),
        ("bn", "weight", ones * np.float32(np.sqrt(1 + _BN_EPSILON))),
        ("bn", "bias", zeros),
        ("bn", "running_mean", zeros),
        ("bn", "running_var", ones),
    ]
    for kind, leaf, value in values:
        places[0, 0, "short", kind, leaf] = value


def _our_name(place: _Place, depth: int) -> str:
    stage, block, layer, kind, leaf = place
    inner = f"_conv.{leaf}" if kind == "conv" else f"_batch_norm.{_BN_LEAVES[leaf]}"
    if stage is None:
        return f"backbone.conv.{inner}"
    return f"backbone.{block_name(depth, stage, block)}.{layer}.{inner}"


def _reordered(value: np.ndarray, place: _Place, last_layer: str, shift_ratio: float) -> np.ndarray:
    """Swaps the folds of the channels that `place` writes to or reads from the residual stream."""
    stage, _, layer, kind, _ = place
    if stage is None or layer in (last_layer, "short"):
        value = _swap_folds(value, 0, shift_ratio)
    if stage is not None and layer in ("conv0", "short") and kind == "conv":
        value = _swap_folds(value, 1, shift_ratio)
    return value


def _swap_folds(value: np.ndarray, axis: int, shift_ratio: float) -> np.ndarray:
    channels = value.shape[axis]
    first, second = int(channels * shift_ratio), int(channels * 2 * shift_ratio)
    order = [*range(first, second), *range(first), *range(second, channels)]
    return np.take(value, order, axis=axis)

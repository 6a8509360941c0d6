"""Weights of PySlowFast's SlowFast, Slow-only and I3D: the networks are the same, the names differ."""

from __future__ import annotations

import re
from typing import Dict, Mapping

import numpy as np

from paddlevideo_fast.errors import WeightError

_LEAVES = {"running_mean": "_mean", "running_var": "_variance"}
_RENAMED = {"conv": "_conv", "conv_f2s": "_conv_f2s", "bn": "_bn"}
_KNOWN = re.compile(r"(s1|s[1-5]_fuse|s[2-5])\..+\.(weight|bias|running_mean|running_var)")


def convert_pyslowfast(state: Mapping[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """Weights of PySlowFast's networks for `ResNetSlowFast`, `ResNetSlow` or `ResNetI3D` and their heads.

    Args:
        state: PyTorch names (`s2.pathway0_res0.branch2.a.weight`, `head.projection.weight`) to arrays.

    Returns:
        Our names to float32 arrays, a whole recognizer's.

    Raises:
        WeightError: a name that such a network does not have.
    """
    linear = "head.projection" if any("pathway1" in name for name in state) else "head.fc"
    converted = {}
    for name, value in state.items():
        if name.endswith("num_batches_tracked"):
            continue
        array = np.asarray(value, "float32")
        head, _, leaf = name.rpartition(".")
        if head == "head.projection" and leaf in ("weight", "bias"):
            converted[f"{linear}.{leaf}"] = array.T if leaf == "weight" else array
        elif _KNOWN.fullmatch(name):
            *path, layer = head.split(".")
            parts = [*path, _RENAMED.get(layer, layer), _LEAVES.get(leaf, leaf)]
            converted[".".join(["backbone", *parts])] = array
        else:
            raise WeightError(f"'{name}' is no weight of PySlowFast's SlowFast, Slow-only or I3D")
    return converted

"""Weights of other toolkits, under our names and in our order of channels."""

from __future__ import annotations

from typing import Callable, Dict, Mapping

import numpy as np

from paddlevideo_fast.deploy.converters.base import Converter, Network, Place
from paddlevideo_fast.deploy.converters.clips import (
    MMAction2ClipConverter,
    PySlowFastConverter,
    PyTorchVideoConverter,
)
from paddlevideo_fast.deploy.converters.frames import (
    MitConverter,
    MMAction2FrameConverter,
    TorchvisionConverter,
)

__all__ = ["CONVERTERS", "Converter", "Network", "Place"]


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

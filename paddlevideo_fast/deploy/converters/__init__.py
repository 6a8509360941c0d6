"""Where the tensors of other toolkits' weights go: our names, and our order of channels.

`base` says what a converter is; each other module holds the converters of one family of networks.
"""

from collections.abc import Callable, Mapping

import numpy as np

from paddlevideo_fast.deploy.converters.base import Converter, Network, PaddleVideoConverter, Place
from paddlevideo_fast.deploy.converters.clips import (
    MMAction2ClipConverter,
    PySlowFastConverter,
    PyTorchVideoConverter,
)
from paddlevideo_fast.deploy.converters.expanded import (
    PySlowFastX3DConverter,
    PyTorchVideoR2Plus1DConverter,
    PyTorchVideoX3DConverter,
    TorchvisionR2Plus1DConverter,
)
from paddlevideo_fast.deploy.converters.frames import (
    MitConverter,
    MMAction2FrameConverter,
    TorchvisionConverter,
)
from paddlevideo_fast.deploy.converters.pyramid import (
    MViTConverter,
    SwinConverter,
    TorchvisionMViTConverter,
    TorchvisionSwinConverter,
)
from paddlevideo_fast.deploy.converters.timesformer import (
    HuggingFaceTimeSformerConverter,
    MMAction2TimeSformerConverter,
    TimeSformerConverter,
    TokShiftConverter,
)
from paddlevideo_fast.deploy.converters.videomae import HuggingFaceVideoMAEConverter, VideoMAEConverter


def _mmaction2(state: Mapping[str, np.ndarray], network: Network) -> Converter:
    has_clips = any(value.ndim == 5 for value in state.values())
    return (MMAction2ClipConverter if has_clips else MMAction2FrameConverter)(state, network)


CONVERTERS: dict[str, Callable[[Mapping[str, np.ndarray], Network], Converter]] = {
    "mit-tsm": MitConverter,
    "mmaction2": _mmaction2,
    "pyslowfast": PySlowFastConverter,
    "pytorchvideo": PyTorchVideoConverter,
    "torchvision": TorchvisionConverter,
    "huggingface": HuggingFaceVideoMAEConverter,
    "videomae": VideoMAEConverter,
    "timesformer": TimeSformerConverter,
    "tokshift": TokShiftConverter,
    "swin": SwinConverter,
    "paddlevideo": PaddleVideoConverter,
}

# Toolkit and our backbone to the converter, where it is not the one above.
NETWORK_CONVERTERS: dict[tuple[str, str], type[Converter]] = {
    ("huggingface", "VisionTransformer"): HuggingFaceTimeSformerConverter,
    ("mmaction2", "VisionTransformer"): MMAction2TimeSformerConverter,
    ("pyslowfast", "X3D"): PySlowFastX3DConverter,
    ("pytorchvideo", "X3D"): PyTorchVideoX3DConverter,
    ("pytorchvideo", "ResNetR2Plus1D"): PyTorchVideoR2Plus1DConverter,
    ("torchvision", "ResNetR2Plus1D"): TorchvisionR2Plus1DConverter,
    ("pyslowfast", "MViT"): MViTConverter,
    ("torchvision", "MViT"): TorchvisionMViTConverter,
    ("mmaction2", "SwinTransformer3D"): SwinConverter,
    ("torchvision", "SwinTransformer3D"): TorchvisionSwinConverter,
}


def converter_for(kind: str, state: Mapping[str, np.ndarray], network: Network) -> Converter:
    """The converter of a toolkit's file for a network; `kind` is a key of `CONVERTERS`."""
    return NETWORK_CONVERTERS.get((kind, network.backbone), CONVERTERS[kind])(state, network)

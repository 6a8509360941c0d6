"""A small network of each kind: a few channels, and one block a stage."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import paddle

from paddlevideo_fast.modeling import build_model

ONE_EACH = [1, 1, 1, 1]
_TSM = {"name": "ResNetTSM", "depth": 18, "num_seg": 2, "width": 4, "stage_blocks": ONE_EACH}
_LIGHT = {"num_seg": 2, "class_num": 3, "scale": 0.125}
_PATCHES = {"img_size": 32, "embed_dim": 8, "depth": 2, "num_heads": 2, "num_seg": 4}
# framework, backbone, head
NETWORKS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "tsm": ("Recognizer2D", _TSM, {"name": "TSMHead", "in_channels": 32}),
    "pptsm": (
        "Recognizer2D",
        {**_TSM, "name": "ResNetTweaksTSM", "depth": 50},
        {"name": "ppTSMHead", "in_channels": 128},
    ),
    "pptsm_v2": (
        "Recognizer2D",
        {"name": "PPTSM_v2", "use_temporal_att": True, **_LIGHT},
        {"name": "MoViNetHead"},
    ),
    "mobilenet_v2": ("Recognizer2D", {"name": "PPTSM_MobileNetV2", **_LIGHT}, {"name": "MoViNetHead"}),
    "mobilenet_v3": ("Recognizer2D", {"name": "PPTSM_MobileNetV3", **_LIGHT}, {"name": "MoViNetHead"}),
    "slowfast": (
        "Recognizer3D",
        {"name": "ResNetSlowFast", "alpha": 2, "beta": 4, "width_per_group": 4, "stage_blocks": ONE_EACH},
        {"name": "SlowFastHead", "width_per_group": 4, "beta": 4},
    ),
    "r2plus1d": (
        "Recognizer3D",
        {"name": "ResNetR2Plus1D", "width": 8, "stage_blocks": ONE_EACH},
        {"name": "I3DHead", "in_channels": 64},
    ),
    "x3d": (
        "Recognizer3D",
        {"name": "X3D", "dim_c1": 4, "depth_factor": 0.2},
        {"name": "X3DHead", "in_channels": 144},
    ),
    "i3d": (
        "Recognizer3D",
        {"name": "ResNetI3D", "width_per_group": 4, "stage_blocks": ONE_EACH},
        {"name": "I3DHead", "in_channels": 128},
    ),
    "movinet": (
        "MoViNetRecognizerFrame",
        {"name": "MoViNet", "num_classes": 3, "hidden_dim": 16},
        {"name": "MoViNetHead"},
    ),
    "timesformer": (
        "RecognizerTransformer",
        {"name": "VisionTransformer", **_PATCHES},
        {"name": "TimeSformerHead", "in_channels": 8},
    ),
    "videomae": (
        "Recognizer3D",
        {"name": "VideoMAEViT", "embed_dim": 24, "depth": 2, "num_heads": 3, "patch_size": 8},
        {"name": "VideoMAEHead", "in_channels": 24},
    ),
    "vjepa2": (
        "Recognizer3D",
        {"name": "VJEPA2", "embed_dim": 20, "depth": 2, "num_heads": 1, "patch_size": 8},
        {"name": "AttentiveHead", "in_channels": 20, "depth": 1, "num_heads": 2},
    ),
}
# the same of networks that are no part of the core
ANNEXED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "efficientnet_lite": (
        "Recognizer2D",
        {"name": "EfficientNetLite", "num_seg": 2},
        {"name": "TSMHead", "in_channels": 1280},
    ),
    "hiera": (
        "Recognizer3D",
        {
            "name": "Hiera",
            "num_frames": 4,
            "crop_size": 32,
            "embed_dim": 8,
            "depths": [1, 1, 2],
            "mask_unit": 16,
        },
        {"name": "VideoMAEHead", "in_channels": 32},
    ),
}


def section_of(name: str = "tsm", num_classes: int = 3, **backbone: Any) -> dict[str, Any]:
    """MODEL of a network, with further arguments of its backbone."""
    framework, own, head = copy.deepcopy({**NETWORKS, **ANNEXED}[name])
    if head["name"] == "MoViNetHead":
        own["num_classes" if name == "movinet" else "class_num"] = num_classes
    else:
        head["num_classes"] = num_classes
    return {"framework": framework, "backbone": {**own, **backbone}, "head": head}


def make(name: str = "tsm", num_classes: int = 3, **backbone: Any) -> paddle.nn.Layer:
    return build_model(section_of(name, num_classes, **backbone))


def normal(*shape: int, seed: int = 0) -> paddle.Tensor:
    return paddle.to_tensor(np.random.default_rng(seed).standard_normal(shape).astype("float32"))


def clips_for(model: paddle.nn.Layer, num_clips: int = 2, seed: int = 1) -> paddle.Tensor:
    """Clips of 32² pixels in the model's layout: 2 frames for a network over frames, else 4."""
    shape = (2, 3, 32, 32) if model.layout == "NTCHW" else (3, 4, 32, 32)
    return normal(num_clips, *shape, seed=seed)

"""Training configs of the form that PaddleX hands over: PaddleVideo's sections, `Global` and `Infer`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

_PPTSM_HEAD = {"name": "ppTSMHead", "num_classes": 400, "in_channels": 2048, "drop_ratio": 0.5, "ls_eps": 0.1}

# PaddleX's modules: network, and frames of a clip.
MODELS: dict[str, Any] = {
    "PP-TSM-R50_8frames_uniform": (
        {
            "framework": "Recognizer2D",
            "backbone": {"name": "ResNetTweaksTSM", "pretrained": None, "depth": 50},
            "head": _PPTSM_HEAD,
        },
        8,
    ),
    **{
        f"PP-TSMv2-LCNetV2_{num_frames}frames_uniform": (
            {
                "framework": "Recognizer2D",
                "backbone": {
                    "name": "PPTSM_v2",
                    "pretrained": None,
                    "num_seg": num_frames,
                    "class_num": 400,
                },
                "head": {"name": "MoViNetHead"},
            },
            num_frames,
        )
        for num_frames in (8, 16)
    },
}


def training_config(
    algorithm: str, network: dict[str, Any], num_frames: int, short_side: int = 256, crop: int = 224
) -> dict[str, Any]:
    """The YAML of a module; PaddleX changes what its user chooses, such as data, classes and epochs.

    Args:
        algorithm: name of the module.
        network: section MODEL.
        num_frames: of a clip.
        short_side: of the frames, in pixels.
        crop: side of the square that the network sees, in pixels.
    """
    values = {"algorithm": algorithm, "num_frames": num_frames, "short_side": short_side, "crop": crop}
    text = Path(__file__).with_name("training_config.yaml").read_text()
    config = yaml.safe_load(re.sub(r"<(\w+)>", lambda found: str(values[found[1]]), text))
    # by this name PaddleX decides which key has the number of classes
    name = "ppTSM" if network["head"]["name"] == "ppTSMHead" else "ppTSMv2"
    return {**config, "MODEL": network, "model_name": name}

"""Training configs of the form that PaddleX hands over: PaddleVideo's sections, `Global` and `Infer`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

_HERE = Path(__file__).parent
_MODELS = yaml.safe_load((_HERE / "training_models.yaml").read_text())
# By the name of PaddleX's module: network, and frames of a clip.
MODELS: dict[str, Any] = {name: (model["MODEL"], model["num_frames"]) for name, model in _MODELS.items()}


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
    text = (_HERE / "training_config.yaml").read_text()
    config = yaml.safe_load(re.sub(r"<(\w+)>", lambda found: str(values[found[1]]), text))
    # by this name PaddleX decides which key has the number of classes
    name = "ppTSM" if network["head"]["name"] == "ppTSMHead" else "ppTSMv2"
    return {**config, "MODEL": network, "model_name": name}

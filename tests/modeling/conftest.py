"""Small networks."""

from __future__ import annotations

from typing import Any

import pytest

from paddlevideo_fast.modeling import build_model


def model_section(
    backbone: str = "ResNetTSM", head: str = "TSMHead", num_classes: int = 3, **backbone_arguments: Any
) -> dict[str, Any]:
    """MODEL of a network with a stem of 8 channels and one block a stage."""
    arguments: dict[str, Any] = {"width": 8, "stage_blocks": [1, 1, 1, 1], **backbone_arguments}
    arguments.setdefault("layers" if backbone == "ResNetTweaksTSN" else "depth", 18)
    depth = arguments.get("depth", arguments.get("layers"))
    data_format = arguments.get("data_format", "NCHW")
    in_channels = arguments["width"] * (32 if depth >= 50 else 8)
    return {
        "framework": "Recognizer2D",
        "backbone": {"name": backbone, **arguments},
        "head": {
            "name": head,
            "num_classes": num_classes,
            "in_channels": in_channels,
            "data_format": data_format,
        },
    }


@pytest.fixture
def section():
    return model_section


@pytest.fixture
def make_model():
    return lambda *args, **kwargs: build_model(model_section(*args, **kwargs))

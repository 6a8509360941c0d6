"""From the MODEL section to a network."""

from __future__ import annotations

from typing import Any, Mapping

from paddle import nn

from paddlevideo_fast.config.build import build
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.registry import RECOGNIZERS

logger = get_logger(__name__)


def build_model(section: Mapping[str, Any], load_pretrained: bool = True) -> nn.Layer:
    """Builds the recognizer that MODEL describes.

    Args:
        section: `framework` (the recognizer's name) and its arguments, `backbone` and `head` for most, each
            a mapping with `name`.
        load_pretrained: read the files that backbones name in `pretrained`. Turn it off where all weights
            are loaded anyway.

    Returns:
        A layer with `forward(clips) -> logits` and `loss(logits, labels)`.

    Raises:
        ConfigError: the parts do not fit.
        WeightError: see `load_weights`.
    """
    model = build(RECOGNIZERS, section)
    for report in model.load_pretrained() if load_pretrained else ():
        logger.info(report.summary())
    return model

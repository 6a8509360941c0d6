"""One HTML page with everything in it: it can be mailed, and opens without a network."""

from __future__ import annotations

import base64
import platform
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Dict, Mapping, Optional, Sequence

import numpy as np
from jinja2 import Environment, StrictUndefined

from paddlevideo_fast import __version__
from paddlevideo_fast.report.sheets import jpeg
from paddlevideo_fast.report.template import TEMPLATE

_PACKAGES = ("paddlepaddle", "paddlepaddle-gpu", "numpy", "av", "opencv-python-headless", "visualdl")


@dataclass(frozen=True)
class Example:
    """A clip with what the model made of it.

    Attributes:
        path: of the video.
        label: name of its class.
        predicted: name of the class with the highest score.
        score: of that class.
        sheet: its contact sheet, uint8 [H, W, 3].
    """

    path: str
    label: str
    predicted: str
    score: float
    sheet: np.ndarray


@dataclass(frozen=True)
class Page:
    """What a page shows; what is empty is left out.

    Attributes:
        title: of the page.
        facts: name → value, in the first table.
        metrics: name → number.
        curves: title → SVG.
        confusion_png: the confusion matrix.
        classes: rows of `class_rows`.
        hardest: rows of `hardest_rows`.
        examples: clips.
        config: YAML.
    """

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, str] = field(default_factory=dict)
    confusion_png: Optional[bytes] = None
    classes: Sequence[Mapping[str, Any]] = ()
    hardest: Sequence[Mapping[str, Any]] = ()
    examples: Sequence[Example] = ()
    config: str = ""


def render(page: Page) -> str:
    """The page as HTML. All text in it is escaped."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["shown"] = _shown
    environment.filters["png"] = lambda data: _data_uri(data, "png")
    environment.filters["jpeg"] = lambda picture: _data_uri(jpeg(picture), "jpeg")
    return environment.from_string(TEMPLATE).render(page=page, versions=versions())


def versions() -> Dict[str, str]:
    """Of this package, Python, and what computes and reads."""
    found = {"paddlevideo_fast": __version__, "Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # one of the two builds of Paddle always lacks
            continue
    return {**found, "platform": platform.platform()}


def _shown(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _data_uri(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"

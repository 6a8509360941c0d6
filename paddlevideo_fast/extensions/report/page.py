"""The HTML report: one page with everything in it, which can be mailed and opens without a network."""

import base64
import contextlib
import importlib.resources
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import cv2
import numpy as np
from jinja2 import Environment, StrictUndefined

from paddlevideo_fast import __version__

_NUM_FRAMES = 8
_HEAT_OPACITY = 0.65  # where the heat is greatest


def contact_sheet(clip: np.ndarray, height_px: int = 96) -> np.ndarray:
    """Up to eight frames of a clip side by side, equally far apart.

    Args:
        clip: uint8 [T, H, W, 3].
        height_px: height of the sheet.

    Returns:
        uint8 [height_px, width, 3].
    """
    places = np.linspace(0, len(clip) - 1, min(len(clip), _NUM_FRAMES)).round().astype(int)
    width_px = max(1, round(clip.shape[2] * height_px / clip.shape[1]))
    method = cv2.INTER_AREA if height_px < clip.shape[1] else cv2.INTER_LINEAR
    frames = [cv2.resize(clip[place], (width_px, height_px), interpolation=method) for place in places]
    return np.concatenate(frames, axis=1)


def heat_sheet(clip: np.ndarray, heat: np.ndarray, height_px: int = 96) -> np.ndarray:
    """The `contact_sheet` of a clip with a heat map blended over its frames, from blue to red.

    Args:
        clip: uint8 [T, H, W, 3].
        heat: float32 [T, H, W], from 0 to 1.
        height_px: height of the sheet.
    """
    levels = (255 * heat).round().astype(np.uint8).reshape(len(heat), -1)
    colours = cv2.applyColorMap(levels, cv2.COLORMAP_TURBO)[..., ::-1].reshape(clip.shape)
    opacity = _HEAT_OPACITY * np.sqrt(heat)[..., None]
    blended = clip * (1 - opacity) + colours * opacity
    return contact_sheet(blended.round().astype(np.uint8), height_px)


def jpeg(picture: np.ndarray) -> bytes:
    """A JPEG of a picture, uint8 [H, W, 3], RGB."""
    _, data = cv2.imencode(".jpg", np.ascontiguousarray(picture[:, :, ::-1]), [cv2.IMWRITE_JPEG_QUALITY, 85])
    return data.tobytes()


_PACKAGES = ("paddlepaddle", "paddlepaddle-gpu", "numpy", "av", "opencv-python-headless", "visualdl")


@dataclass(frozen=True)
class Example:
    """A clip and its prediction.

    Attributes:
        path: path of the video.
        label: name of its class.
        predicted: name of the class with the highest score.
        score: the highest score.
        sheet: contact sheet of the clip, uint8 [H, W, 3].
        heat: the same with the heat map of the predicted class; None: there is none.
    """

    path: str
    label: str
    predicted: str
    score: float
    sheet: np.ndarray
    heat: np.ndarray | None = None


@dataclass(frozen=True)
class Section:
    """A part of a page with its own heading.

    Attributes:
        anchor: its name in links.
        title: heading.
        text: below the heading.
        rows: of a table, which have the same keys.
        sheets: title → JPEG.
    """

    anchor: str
    title: str
    text: str = ""
    rows: Sequence[Mapping[str, Any]] = ()
    sheets: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """The content of a page. Empty parts are left out.

    Attributes:
        title: title of the page.
        facts: name → value, in the first table.
        metrics: name → number, or number with its interval.
        curves: title → SVG.
        confusion_png: the confusion matrix.
        classes: rows of `class_rows`.
        hardest: rows of `hardest_rows`, of videos that are predicted wrongly.
        examples: clips.
        pictures: title → uint8 [H, W, 3], what the network shows of itself.
        config: YAML.
        sections: further parts, which come before the clips.
    """

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    curves: Mapping[str, str] = field(default_factory=dict)
    confusion_png: bytes | None = None
    classes: Sequence[Mapping[str, Any]] = ()
    hardest: Sequence[Mapping[str, Any]] = ()
    examples: Sequence[Example] = ()
    pictures: Mapping[str, np.ndarray] = field(default_factory=dict)
    config: str = ""
    sections: Sequence[Section] = ()


def render(page: Page) -> str:
    """The page as HTML. All text in it is escaped."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["shown"] = _shown
    environment.filters["png"] = lambda data: _data_uri(data, "png")
    environment.filters["uri"] = lambda data: _data_uri(data, "jpeg")
    environment.filters["jpeg"] = lambda picture: _data_uri(jpeg(picture), "jpeg")
    template = importlib.resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(template).render(page=page, versions=versions())


def versions() -> dict[str, str]:
    """Versions of this package, Python, and the packages that compute and decode."""
    packages = {"paddlevideo_fast": __version__, "Python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):  # one build of Paddle is always missing
            packages[name] = metadata.version(name)
    return {**packages, "platform": platform.platform()}


def _shown(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _data_uri(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"

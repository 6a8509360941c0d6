"""Augmentations of colours, by PaddleVideo's names, on the finished uint8 clip.

PaddleVideo draws anew for each frame; here a clip keeps one draw, so that the change does not flicker.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import cv2
import numpy as np

from paddlevideo_fast.config.types import Share
from paddlevideo_fast.errors import LoaderError
from paddlevideo_fast.loader.transforms.geometry import Pixelwise
from paddlevideo_fast.registry import TRANSFORMS

Strength = float | Sequence[float]


def _range(name: str, strength: Strength, center: float, low: float, high: float) -> tuple[float, float]:
    """The range a factor is drawn from: given as such, or `center` ± strength, cut to what makes sense."""
    if isinstance(strength, (int, float)):
        if strength < 0:
            raise LoaderError(f"{name} is {strength}, expected 0 or more")
        return max(center - strength, low), min(center + strength, high)
    first, last = strength
    if not low <= first <= last <= high:
        raise LoaderError(f"{name} is {list(strength)}, expected two rising numbers within {low} to {high}")
    return first, last


def _look_up(clip: np.ndarray, values: np.ndarray) -> None:
    """Replaces each value v by `values[v]`; `clip` must be contiguous."""
    table = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    flat = clip.reshape(len(clip), -1)
    cv2.LUT(flat, table, dst=flat)


def adjust_brightness(clip: np.ndarray, factor: float) -> None:
    """Multiplies; 0 is black, 1 changes nothing."""
    _look_up(clip, np.arange(256) * factor)


def adjust_contrast(clip: np.ndarray, factor: float) -> None:
    """Spreads the values around the mean grey of each frame; 0 is that grey."""
    for frame in clip:
        grey = round(float(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY).mean()))
        _look_up(frame, grey + (np.arange(256) - grey) * factor)


def adjust_saturation(clip: np.ndarray, factor: float) -> None:
    """Spreads the channels around the grey of each pixel; 0 is black and white."""
    for frame in clip:
        grey = cv2.cvtColor(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
        cv2.addWeighted(frame, factor, grey, 1 - factor, 0, dst=frame)


def adjust_hue(clip: np.ndarray, turn: float) -> None:
    """Turns the colour circle by `turn` of its whole, from -0.5 to 0.5."""
    step = np.uint8(round(turn * 256) % 256)
    for frame in clip:
        hsv = cv2.cvtColor(frame, cv2.COLOR_RGB2HSV_FULL)
        hsv[..., 0] += step  # uint8 goes round at 256, as the circle does
        cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL, dst=frame)


def adjust_gamma(clip: np.ndarray, gamma: float) -> None:
    """Raises values in 0 to 1 to a power; below 1 is lighter."""
    _look_up(clip, np.floor((256 - 1e-3) * (np.arange(256) / 255.0) ** gamma))


_CHANGES = {
    "brightness": adjust_brightness,
    "contrast": adjust_contrast,
    "saturation": adjust_saturation,
    "hue": adjust_hue,
}


@TRANSFORMS.register()
class ColorJitter(Pixelwise):
    """Random brightness, contrast, saturation and hue, in random order.

    Args:
        brightness: the factor is drawn from 1 ± this, or from a given (low, high).
        contrast: likewise.
        saturation: likewise.
        hue: the turn is drawn from 0 ± this, at most 0.5.
        p: how often.
    """

    ignored_arguments: ClassVar[dict[str, str]] = {
        "mode": "it is the same in training and evaluation",
        "keys": "there is one clip",
    }

    def __init__(
        self,
        brightness: Strength = 0,
        contrast: Strength = 0,
        saturation: Strength = 0,
        hue: Strength = 0,
        p: Share = 0.5,
    ) -> None:
        self.p = p
        factors = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
        ranges = [(name, _range(name, factor, 1, 0, math.inf)) for name, factor in factors.items()]
        ranges.append(("hue", _range("hue", hue, 0, -0.5, 0.5)))
        self.steps = [(name, bounds) for name, bounds in ranges if bounds[0] != bounds[1]]

    def draw(self, rng: np.random.Generator) -> list[tuple[str, float]]:
        """The changes of one clip in their order, such as ("contrast", 1.2); none where it stays as it is."""
        if rng.random() >= self.p:
            return []
        chosen = (self.steps[number] for number in rng.permutation(len(self.steps)))
        return [(name, rng.uniform(*bounds)) for name, bounds in chosen]

    def apply(self, clip: np.ndarray, rng: np.random.Generator) -> None:
        """See `Pixelwise`."""
        for name, amount in self.draw(rng):
            _CHANGES[name](clip, amount)


@TRANSFORMS.register()
class RandomBrightness(ColorJitter):
    """Random brightness.

    Args:
        p: how often.
        brightness: see `ColorJitter`.
    """

    ignored_arguments: ClassVar[dict[str, str]] = {}

    def __init__(self, p: Share = 0.1, brightness: Strength = 1) -> None:
        super().__init__(brightness=brightness, p=p)


@TRANSFORMS.register()
class RandomSaturation(ColorJitter):
    """Random saturation.

    Args:
        p: how often.
        saturation: see `ColorJitter`.
    """

    ignored_arguments: ClassVar[dict[str, str]] = {}

    def __init__(self, p: Share = 0.1, saturation: Strength = 2) -> None:
        super().__init__(saturation=saturation, p=p)


@TRANSFORMS.register()
class RandomHue(ColorJitter):
    """Random hue.

    Args:
        p: how often.
        hue: see `ColorJitter`.
    """

    ignored_arguments: ClassVar[dict[str, str]] = {}

    def __init__(self, p: Share = 0.1, hue: Strength = 0.5) -> None:
        super().__init__(hue=hue, p=p)


@TRANSFORMS.register()
class RandomGamma(Pixelwise):
    """Random gamma.

    Args:
        p: how often.
        gamma: it is drawn from 1 ± this.
    """

    def __init__(self, p: Share = 0.1, gamma: float = 0.2) -> None:
        self.p = p
        self.bounds = _range("gamma", gamma, 1, 0, math.inf)

    def apply(self, clip: np.ndarray, rng: np.random.Generator) -> None:
        """See `Pixelwise`."""
        if rng.random() < self.p:
            adjust_gamma(clip, rng.uniform(*self.bounds))

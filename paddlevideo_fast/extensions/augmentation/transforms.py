"""Augmentations of the recipes of transformers: RandAugment and random erasing, on the finished uint8 clip.

A clip keeps one draw for all of its frames. The geometry of a clip comes first, whatever the order in the
config is, so both work on pictures of the final size.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import cv2
import numpy as np

from paddlevideo_fast.config.types import NonNegative, Range, Share, Size
from paddlevideo_fast.errors import LoaderError
from paddlevideo_fast.extensions.augmentation.colours import (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
)
from paddlevideo_fast.loader.transforms.geometry import Pixelwise
from paddlevideo_fast.registry import TRANSFORMS

_MAX_MAGNITUDE = 10.0
_ATTEMPTS = 10
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13

Level = Annotated[float, Range(0.0, _MAX_MAGNITUDE)]
Fill = tuple[int, ...]  # the colour of what a picture does not show, R, G, B


@TRANSFORMS.register()
@dataclass(eq=False)
class RandomErasing(Pixelwise):
    """Paints over a random rectangle, the same one in all frames of a clip.

    Args:
        p: how often.
        mode: with what: "const" is the mean of Normalization, which is 0 for the network; "pixel" is noise of
            its mean and standard deviation, drawn for each pixel of each frame.
        min_area: smallest area as a share of the frame's.
        max_area: largest.
        min_aspect: smallest height over width; the largest is its inverse.

    Raises:
        LoaderError: the limits do not rise.

    Reference: Zhong et al., "Random Erasing Data Augmentation", arXiv 1708.04896.
    """

    p: Share = 0.25
    mode: Literal["const", "pixel"] = "pixel"
    min_area: Share = 0.02
    max_area: Share = 1 / 3
    min_aspect: Annotated[float, Range(0.01, 1.0)] = 0.3

    def __post_init__(self) -> None:
        low, high = self.min_area, self.max_area
        if not 0 < low <= high:
            raise LoaderError(f"RandomErasing: expected 0 < min_area {low} <= max_area {high}")

    def draw(self, height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """Top, left, height and width of the rectangle of one clip; the last two are 0 where it has none."""
        if rng.random() < self.p:
            limit = math.log(1 / self.min_aspect)
            for _ in range(_ATTEMPTS):
                area = rng.uniform(self.min_area, self.max_area) * height * width
                aspect = math.exp(rng.uniform(-limit, limit))
                rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
                if 0 < rows < height and 0 < columns < width:
                    top, left = rng.integers(height - rows + 1), rng.integers(width - columns + 1)
                    return int(top), int(left), rows, columns
        return 0, 0, 0, 0

    def apply(self, clip: np.ndarray, rng: np.random.Generator) -> None:
        """See `Pixelwise`."""
        top, left, rows, columns = self.draw(clip.shape[1], clip.shape[2], rng)
        box = clip[:, top : top + rows, left : left + columns]
        mean, std = (255 * np.array(values, np.float32) for values in self.normalization)
        if self.mode == "const":
            box[:] = np.rint(mean)
        elif box.size:
            noise = rng.standard_normal(box.shape, np.float32) * std + mean
            box[:] = np.clip(np.rint(noise), 0, 255)


@TRANSFORMS.register()
@dataclass(eq=False)
class RandAugment(Pixelwise):
    """Changes a clip by a few operations drawn from 15, each the same for all frames of the clip.

    With m the magnitude over 10 and a random sign where it says ±: AutoContrast, Equalize, Invert, Rotate
    (± 30m degrees), Posterize (to 4 - 4m bits, at least 1), Solarize (from 256 - 256m on), SolarizeAdd
    (110m), Color, Contrast, Brightness and Sharpness (1 ± 0.9m), ShearX and ShearY (± 0.3m), TranslateX and
    TranslateY (± 0.45m of the side). The operations are PIL's. What a moved picture does not show has the
    mean colour of Normalization.

    Args:
        num_ops: operations that are drawn for a clip; one may come more than once.
        magnitude: how strong they are, from 0 to 10.
        magnitude_std: standard deviation of the magnitude of each operation.
        p: how often a drawn operation is done.

    References:
        Cubuk et al., "RandAugment", arXiv 1909.13719.
        The magnitudes are timm's `rand-m7-n4-mstd0.5-inc1` by default, as MViT and VideoMAE fine-tune.
    """

    num_ops: Size = 4
    magnitude: Level = 7.0
    magnitude_std: NonNegative = 0.5
    p: Share = 0.5

    def draw(self, rng: np.random.Generator) -> list[tuple[str, float]]:
        """The operations of one clip in their order, each with its share of the full magnitude, -1 to 1."""
        names, steps = list(OPERATIONS), []
        for number in rng.integers(len(names), size=self.num_ops):
            happens, negative = rng.random() < self.p, rng.random() < 0.5
            magnitude = np.clip(rng.normal(self.magnitude, self.magnitude_std), 0.0, _MAX_MAGNITUDE)
            if happens:
                share = float(magnitude) / _MAX_MAGNITUDE
                steps.append((names[number], -share if negative else share))
        return steps

    def apply(self, clip: np.ndarray, rng: np.random.Generator) -> None:
        """See `Pixelwise`."""
        fill = tuple(round(255 * value) for value in self.normalization[0])
        for name, share in self.draw(rng):
            OPERATIONS[name](clip, share, fill)


def _auto_contrast(clip: np.ndarray, share: float, fill: Fill) -> None:
    """Spreads the values of each channel of a frame over 0 to 255."""
    for frame in clip:
        low, high = frame.min((0, 1)).astype(float), frame.max((0, 1)).astype(float)
        scale = 255 / np.maximum(high - low, 1)
        spread = np.arange(256)[:, None] * scale - low * scale
        _look_up_channels(frame, np.where(high > low, np.trunc(spread), np.arange(256)[:, None]))


def _equalize(clip: np.ndarray, share: float, fill: Fill) -> None:
    """Makes all values of each channel of a frame equally frequent."""
    for frame in clip:
        tables = [
            _equal_shares(np.bincount(frame[..., channel].reshape(-1), minlength=256)) for channel in range(3)
        ]
        _look_up_channels(frame, np.stack(tables, axis=1))


def _equal_shares(counts: np.ndarray) -> np.ndarray:
    """The new value of each value, as PIL rounds it."""
    present = counts[counts > 0]
    step = (counts.sum() - present[-1]) // 255
    if len(present) < 2 or not step:
        return np.arange(256)
    return (step // 2 + np.concatenate([[0], np.cumsum(counts)[:-1]])) // step


def _look_up_channels(frame: np.ndarray, tables: np.ndarray) -> None:
    """Replaces each value v of channel c by `tables[v, c]`."""
    cv2.LUT(frame, np.clip(tables, 0, 255).astype(np.uint8)[None], dst=frame)


def _invert(clip: np.ndarray, share: float, fill: Fill) -> None:
    np.subtract(255, clip, out=clip)


def _posterize(clip: np.ndarray, share: float, fill: Fill) -> None:
    num_bits = max(4 - int(abs(share) * 4), 1)
    np.bitwise_and(clip, np.uint8(0xFF00 >> num_bits & 0xFF), out=clip)


def _solarize(clip: np.ndarray, share: float, fill: Fill) -> None:
    np.subtract(255, clip, out=clip, where=clip >= 256 - int(abs(share) * 256))


def _solarize_add(clip: np.ndarray, share: float, fill: Fill) -> None:
    """Adds to the values below 128; the sum stays below 256."""
    np.add(clip, np.uint8(abs(share) * 110), out=clip, where=clip < 128)


def _sharpness(clip: np.ndarray, share: float, fill: Fill) -> None:
    """Blends each frame with a smoothed one, whose edge pixels are not smoothed."""
    factor = 1 + 0.9 * share
    for frame in clip:
        smooth = frame.copy()
        smooth[1:-1, 1:-1] = cv2.filter2D(frame, -1, _SMOOTH)[1:-1, 1:-1]
        cv2.addWeighted(frame, factor, smooth, 1 - factor, 0, dst=frame)


def _enhance(adjust: Callable[[np.ndarray, float], None]) -> Callable[[np.ndarray, float, Fill], None]:
    return lambda clip, share, fill: adjust(clip, 1 + 0.9 * share)


def _rotate(clip: np.ndarray, share: float, fill: Fill) -> None:
    """Turns by 30 degrees at most, against the clock, around the middle."""
    angle = math.radians(30 * share)
    cosine, sine = math.cos(angle), math.sin(angle)
    middle_x, middle_y = clip.shape[2] / 2, clip.shape[1] / 2
    shift_x = middle_x - cosine * middle_x + sine * middle_y
    shift_y = middle_y - sine * middle_x - cosine * middle_y
    _warp(clip, [[cosine, -sine, shift_x], [sine, cosine, shift_y]], fill)


def _sheared(x: float, y: float) -> Callable[[np.ndarray, float, Fill], None]:
    return lambda clip, share, fill: _warp(clip, [[1, x * share, 0], [y * share, 1, 0]], fill)


def _moved(x: float, y: float) -> Callable[[np.ndarray, float, Fill], None]:
    """Moves by shares of the sides."""

    def move(clip: np.ndarray, share: float, fill: Fill) -> None:
        _warp(clip, [[1, 0, x * share * clip.shape[2]], [0, 1, y * share * clip.shape[1]]], fill)

    return move


def _warp(clip: np.ndarray, to_source: list[list[float]], fill: Fill) -> None:
    """Shows at each place what lies at `to_source` times (x, y, 1); pixel (0, 0) has its middle at (½, ½)."""
    matrix = np.array(to_source, np.float64)
    matrix[:, 2] += matrix[:, 0] / 2 + matrix[:, 1] / 2 - 0.5  # OpenCV's pixel (0, 0) has it at (0, 0)
    for frame in clip:
        size, flags = frame.shape[1::-1], cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        frame[:] = cv2.warpAffine(
            frame, matrix, size, flags=flags, borderMode=cv2.BORDER_CONSTANT, borderValue=fill
        )


# Each takes a clip, a share of the full magnitude from -1 to 1, and a colour.
OPERATIONS: dict[str, Callable[[np.ndarray, float, Fill], None]] = {
    "AutoContrast": _auto_contrast,
    "Equalize": _equalize,
    "Invert": _invert,
    "Rotate": _rotate,
    "Posterize": _posterize,
    "Solarize": _solarize,
    "SolarizeAdd": _solarize_add,
    "Color": _enhance(adjust_saturation),
    "Contrast": _enhance(adjust_contrast),
    "Brightness": _enhance(adjust_brightness),
    "Sharpness": _sharpness,
    "ShearX": _sheared(0.3, 0),
    "ShearY": _sheared(0, 0.3),
    "TranslateX": _moved(0.45, 0),
    "TranslateY": _moved(0, 0.45),
}

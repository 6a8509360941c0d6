"""Transforms that describe what the device does with the clip."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from paddlevideo_fast.config.types import FrameDivisor
from paddlevideo_fast.errors import LoaderError
from paddlevideo_fast.loader.transforms.geometry import Descriptive
from paddlevideo_fast.log import get_logger, warn_once
from paddlevideo_fast.registry import TRANSFORMS


@TRANSFORMS.register()
class Image2Array(Descriptive):
    """The layout of the array. Clips leave the loader as uint8 [T, H, W, C]; the network says what it takes.

    Args:
        transpose: PaddleVideo's order of the axes; it has no effect.
        data_format: likewise.
    """

    def __init__(self, transpose: bool = True, data_format: Literal["tchw", "cthw"] = "tchw") -> None:
        if not transpose or data_format != "tchw":
            text = "transpose and data_format have no effect: the network says how its axes lie"
            warn_once(get_logger(), f"Image2Array: {text}")


@TRANSFORMS.register()
class Normalization(Descriptive):
    """Mean and standard deviation of the channels R, G, B.

    Args:
        mean: of pixel values in 0 to 1; with `inplace`, in 0 to 255.
        std: likewise.
        inplace: PaddleVideo's variant without the division by 255.
    """

    ignored_arguments: ClassVar[dict[str, str]] = {"tensor_shape": "the axis of the channels is known here"}

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
            text = f"Normalization: mean {list(mean)} and std {list(std)} need 3 numbers each, std above 0"
            raise LoaderError(text)
        unit = 255.0 if inplace else 1.0
        self.mean: tuple[float, ...] = tuple(value / unit for value in mean)
        self.std: tuple[float, ...] = tuple(value / unit for value in std)


@TRANSFORMS.register()
@dataclass(eq=False)
class PackOutput(Descriptive):
    """SlowFast's two pathways; the network takes the slow one out of the fast one by itself.

    Args:
        alpha: frames of the fast pathway for one of the slow pathway, as the backbone has it. It has no
            effect of its own.
    """

    alpha: FrameDivisor

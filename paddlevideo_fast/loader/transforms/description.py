"""Transforms of PaddleVideo that happen on the device here: they only say what it must do."""

from __future__ import annotations

from typing import ClassVar, Dict, Literal, Sequence, Tuple

from paddlevideo_fast.config.types import PositiveInt
from paddlevideo_fast.loader.errors import LoaderError
from paddlevideo_fast.loader.transforms.base import Descriptive
from paddlevideo_fast.registry import TRANSFORMS


@TRANSFORMS.register()
class Image2Array(Descriptive):
    """The layout of the array. Clips leave the loader as uint8 [T, H, W, C]; the model's part changes it.

    Args:
        transpose: channels come before height and width.
        data_format: "tchw" or "cthw".
    """

    def __init__(self, transpose: bool = True, data_format: Literal["tchw", "cthw"] = "tchw") -> None:
        self.transpose = transpose
        self.data_format = data_format


@TRANSFORMS.register()
class Normalization(Descriptive):
    """Mean and standard deviation of the channels R, G, B.

    Args:
        mean: of pixel values in 0 to 1; with `inplace`, in 0 to 255.
        std: likewise.
        inplace: PaddleVideo's variant without the division by 255.
    """

    ignored_arguments: ClassVar[Dict[str, str]] = {"tensor_shape": "the axis of the channels is known here"}

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        inplace: bool = False,
    ) -> None:
        if len(mean) != 3 or len(std) != 3:
            raise LoaderError(f"Normalization: mean {list(mean)} and std {list(std)} need 3 numbers each")
        if min(std) <= 0:
            raise LoaderError(f"Normalization: std {list(std)} must be above 0")
        unit = 255.0 if inplace else 1.0
        self.mean: Tuple[float, ...] = tuple(value / unit for value in mean)
        self.std: Tuple[float, ...] = tuple(value / unit for value in std)


@TRANSFORMS.register()
class PackOutput(Descriptive):
    """SlowFast's two pathways; the network takes the slow one out of the fast one by itself.

    Args:
        alpha: frames of the fast pathway for one of the slow pathway.
    """

    def __init__(self, alpha: PositiveInt) -> None:
        self.alpha = alpha

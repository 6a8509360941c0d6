"""The keys `train_dali` and `DALI_LOADER`: clips of training and validation come from NVIDIA DALI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import paddle

from paddlevideo_fast.config import Config
from paddlevideo_fast.config.sections import Group
from paddlevideo_fast.config.settings import SplitName, settings_from
from paddlevideo_fast.config.types import Size
from paddlevideo_fast.engine.extension import Extension, Problem, Problems
from paddlevideo_fast.extensions.dali.loader import DaliLoader, DaliOptions
from paddlevideo_fast.loader.build import MakeLoader
from paddlevideo_fast.log import get_logger, warn_once
from paddlevideo_fast.machine import gpu_number
from paddlevideo_fast.registry import EXTENSIONS

if TYPE_CHECKING:
    from paddlevideo_fast.assembly.plan import RunPlan

logger = get_logger(__name__)


@dataclass(frozen=True)
class DaliData:
    """Training data in the short form of PaddleVideo's `tsn_dali.yaml`; used with `train_dali`.

    It then takes the place of `DATASET.train`, `PIPELINE.train` and `DATASET.batch_size`: segments of each
    video, its shorter side scaled, a random square of it, mirrored at random, normalised.

    Args:
        batch_size: clips a training step and process.
        file_path: list of videos with lines `path label`.
        num_seg: segments of a video.
        seglen: consecutive frames from a segment.
        short_size: of the shorter side in pixels.
        target_size: side of the square in pixels.
        mean: of the channels, for pixel values in 0 to 1.
        std: likewise.
    """

    batch_size: Size
    file_path: str
    num_seg: Size
    seglen: Size = 1
    short_size: Size = 256
    target_size: Size = 224
    mean: Sequence[float] = (0.485, 0.456, 0.406)
    std: Sequence[float] = (0.229, 0.224, 0.225)

    def dataset(self) -> dict[str, Any]:
        """`DATASET.train`."""
        return {"format": "VideoDataset", "file_path": self.file_path}

    def pipeline(self) -> dict[str, Any]:
        """`PIPELINE.train`."""
        return {
            "decode": {"name": "VideoDecoder"},
            "sample": {"name": "Sampler", "num_seg": self.num_seg, "seg_len": self.seglen},
            "transform": [
                {"Scale": {"short_size": self.short_size, "fixed_ratio": False}},
                {"RandomCrop": {"target_size": self.target_size}},
                {"RandomFlip": None},
                {"Normalization": {"mean": list(self.mean), "std": list(self.std)}},
            ],
        }


@EXTENSIONS.register("train_dali", "DALI_LOADER")
@dataclass(frozen=True)
class Dali(Extension):
    """NVIDIA DALI.

    Args:
        train_dali: read the clips of training and validation through NVIDIA DALI, on the device that
            computes.
        DALI_LOADER: training data in the short form of PaddleVideo's `tsn_dali.yaml`.
    """

    train_dali: bool = False
    DALI_LOADER: Mapping[str, Any] | None = None

    parts: ClassVar = {"DALI_LOADER": Group(settings=DaliData)}

    @classmethod
    def expand(cls, config: Config) -> None:
        """Puts what DALI_LOADER describes into DATASET and PIPELINE, with `train_dali`.

        The section is gone afterwards, so that the saved config says the same once only. Without `train_dali`
        it goes, too, with a warning: the training data are those of DATASET.train.
        """
        section = config.pop("DALI_LOADER", None)
        if section is None:
            return
        if not config.get("train_dali"):
            text = "has no effect without --train_dali (train_dali: True)"
            warn_once(logger, config.problem("DALI_LOADER", text))
            return
        data = settings_from(DaliData, section)
        for part in ("DATASET", "PIPELINE"):
            config.forget((part, "train"), config[part].get("train"))
            config.origins[part, "train"] = config.where("DALI_LOADER")
        config.origins["DATASET", "train", "file_path"] = config.where("DALI_LOADER.file_path")
        config["DATASET"] = {**config["DATASET"], "train": data.dataset()}
        if not config.where("DATASET.batch_size").startswith("-o "):  # as of the flag --batch_size
            config.origins["DATASET", "batch_size"] = config.where("DALI_LOADER.batch_size")
            config["DATASET"]["batch_size"] = data.batch_size
        config["PIPELINE"] = {**config["PIPELINE"], "train": data.pipeline()}

    @classmethod
    def of(cls, section: Mapping[str, Any] | None, config: Config) -> Dali | None:
        return cls(True) if config.get("train_dali") else None

    def problems(self, plan: RunPlan) -> Problems:
        if plan.spec.run.multigrid:
            yield Problem("train_dali", "multigrid training reads through our own loader; leave it out")
        for name in ("train", "valid") if plan.spec.holds("STORAGE.frames_cache") else ():
            if name in plan.spec.splits:
                text = f"has no effect on DATASET.{name}: DALI decodes it"
                yield Problem("STORAGE.frames_cache", text, is_error=False)

    def loader_of(self, name: SplitName) -> MakeLoader | None:
        if name == "test":
            return None
        return partial(DaliLoader, options=DaliOptions(gpu_number(paddle.get_device())))

"""The DALI_LOADER section: PaddleVideo's short form of training data, turned into the usual sections."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, MutableMapping, Sequence

from paddlevideo_fast.config.run import RunSettings, settings_from
from paddlevideo_fast.config.types import PositiveInt
from paddlevideo_fast.log import get_logger, warn_once

_LOGGER = get_logger(__name__)


@dataclasses.dataclass(frozen=True)
class DaliData:
    """Training data as PaddleVideo's `tsn_dali.yaml` describes them; used with `train_dali` alone.

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

    batch_size: PositiveInt
    file_path: str
    num_seg: PositiveInt
    seglen: PositiveInt = 1
    short_size: PositiveInt = 256
    target_size: PositiveInt = 224
    mean: Sequence[float] = (0.485, 0.456, 0.406)
    std: Sequence[float] = (0.229, 0.224, 0.225)

    def dataset(self) -> Dict[str, Any]:
        """`DATASET.train`."""
        return {"format": "VideoDataset", "file_path": self.file_path}

    def pipeline(self) -> Dict[str, Any]:
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


def expand_dali_data(config: MutableMapping[str, Any]) -> None:
    """Puts what DALI_LOADER describes into DATASET and PIPELINE, in a checked config with `train_dali`.

    The section is gone afterwards, so that the saved config says the same once only. Without `train_dali` it
    goes, too, with a warning: the training data are those of DATASET.train.
    """
    section = config.pop("DALI_LOADER", None)
    if section is None:
        return
    if not RunSettings.from_config(config).train_dali:
        warn_once(_LOGGER, "DALI_LOADER: has no effect without --train_dali (train_dali: True)")
        return
    data = settings_from(DaliData, section)
    config["DATASET"] = {**config["DATASET"], "batch_size": data.batch_size, "train": data.dataset()}
    config["PIPELINE"] = {**config["PIPELINE"], "train": data.pipeline()}

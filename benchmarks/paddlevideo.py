"""From a video file to a training clip: PaddleVideo's own training pipelines, and ours, on the same videos.

PaddleVideo's classes come from a checkout of it, with the settings of its own configs. They end with a
float32 array, ours with the uint8 array that the device normalises.
"""

import importlib
import importlib.util
import sys
import tempfile
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml

from benchmarks.measuring import Positive, compared, time_in_turn
from benchmarks.pipeline import RECIPES, our_clip
from benchmarks.reader import stream_alone
from paddlevideo_fast.errors import PaddleVideoFastError

_CONFIGS = {"tsm": "tsm/tsm_k400_videos.yaml", "slowfast": "slowfast/slowfast.yaml"}
_PACKAGES = ("paddlevideo", "paddlevideo.utils", "paddlevideo.loader", "paddlevideo.loader.pipelines")
_MODULES = ("decode", "sample", "decode_sampler", "augmentations")
# what PaddleVideo's data sets say of a training clip
_SAMPLE = {"labels": 0, **dict.fromkeys(("temporal_sample_index", "spatial_sample_index"), 0)}
_SAMPLE |= dict.fromkeys(("temporal_num_clips", "spatial_num_clips"), 1)


def run(clips: Sequence[Path], *, paddlevideo: Path, rounds: Positive = 15) -> dict[str, Any]:
    """Measures CPU time and wall time of a clip on both sides, in turn.

    Args:
        clips: video files; of one with several video streams a copy with the first one alone is read.
        paddlevideo: a checkout of https://github.com/PaddlePaddle/PaddleVideo; it needs decord.
        rounds: clips to measure of each file; each draws other frames and crops.

    Returns:
        "rows": for each recipe and clip "cpu_ratio" and "wall_ratio", the median of
        PaddleVideo's time over ours, "cpu_spread" and "wall_spread", their quartiles over the rounds, and
        "ms" and "paddlevideo_ms", the medians of the CPU time.

    Raises:
        PaddleVideoFastError: the folder is no checkout of PaddleVideo, or decord is missing.
    """
    cv2.setNumThreads(0)  # as in a worker, of ours and of PaddleVideo's
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for recipe, config in _CONFIGS.items():
            steps = _pipeline(paddlevideo, paddlevideo / "configs" / "recognition" / config)
            for clip in clips:
                file = str(stream_alone(clip, Path(folder)) or clip)
                sides = {"paddlevideo": _theirs(steps, file), "ours": _ours(recipe, file)}
                row: dict[str, Any] = {"recipe": recipe, "clip": clip.stem}
                for name, clock in (("cpu", time.process_time), ("wall", time.perf_counter)):
                    sec = time_in_turn(sides, rounds, warmup=1, clock=clock)
                    both = compared(sec, "paddlevideo")
                    row |= {f"{name}_{key}": both["ours"][key] for key in ("ratio", "spread")}
                    if name == "cpu":
                        row |= {"ms": both["ours"]["ms"], "paddlevideo_ms": both["paddlevideo"]["ms"]}
                rows.append(row)
    return {"rows": rows}


def _theirs(steps: Sequence[Callable[[Any], Any]], file: str) -> Callable[[int], Any]:
    def read(turn: int) -> Any:
        sample: Any = {"filename": file, **_SAMPLE}
        for step in steps:
            sample = step(sample)
        return sample["imgs"]

    return read


def _ours(recipe: str, file: str) -> Callable[[int], Any]:
    read = our_clip(RECIPES[recipe], file)
    return lambda turn: read(np.random.default_rng((0, abs(turn))))


def _pipeline(checkout: Path, config: Path) -> list[Callable[[Any], Any]]:
    """The steps of PIPELINE.train of one of PaddleVideo's configs, built from its classes."""
    classes = paddlevideo_pipelines(checkout)
    section = yaml.safe_load(config.read_text(encoding="utf-8"))["PIPELINE"]["train"]
    transforms = section.pop("transform")
    named = [(part.pop("name"), part) for part in section.values()]
    named += [(name, arguments or {}) for step in transforms for name, arguments in step.items()]
    return [classes.get(name)(**arguments) for name, arguments in named]


def paddlevideo_pipelines(checkout: Path) -> Any:
    """PaddleVideo's registry of pipeline steps.

    Its packages are entered without their `__init__`: those import every task of PaddleVideo.
    """
    if not (checkout / "paddlevideo" / "loader" / "pipelines").is_dir():
        raise PaddleVideoFastError(f"--paddlevideo {checkout}: is no checkout of PaddleVideo")
    if importlib.util.find_spec("decord") is None:
        raise PaddleVideoFastError("PaddleVideo needs decord: pip install decord")
    for name in _PACKAGES:
        package = sys.modules.setdefault(name, types.ModuleType(name))
        package.__path__ = [str(checkout.joinpath(*name.split(".")))]
    registry = importlib.import_module("paddlevideo.utils.registry")
    sys.modules["paddlevideo.utils"].Registry = registry.Registry  # type: ignore[attr-defined]
    for name in _MODULES:
        importlib.import_module(f"paddlevideo.loader.pipelines.{name}")
    return importlib.import_module("paddlevideo.loader.registry").PIPELINES

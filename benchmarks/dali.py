"""Time of training clips: NVIDIA DALI on a CPU or a GPU against our own reader."""

import tempfile
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np

from benchmarks.measuring import Natural, Positive, compared, quartiles, time_in_turn, write_list, write_video
from benchmarks.pipeline import RECIPES, Recipe
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.extensions.dali.graph import generation_of, import_dali
from paddlevideo_fast.extensions.dali.loader import DaliLoader, DaliOptions
from paddlevideo_fast.loader import Pipeline, VideoDataset, build_loader
from paddlevideo_fast.machine import installed_gpus, num_cores

OURS, CPU, GPU = "ours", "DALI on CPU", "DALI on GPU"
_BATCHES_ON_GPU = 16  # in an epoch: reading files, decoding and resizing then run beside each other
_ENCODERS = {
    "h264": ("libx264", {"crf": "20"}),
    "vp9": ("libvpx-vp9", {"crf": "24", "b": "0", "cpu-used": "5"}),
}


def run(
    clips: Sequence[str],
    recipe: Annotated[tuple[str, ...], RECIPES] = tuple(RECIPES),
    batch_size: Positive = 4,
    rounds: Positive = 9,
    seed: Natural = 0,
    gpu: Natural | None = None,
) -> dict[str, Any]:
    """Measures the CPU time of a clip with one decoding thread on each side; with `gpu`, its time.

    Args:
        clips: videos; encoded again where this DALI does not decode them.
        recipe: kinds of clips; by default, both.
        batch_size: clips in a batch, all from one video.
        rounds: epochs to measure on each side: of one batch, on a GPU of 16.
        seed: of frames and crops; both sides draw the same ones.
        gpu: number of the GPU on which DALI decodes, beside our reader on all cores; by default, the CPU.

    Returns:
        "dali", its version; "gpu", its name; "cores"; "rows": for each
        recipe, video and side "codec", "ms" (the median), "spread" (its quartiles), "ratio", our time over
        this one, and "difference", the mean difference of the pixels from ours.

    Raises:
        MissingExtraError: DALI is not installed.
        PaddleVideoFastError: there is no such GPU.
    """
    gpus = installed_gpus()
    if gpu is not None and gpu >= len(gpus):
        raise PaddleVideoFastError(f"--gpu {gpu}: the driver of NVIDIA lists {len(gpus)} GPUs here")
    dali = import_dali()
    codecs = generation_of(dali).codecs("cpu" if gpu is None else "gpu")
    cv2.setNumThreads(1)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, clip in enumerate(clips):
            file, codec = _decodable(clip, codecs, Path(folder) / f"{number}.mkv")
            for name in recipe:
                measured = _compare(RECIPES[name], file, batch_size, rounds, seed, gpu)
                rows += [
                    {"recipe": name, "clip": Path(clip).name, "codec": codec, "side": side, **row}
                    for side, row in measured.items()
                ]
    device = None if gpu is None else gpus[gpu].name
    return {"dali": dali.__version__, "gpu": device, "cores": num_cores(), "rows": rows}


def _decodable(clip: str, codecs: Any, path: Path) -> Any:
    """(file, codec): the clip itself where DALI decodes it, else a copy that is encoded again."""
    with open_video(clip, backend="pyav") as reader:
        if reader.codec in codecs:
            return clip, reader.codec
        codec = next(name for name in _ENCODERS if name in codecs)
        encoder, options = _ENCODERS[codec]
        write_video(path, reader, encoder, round(reader.avg_fps) or 25, options)
    return str(path), codec


def _compare(
    recipe: Recipe, file: str, batch_size: int, rounds: int, seed: int, gpu: int | None
) -> dict[str, dict[str, Any]]:
    num_clips = batch_size if gpu is None else batch_size * _BATCHES_ON_GPU
    clock = time.process_time if gpu is None else time.perf_counter
    dali = CPU if gpu is None else GPU
    with tempfile.TemporaryDirectory() as folder:
        listed = write_list(Path(folder), [file] * num_clips)
        dataset = VideoDataset(str(listed), pipeline=Pipeline(*recipe), seed=seed, training=True)
    common: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "shuffle": False, "drop_last": False}
    common["num_workers"] = 0 if gpu is None else num_cores()
    both = ((OURS, None), (dali, partial(DaliLoader, options=DaliOptions(gpu))))
    loaders: dict[str, Any] = {side: build_loader(dataset, make=make, **common) for side, make in both}
    first = {side: np.asarray(next(iter(loader.epoch(0))).clips) for side, loader in loaders.items()}
    sides = {
        side: lambda turn, loader=loader: deque(loader.epoch(turn + 1), 0) for side, loader in loaders.items()
    }
    seconds = time_in_turn(sides, rounds, clock=clock)
    rows = compared(seconds, OURS)
    for side, row in rows.items():
        spread = quartiles([1e3 * each / num_clips for each in seconds[side]])
        difference = float(np.abs(first[side].astype(np.int16) - first[OURS]).mean())
        row |= {"ms": row["ms"] / num_clips, "spread": spread, "difference": difference}
        loaders[side].close()
    return rows

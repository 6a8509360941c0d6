"""Time of training clips: NVIDIA DALI on a CPU or a GPU against our own reader."""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.measuring import quartiles, time_in_turn, write_video
from benchmarks.pipeline import RECIPES, Recipe
from paddlevideo_fast.cli import count
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.extensions.dali.graph import generation_of, import_dali
from paddlevideo_fast.extensions.dali.loader import DaliOptions
from paddlevideo_fast.loader import Pipeline, VideoDataset, build_loader
from paddlevideo_fast.machine import installed_gpus, num_cores

OURS, CPU, GPU = "ours", "DALI on CPU", "DALI on GPU"
_BATCHES_ON_GPU = 16  # in an epoch: reading files, decoding and resizing then run beside each other
_ENCODERS = {
    "h264": ("libx264", {"crf": "20"}),
    "vp9": ("libvpx-vp9", {"crf": "24", "b": "0", "cpu-used": "5"}),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument("clips", nargs="+", help="videos; encoded again where this DALI does not decode them")
    parser.add_argument("--recipe", choices=RECIPES, action="append", help="measure only this recipe")
    parser.add_argument("--batch-size", type=int, default=4, help="clips in a batch, all from one video")
    parser.add_argument(
        "--rounds",
        type=count(1),
        default=9,
        help="epochs to measure on each side: of one batch, with --gpu of 16",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of frames and crops")
    parser.add_argument("--gpu", type=count(0), help="decode on this GPU, against our reader on all cores")


def run(
    clips: Sequence[str],
    recipe: Sequence[str] | None,
    batch_size: int,
    rounds: int,
    seed: int,
    gpu: int | None = None,
) -> dict[str, Any]:
    """Measures the CPU time of a clip with one decoding thread on each side; with `gpu`, its time.

    Args:
        clips: video files.
        recipe: names from `pipeline.RECIPES`; None: all.
        batch_size: clips in a batch.
        rounds: epochs to measure on each side: of one batch, on a GPU of 16.
        seed: of frames and crops; both sides draw the same ones.
        gpu: number of the GPU on which DALI decodes; our reader then has all cores. None: the CPU.

    Returns:
        "dali", its version; "gpu", its name; "rounds", "batch_size", "seed", "cores"; "rows": for each
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
            for name in recipe or RECIPES:
                measured = _compare(RECIPES[name], file, batch_size, rounds, seed, gpu)
                rows += [
                    {"recipe": name, "clip": Path(clip).name, "codec": codec, "side": side, **row}
                    for side, row in measured.items()
                ]
    settings = {"rounds": rounds, "batch_size": batch_size, "seed": seed, "cores": num_cores()}
    device = None if gpu is None else gpus[gpu].name
    return {"dali": dali.__version__, "gpu": device, **settings, "rows": rows}


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
    loaders = {
        side: _loader(recipe, file, batch_size, num_clips, seed, options, 0 if gpu is None else num_cores())
        for side, options in ((OURS, None), (dali, DaliOptions(gpu)))
    }
    first = {side: np.asarray(next(iter(loader.epoch(0))).clips) for side, loader in loaders.items()}
    difference = float(np.abs(first[dali].astype(np.int16) - first[OURS]).mean())
    sides = {side: partial(_read_epoch, loader) for side, loader in loaders.items()}
    rows: dict[str, dict[str, Any]] = {}
    for side, seconds in time_in_turn(sides, rounds, clock=clock).items():
        milliseconds = [1000 * each / num_clips for each in seconds]
        rows[side] = {"ms": statistics.median(milliseconds), "spread": quartiles(milliseconds)}
    for side, row in rows.items():
        row["ratio"] = rows[OURS]["ms"] / row["ms"]
        row["difference"] = difference if side == dali else 0.0
    for loader in loaders.values():
        loader.close()
    return rows


def _read_epoch(loader: Any, turn: int) -> None:
    for _ in loader.epoch(turn + 1):
        pass


def _loader(
    recipe: Recipe,
    file: str,
    batch_size: int,
    num_clips: int,
    seed: int,
    dali: DaliOptions | None,
    num_workers: int,
) -> Any:
    with tempfile.NamedTemporaryFile("w", suffix=".list") as listing:
        listing.write(f"{Path(file).resolve()} 0\n" * num_clips)
        listing.flush()
        dataset = VideoDataset(listing.name, pipeline=Pipeline(*recipe), seed=seed, training=True)
    return build_loader(
        dataset,
        batch_size=batch_size,
        num_workers=num_workers,
        shuffle=False,
        drop_last=False,
        seed=seed,
        dali=dali,
    )

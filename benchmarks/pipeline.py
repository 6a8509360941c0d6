"""CPU time from a file to a training clip, for every form of the data, against the classic path."""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type

import cv2
import numpy as np

from benchmarks.classic import classic_clip
from benchmarks.measuring import add_output_arguments, in_turn, show
from paddlevideo_fast.cli import count
from paddlevideo_fast.decode import open_shards, open_video
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.loader import (
    ClipRequest,
    DecodeSampler,
    FrameDataset,
    PackedFrameDataset,
    Pipeline,
    Sampler,
    VideoDataset,
    VideoRecord,
    transforms,
)
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.loader.sampling import FrameSampler
from paddlevideo_fast.loader.transforms.geometry import Geometric

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_JPEG_QUALITY = 90
CLASSIC = "classic"
SOURCES = {
    CLASSIC: "raw video, the classic way",
    "video": "raw video",
    "prepared": "prepared video",
    "jpeg": "JPEG files",
    "packed": "packed frames",
}


class Recipe(NamedTuple):
    """How a training clip is made."""

    sample: FrameSampler
    steps: Sequence[Geometric]


# the training pipelines of configs/recognition/tsm and of SlowFast
RECIPES = {
    "tsm": Recipe(
        Sampler(num_seg=8, seg_len=1, select_left=True),
        [transforms.MultiScaleCrop(224, allow_duplication=True), transforms.RandomFlip()],
    ),
    "slowfast": Recipe(
        DecodeSampler(num_frames=32, sampling_rate=2),
        [transforms.JitterScale(256, 320), transforms.MultiCrop(224), transforms.RandomFlip()],
    ),
}

Call = Callable[[np.random.Generator], Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument("clips", nargs="+", help="video files")
    parser.add_argument("--prepared", help="output folder of data/prepare_videos.py for the same videos")
    parser.add_argument("--packed", help="output folder of data/pack_frames.py for exactly these videos")
    parser.add_argument("--recipe", choices=RECIPES, action="append", help="measure only this recipe")
    parser.add_argument(
        "--rounds", type=count(1), default=15, help="clips to measure of each kind from each file"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of frames and crops")
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    result = run(args.clips, args.prepared, args.packed, args.recipe, args.rounds, args.seed)
    show(result, args, table)


def run(
    clips: Sequence[str],
    prepared: Optional[str] = None,
    packed: Optional[str] = None,
    recipes: Optional[Sequence[str]] = None,
    rounds: int = 15,
    seed: int = 0,
) -> Dict[str, Any]:
    """Measures the CPU time of a clip over all threads; each round draws other frames and crops.

    Args:
        clips: video files.
        prepared: folder of the prepared videos; None: not measured.
        packed: folder of their shards; None: not measured.
        recipes: names from `RECIPES`; None: all.
        rounds: clips to measure of each kind.
        seed: of frames and crops; all kinds draw the same ones.

    Returns:
        "rounds", "seed", "rows": for each recipe and kind "ratio", the geometric mean over the files of the
        classic time over this one's, "bytes" that the kind takes on disk, and "clips": for each file "ms"
        (the median), "ratio" (likewise) and "spread", the quartiles of the ratio over the rounds.

    Raises:
        PaddleVideoFastError: decord is missing, or a prepared or packed video.
    """
    if importlib.util.find_spec("decord") is None:
        raise PaddleVideoFastError("the classic path needs decord: pip install decord")
    cv2.setNumThreads(0)  # as in a worker
    with tempfile.TemporaryDirectory() as folder:
        files, sizes = _files(clips, prepared, packed, Path(folder))
        rows = []
        for name in recipes or RECIPES:
            measured = [
                _compare(_calls(RECIPES[name], clip, files[clip], packed), rounds, seed) for clip in clips
            ]
            for kind in measured[0]:
                results = {Path(clip).name: of_clip[kind] for clip, of_clip in zip(clips, measured)}
                ratio = statistics.geometric_mean(item["ratio"] for item in results.values())
                size = sizes["video" if kind == CLASSIC else kind]
                rows.append({"recipe": name, "kind": kind, "ratio": ratio, "bytes": size, "clips": results})
    return {"rounds": rounds, "seed": seed, "rows": rows}


def table(result: Dict[str, Any]) -> str:
    """The result of `run` as text."""
    names = list(result["rows"][0]["clips"])
    head = f"{'recipe':<10}{'from':<28}{'bytes':>12}{'speed-up':>10}"
    lines = [
        f"CPU time of a training clip, medians of {result['rounds']} rounds, seed {result['seed']}; "
        "ratios to the classic path, with their quartiles",
        head + "".join(f"{name:>36}" for name in names),
    ]
    for row in result["rows"]:
        line = f"{row['recipe']:<10}{SOURCES[row['kind']]:<28}{row['bytes']:>12,}{row['ratio']:>9.2f}x"
        for name in names:
            item = row["clips"][name]
            low, high = item["spread"]
            cell = f"{item['ms']:.2f} ms {item['ratio']:.2f}x ({low:.2f} to {high:.2f})"
            line += f"{cell:>36}"
        lines.append(line)
    return "\n".join(lines)


def _files(
    clips: Sequence[str], prepared: Optional[str], packed: Optional[str], folder: Path
) -> Tuple[Dict[str, Dict[str, Path]], Dict[str, int]]:
    """The files of each clip by kind, and the bytes of each kind. The JPEG frames are written here."""
    files: Dict[str, Dict[str, Path]] = {}
    for number, clip in enumerate(clips):
        files[clip] = {"video": Path(clip)}
        if prepared is not None:
            files[clip]["prepared"] = _same_stem(Path(prepared), Path(clip))
        files[clip]["jpeg"] = folder / f"{number}"
        _write_frames(clip, folder / f"{number}")
        if packed is not None:
            files[clip]["packed"] = Path(packed)
    sizes: Dict[str, int] = {}
    for kind in files[clips[0]]:
        places = {of_clip[kind] for of_clip in files.values()}
        sizes[kind] = sum(
            file.stat().st_size
            for place in places
            for file in ([place] if place.is_file() else place.rglob("*"))
            if file.is_file()
        )
    return files, sizes


def _write_frames(clip: str, folder: Path) -> None:
    folder.mkdir()
    with open_video(clip) as reader:
        for number, frame in enumerate(reader, start=1):
            picture = cv2.cvtColor(frame, cv2.COLOR_RGB2BGR)
            file = str(folder / f"img_{number:05}.jpg")
            cv2.imwrite(file, picture, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])


def _same_stem(folder: Path, clip: Path) -> Path:
    found = sorted(file for file in folder.rglob("*") if file.is_file() and file.stem == clip.stem)
    if len(found) != 1:
        raise PaddleVideoFastError(f"{folder}: has {len(found)} files named {clip.stem}.*, expected one")
    return found[0]


def _calls(recipe: Recipe, clip: str, files: Dict[str, Path], packed: Optional[str]) -> Dict[str, Call]:
    """Kind → a function that makes a clip with the random numbers of a generator."""
    calls: Dict[str, Call] = {
        CLASSIC: lambda rng: classic_clip(clip, recipe.sample, recipe.steps, (_MEAN, _STD), rng)
    }
    for kind, file in files.items():
        pipeline = Pipeline(*recipe)
        if packed is not None and kind == "packed":
            dataset = _packed_clip(packed, pipeline, Path(clip))
        else:
            cls: Type[ClipDataset] = FrameDataset if kind == "jpeg" else VideoDataset
            records = [VideoRecord(str(file), (0,))]
            dataset = cls("", pipeline=pipeline, seed=0, training=True, records=records)
        calls[kind] = _ours(dataset)
    return calls


def _packed_clip(folder: str, pipeline: Pipeline, clip: Path) -> ClipDataset:
    """The packed frames of the clip, and of nothing else."""
    dataset = PackedFrameDataset(folder, pipeline=pipeline, seed=0, training=True)
    names = [name for shard in open_shards(folder) for name in shard.directory.names]
    for name, record in zip(names, dataset.records):
        if Path(name).stem == clip.stem:
            dataset.records = [record]
            return dataset
    raise PaddleVideoFastError(f"{folder}: holds no video {clip.stem}")


def _ours(dataset: ClipDataset) -> Call:
    (record,) = dataset.records

    def read(rng: np.random.Generator, place: Optional[np.ndarray] = None) -> np.ndarray:
        with dataset.open(record) as reader:
            return dataset.pipeline(reader, record, [ClipRequest(0, 0)], [rng], [place])[0].pixels

    place = np.empty_like(read(np.random.default_rng(0)))  # of a batch
    return lambda rng: read(rng, place)


def _compare(calls: Dict[str, Call], rounds: int, seed: int) -> Dict[str, Dict[str, Any]]:
    for call in calls.values():
        call(np.random.default_rng(seed))  # warms up
    seconds: Dict[str, List[float]] = {kind: [] for kind in calls}
    for turn, kind in in_turn(calls, rounds):
        began = time.process_time()
        calls[kind](np.random.default_rng((seed, turn)))
        seconds[kind].append(time.process_time() - began)
    result = {}
    for kind, times in seconds.items():
        ratios = sorted(classic / own for classic, own in zip(seconds[CLASSIC], times))
        result[kind] = {
            "ms": statistics.median(times) * 1e3,
            "ratio": statistics.median(ratios),
            "spread": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
        }
    return result

"""CPU time from a file to a training clip, for every form of the data, against the classic path."""

import copy
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import cv2
import numpy as np
from PIL import Image

from benchmarks.measuring import Natural, Positive, compared, memory_mib, quartiles, ratios, time_in_turn
from paddlevideo_fast.command_line import count
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.loader import (
    ClipRequest,
    DecodeSampler,
    FrameDataset,
    Pipeline,
    Sampler,
    VideoDataset,
    VideoRecord,
)
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.loader.sampling import FrameSampler
from paddlevideo_fast.loader.transforms import ClipGeometry, Geometric, crop
from paddlevideo_fast.sources.packed.dataset import PackedFrameDataset
from paddlevideo_fast.sources.packed.packed import open_shards
from tests.support.isolated import map_isolated

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_JPEG_QUALITY = 90
_LIMIT_SEC = 300.0
CLASSIC = "classic"
# Raw videos the classic way and ours, prepared videos, JPEG files, and packed frames.
SOURCES = (CLASSIC, "video", "prepared", "jpeg", "packed")


class Recipe(NamedTuple):
    """How a training clip is made."""

    sample: FrameSampler
    steps: Sequence[Geometric]


# the training pipelines of configs/recognition/tsm and of SlowFast
RECIPES = {
    "tsm": Recipe(
        Sampler(num_seg=8, seg_len=1, select_left=True),
        [crop.MultiScaleCrop(224, allow_duplication=True), crop.RandomFlip()],
    ),
    "slowfast": Recipe(
        DecodeSampler(num_frames=32, sampling_rate=2),
        [crop.JitterScale(256, 320), crop.MultiCrop(224), crop.RandomFlip()],
    ),
}

Call = Callable[[np.random.Generator], Any]


def run(
    clips: Sequence[str],
    prepared: str | None = None,
    packed: str | None = None,
    recipe: Annotated[tuple[str, ...], RECIPES] = tuple(RECIPES),
    rounds: Positive = 15,
    seed: Natural = 0,
    clips_per_video: Sequence[Annotated[int, count(2)]] = (),
) -> dict[str, Any]:
    """Measures the CPU time of a clip over all threads; each round draws other frames and crops.

    Args:
        clips: video files.
        prepared: output folder of data/prepare_videos.py for the same videos.
        packed: output folder of data/pack_frames.py for exactly these videos.
        recipe: kinds of clips; by default, both.
        rounds: clips to measure of each kind from each file.
        seed: of frames and crops; all kinds draw the same ones.
        clips_per_video: how many clips are read from a raw video in one pass, each number a kind of its own.

    Returns:
        "rows": for each recipe and kind "ratio", the geometric mean over the files of the
        classic time over this one's, "bytes" that the kind takes on disk, and "clips": for each file "ms" a
        clip (the median), "ratio" (likewise) and "spread", the quartiles of the ratio over the rounds.
        With `clips_per_video`, "several": for each recipe and number, 1 included, "gain", the geometric mean
        over the files of the time for a clip alone over this one's, "gains", for each file the median and
        the quartiles over the rounds, and "mib", the memory that a process needs for reading.

    Raises:
        PaddleVideoFastError: decord is missing, or a prepared or packed video.
    """
    if importlib.util.find_spec("decord") is None:
        raise PaddleVideoFastError("the classic path needs decord: pip install decord")
    cv2.setNumThreads(0)  # as in a worker
    with tempfile.TemporaryDirectory() as folder:
        files, sizes = _files(clips, prepared, packed, Path(folder))
        rows, several = [], []
        for name in recipe:
            measured = [
                _compare(_calls(RECIPES[name], clip, files[clip], clips_per_video), rounds, seed)
                for clip in clips
            ]
            several += _several(name, clips, measured)
            for kind in [kind for kind in measured[0] if kind in SOURCES]:
                results = {
                    Path(clip).name: {key: of_clip[kind][key] for key in ("ms", "ratio", "spread")}
                    for clip, of_clip in zip(clips, measured)
                }
                ratio = statistics.geometric_mean(item["ratio"] for item in results.values())
                size = sizes["video" if kind == CLASSIC else kind]
                rows.append({"recipe": name, "kind": kind, "ratio": ratio, "bytes": size, "clips": results})
    return {"rows": rows, **({"several": several} if several else {})}


def _several(recipe: str, clips: Sequence[str], measured: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows for the kinds that read several clips of a raw video in one pass."""
    kinds = {"video": 1, **{kind: int(kind.split()[1]) for kind in measured[0] if kind not in SOURCES}}
    rows = []
    for kind, number in kinds.items() if len(kinds) > 1 else ():
        gains: dict[str, dict[str, Any]] = {}
        for clip, of_clip in zip(clips, measured):
            gained = [number * gain for gain in ratios(of_clip["video"]["each"], of_clip[kind]["each"])]
            gains[Path(clip).name] = {"median": statistics.median(gained), "spread": quartiles(gained)}
        (mib,) = map_isolated(_peak_mib, [(recipe, tuple(clips), number)], _LIMIT_SEC)
        gain = statistics.geometric_mean(item["median"] for item in gains.values())
        rows.append({"recipe": recipe, "number": number, "gain": gain, "gains": gains, "mib": mib})
    return rows


def _peak_mib(task: tuple[str, Sequence[str], int]) -> float:
    """Reads clips; the most memory that this process has had meanwhile, beyond what it had before."""
    recipe, clips, number = task
    cv2.setNumThreads(0)
    before = memory_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    for clip in clips:
        read = our_clip(RECIPES[recipe], clip, number)
        for seed in range(3):
            read(np.random.default_rng(seed))
    return memory_mib("VmHWM") - before


def _files(
    clips: Sequence[str], prepared: str | None, packed: str | None, folder: Path
) -> tuple[dict[str, dict[str, Path]], dict[str, int]]:
    """The files of each clip by kind, and the bytes of each kind. The JPEG frames are written here."""
    files: dict[str, dict[str, Path]] = {}
    for number, clip in enumerate(clips):
        files[clip] = {"video": Path(clip)}
        if prepared is not None:
            files[clip]["prepared"] = _same_stem(Path(prepared), Path(clip))
        files[clip]["jpeg"] = _write_frames(clip, folder / f"{number}")
        if packed is not None:
            files[clip]["packed"] = Path(packed)
    sizes: dict[str, int] = {}
    for kind in files[clips[0]]:
        paths = {of_clip[kind] for of_clip in files.values()}
        found = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))]
        sizes[kind] = sum(file.stat().st_size for file in found if file.is_file())
    return files, sizes


def _write_frames(clip: str, folder: Path) -> Path:
    folder.mkdir()
    with open_video(clip) as reader:
        for number, frame in enumerate(reader, start=1):
            file = str(folder / f"img_{number:05}.jpg")
            cv2.imwrite(file, frame[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    return folder


def _same_stem(folder: Path, clip: Path) -> Path:
    found = sorted(file for file in folder.rglob("*") if file.is_file() and file.stem == clip.stem)
    if len(found) != 1:
        raise PaddleVideoFastError(f"{folder}: has {len(found)} files named {clip.stem}.*, expected one")
    return found[0]


def _calls(recipe: Recipe, clip: str, files: dict[str, Path], several: Sequence[int]) -> dict[str, Call]:
    """Kind → a function that makes a clip with the random numbers of a generator; of a kind "video K", K."""
    calls: dict[str, Call] = {
        CLASSIC: lambda rng: classic_clip(clip, recipe.sample, recipe.steps, (_MEAN, _STD), rng)
    }
    for kind, file in files.items():
        if kind == "packed":
            calls[kind] = _ours(_packed_clip(file, Pipeline(*recipe), Path(clip)))
        else:
            calls[kind] = our_clip(recipe, str(file), cls=FrameDataset if kind == "jpeg" else VideoDataset)
    return {**calls, **{f"video {number}": our_clip(recipe, clip, number) for number in several}}


def our_clip(recipe: Recipe, clip: str, number: int = 1, cls: type[ClipDataset] = VideoDataset) -> Call:
    """A function that makes so many clips of a raw video in one pass."""
    records = [VideoRecord(clip, (0,))]
    return _ours(cls("", pipeline=Pipeline(*recipe), seed=0, training=True, records=records), number)


def _packed_clip(folder: Path, pipeline: Pipeline, clip: Path) -> ClipDataset:
    """The packed frames of the clip, and of nothing else."""
    dataset = PackedFrameDataset(str(folder), pipeline=pipeline, seed=0, training=True)
    names = [name for shard in open_shards(folder) for name in shard.directory.names]
    for name, record in zip(names, dataset.records):
        if Path(name).stem == clip.stem:
            dataset.records = [record]
            return dataset
    raise PaddleVideoFastError(f"{folder}: holds no video {clip.stem}")


def _ours(dataset: ClipDataset, number: int = 1) -> Call:
    """Makes so many clips in one pass; the first one draws what a clip alone draws."""
    (record,) = dataset.records
    requests = [ClipRequest(0, 0, view, number) for view in range(number)]

    def read(rng: np.random.Generator, outs: np.ndarray | None = None) -> list[np.ndarray]:
        seeds = copy.deepcopy(rng).integers(2**32, size=number - 1)
        rngs = [rng, *map(np.random.default_rng, seeds)]
        with dataset.open(record) as reader:
            made = dataset.pipeline(reader, record, requests, rngs, None if outs is None else list(outs))
            return [clip.pixels for clip in made]

    slots = np.stack(read(np.random.default_rng(0)))  # of a batch
    return lambda rng: read(rng, slots)


def _compare(calls: dict[str, Call], rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    for call in calls.values():
        call(np.random.default_rng(seed))  # warms up
    sides = {
        kind: lambda turn, call=call: call(np.random.default_rng((seed, turn)))
        for kind, call in calls.items()
    }
    seconds = time_in_turn(sides, rounds, clock=time.process_time)
    return {kind: {**row, "each": seconds[kind]} for kind, row in compared(seconds, CLASSIC).items()}


class PilFrames(ClipGeometry):
    """Runs each step on pixels at once, where `ClipGeometry` composes them.

    Args:
        images: the frames of a clip, of one size.
    """

    def __init__(self, images: Sequence[Image.Image]) -> None:
        super().__init__(*images[0].size)
        self.images = list(images)

    def resize(self, width: int, height: int) -> None:
        """See `ClipGeometry`."""
        super().resize(width, height)
        self.images = [image.resize((width, height), Image.Resampling.BILINEAR) for image in self.images]

    def split(self, places: Sequence[tuple[int, int, bool]], width: int, height: int) -> None:
        """See `ClipGeometry`; one place only."""
        ((left, top, _),) = places
        super().split(places, width, height)
        self.images = [image.crop((left, top, left + width, top + height)) for image in self.images]

    def flip(self) -> None:
        """See `ClipGeometry`."""
        super().flip()
        self.images = [image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for image in self.images]


def classic_clip(
    path: str,
    sample: FrameSampler,
    steps: Sequence[Geometric],
    normalization: tuple[Sequence[float], Sequence[float]],
    rng: np.random.Generator,
) -> np.ndarray:
    """One training clip on the classic path, as video toolkits have it: the baseline.

    decord with its default threads reads whole frames, PIL crops and resizes them one after the other, and
    the worker normalises to float32. Our samplers and transforms draw frames and geometry: both paths show
    the same.

    Args:
        path: of a video.
        sample: says which frames.
        steps: the geometry, in order.
        normalization: mean and standard deviation of the channels.
        rng: the only source of randomness.

    Returns:
        float32 [T, 3, H, W].
    """
    from decord import VideoReader

    reader = VideoReader(path)
    indices = sample.sample(len(reader), reader.get_avg_fps(), ClipRequest(0, 0), rng)
    frames = PilFrames([Image.fromarray(frame) for frame in reader.get_batch(indices.tolist()).asnumpy()])
    for step in steps:
        step.apply(frames, rng)
    clip: np.ndarray = np.stack([*map(np.asarray, frames.images)]).astype(np.float32) / np.float32(255)
    mean, std = (np.asarray(values, np.float32) for values in normalization)
    clip -= mean
    clip /= std
    return np.ascontiguousarray(clip.transpose(0, 3, 1, 2))

"""Times the reader alone: a clip stage by stage, and clips in another form."""

import copy
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from paddlevideo_fast.apps.data import packing
from paddlevideo_fast.apps.data.encoding import Settings
from paddlevideo_fast.apps.data.videos import Task
from paddlevideo_fast.apps.doctor.timing import Stopwatch
from paddlevideo_fast.errors import BadSampleShareError, PaddleVideoFastError, VideoDecodeError
from paddlevideo_fast.loader import ClipRequest
from paddlevideo_fast.loader.collate import make_batch
from paddlevideo_fast.loader.dataset import (
    ClipDataset,
    FrameDecoder,
    VideoDecoder,
)
from paddlevideo_fast.loader.transforms.resample import Resample
from paddlevideo_fast.sources.packed.dataset import PackedFrameDataset
from paddlevideo_fast.sources.packed.packed_format import PackSettings
from paddlevideo_fast.sources.sharded import ShardedDataset

_BATCH = 8
_NUM_CLIPS, _NUM_CANDIDATES, _NUM_READS = 3, 12, 24
_MAX_PIXELS = 400_000_000  # of all frames of the clips that are converted: about ten seconds of work
_READ_SEC = 3.0
_SHORT_SIDE_PX, _JPEG_QUALITY = 256, 90  # of `data prepare` and `data pack`


@dataclass
class ReadingCost:
    """Seconds that one process takes for a clip.

    Attributes:
        stages: "open", "decode", "resample", "augment" (transforms that change pixels), "other" (choosing
            frames and geometry, closing files), "collate".
        augment_steps: the part of "augment" that each transform takes, by class name.
        clip_shape: (T, H, W, 3).
    """

    stages: dict[str, float]
    augment_steps: dict[str, float]
    clip_shape: tuple[int, ...]

    @property
    def source_sec(self) -> float:
        """The stages that depend on how the clips are stored."""
        return sum(self.stages[name] for name in ("open", "decode", "resample"))

    @property
    def total_sec(self) -> float:
        """All stages."""
        return sum(self.stages.values())


def time_reading(
    dataset: ClipDataset, videos: Sequence[Sequence[ClipRequest]], budget_sec: float = 8.0
) -> ReadingCost:
    """Reads clips in this process on one thread, and times each stage.

    Args:
        dataset: makes the clips.
        videos: the clips of each video, which are read together; the first video is read twice, to warm up.
        budget_sec: no batch starts after so many seconds.

    Raises:
        BadSampleShareError: none of the clips decodes.
    """
    failures: list[tuple[str, str]] = []
    shape: tuple[int, ...] = ()
    num_clips, began = 0, time.perf_counter()
    with Stopwatch() as watch:
        watch.callback(cv2.setNumThreads, cv2.getNumThreads())
        cv2.setNumThreads(0)  # as it is in a worker
        _wrap(watch, dataset)
        failures += make_batch(dataset, videos[0]).failures
        watch.seconds.clear()
        num_videos = -(-_BATCH // len(videos[0]))
        for first in range(0, len(videos), num_videos):
            with watch.stage("collate"):
                batch = make_batch(dataset, list(chain(*videos[first : first + num_videos])))
            num_clips += len(batch)
            failures += batch.failures
            shape = batch.clips.shape[1:] if len(batch) else shape
            if num_clips and time.perf_counter() - began > budget_sec:
                break
    if not num_clips:
        path, cause = failures[0]
        raise BadSampleShareError(f"no clip of {dataset.file_path} decodes; {path}: {cause}")
    costs = {name: sec / num_clips for name, sec in watch.seconds.items()}
    augment = {name.split()[1]: sec for name, sec in costs.items() if name.startswith("augment ")}
    names = ("open", "decode", "resample", "augment", "other", "collate")
    stages = {name: costs.get(name, 0.0) for name in names}
    stages["augment"] = sum(augment.values())
    return ReadingCost(stages, augment, shape)


def _wrap(watch: Stopwatch, dataset: ClipDataset) -> None:
    opened, cut = watch.timed("open", dataset.open), dataset.part

    def part_timed(reader: Any, *of_record: Any) -> Any:
        part = cut(reader, *of_record)
        return part if part is reader else timed(part)

    def timed(reader: Any) -> Any:
        reader.frames = watch.timed_steps("decode", reader.frames)
        return reader

    watch.wrap(dataset, "load", "other")  # what is left of it when the stages inside are taken out
    watch.replace(dataset, "open", lambda record: timed(opened(record)))
    watch.replace(dataset, "part", part_timed)
    watch.wrap(Resample, "draw", "resample")
    for step in dataset.pipeline.pixelwise:
        watch.wrap(step, "apply", f"augment {type(step).__name__}")


@dataclass(frozen=True)
class Form:
    """A form in which clips can be stored or decoded.

    Attributes:
        name: for the report.
        how: what the user does for all clips.
        convert: makes the clips of a small dataset in this form, in an empty folder; returns their dataset.
    """

    name: str
    how: str
    convert: Callable[[ClipDataset, Path], ClipDataset]


class TrialError(PaddleVideoFastError):
    """A form could not be tried; the message says why."""


def other_forms(dataset: ClipDataset, batch_size: int) -> list[Form]:
    """The forms that a dataset's clips could take and do not have yet.

    Args:
        dataset: reads video files or folders of images; for any other there is no other form.
        batch_size: clips in a batch.
    """
    decode = dataset.decoder
    forms: list[Form] = []
    if isinstance(dataset, ShardedDataset):
        return forms
    if getattr(decode, "reader", "pyav") in ("cv2", "decord"):
        with_pyav = partial(_in_place, decoder=VideoDecoder("pyav"))
        forms.append(Form("another decoder", "backend: pyav under PIPELINE.train.decode", with_pyav))
    if isinstance(decode, VideoDecoder):
        several = [count for count in (4, 2) if count > dataset.clips_per_video and not batch_size % count]
        for count in several[:1]:
            how = f"-o DATASET.train.clips_per_video={count}; a step sees fewer different videos"
            forms.append(
                Form(f"{count} clips from one decode", how, partial(_in_place, clips_per_video=count))
            )
        how = f"paddlevideo-fast data prepare --preset {_preset(dataset)}"
        forms.append(Form("prepared videos", how, _prepared))
    if isinstance(decode, (VideoDecoder, FrameDecoder)):
        how = "paddlevideo-fast data pack, then format: PackedFrameDataset"
        forms.append(Form("packed frames", how, _packed))
    return forms


def share_of_cost(dataset: ClipDataset, form: Form) -> float:
    """The cost of opening, decoding and resampling a clip in another form, as a share of the cost now.

    The same frames of the same few clips are read in both forms.

    Raises:
        PaddleVideoFastError: the clips are too long to try it, or cannot be converted.
    """
    few = _few_clips(dataset)
    with tempfile.TemporaryDirectory() as folder:
        other = form.convert(few, Path(folder))
        if len(other) != len(few):
            raise TrialError(f"{len(few) - len(other)} of {len(few)} clips could not be converted")
        before, after = (_clip_sec(each) for each in (few, other))
    return after / before


def _clip_sec(dataset: ClipDataset) -> float:
    count = dataset.clips_per_video
    videos = [
        [ClipRequest(place % len(dataset), place // len(dataset), clip, count) for clip in range(count)]
        for place in range(_NUM_READS)
    ]
    return time_reading(dataset, videos, _READ_SEC).source_sec


def _few_clips(dataset: ClipDataset) -> ClipDataset:
    """The dataset with a few of its records: the shortest of some that are drawn."""
    chosen = np.random.default_rng(0).permutation(len(dataset))[:_NUM_CANDIDATES]
    sizes: list[tuple[int, int]] = []
    for number in chosen.tolist():
        try:
            record = dataset.records[number]
            with dataset.open(record) as whole:
                reader = dataset.part(whole, record)
                sizes.append((reader.num_frames * reader.width * reader.height, number))
        except VideoDecodeError:
            continue  # the run itself names such files
    kept, total_px = [], 0
    for pixels, number in sorted(sizes)[:_NUM_CLIPS]:
        total_px += pixels
        if total_px <= _MAX_PIXELS:
            kept.append(dataset.records[number])
    if not kept:
        raise TrialError("the clips are too long to convert one now")
    return _changed(dataset, records=kept)


def _changed(dataset: ClipDataset, **attributes: Any) -> ClipDataset:
    """A copy with other values of some attributes."""
    other = copy.copy(dataset)
    vars(other).update(attributes)
    return other


def _in_place(few: ClipDataset, folder: Path, **attributes: Any) -> ClipDataset:
    """Other ways to read the same files."""
    return _changed(few, **attributes)


def _preset(dataset: ClipDataset) -> str:
    """The preset of `paddlevideo-fast data prepare` for the distance between the sampler's frames."""
    indices = dataset.pipeline.sample.sample(300, 25.0, ClipRequest(0, epoch=0), np.random.default_rng(0))
    return "dense" if len(indices) > 1 and np.median(np.abs(np.diff(indices))) <= 4 else "sparse"


def _prepared(few: ClipDataset, folder: Path) -> ClipDataset:
    settings = Settings(_preset(few), _SHORT_SIDE_PX)
    kept = []
    for number, record in enumerate(few.records):
        if not Task(record.path, str(folder), f"{number}.mp4", settings).do().cause:
            # a box is about the larger pictures; whole ones will do, as only reading is timed
            draw_part = None if record.more else record.draw_part
            kept.append(replace(record, path=str(folder / f"{number}.mp4"), draw_part=draw_part))
    return _changed(few, records=kept)


def _packed(few: ClipDataset, folder: Path) -> ClipDataset:
    sources = []
    for number, record in enumerate(few.records):
        label = next(iter(record.labels), 0)  # one will do, as only reading is timed
        source = packing.Source(f"{number}", record.path, label, record.num_frames, record.frames_suffix)
        sources.append(source)
    settings = PackSettings(0, 1, _SHORT_SIDE_PX, _JPEG_QUALITY, bytes(16))
    packing.Task(str(folder), settings, sources).do()
    return PackedFrameDataset(str(folder), pipeline=few.pipeline, seed=few.seed, training=few.training)

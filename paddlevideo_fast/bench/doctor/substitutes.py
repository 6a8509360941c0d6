"""The same clips as prepared videos or packed frames, tried on a few of them by the tools that make these."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, List, Sequence, Tuple

import numpy as np

from paddlevideo_fast.bench.doctor.reading import time_reading
from paddlevideo_fast.decode import VideoReader
from paddlevideo_fast.errors import PaddleVideoFastError, VideoDecodeError
from paddlevideo_fast.loader import ClipRequest, VideoRecord
from paddlevideo_fast.loader.annotations import read_video_list
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.loader.decoders import FrameDecoder, VideoDecoder
from paddlevideo_fast.loader.packed_dataset import PackedFrameDataset

_NUM_CLIPS, _NUM_CANDIDATES, _NUM_READS = 3, 12, 24
_MAX_PIXELS = 400_000_000  # of all frames of the clips that are converted: about ten seconds of work
_TOOL_SEC, _READ_SEC = 30, 3.0


@dataclass(frozen=True)
class Source:
    """A form that clips can be read from.

    Attributes:
        name: of it.
        how: what to type for all clips.
        convert: a dataset of a few clips and an empty folder to the same clips in this form.
    """

    name: str
    how: str
    convert: Callable[[ClipDataset, Path], ClipDataset]


class TrialError(PaddleVideoFastError):
    """A form that could not be tried, and why."""


def of(dataset: ClipDataset, tools: Path) -> List[Source]:
    """The forms that a dataset's clips could take and do not have yet.

    Args:
        dataset: reads video files or folders of images; for any other there is no other form.
        tools: the folder `data` of the repository.
    """
    decode, sources = dataset.pipeline.decode, []
    if getattr(decode, "backend", "pyav") in ("cv2", "decord"):
        sources.append(Source("another decoder", "backend: pyav under PIPELINE.train.decode", _with_pyav))
    if isinstance(decode, VideoDecoder):
        preset = _preset(dataset)
        sources.append(
            Source(
                "prepared videos",
                f"data/prepare_videos.py --preset {preset}",
                lambda few, folder: _prepared(few, folder, tools, preset),
            )
        )
    if isinstance(decode, (VideoDecoder, FrameDecoder)):
        how = "data/pack_frames.py, then format: PackedFrameDataset"
        sources.append(Source("packed frames", how, lambda few, folder: _packed(few, folder, tools)))
    return sources


def share_of_cost(dataset: ClipDataset, source: Source) -> float:
    """What opening, decoding and resampling a clip in another form costs, as a share of what it costs now.

    The same frames of the same few clips are read in both forms.

    Raises:
        PaddleVideoFastError: the clips are too long to try it, or the tool fails.
    """
    few = _few_clips(dataset)
    with tempfile.TemporaryDirectory() as folder:
        other = source.convert(few, Path(folder))
        if len(other) != len(few):
            raise TrialError(f"{len(few) - len(other)} of {len(few)} clips could not be converted")
        before, after = (_clip_sec(each) for each in (few, other))
    return after / before


def _clip_sec(dataset: ClipDataset) -> float:
    places = range(_NUM_READS + 1)
    requests = [ClipRequest(place % len(dataset), epoch=place // len(dataset)) for place in places]
    return time_reading(dataset, requests, _READ_SEC).source_sec


def _few_clips(dataset: ClipDataset) -> ClipDataset:
    """The dataset with a few of its records, the shortest of some that are drawn."""
    chosen = np.random.default_rng(0).permutation(len(dataset))[:_NUM_CANDIDATES]
    sizes: List[Tuple[int, int]] = []
    for number in chosen.tolist():
        try:
            with dataset.pipeline.decode.open(dataset.records[number]) as reader:
                sizes.append((_pixels(reader), number))
        except VideoDecodeError:
            continue  # the run itself names such files
    sizes.sort()
    kept, total = [], 0
    for pixels, number in sizes[:_NUM_CLIPS]:
        total += pixels
        if total <= _MAX_PIXELS:
            kept.append(dataset.records[number])
    if not kept:
        raise TrialError("the clips are too long to convert one now; see --estimate of the tool")
    return with_records(dataset, kept)


def _pixels(reader: VideoReader) -> int:
    return reader.num_frames * reader.width * reader.height


def with_records(dataset: ClipDataset, records: Sequence[VideoRecord]) -> ClipDataset:
    """A copy with other records and a pipeline of its own."""
    other = copy.copy(dataset)
    other.records, other.pipeline = list(records), copy.copy(dataset.pipeline)
    return other


def _preset(dataset: ClipDataset) -> str:
    """The preset for how the sampler spreads its frames."""
    indices = dataset.pipeline.sample.sample(300, 25.0, ClipRequest(0, epoch=0), np.random.default_rng(0))
    return "dense" if len(indices) > 1 and np.median(np.abs(np.diff(indices))) <= 4 else "sparse"


def _with_pyav(few: ClipDataset, folder: Path) -> ClipDataset:
    other = with_records(few, few.records)
    other.pipeline.decode = VideoDecoder("pyav")
    return other


def _prepared(few: ClipDataset, folder: Path, tools: Path, preset: str) -> ClipDataset:
    listed = _linked(few, folder)
    _run(tools / "prepare_videos.py", "--list", listed, "--data_prefix", folder / "in", "--output",
         folder / "out", "--preset", preset, "--workers", 1)  # fmt: skip
    return with_records(few, read_video_list(str(folder / "out" / listed.name), str(folder / "out")))


def _packed(few: ClipDataset, folder: Path, tools: Path) -> ClipDataset:
    listed, kind = _linked(few, folder), ["--kind", "video"]
    if isinstance(few.pipeline.decode, FrameDecoder):
        kind = ["--kind", "frames", "--suffix", few.records[0].frames_suffix or "img_{:05}.jpg"]
    _run(tools / "pack_frames.py", "--list", listed, "--data_prefix", folder / "in", "--output",
         folder / "out", "--workers", 1, *kind)  # fmt: skip
    return PackedFrameDataset(str(folder / "out"), copy.copy(few.pipeline), few.seed, few.training)


def _linked(few: ClipDataset, folder: Path) -> Path:
    """A list of the clips under plain names in a folder of links, so that any path will do."""
    (folder / "in").mkdir()
    lines = []
    for number, record in enumerate(few.records):
        name = f"{number}{Path(record.path).suffix}"
        os.symlink(os.path.abspath(record.path), folder / "in" / name)
        count = f"{record.num_frames} " if record.num_frames else ""
        lines.append(f"{name} {count}{record.label}\n")
    listed = folder / "few.list"
    listed.write_text("".join(lines))
    return listed


def _run(script: Path, *arguments: Any) -> None:
    if not script.is_file():
        raise TrialError(f"{script} is not there; run the doctor from a clone of the repository")
    command = [sys.executable, str(script), *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_SEC)
    except subprocess.TimeoutExpired:
        raise TrialError(f"{script.name} took more than {_TOOL_SEC} s for {_NUM_CLIPS} clips") from None
    if done.returncode:
        raise TrialError(f"{script.name} failed: {(done.stderr.strip() or done.stdout.strip())[-300:]}")

"""Batches a second of our loader with uint8 against Paddle's loader with float32."""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import paddle

from benchmarks.measuring import (
    Natural,
    Positive,
    children_sec,
    compared_rates,
    in_turn,
    ratios,
    tsm_pipeline,
    write_clips,
    write_list,
)
from paddlevideo_fast.command_line import count
from paddlevideo_fast.errors import BadSampleShareError
from paddlevideo_fast.loader import (
    ClipBatchSampler,
    ClipLoader,
    ClipRequest,
    Sample,
    VideoRecord,
    build_dataset,
)
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.modeling import Preprocess

MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(1, 3, 1, 1)
STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(1, 3, 1, 1)
WORKERS = (0, 1, 2, 4)


def run(
    clips: Sequence[Path] = (),
    workers: Sequence[Natural] = WORKERS,
    batch_size: Positive = 8,
    batches: Annotated[int, count(2)] = 12,
    rounds: Positive = 5,
) -> dict[str, Any]:
    """Reads epochs of the same clips with the same transforms on all sides in turn.

    The sides: "float32" normalises in the worker and sends CHW float32 through `paddle.io.DataLoader`;
    "uint8 paddle" sends our clips the same way; "uint8" is our loader, and "uint8 + norm" our loader with the
    normalisation that a run on a CPU does in the training process. On "made" batches the workers have the
    clip already: what is left is stacking, transport and, for float32, normalisation.

    Args:
        clips: videos to read; by default, generated ones.
        workers: numbers of workers.
        batch_size: clips of 8 x 224 x 224.
        batches: in a round.
        rounds: of each side.

    Returns:
        "clips" and "rows": one a source ("read" or "made"),
        number of workers and side. A row has medians: "batches_per_sec" once all workers are at work, with
        "spread", its lowest and highest; "cpu_ms" a batch, of all processes; "ratio" and "cpu_ratio", how
        many times more batches than float32 in the same time and in the same CPU time, of neighbouring
        rounds.

    Raises:
        BadSampleShareError: the first clip does not decode.
    """
    with tempfile.TemporaryDirectory() as folder:
        clips = clips or write_clips(Path(folder))
        dataset = _dataset(clips, batches * batch_size, Path(folder))
        sample = dataset[ClipRequest(0, epoch=0)]
        if sample.clip is None:
            raise BadSampleShareError(f"{sample.incidents[0].path}: {sample.incidents[0].cause}")
        rows = [
            {"source": source, "workers": num_workers, **row}
            for source, data in (("read", dataset), ("made", _Made(sample, len(dataset))))
            for num_workers in workers
            for row in _compare(data, batch_size, num_workers, rounds)
        ]
    return {"clips": [clip.name for clip in clips], "rows": rows}


def _dataset(clips: Sequence[Path], size: int, folder: Path) -> ClipDataset:
    listed = write_list(folder, [clips[at % len(clips)] for at in range(size)])
    section = {"format": "VideoDataset", "file_path": str(listed)}
    return build_dataset(section, tsm_pipeline(224), training=True, seed=0)


def _compare(dataset: Any, batch_size: int, num_workers: int, rounds: int) -> list[dict[str, Any]]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SIDES}
    for _, name in in_turn(SIDES, rounds):
        found[name].append(_time_epoch(SIDES[name](dataset, batch_size, num_workers), num_workers))
    costs = {name: [each["cpu_ms"] for each in results] for name, results in found.items()}
    return [
        {**row, "cpu_ratio": statistics.median(ratios(costs["float32"], costs[row["side"]]))}
        for row in compared_rates(found, "batches_per_sec", "float32")
    ]


def _time_epoch(side: "_Side", num_workers: int) -> dict[str, float]:
    cpu_began = time.process_time() + children_sec()
    arrivals = [time.perf_counter() for _ in side.epoch()]
    for _ in side.epoch():
        pass
    side.close()
    all_working = min(max(num_workers, 1), len(arrivals) - 1)
    return {
        "batches_per_sec": (len(arrivals) - all_working) / (arrivals[-1] - arrivals[all_working - 1]),
        "cpu_ms": (time.process_time() + children_sec() - cpu_began) / (2 * len(arrivals)) * 1e3,
    }


class _Made:
    """A data set that returns one clip, decoded beforehand."""

    is_remote = False

    def __init__(self, sample: Sample, size: int) -> None:
        self.sample = sample
        self.records = [VideoRecord("a clip that is made already", (0,))] * size

    def __len__(self) -> int:
        return len(self.records)

    def load(self, requests: Sequence[ClipRequest], outs: Any = None) -> list[Sample]:
        return [self.sample] * len(requests)


class _Classic:
    """A map-style data set that returns clip and label, as PaddleVideo's do."""

    def __init__(self, dataset: Any, normalise: bool) -> None:
        self.dataset = dataset
        self.normalise = normalise

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        (sample,) = self.dataset.load([ClipRequest(index, epoch=0)])
        clip = sample.clip
        if self.normalise:  # Image2Array and Normalization as they are there
            clip = clip.astype(np.float32).transpose(0, 3, 1, 2) / 255.0
            clip -= MEAN
            clip /= STD
        return clip, np.array([sample.label], np.int64)


class _Side(NamedTuple):
    """What begins an epoch, and what ends the workers."""

    epoch: Callable[[], Iterator[Any]]
    close: Callable[[], None]


def _paddle_side(dataset: Any, batch_size: int, num_workers: int, normalise: bool) -> _Side:
    """`paddle.io.DataLoader` as PaddleVideo sets it up; each epoch starts new workers, and ends them."""
    how: dict[str, Any] = {"batch_size": batch_size, "num_workers": num_workers, "return_list": True}
    loader = paddle.io.DataLoader(_Classic(dataset, normalise), places=paddle.CPUPlace(), **how)
    return _Side(lambda: iter(loader), lambda: None)


def _our_side(
    dataset: Any, batch_size: int, num_workers: int, consume: Callable[[Any], Any] | None = None
) -> _Side:
    sampler = ClipBatchSampler(len(dataset), batch_size, shuffle=False, drop_last=False, seed=0)
    loader = ClipLoader(dataset, sampler, num_workers)

    def epoch() -> Iterator[Any]:
        return (batch if consume is None else consume(batch.clips) for batch in loader.epoch(0))

    return _Side(epoch, loader.close)


SIDES: dict[str, Callable[[Any, int, int], _Side]] = {
    "float32": partial(_paddle_side, normalise=True),
    "uint8 paddle": partial(_paddle_side, normalise=False),
    "uint8": _our_side,
    "uint8 + norm": partial(_our_side, consume=Preprocess().in_numpy),
}

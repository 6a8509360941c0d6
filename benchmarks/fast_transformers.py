"""Training of a ViT on a CPU, plain, with run-length tokens, multigrid and both: time, tokens, top-1.

A small VideoMAE ViT trains on decoded clips in memory: from nothing, and from a network that has learned
other clips. All sides go through the same clips, an epoch of each side in turn, in one process. The multigrid
sides take the phases that the toolkit's schedule gives. Time is the CPU time of training steps.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import paddle

from benchmarks.measuring import Natural, Positive, compared, ratios, time_in_turn
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.modeling import Preprocess, build_model
from paddlevideo_fast.schedule import Baseline, Phase, cosine, linear_warmup, multigrid_schedule, plain_phases

SIDES = {  # whether tokens that repeat are left out, whether there is multigrid
    "plain": (False, False),
    "RLT": (True, False),
    "multigrid": (False, True),
    "both": (True, True),
}
_RUN_LENGTH = {"framework": "RunLengthRecognizer", "threshold": 0.1}
_LONG_CYCLE = [(0.5, 5 / 7), (1.0, 5 / 7), (1.0, 1.0)]  # as in vit_motion_56_multigrid.yaml
_FINISH = 0.3
_SPAN = 16  # frames of a video from which a clip is taken
_WARM_UP = 0.1  # of the epochs
_RATE = 1e-3
_CHANNELS = 96
_NUM_VALIDATED = 3  # epochs at the end after which there is a validation


class Shape(NamedTuple):
    """Clips of a network: frames, side of the videos, of the crops and of a patch, clips of a batch."""

    frames: int
    side: int
    crop: int
    patch: int
    batch: int

    @property
    def tokens(self) -> int:
        """Of a clip."""
        return self.frames // 2 * (self.crop // self.patch) ** 2


LEARNED = Shape(8, 64, 56, 8, 16)  # small enough to train on a CPU
TIMED = (Shape(16, 64, 56, 8, 8), Shape(16, 112, 112, 8, 2))


@dataclass(frozen=True)
class _Clips:
    """Videos of one size and their labels.

    Args:
        videos: uint8 [videos, frames, side, side, 3].
        labels: int64 [videos].
    """

    videos: np.ndarray
    labels: np.ndarray

    def batches(
        self, shape: Shape, rng: np.random.Generator | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Each video once, in random order with random crops; without `rng` in order, with middle crops."""
        videos = self.videos[:, :: _SPAN // shape.frames]
        room = shape.side - shape.crop
        order = np.arange(len(videos)) if rng is None else rng.permutation(len(videos))
        for chosen in np.array_split(order, max(round(len(order) / shape.batch), 1)):
            corners = np.full((len(chosen), 2), room // 2)
            if rng is not None:
                corners = rng.integers(room + 1, size=corners.shape)
            clips = [
                _resized(videos[number], shape.side)[:, top : top + shape.crop, left : left + shape.crop]
                for number, (top, left) in zip(chosen, corners)
            ]
            yield np.stack(clips), self.labels[chosen]

    @property
    def num_classes(self) -> int:
        """Of the labels."""
        return int(self.labels.max()) + 1


class _Set(NamedTuple):
    train: _Clips
    valid: _Clips


def run(
    folder: Sequence[Path],
    *,
    source: Path,
    epochs: Sequence[Natural] = (10, 16),
    tuned_epochs: Sequence[Natural] = (5, 8),
    source_epochs: Positive = 6,
    seeds: Positive = 3,
    rounds: Positive = 10,
) -> dict[str, Any]:
    """Trains all sides on each set, and times steps on larger clips.

    Args:
        folder: sets of square clips of 16 frames or more: train.list and valid.list beside them, as
            `paddlevideo-fast data motion` and the benchmark cut_clips write them.
        source: a set from whose network fine-tuning starts.
        epochs: of training from nothing, for each set; 0: none.
        tuned_epochs: of fine-tuning, for each set; 0: none.
        source_epochs: of training on `source`, with RLT, with which motions are learned in fewer steps.
        seeds: trainings of each side.
        rounds: timed steps on larger clips.

    Returns:
        "trained": for each set, from nothing and fine-tuned, by side, lists over the seeds: "sec", the CPU
        time of all steps; "tokens", those that the blocks computed, in millions; "top1" on the held-out
        clips, the mean over the last three epochs; and "ratio" and "token_ratio", medians over the seeds of
        what the side took of the time and of the tokens of the plain one, and "mean_top1".
        "timed": for each set and number of tokens "step_ms" of plain and RLT, medians of the CPU time of
        a step; "ratio": the median of the plain step over the other, of the same batch; "tokens": the share
        that stays.
    """
    sets = {path.name: _load(path, LEARNED.side) for path in folder}
    learned = _load(source, LEARNED.side)
    first = _Run(learned, 0, plain_phases(source_epochs), run_length=True)
    for epoch in range(source_epochs):
        first.train(epoch)
    trained = {}
    for (name, clips), plain_epochs, tuned in zip(sets.items(), epochs, tuned_epochs, strict=True):
        for start, length, weights in (
            ("from nothing", plain_epochs, {}),
            ("fine-tuned", tuned, first.model.backbone.state_dict()),
        ):
            if length:
                trained[f"{name}, {start}"] = _trained(clips, length, seeds, weights)
    timed = {
        f"{path.name}, {shape.tokens} tokens": _timed(_load(path, shape.side, 64).train, shape, rounds)
        for path in folder
        for shape in TIMED
        if shape.side <= _side(path)
    }
    return {"source_top1": first.top1(), "trained": trained, "timed": timed}


def _load(folder: Path, side: int, num_clips: int | None = None) -> _Set:
    parts = []
    for name in ("train", "valid"):
        lines = (folder / f"{name}.list").read_text(encoding="utf-8").splitlines()[:num_clips]
        paths, labels = zip(*(line.rsplit(maxsplit=1) for line in lines))
        videos = np.stack([_frames(folder / path, side) for path in paths])
        parts.append(_Clips(videos, np.array(labels, int)))
    return _Set(*parts)


def _frames(path: Path, side: int) -> np.ndarray:
    with open_video(str(path)) as video:
        return _resized(np.stack([frame for frame, _ in zip(video, range(_SPAN))]), side)


def _side(folder: Path) -> int:
    """The width of the videos of a set in pixels."""
    first = (folder / "train.list").read_text(encoding="utf-8").split(maxsplit=1)[0]
    with open_video(str(folder / first)) as video:
        return int(next(iter(video)).shape[1])


def _resized(frames: np.ndarray, side: int) -> np.ndarray:
    if frames.shape[1] == side:
        return frames
    return np.stack([cv2.resize(frame, (side, side), interpolation=cv2.INTER_AREA) for frame in frames])


def _trained(clips: _Set, epochs: int, seeds: int, weights: Mapping[str, Any]) -> dict[str, Any]:
    full = Baseline(epochs, (0,), LEARNED.frames, LEARNED.crop, 1)
    multigrid = multigrid_schedule(full, _LONG_CYCLE, (), 1, "none", _FINISH).phases
    rows: dict[str, Any] = {side: {"sec": [], "tokens": [], "top1": []} for side in SIDES}
    for seed in range(seeds):
        runs = {
            side: _Run(clips, seed, multigrid if has_multigrid else plain_phases(epochs), run_length, weights)
            for side, (run_length, has_multigrid) in SIDES.items()
        }
        top1: dict[str, list[float]] = {side: [] for side in SIDES}
        for epoch in range(epochs):
            for side, one in runs.items():
                one.train(epoch)
                if epoch >= epochs - _NUM_VALIDATED:
                    top1[side].append(one.top1())
        for side, one in runs.items():
            rows[side]["sec"].append(one.sec)
            rows[side]["tokens"].append(one.num_tokens / 1e6)
            rows[side]["top1"].append(statistics.mean(top1[side]))
    for row in rows.values():
        row["ratio"] = statistics.median(ratios(row["sec"], rows["plain"]["sec"]))
        row["token_ratio"] = statistics.median(ratios(row["tokens"], rows["plain"]["tokens"]))
        row["mean_top1"] = statistics.mean(row["top1"])
    return rows


class _Run:
    """A training of one side.

    Args:
        clips: its set.
        seed: of the first weights and of the order of clips.
        phases: of the run, from epoch 0 to its end.
        run_length: leave tokens out that repeat.
        weights: of the backbone; none: first weights.
    """

    def __init__(
        self,
        clips: _Set,
        seed: int,
        phases: Sequence[Phase],
        run_length: bool,
        weights: Mapping[str, Any] | None = None,
    ) -> None:
        self.clips, self.phases = clips, phases
        self.model = _model(clips.train.num_classes, seed, LEARNED.patch, run_length)
        self.model.backbone.set_state_dict(dict(weights or {}))
        self.optimizer = _optimizer(self.model)
        self.rng = np.random.default_rng(seed)
        self.sec, self.num_tokens = 0.0, 0.0

    def train(self, epoch: int) -> None:
        """Trains an epoch; its time and its tokens count."""
        (phase,) = (each for each in self.phases if each.start_epoch <= epoch < each.end_epoch)
        shape = _shape_of(phase)
        self.model.train()
        num_steps = round(len(self.clips.train.labels) / shape.batch)
        batches = self.clips.train.batches(shape, self.rng)
        for step, (pixels, labels) in enumerate(batches):
            self.optimizer.set_lr(_rate(epoch + step / num_steps, self.phases[-1].end_epoch))
            self.num_tokens += len(labels) * shape.tokens * _share_of_tokens(self.model, pixels)
            self.sec += _step(self.model, self.optimizer, pixels, labels)

    def top1(self) -> float:
        """On the held-out clips, at their full shape."""
        self.model.eval()
        with paddle.no_grad():
            hits = [
                self.model(_preprocess(pixels)).numpy().argmax(1) == labels
                for pixels, labels in self.clips.valid.batches(LEARNED)
            ]
        return float(np.concatenate(hits).mean())


def _shape_of(phase: Phase) -> Shape:
    """The clips of a phase; videos are resized as much as their crops are."""
    crop = phase.crop_size or LEARNED.crop
    return LEARNED._replace(
        frames=phase.num_frames or LEARNED.frames,
        side=round(LEARNED.side * crop / LEARNED.crop),
        crop=crop,
        batch=LEARNED.batch * phase.batch_multiplier,
    )


def _rate(epoch: float, num_epochs: int) -> float:
    warm_up = _WARM_UP * num_epochs
    return linear_warmup(epoch, 0.0, _RATE, warm_up) if epoch < warm_up else cosine(epoch, _RATE, num_epochs)


def _timed(clips: _Clips, shape: Shape, rounds: int) -> dict[str, Any]:
    models = {side: _model(clips.num_classes, 0, shape.patch, side == "RLT") for side in ("plain", "RLT")}
    batches = [*islice(clips.batches(shape, np.random.default_rng(0)), rounds + 1)]
    steps = {side: partial(_step, model, _optimizer(model)) for side, model in models.items()}
    sides = {side: lambda turn, step=step: step(*batches[turn]) for side, step in steps.items()}
    rows = compared(time_in_turn(sides, len(batches) - 1, warmup=1, clock=time.process_time), "plain")
    return {
        "step_ms": {side: row["ms"] for side, row in rows.items()},
        "ratio": rows["RLT"]["ratio"],
        "tokens": statistics.mean(_share_of_tokens(models["RLT"], pixels) for pixels, _ in batches),
    }


_preprocess = Preprocess(layout="NCTHW")


def _model(num_classes: int, seed: int, patch: int, run_length: bool) -> Any:
    paddle.seed(seed)
    sizes = {"embed_dim": _CHANNELS, "depth": 4, "num_heads": 4, "patch_size": patch}
    backbone = {"name": "VideoMAEViT", **sizes}
    head = {"name": "VideoMAEHead", "num_classes": num_classes, "in_channels": _CHANNELS, "std": 0.02}
    network = {"framework": "RecognizerTransformer", "first_weights": "xavier"}
    changes = _RUN_LENGTH if run_length else {}
    return build_model({**network, "backbone": backbone, "head": head, **changes})


def _optimizer(model: Any) -> paddle.optimizer.Optimizer:
    clip = paddle.nn.ClipGradByGlobalNorm(1.0)
    return paddle.optimizer.AdamW(_RATE, parameters=model.parameters(), weight_decay=0.05, grad_clip=clip)


def _step(model: Any, optimizer: paddle.optimizer.Optimizer, pixels: np.ndarray, labels: np.ndarray) -> float:
    """Takes a step and returns its CPU time in seconds."""
    began = time.process_time()
    loss = model.loss(model(_preprocess(pixels)), paddle.to_tensor(labels))
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    return time.process_time() - began


def _share_of_tokens(model: Any, pixels: np.ndarray) -> float:
    if not hasattr(model, "packing"):
        return 1.0
    return float(model.packing(_preprocess(pixels)).stays.astype("float32").mean())

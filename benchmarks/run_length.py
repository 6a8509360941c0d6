"""Training with and without run-length tokens (RLT) on a CPU: CPU time of a step, tokens, top-1.

A small VideoMAE ViT trains from nothing, on the clips of `paddlevideo-fast data motion`, and on windows of
real videos. There the classes are the halves of each video, and the held-out windows come from the last part
of each half. Both sides take the same batches from the same first weights, in turn, in one process.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import paddle

from benchmarks.measuring import Positive
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.modeling import Preprocess, build_model

SIDES: Mapping[str, Mapping[str, Any]] = {  # what differs in MODEL
    "plain": {},
    "RLT": {"framework": "RunLengthRecognizer", "threshold": 0.1},
}
_SPAN = 16  # frames of the video
_HELD_OUT = 0.3  # the last part of each half of a video
_WARM_UP = 0.1  # of the steps
_RATE = 1e-3


class Shape(NamedTuple):
    """Clips of a network: frames, side of the frames, of the crops and of a patch, clips of a batch."""

    frames: int
    side: int
    crop: int
    patch: int
    batch: int

    @property
    def tokens(self) -> int:
        """Of a clip."""
        return self.frames // 2 * (self.crop // self.patch) ** 2


LEARNED = Shape(8, 32, 28, 7, 16)  # small enough to train on a CPU
TIMED = (Shape(16, 64, 56, 8, 8), Shape(16, 128, 112, 8, 2))


@dataclass(frozen=True)
class _Clips:
    """Decoded frames and which of them are a clip.

    Args:
        frames: uint8 [frames, side, side, 3].
        train, valid: the first frame and the label of each clip.
        shape: of the clips.
    """

    frames: np.ndarray
    train: Sequence[tuple[int, int]]
    valid: Sequence[tuple[int, int]]
    shape: Shape

    @property
    def num_classes(self) -> int:
        return 1 + max(label for _, label in self.train)

    def batches(self, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Random clips with random crops, for ever."""
        size, room = self.shape.batch, self.shape.side - self.shape.crop + 1
        while True:
            chosen = [self.train[number] for number in rng.integers(len(self.train), size=size)]
            corners = rng.integers(room, size=(size, 2))
            clips = [self._clip(first, *corner) for (first, _), corner in zip(chosen, corners)]
            yield np.stack(clips), np.array([label for _, label in chosen])

    def held_out(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All held-out clips with the crop in the middle."""
        size, middle = self.shape.batch, (self.shape.side - self.shape.crop) // 2
        for start in range(0, len(self.valid), size):
            part = self.valid[start : start + size]
            clips = np.stack([self._clip(first, middle, middle) for first, _ in part])
            yield clips, np.array([label for _, label in part])

    def _clip(self, first: int, top: int, left: int) -> np.ndarray:
        crop, step = self.shape.crop, _SPAN // self.shape.frames
        return self.frames[first : first + _SPAN : step, top : top + crop, left : left + crop]


def run(
    *, motion: Path, videos: Sequence[Path], steps: Positive = 600, seeds: Positive = 3, rounds: Positive = 10
) -> dict[str, Any]:
    """Trains both sides on both sets, and times steps on larger clips.

    Args:
        motion: folder of `paddlevideo-fast data motion` with clips of 64 pixels and 16 frames or more.
        videos: real videos, of 80 frames or more.
        steps: of each training.
        seeds: trainings of each side.
        rounds: timed steps of each side on larger clips.

    Returns:
        "trained": for each set and side "top1" of each seed on held-out clips of 64 tokens, and their mean.
        "timed": for each set and number of tokens "step_ms" of each side, the median CPU time of a step;
        "ratio": the median of the plain step over the other, of the same batch; "tokens": the share of the
        tokens that the blocks computed.
    """
    sets: Mapping[str, Callable[[Shape], _Clips]] = {
        "motion": lambda shape: _of_motion(motion, shape),
        "real videos": lambda shape: _of_videos(videos, shape),
    }
    timed = {
        f"{name}, {shape.tokens} tokens": _timed(load(shape), rounds)
        for name, load in sets.items()
        for shape in TIMED
        if name != "motion" or shape.side <= 64
    }
    trained = {name: _trained(load(LEARNED), steps, seeds) for name, load in sets.items()}
    return {"timed": timed, "trained": trained}


def _of_motion(folder: Path, shape: Shape) -> _Clips:
    frames: list[np.ndarray] = []
    parts: dict[str, list[tuple[int, int]]] = {"train": [], "valid": []}
    for name, clips in parts.items():
        for line in (folder / f"{name}.list").read_text(encoding="utf-8").splitlines():
            path, label = line.rsplit(maxsplit=1)
            clips.append((_SPAN * len(frames), int(label)))
            frames.append(_frames(folder / path, shape.side)[:_SPAN])
            if shape != LEARNED and len(frames) == 64:
                break
    return _Clips(np.concatenate(frames), **parts, shape=shape)


def _of_videos(videos: Sequence[Path], shape: Shape) -> _Clips:
    frames: list[np.ndarray] = []
    train: list[tuple[int, int]] = []
    valid: list[tuple[int, int]] = []
    num_frames = 0
    for number, path in enumerate(videos):
        frames.append(_frames(path, shape.side))
        half = len(frames[-1]) // 2
        for part in range(2):
            begin, label = num_frames + part * half, 2 * number + part
            held_out = begin + round(half * (1 - _HELD_OUT))
            train += [(first, label) for first in range(begin, held_out - _SPAN + 1)]
            valid += [(first, label) for first in range(held_out, begin + half - _SPAN + 1)]
        num_frames += len(frames[-1])
    return _Clips(np.concatenate(frames), train, valid, shape)


def _frames(path: Path, side: int) -> np.ndarray:
    with open_video(str(path)) as video:
        return np.stack([cv2.resize(frame, (side, side), interpolation=cv2.INTER_AREA) for frame in video])


def _timed(clips: _Clips, rounds: int) -> dict[str, Any]:
    models = {side: _model(clips, 0, changes) for side, changes in SIDES.items()}
    updates = {side: _update(model, rounds) for side, model in models.items()}
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    shares = []
    for number, (pixels, labels) in zip(range(rounds + 1), clips.batches(np.random.default_rng(0))):
        shares.append(_share_of_tokens(models["RLT"], pixels))
        for side, update in updates.items():
            sec = update(pixels, labels)
            times[side] += [sec] if number else []
    return {
        "step_ms": {side: 1e3 * statistics.median(each) for side, each in times.items()},
        "ratio": statistics.median(plain / own for plain, own in zip(times["plain"], times["RLT"])),
        "tokens": statistics.mean(shares),
    }


def _trained(clips: _Clips, steps: int, seeds: int) -> dict[str, Any]:
    top1: dict[str, list[float]] = {side: [] for side in SIDES}
    shares = []
    for seed in range(seeds):
        models = {side: _model(clips, seed, changes) for side, changes in SIDES.items()}
        updates = {side: _update(model, steps) for side, model in models.items()}
        for _, (pixels, labels) in zip(range(steps), clips.batches(np.random.default_rng(seed))):
            for update in updates.values():
                update(pixels, labels)
        shares.append(_share_of_tokens(models["RLT"], pixels))
        for side, model in models.items():
            top1[side].append(_top1(model, clips))
    means = {side: statistics.mean(each) for side, each in top1.items()}
    return {"top1": top1, "mean_top1": means, "tokens": statistics.mean(shares)}


_preprocess = Preprocess(layout="NCTHW")


def _model(clips: _Clips, seed: int, changes: Mapping[str, Any]) -> Any:
    paddle.seed(seed)
    sizes = {"embed_dim": 64, "depth": 4, "num_heads": 4, "patch_size": clips.shape.patch}
    backbone = {"name": "VideoMAEViT", **sizes}
    head = {"name": "VideoMAEHead", "num_classes": clips.num_classes, "in_channels": 64}
    network = {"framework": "RecognizerTransformer", "first_weights": "xavier"}
    return build_model({**network, "backbone": backbone, "head": head, **changes})


def _update(model: Any, steps: int) -> Callable[[np.ndarray, np.ndarray], float]:
    """A function that takes a step on a batch and returns its CPU time in seconds."""
    cosine = paddle.optimizer.lr.CosineAnnealingDecay(_RATE, steps)
    rate = paddle.optimizer.lr.LinearWarmup(cosine, max(round(steps * _WARM_UP), 1), 0.0, _RATE)
    clip = paddle.nn.ClipGradByGlobalNorm(1.0)
    optimizer = paddle.optimizer.AdamW(rate, parameters=model.parameters(), weight_decay=0.05, grad_clip=clip)

    def update(pixels: np.ndarray, labels: np.ndarray) -> float:
        began = time.process_time()
        loss = model.loss(model(_preprocess(pixels)), paddle.to_tensor(labels))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        rate.step()
        return time.process_time() - began

    return update


def _share_of_tokens(model: Any, pixels: np.ndarray) -> float:
    return float(model.packing(_preprocess(pixels)).stays.astype("float32").mean())


def _top1(model: Any, clips: _Clips) -> float:
    model.eval()
    with paddle.no_grad():
        hits = [model(_preprocess(pixels)).numpy().argmax(1) == labels for pixels, labels in clips.held_out()]
    return float(np.concatenate(hits).mean())

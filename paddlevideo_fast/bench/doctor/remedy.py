"""What could make a run faster, and by how much: measured here where that is possible, else by the model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional, Tuple

import paddle

from paddlevideo_fast.assembly import TrainingParts
from paddlevideo_fast.bench.doctor import substitutes
from paddlevideo_fast.bench.doctor.reading import ReadingCost
from paddlevideo_fast.bench.doctor.step_model import StepCost
from paddlevideo_fast.bench.training import SyntheticLoader, time_steps
from paddlevideo_fast.engine import MixedPrecision, Precision
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.loader.decoders import VideoDecoder

WORTH_IT = 1.1
_TRIAL_STEPS, _TRIAL_SEC = 5, 6.0


@dataclass(frozen=True)
class Remedy:
    """One change and what it is predicted to do.

    Attributes:
        name: of the change.
        gain: clips a second with it over clips a second without; None: unknown.
        basis: "model" where it follows from measured stages; "measured" where the change was tried; else why
            it is unknown.
        how: what to do for it.
    """

    name: str
    gain: Optional[float]
    basis: str
    how: str

    @property
    def helps(self) -> bool:
        """Whether it is worth the trouble by what is known."""
        return self.gain is not None and self.gain >= WORTH_IT


@dataclass(frozen=True)
class Run:
    """What is known of a run when remedies are looked for.

    Attributes:
        parts: model, optimizer and data.
        cost: of a step.
        reading: of a clip.
        batch_size: clips of one batch.
        data_tools: the folder `data` of the repository.
    """

    parts: TrainingParts
    cost: StepCost
    reading: ReadingCost
    batch_size: int
    data_tools: Path

    @property
    def dataset(self) -> Any:
        return self.parts.split.loader.dataset


def remedies(run: Run, progress: Callable[[str], None]) -> Iterator[Remedy]:
    """All that apply to the run; those that could not gain a tenth even at best are not tried.

    Args:
        run: what was measured.
        progress: told what is tried.
    """
    cost = run.cost
    best = cost.best_num_workers()
    if best > cost.num_workers:
        how = f"-o DATASET.num_workers={best}"
        yield Remedy("more workers", cost.gain(num_workers=best), "model", how)
    clips_a_step = cost.read_sec / run.reading.total_sec
    source_sec = clips_a_step * run.reading.source_sec
    if cost.gain(read_sec=cost.read_sec - source_sec) >= WORTH_IT:
        yield from _cheaper_sources(run, source_sec, progress)
    augment_sec = clips_a_step * run.reading.stages["augment"]
    if augment_sec:
        worst = max(run.reading.augment_steps, key=lambda name: run.reading.augment_steps[name])
        gain = cost.gain(read_sec=cost.read_sec - augment_sec)
        how = f"leave transforms that change pixels out, {worst} first, or lower its probability"
        yield Remedy("fewer transforms", gain, "model", how)
    if cost.gain(train_sec=0.0, train_cpu_sec=0.0) >= WORTH_IT:
        yield from _faster_training(run, progress)


def _cheaper_sources(run: Run, source_sec: float, progress: Callable[[str], None]) -> Iterator[Remedy]:
    for source in substitutes.of(run.dataset, run.data_tools):
        progress(f"trying {source.name} on a few of the clips")
        try:
            share = substitutes.share_of_cost(run.dataset, source)
        except PaddleVideoFastError as error:
            yield Remedy(source.name, None, f"unknown: {error}", source.how)
            continue
        gain = run.cost.gain(read_sec=run.cost.read_sec - (1 - share) * source_sec)
        yield Remedy(source.name, gain, "measured", source.how)
    if paddle.get_device() != "cpu" and isinstance(run.dataset.pipeline.decode, VideoDecoder):
        yield Remedy("DALI", None, "unknown: decoding on the GPU was not tried", "--train_dali")


def _faster_training(run: Run, progress: Callable[[str], None]) -> Iterator[Remedy]:
    shape = run.reading.clip_shape
    side = shape[1] * 3 // 4
    smaller = (shape[0], side, shape[2] * 3 // 4, 3)
    larger = f"-o DATASET.batch_size={2 * run.batch_size}, with the learning rate that belongs to it"
    trials: List[Tuple[str, int, Tuple[int, ...], Optional[Precision], str]] = [
        ("larger batch", 2, shape, None, larger),
        ("smaller input", 1, smaller, None, f"crops of {side} pixels; may cost accuracy"),
    ]
    if paddle.get_device() != "cpu" and not run.parts.settings.amp:  # a CPU has no kernels for it
        mixed = MixedPrecision("O1", "bfloat16")
        trials.insert(0, ("mixed precision", 1, shape, mixed, "--amp --amp_dtype bfloat16"))
    plain = SyntheticLoader(run.batch_size, shape, run.parts.model.num_classes)
    for name, factor, size, precision, how in trials:
        progress(f"trying {name}")
        loader = SyntheticLoader(factor * run.batch_size, size, run.parts.model.num_classes)
        try:
            # each beside the plain step, so that other programs on the machine slow both
            base = time_steps(run.parts, plain, _TRIAL_STEPS, 1, _TRIAL_SEC / 2)
            times = time_steps(run.parts, loader, _TRIAL_STEPS, 1, _TRIAL_SEC, precision)
        except Exception as error:  # whatever the device, its memory or the network has against it
            first_line = (str(error).strip() or repr(error)).splitlines()[0]
            yield Remedy(name, None, f"unknown: it fails here: {first_line}", how)
            continue
        changed = dataclasses.replace(
            run.cost,
            train_sec=run.cost.train_sec * times.step_sec / base.step_sec,
            train_cpu_sec=run.cost.train_cpu_sec * times.step_sec / base.step_sec,
            read_sec=factor * run.cost.read_sec,
            transport_sec=factor * run.cost.transport_sec,
        )
        yield Remedy(name, factor * run.cost.step_sec / changed.step_sec, "measured", how)
    yield Remedy(
        "smaller network", None, "unknown: it depends on the network", "less depth or width in MODEL.backbone"
    )

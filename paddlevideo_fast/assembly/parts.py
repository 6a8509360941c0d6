"""Builds the parts of a training run, for the run itself and for the doctor, which measures them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence

import paddle

from paddlevideo_fast.assembly.balance import balance
from paddlevideo_fast.assembly.data import Split, make_split
from paddlevideo_fast.assembly.environment import with_static_graph
from paddlevideo_fast.assembly.plan import RunPlan, batch_shapes
from paddlevideo_fast.config import RunSpec, build
from paddlevideo_fast.engine import Distribution, Trainer
from paddlevideo_fast.engine.callbacks import Callback
from paddlevideo_fast.engine.protocols import BatchLoader
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling import build_model, take_network_layout
from paddlevideo_fast.registry import MIXES
from paddlevideo_fast.schedule import Phase
from paddlevideo_fast.solver import LearningRate, build_optimizer

logger = get_logger(__name__)


@dataclass
class TrainingParts:
    """What a training run is made of, before its first step."""

    plan: RunPlan
    model: Any
    optimizer: Any
    curve: LearningRate
    split: Split
    distribution: Distribution = field(default_factory=Distribution)

    @property
    def spec(self) -> RunSpec:
        """What the run was planned for."""
        return self.plan.spec

    @property
    def accumulate_steps(self) -> int:
        """Batches of a process that make one optimizer step."""
        return self.spec.accumulate_steps(self.distribution.world_size)

    def phase_loader(self) -> Callable[[Phase], BatchLoader]:
        """A function from a phase to the loader of its batches: always the same loader, so its workers stay.

        Raises:
            LoaderError: there are fewer samples than a phase has in a batch.
        """
        loader, batch_size = self.split.loader, self.spec.data.batch_size
        samplers = {
            phase: loader.batch_sampler.reshaped(batch_shapes(phase, batch_size, self.accumulate_steps))
            for phase in self.plan.phases
        }

        def make_loader(phase: Phase) -> BatchLoader:
            loader.batch_sampler = samplers[phase]
            return loader

        return make_loader

    def trainer(
        self,
        make_loader: Callable[[Phase], BatchLoader],
        callbacks: Sequence[Callback],
        phases: Optional[Sequence[Phase]] = None,
        data_identity: Optional[Dict[str, Any]] = None,
    ) -> Trainer:
        """A trainer over the loaders of `make_loader`, for the plan's phases unless others are given."""
        return Trainer(
            model=self.model,
            optimizer=self.optimizer,
            make_loader=make_loader,
            preprocess=self.split.preprocess,
            phases=phases or self.plan.phases,
            callbacks=callbacks,
            precision=self.plan.precision,
            mix=build(MIXES, self.spec.mix) if self.spec.mix else None,
            distribution=self.distribution,
            seed=self.spec.run.seed,
            accumulate_steps=self.accumulate_steps,
            max_iters=self.spec.run.max_iters,
            on_incidents=self.split.bad_samples.add,
            data_identity=data_identity,
        )


def training_parts(
    plan: RunPlan,
    folder: Optional[Path] = None,
    load_pretrained: bool = True,
    distribution: Optional[Distribution] = None,
) -> TrainingParts:
    """Builds model, optimizer and data of a run.

    Args:
        plan: of the run.
        folder: where files that do not decode are listed; None: nowhere.
        load_pretrained: whether the weights that the backbone names are loaded.
        distribution: the processes of the run.

    Raises:
        PaddleVideoFastError: as its message says.
    """
    spec, distribution = plan.spec, distribution or Distribution()
    paddle.seed(spec.run.seed)
    model = build_model(spec.model, load_pretrained=load_pretrained)
    take_network_layout(model)
    optimizer, curve = build_optimizer(spec.optimizer or {}, model)
    split = make_split(spec, "train", model.layout, distribution, folder)
    balance(model, split.dataset)
    model = with_static_graph(spec, model)
    curve = _scaled(spec, plan.curve or curve, distribution.world_size)
    return TrainingParts(plan, model, optimizer, curve, split, distribution)


def _scaled(spec: RunSpec, curve: LearningRate, world_size: int) -> LearningRate:
    """The learning rate for the clips of an update, by the linear rule.

    Reference: Goyal et al., "Accurate, Large Minibatch SGD", arXiv 1706.02677.
    """
    base = (spec.optimizer or {}).get("base_batch_size")
    if base is None:
        return curve
    num_clips = spec.clips_of_update(world_size)
    logger.info(
        "learning rate times %g: %d clips an update, base_batch_size %d", num_clips / base, num_clips, base
    )
    return curve.times(num_clips / base)

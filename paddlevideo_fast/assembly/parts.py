"""What a training run is made of: for the run itself, and for those who measure it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence

import paddle

from paddlevideo_fast.assembly.data import Split, split_of
from paddlevideo_fast.assembly.precision import precision_of
from paddlevideo_fast.assembly.runtime import require_runtime, with_static_graph
from paddlevideo_fast.config import (
    Config,
    DatasetSettings,
    RunSettings,
    accumulation_of,
    build,
    clips_of_update,
)
from paddlevideo_fast.engine import Distribution, Precision, Trainer
from paddlevideo_fast.engine.callbacks import Callback
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling import build_model
from paddlevideo_fast.planning import RunPlan, batch_shapes, plan_run
from paddlevideo_fast.registry import MIXES
from paddlevideo_fast.schedule import Phase
from paddlevideo_fast.solver import LearningRate, build_optimizer

logger = get_logger(__name__)

TRAINING_SECTIONS = ("OPTIMIZER", "DATASET.train")


@dataclass
class TrainingParts:
    """What a training run is made of, before its first step."""

    cfg: Config
    settings: RunSettings
    plan: RunPlan
    model: Any
    optimizer: Any
    curve: Any
    split: Split
    precision: Precision
    distribution: Distribution = field(default_factory=Distribution)

    @property
    def accumulate_steps(self) -> int:
        """Batches of a process that make one optimizer step."""
        return accumulation_of(self.cfg, self.distribution.world_size)

    def phase_loader(self) -> Callable[[Phase], Any]:
        """A function from a phase to the loader of its batches; there is one loader, which keeps its workers.

        Raises:
            LoaderError: there are fewer samples than a phase has in a batch.
        """
        loader, batch_size = self.split.loader, DatasetSettings.from_config(self.cfg).batch_size
        samplers = {
            phase: loader.batch_sampler.reshaped(batch_shapes(phase, batch_size, self.accumulate_steps))
            for phase in self.plan.phases
        }

        def make_loader(phase: Phase) -> Any:
            loader.batch_sampler = samplers[phase]
            return loader

        return make_loader

    def trainer(
        self,
        make_loader: Callable[[Phase], Any],
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
            precision=self.precision,
            mix=build(MIXES, self.cfg["MIX"]) if self.cfg.get("MIX") else None,
            distribution=self.distribution,
            seed=self.settings.seed,
            accumulate_steps=self.accumulate_steps,
            max_iters=self.settings.max_iters,
            on_failures=self.split.bad_samples.add,
            data_identity=data_identity,
        )


def training_parts(
    cfg: Config,
    folder: Optional[Path] = None,
    load_pretrained: bool = True,
    distribution: Optional[Distribution] = None,
    plan: Optional[RunPlan] = None,
) -> TrainingParts:
    """Builds model, optimizer and data of a config.

    Args:
        cfg: checked.
        folder: where files that do not decode are listed; None: nowhere.
        load_pretrained: whether the weights that the backbone names are loaded.
        distribution: the other processes of the run.
        plan: of the config, where it has been made already.

    Raises:
        PaddleVideoFastError: as its message says.
    """
    require(cfg, "training", *TRAINING_SECTIONS)
    require_runtime(cfg)
    distribution = distribution or Distribution()
    settings = RunSettings.from_config(cfg)
    plan = plan or plan_run(cfg, distribution.world_size)
    precision = precision_of(cfg)
    paddle.seed(settings.seed)
    model = build_model(cfg["MODEL"], load_pretrained=load_pretrained)
    optimizer, curve = build_optimizer(cfg["OPTIMIZER"], model)
    split = split_of(cfg, "train", folder, model.layout, distribution)
    model = with_static_graph(cfg, model)
    curve = _scaled(cfg, plan.curve or curve, distribution.world_size)
    return TrainingParts(cfg, settings, plan, model, optimizer, curve, split, precision, distribution)


def _scaled(cfg: Config, curve: LearningRate, world_size: int) -> LearningRate:
    """The learning rate for the clips of an update, by the linear rule.

    Reference: Goyal et al., "Accurate, Large Minibatch SGD", arXiv 1706.02677.
    """
    base = cfg["OPTIMIZER"].get("base_batch_size")
    if base is None:
        return curve
    num_clips = clips_of_update(cfg, world_size)
    logger.info(
        "learning rate times %g: %d clips an update, base_batch_size %d", num_clips / base, num_clips, base
    )
    return curve.times(num_clips / base)


def require(cfg: Config, what: str, *names: str) -> None:
    """Checks that a config has the sections `names`.

    Raises:
        ConfigError: `what` needs one that is missing.
    """
    for name in names:
        section: Any = cfg
        for key in name.split("."):
            section = section.get(key) if section else None
        if not section:
            raise ConfigError([f"{cfg.path}  {name}: {what} needs this section"])

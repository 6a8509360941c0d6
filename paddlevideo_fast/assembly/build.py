"""Builds what a training run is made of, for the run itself and for the doctor, which measures it."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import paddle

from paddlevideo_fast.assembly.classes import balance, class_names
from paddlevideo_fast.assembly.data import Split, make_split
from paddlevideo_fast.assembly.plan import RunPlan
from paddlevideo_fast.config import RunSpec, build
from paddlevideo_fast.config.spec import ComponentSection
from paddlevideo_fast.device import tune_gpu
from paddlevideo_fast.engine import CheckpointStore, Distribution, Evaluator, Precision, Trainer
from paddlevideo_fast.engine.callbacks import Callback
from paddlevideo_fast.engine.protocols import BatchLoader, Objective
from paddlevideo_fast.engine.sinks import Sink
from paddlevideo_fast.errors import AnnotationError
from paddlevideo_fast.loader import BatchShape
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling import ClassNames, build_for_clips
from paddlevideo_fast.modeling.recompute import recompute_stages
from paddlevideo_fast.modeling.stages import learned_parameters, parameters_in
from paddlevideo_fast.modeling.weights import backbone_of
from paddlevideo_fast.registry import MIXES
from paddlevideo_fast.schedule import Phase
from paddlevideo_fast.solver import LearningRate, build_optimizer
from paddlevideo_fast.solver.learning_rate import scaled

logger = get_logger(__name__)


@dataclass
class TrainingSetup:
    """What a training run is made of, before its first step. Extensions change it while it is built.

    Attributes:
        plan: of the run.
        model: the network.
        class_names: of the network, by the config, and of weight files.
        label_names: what the classes are called, by number, as the output folder says it; None: not known.
        optimizer, curve, split: made after the network, so unset while extensions change it. The curve is
            scaled to the clips of an update, the split is the training data.
        distribution: the processes of the run.
        valid: the validation data; None where the run does not validate.
        store: where checkpoints go; None before the run has its output folder.
        callbacks: further ones, which extensions add while they change the network.
        sinks: further places where records go, on rank 0, which extensions add with their callbacks.
        trains_later: names of parameters that are frozen now and will train later.
        notes: lines for the log, before the first step.
        objective: gives the loss in place of the model; made last.
    """

    plan: RunPlan
    model: Any
    class_names: ClassNames
    optimizer: Any = None
    curve: LearningRate = None  # type: ignore[assignment]
    split: Split = None  # type: ignore[assignment]
    distribution: Distribution = field(default_factory=Distribution)
    valid: Split | None = None
    store: CheckpointStore | None = None
    label_names: Sequence[str] | None = None
    callbacks: list[Callback] = field(default_factory=list)
    sinks: list[Sink] = field(default_factory=list)
    trains_later: frozenset[str] = frozenset()
    notes: list[str] = field(default_factory=list)
    objective: Objective | None = None

    @property
    def spec(self) -> RunSpec:
        """What the run was planned for."""
        return self.plan.spec

    @property
    def output_folder(self) -> Path:
        """The folder of the run, which has one by then."""
        assert self.store is not None
        return self.store.folder

    def evaluator(self, split: Split) -> Evaluator:
        """Runs the network over a part of the data; see `make_evaluator`."""
        return make_evaluator(split, self.plan.precision, self.distribution, self.spec.run.max_iters)

    def statistics_evaluator(self, max_batches: int) -> Evaluator:
        """Runs the network over the training data; see `Split.of_statistics`."""
        num_batches = min(max_batches, self.spec.run.max_iters or max_batches)
        return make_evaluator(self.split.of_statistics(), self.plan.precision, self.distribution, num_batches)

    def close(self) -> None:
        """Ends the loaders."""
        for split in (self.valid, self.split):
            if split is not None:
                split.loader.close()

    def phase_loader(self) -> Callable[[Phase], BatchLoader]:
        """A function from a phase to the loader of its batches: always the same loader, so its workers stay.

        Raises:
            LoaderError: there are fewer samples than a phase has in a batch.
        """
        loader, batch_size = self.split.loader, self.spec.data.batch_size
        samplers = {
            phase: loader.batch_sampler.reshaped(batch_shapes(phase, batch_size, self.plan.accumulate_steps))
            for phase in self.plan.phases
        }

        def loader_of(phase: Phase) -> BatchLoader:
            loader.batch_sampler = samplers[phase]
            return loader

        return loader_of

    def trainer(
        self,
        make_loader: Callable[[Phase], BatchLoader],
        callbacks: Sequence[Callback],
        phases: Sequence[Phase] | None = None,
        data_identity: dict[str, Any] | None = None,
    ) -> Trainer:
        """A trainer over the loaders of `make_loader`, for the plan's phases unless others are given."""
        preprocess, objective = self.split.preprocess, self.objective
        mix = _mix(self.spec.mix, self.model) if self.spec.mix else None
        return Trainer(
            model=self.model,
            optimizer=self.optimizer,
            make_loader=make_loader,
            preprocess=preprocess if objective is None else objective.observing(preprocess),
            objective=objective,
            phases=phases or self.plan.phases,
            callbacks=callbacks,
            precision=self.plan.precision,
            mix=mix,
            distribution=self.distribution,
            seed=self.spec.run.seed,
            accumulate_steps=self.plan.accumulate_steps,
            max_iters=self.spec.run.max_iters,
            on_incidents=self.split.bad_samples.add,
            data_identity={**(data_identity or {}), **(objective.identity if objective else {})},
        )


def training_setup(
    plan: RunPlan,
    folder: Path | None = None,
    load_pretrained: bool = True,
    distribution: Distribution | None = None,
) -> TrainingSetup:
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
    tuning = tune_gpu(plan.has_fixed_shapes, spec.run.amp)
    names = class_names(spec)
    load_pretrained &= not any(extension.brings_weights for extension in spec.extensions)
    model = build_for_clips(spec.model, spec.run.amp, load_pretrained, names)
    if tuning:
        logger.info("device: %s%s", tuning, ", channels last" if model.layout == "NTHWC" else "")
    if plan.full_clip is not None:
        num_frames, side, _ = plan.full_clip
        backbone_of(model)[0].full_clip = (num_frames, side, side)
    setup = TrainingSetup(plan, model, names, distribution=distribution)
    for extension in spec.extensions:
        extension.on_model(setup)
    model, optimizer = setup.model, spec.optimizer or {}
    split = make_split(spec, "train", model.layout, distribution, folder, plan.pipelines)
    setup.notes.insert(0, balance(model, split.dataset))
    for extension in spec.extensions:
        split = extension.on_data(setup, "train", split)
    setup.split = split
    setup.optimizer, curve = build_optimizer({**optimizer, "learning_rate": plan.curve}, model)
    if optimizer.get("layer_decay") is not None:
        _tell_rates(model)
    if spec.runtime.recompute:
        stages = None if spec.runtime.recompute is True else spec.runtime.recompute
        recompute_stages(model, stages, plan.precision.operators)
    base = optimizer.get("base_batch_size")
    if base is not None:
        batch_size = spec.data.batch_size * distribution.world_size
        curve = scaled(curve, base, plan.global_batch_size, batch_size, len(split.dataset))
    setup.curve = curve
    objectives = (extension.objective(setup) for extension in spec.extensions)
    setup.objective = next(filter(None, objectives), None)
    return setup


def validation_data(setup: TrainingSetup) -> Split:
    """The validation data of a run."""
    spec, folder = setup.spec, setup.store.folder if setup.store else None
    pipelines = setup.plan.pipelines
    try:
        valid = make_split(spec, "valid", setup.model.layout, setup.distribution, folder, pipelines)
    except AnnotationError as error:
        if spec.config.get("validate") is not None:
            raise
        raise AnnotationError(f"{error}; without validation trains  -o validate=false") from error
    for extension in spec.extensions:
        valid = extension.on_data(setup, "valid", valid)
    return valid


def _tell_rates(model: Any) -> None:
    """Logs the factors on the learning rate of each stage."""
    parameters = learned_parameters(model)
    texts = []
    for stage in model.stages:
        own = [parameters[name] for name in parameters_in(model, stage, "OPTIMIZER.layer_decay")]
        factors = [each.optimize_attr["learning_rate"] for each in own if not each.stop_gradient]
        ends = sorted({min(factors), max(factors)}) if factors else []
        texts.append(f"{stage} {' to '.join(f'{each:.3g}' for each in ends) or 'frozen'}")
    logger.info("factors on the learning rate: %s", ", ".join(texts))


def _mix(section: ComponentSection, model: Any) -> Any:
    """What mixes the clips of a batch; a mix that cuts frames is told where their axes are."""
    takes_layout = "layout" in getattr(MIXES.get(section["name"]), "injected", ())
    return build(MIXES, section, **({"layout": model.layout} if takes_layout else {}))


def batch_shapes(phase: Phase, batch_size: int, num_batches: int = 1) -> list[BatchShape]:
    """The shapes that the batches of a phase take in turn.

    Args:
        phase: of the run.
        batch_size: the configured one, of one process.
        num_batches: batches of one optimizer step, which have one shape.
    """
    batch_size *= phase.batch_multiplier
    own = BatchShape(batch_size, phase.num_frames, phase.sampling_rate, phase.crop_size)
    shapes = [
        replace(own, batch_size=batch_size * short.batch_multiplier, crop_size=short.crop_size)
        for short in phase.short_cycle
    ]
    return [shape for shape in (*shapes, own) for _ in range(num_batches)]


def make_evaluator(
    split: Split, precision: Precision, distribution: Distribution, max_batches: int | None
) -> Evaluator:
    """Runs a model over one part of the data: at most `max_batches` batches; None: all."""
    return Evaluator(
        split.loader,
        split.preprocess,
        precision,
        distribution,
        on_incidents=split.bad_samples.add,
        max_batches=max_batches,
        show_progress=is_on_terminal(distribution),
    )


def is_on_terminal(distribution: Distribution) -> bool:
    """Whether somebody watches this process."""
    return distribution.is_main and sys.stderr.isatty()

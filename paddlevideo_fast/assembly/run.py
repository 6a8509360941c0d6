"""A training run, from its config to its end."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from paddlevideo_fast.assembly.build import TrainingSetup, training_setup, validation_data
from paddlevideo_fast.assembly.callbacks import callbacks_of
from paddlevideo_fast.assembly.checks import require_weights
from paddlevideo_fast.assembly.folder import begin_output, take_folder
from paddlevideo_fast.assembly.plan import RunPlan, plan_run
from paddlevideo_fast.assembly.summary import log_begin, log_results
from paddlevideo_fast.config import Config, RunSpec
from paddlevideo_fast.engine import CheckpointStore, Trainer, TrainingInterrupted
from paddlevideo_fast.engine.callbacks import Callback, restore
from paddlevideo_fast.engine.checkpoint import Snapshot
from paddlevideo_fast.engine.distribution import Distribution, launched_rank, make_distribution
from paddlevideo_fast.engine.trainer import TrainingEnds
from paddlevideo_fast.loader.class_names import checked_class_names
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling import classes_of
from paddlevideo_fast.modeling.weights import load_weights

logger = get_logger(__name__)


def train(cfg: Config, callbacks: Sequence[Callback] = ()) -> Trainer:
    """Trains as a checked config says and returns the trainer at the end of the run.

    Args:
        cfg: the config.
        callbacks: further ones; their hooks run when a checkpoint of the epoch is written. Without them,
            checkpoints are written in the background.

    Raises:
        PaddleVideoFastError: as its message says.
        TrainingInterrupted: a signal came and the run saved.
    """
    with cfg.placing():
        plan = plan_run(RunSpec.for_training(cfg), launched_rank()[1])  # before there is an output folder
        distribution = make_distribution(plan.spec.distributed)
        # `held` keeps other runs out of the output folder as long as it is open
        with distribution.failure_detector(), contextlib.ExitStack() as held:
            # further callbacks find the checkpoint of an epoch on the disk, so they are not ahead of it
            spec, store = take_folder(plan.spec, distribution, held, in_background=not callbacks)
            trainer, setup, checkpoint = build_run(replace(plan, spec=spec), store, distribution, callbacks)
            # Only now, when all of the above has worked on all ranks: a wrong config leaves the folder as it
            # was, and weights that are read from it stay in place until the last rank has them.
            distribution.barrier()
            if distribution.is_main:
                store.archive_earlier_run(trainer.state, checkpoint)
                begin_output(setup, checkpoint is not None, held)
            log_begin(trainer, setup, checkpoint)
            with contextlib.closing(setup), trainer.interrupt, contextlib.suppress(TrainingEnds):
                try:
                    trainer.fit()
                except TrainingInterrupted as stopped:
                    stopped.folder = spec.run.output_dir
                    raise
            if distribution.is_main:
                trainer.results = log_results(store, trainer, spec)
            return trainer


def build_run(
    plan: RunPlan, store: CheckpointStore, distribution: Distribution, callbacks: Sequence[Callback] = ()
) -> tuple[Trainer, TrainingSetup, Snapshot | None]:
    """Builds a run in its folder, up to its first step; nothing is written.

    Returns:
        The trainer, what it is made of, and the checkpoint that it goes on from.
    """
    spec, run = plan.spec, plan.spec.run
    checkpoint = store.checkpoint_to_resume(run.resume, run.resume_epoch, distribution)
    trained = [] if checkpoint is None else [f"{checkpoint.prefix}.pdparams"]
    num_classes = classes_of(spec.model)
    names = distribution.gather_from(lambda: checked_class_names(spec.config, num_classes, *trained))[0]
    has_weights = bool(checkpoint or run.weights)
    if not has_weights:
        require_weights(spec.extensions, spec.model.get("backbone") or {})
    setup = training_setup(plan, store.folder, not has_weights, distribution)
    if run.weights and checkpoint is None:
        report = load_weights(setup.model, run.weights, strict=True, classes=setup.class_names)
        logger.info(report.summary())
        for extension in spec.extensions:
            extension.on_weights(setup, report)
    setup.store, setup.label_names = store, names
    setup.valid = validation_data(setup) if run.validate else None
    callbacks = callbacks_of(setup, store, callbacks)
    make_loader = setup.phase_loader()
    trainer = setup.trainer(make_loader, callbacks, data_identity=setup.split.identity())
    if checkpoint is not None:
        restore(trainer, checkpoint)
    for extension in spec.extensions:
        extension.begin(setup)
    return trainer, setup, checkpoint

"""A training run and a test, from their config to their end."""

from __future__ import annotations

import contextlib
from typing import Dict, Optional

import paddle

from paddlevideo_fast.assembly.callbacks import callbacks_of, evaluate_split, metric_of
from paddlevideo_fast.assembly.data import Split, data_identity, split_of
from paddlevideo_fast.assembly.distribution import distribution_of
from paddlevideo_fast.assembly.output import checkpoint_to_resume, open_output
from paddlevideo_fast.assembly.parts import TRAINING_SECTIONS, require, training_parts
from paddlevideo_fast.assembly.precision import precision_of
from paddlevideo_fast.assembly.results import Evaluated, naming_of, write_test
from paddlevideo_fast.assembly.runtime import describe_runtime, require_runtime
from paddlevideo_fast.config import Config, RunSettings
from paddlevideo_fast.engine import Checkpoint, CheckpointStore, Distribution, ReadOnlyStore, Trainer
from paddlevideo_fast.engine.callbacks import ProfilingFinished, restore
from paddlevideo_fast.engine.distribution import launched_rank
from paddlevideo_fast.errors import BadSampleShareError, ConfigError
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling import build_model, count_parameters, load_weights
from paddlevideo_fast.planning import RunPlan, plan_run

logger = get_logger(__name__)


def train(cfg: Config) -> Trainer:
    """Trains as a config says and returns the trainer at the end of the run.

    Raises:
        PaddleVideoFastError: as its message says.
        TrainingInterrupted: a signal came and the run saved.
    """
    settings = RunSettings.from_config(cfg)
    require(cfg, "training", *TRAINING_SECTIONS)  # before there is an output folder
    require_runtime(cfg)
    if settings.validate:
        require(cfg, "validate", "DATASET.valid")
    plan = plan_run(cfg, launched_rank()[1])
    precision_of(cfg)
    distribution = distribution_of(cfg)
    with distribution.lifeline():
        return _train(cfg, settings, plan, distribution)


def _train(cfg: Config, settings: RunSettings, plan: RunPlan, distribution: Distribution) -> Trainer:
    store = (CheckpointStore if distribution.is_main else ReadOnlyStore)(
        settings.output_dir, settings.model_name
    )
    distribution.gather_from(store.prepare)
    checkpoint = checkpoint_to_resume(settings, store, distribution)
    load_pretrained = not (checkpoint or settings.weights)
    parts = training_parts(cfg, store.folder, load_pretrained, distribution, plan)
    if settings.weights and checkpoint is None:
        logger.info(load_weights(parts.model, settings.weights, strict=True).summary())
    split = parts.split
    valid = (
        split_of(cfg, "valid", store.folder, parts.model.layout, distribution) if settings.validate else None
    )
    trainer = parts.trainer(
        parts.phase_loader(),
        callbacks_of(cfg, settings, store, parts, valid),
        data_identity=data_identity(cfg, split),
    )
    if checkpoint is not None:
        restore(trainer, checkpoint)
    # Only now, when all of the above has worked on all ranks: a wrong config leaves the folder as it was, and
    # weights that are read from it stay in place until the last rank has them.
    distribution.barrier()
    if distribution.is_main:
        open_output(cfg, store, trainer, checkpoint)
    _describe(trainer, cfg, settings, split, checkpoint)
    with contextlib.ExitStack() as stack:
        for used in (split, valid):
            if used is not None:
                stack.callback(used.loader.close)
        stack.enter_context(trainer.interrupt)
        stack.enter_context(contextlib.suppress(ProfilingFinished))
        trainer.fit()
    return trainer


def test(cfg: Config) -> Dict[str, float]:
    """Evaluates `weights` on DATASET.test and returns the metrics; see `engine.evaluate`."""
    settings = RunSettings.from_config(cfg)
    require(cfg, "--test", "DATASET.test")
    require_runtime(cfg)
    if not settings.weights:
        raise ConfigError(["weights: --test needs a weight file; give it with -w FILE"])
    distribution = distribution_of(cfg)
    with distribution.lifeline():
        return _test(cfg, settings, settings.weights, distribution)


def _test(cfg: Config, settings: RunSettings, weights: str, distribution: Distribution) -> Dict[str, float]:
    store = CheckpointStore(settings.output_dir, settings.model_name)
    precision = precision_of(cfg)
    model = build_model(cfg["MODEL"], load_pretrained=False)
    logger.info(load_weights(model, weights, strict=True).summary())
    split = split_of(cfg, "test", store.folder, model.layout, distribution)
    metric = metric_of(cfg)
    with contextlib.closing(split.loader):
        naming = naming_of(cfg, model.num_classes, split.loader.dataset)  # before the hours of an evaluation
        metrics = evaluate_split(cfg, settings, model, split, precision, distribution, metric=metric)
    if not metrics["num_samples"]:
        raise BadSampleShareError(f"none of the {metrics['num_failed']} samples of DATASET.test decodes")
    try:
        if distribution.is_main and metric.predictions is not None:
            write_test(cfg, Evaluated(metrics, metric.predictions, naming, split.loader.dataset))
    finally:  # the numbers are told even where the files cannot be written
        logger.info("test %s", "  ".join(f"{name}: {_shown(value)}" for name, value in metrics.items()))
    return metrics


def _describe(
    trainer: Trainer, cfg: Config, settings: RunSettings, split: Split, checkpoint: Optional[Checkpoint]
) -> None:
    if checkpoint is not None:
        done, step = trainer.state.epoch, trainer.state.step_in_epoch
        logger.info("resumed %s: epoch %d, step %d of it", checkpoint.prefix, done + 1, step)
        if done >= trainer.num_epochs:
            logger.info("nothing is left to train: %d of %d epochs are done", done, trainer.num_epochs)
    if cfg.get("MULTIGRID") and not settings.multigrid:
        logger.info("MULTIGRID has no effect: add --multigrid to train in its schedule")
    logger.info(
        "%s: %.2f M parameters, %d clips an epoch in %d batches, %d epochs, paddle %s on %s in %s, seed %d, "
        "to %s",
        settings.model_name,
        count_parameters(trainer.model) / 1e6,
        len(split.loader.dataset),
        len(trainer.make_loader(trainer.phase_of(trainer.state.epoch))),
        trainer.num_epochs,
        paddle.__version__,
        paddle.device.get_device(),
        trainer.precision.name,
        settings.seed,
        settings.output_dir,
    )
    logger.info(describe_runtime())


def _shown(value: float) -> str:
    return f"{value:.5f}" if isinstance(value, float) else str(value)

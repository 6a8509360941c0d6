"""From a checked config to a trained or evaluated model; besides the command line, only this reads one."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

import paddle

from paddlevideo_fast.config import (
    Config,
    DatasetSettings,
    EmaSettings,
    RunSettings,
    accumulation_of,
    build,
)
from paddlevideo_fast.engine import (
    Checkpoint,
    CheckpointStore,
    Trainer,
    evaluate,
    load_checkpoint,
)
from paddlevideo_fast.engine.callbacks import (
    Callback,
    Checkpointing,
    Evaluation,
    ExponentialMovingAverage,
    LearningRate,
    ProgressBar,
    Recorder,
    restore,
)
from paddlevideo_fast.engine.output import move_earlier_run_aside
from paddlevideo_fast.engine.sinks import ConsoleSink, JsonLinesSink, Sink, VisualDLSink
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.loader import BadSamples, build_dataset, build_loader, check_labels
from paddlevideo_fast.log import add_log_file, get_logger
from paddlevideo_fast.modeling import Preprocess, build_model, load_weights
from paddlevideo_fast.registry import METRICS, MIXES
from paddlevideo_fast.schedule.phases import plain_phases
from paddlevideo_fast.solver import build_optimizer

logger = get_logger(__name__)


@dataclass
class Split:
    """One part of the data, ready to be iterated."""

    loader: Any
    preprocess: Any
    bad_samples: BadSamples


def train(cfg: Config) -> Trainer:
    """Trains as a config says and returns the trainer at the end of the run.

    Raises:
        PaddleVideoFastError: as its message says.
        TrainingInterrupted: a signal came and the run saved.
    """
    settings = RunSettings.from_config(cfg)
    for name in ("OPTIMIZER", "DATASET.train"):
        _require(cfg, name, "training")
    if settings.validate:
        _require(cfg, "DATASET.valid", "validate")
    store = CheckpointStore(settings.output_dir, settings.model_name)
    checkpoint = _checkpoint_to_resume(settings, store)
    paddle.seed(settings.seed)
    model = build_model(cfg["MODEL"], load_pretrained=not (checkpoint or settings.weights))
    if settings.weights and checkpoint is None:
        report = load_weights(model, settings.weights, strict=True)
        logger.info(report.summary())
    split = _split(cfg, "train", store.folder)
    valid = _split(cfg, "valid", store.folder) if settings.validate else None
    optimizer, curve = build_optimizer(cfg["OPTIMIZER"], model)
    trainer = Trainer(
        model=model,
        optimizer=optimizer,
        make_loader=lambda phase: split.loader,
        preprocess=split.preprocess,
        phases=plain_phases(settings.epochs),
        callbacks=_callbacks(cfg, settings, store, model, curve, valid),
        mix=build(MIXES, cfg["MIX"]) if cfg.get("MIX") else None,
        seed=settings.seed,
        accumulate_steps=accumulation_of(cfg),
        max_iters=settings.max_iters,
        on_failures=split.bad_samples.add,
    )
    if checkpoint is not None:
        restore(trainer, checkpoint)
    else:
        move_earlier_run_aside(store.folder, settings.model_name)  # not before all of the above worked
    add_log_file(store.folder / "train.log")
    cfg.save(store.folder / "config.yaml")
    if checkpoint is not None:
        logger.info(
            "resumed %s: epoch %d, step %d of it",
            checkpoint.prefix,
            trainer.state.epoch + 1,
            trainer.state.step_in_epoch,
        )
    _describe(trainer, settings, split)
    with trainer.interrupt:
        trainer.fit()
    return trainer


def test(cfg: Config) -> Dict[str, float]:
    """Evaluates `weights` on DATASET.test and returns the metrics; see `engine.evaluate`."""
    settings = RunSettings.from_config(cfg)
    _require(cfg, "DATASET.test", "--test")
    if not settings.weights:
        raise ConfigError(["weights: --test needs a weight file; give it with -w FILE"])
    store = CheckpointStore(settings.output_dir, settings.model_name)
    model = build_model(cfg["MODEL"], load_pretrained=False)
    logger.info(load_weights(model, settings.weights, strict=True).summary())
    metrics = _evaluate(cfg, settings, model, _split(cfg, "test", store.folder))
    logger.info("test %s", "  ".join(f"{name}: {_shown(value)}" for name, value in metrics.items()))
    return metrics


def _callbacks(
    cfg: Config,
    settings: RunSettings,
    store: CheckpointStore,
    model: Any,
    curve: Any,
    valid: Optional[Split],
) -> List[Callback]:
    """The run's callbacks, in order.

    The rate is set before a step and the average follows it, so evaluation sees the newest average.
    Evaluation comes before the records, which hold its result, and the records before the checkpoint: a run
    that dies between the two repeats the steps and their records, it never lacks them. The bar is last, below
    the lines.
    """
    callbacks: List[Callback] = [LearningRate(curve)]
    ema = EmaSettings.from_config(cfg)
    if ema is not None:
        callbacks.append(ExponentialMovingAverage(model, ema.decay))
    if valid is not None:
        callbacks.append(
            Evaluation(
                run=lambda: _evaluate(cfg, settings, model, valid),
                interval=settings.val_interval,
                save_best=lambda trainer: store.save_weights("best", trainer.model.state_dict()),
            )
        )
    sinks: List[Sink] = [ConsoleSink(), JsonLinesSink(store.folder / "metrics.jsonl")]
    if settings.use_visualdl:
        sinks.append(VisualDLSink(store.folder / "vdl"))
    callbacks.append(Recorder(sinks, settings.log_interval))
    callbacks.append(
        Checkpointing(
            store,
            interval=settings.save_interval,
            every_steps=settings.save_every_steps,
            keep_last=settings.keep_last,
        )
    )
    if sys.stdout.isatty():
        callbacks.append(ProgressBar())
    return callbacks


def _split(cfg: Config, name: str, folder: Path) -> Split:
    """Loader, preprocessing and bad-sample count of DATASET.`name`."""
    settings, data = RunSettings.from_config(cfg), DatasetSettings.from_config(cfg)
    training = name == "train"
    dataset = build_dataset(
        cfg["DATASET"][name], cfg["PIPELINE"][name], training=training, seed=settings.seed
    )
    num_classes = cfg["MODEL"].get("head", {}).get("num_classes")
    if num_classes is not None:
        check_labels(dataset.records, num_classes, cfg["DATASET"][name]["file_path"])
    loader = build_loader(
        dataset,
        batch_size=data.batch_size_of(name),  # type: ignore[arg-type]
        num_workers=data.num_workers_of(name),  # type: ignore[arg-type]
        shuffle=training,
        drop_last=training and len(dataset) >= data.batch_size,
        seed=settings.seed,
    )
    mean, std = dataset.pipeline.normalization
    bad = BadSamples(folder / "bad_samples.txt", total=len(dataset), max_share=data.max_bad_share)
    return Split(loader, Preprocess(mean, std), bad)


def _evaluate(cfg: Config, settings: RunSettings, model: Any, split: Split) -> Dict[str, float]:
    return evaluate(
        model,
        split.loader,
        split.preprocess,
        build(METRICS, cfg["METRIC"]),
        on_failures=split.bad_samples.add,
        max_iters=settings.max_iters,
        show_progress=sys.stdout.isatty(),
    )


def _checkpoint_to_resume(settings: RunSettings, store: CheckpointStore) -> Optional[Checkpoint]:
    if settings.resume_epoch:
        return load_checkpoint(str(store.prefix(f"epoch_{settings.resume_epoch:05d}")))
    if settings.resume == "auto":
        latest = store.latest()
        if latest is None:
            logger.info("resume=auto: '%s' holds no checkpoint yet, the run starts anew", store.folder)
            return None
        return load_checkpoint(latest)
    return load_checkpoint(settings.resume) if settings.resume else None


def _require(cfg: Config, name: str, what: str) -> None:
    section: Any = cfg
    for key in name.split("."):
        section = section.get(key) if section else None
    if not section:
        raise ConfigError([f"{cfg.path}  {name}: {what} needs this section"])


def _describe(trainer: Trainer, settings: RunSettings, split: Split) -> None:
    parameters = sum(
        p.size for name, p in trainer.model.named_parameters() if not name.endswith(("._mean", "._variance"))
    )
    logger.info(
        "%s: %.2f M parameters, %d clips an epoch in %d batches, %d epochs, paddle %s on %s, seed %d, to %s",
        settings.model_name,
        parameters / 1e6,
        len(split.loader.dataset),
        len(split.loader),
        settings.epochs,
        paddle.__version__,
        paddle.device.get_device(),
        settings.seed,
        settings.output_dir,
    )


def _shown(value: float) -> str:
    return f"{value:.5f}" if isinstance(value, float) else str(value)

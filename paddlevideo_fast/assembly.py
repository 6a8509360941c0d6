"""From a checked config to a trained or evaluated model; besides the command line, only this reads one."""

from __future__ import annotations

import contextlib
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Literal, Optional, Sequence

import paddle

from paddlevideo_fast.config import (
    Config,
    DatasetSettings,
    EmaSettings,
    PreciseBNSettings,
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
    population_statistics,
)
from paddlevideo_fast.engine.callbacks import (
    BatchNormSplits,
    Callback,
    Checkpointing,
    Complexity,
    Evaluation,
    ExponentialMovingAverage,
    LearningRate,
    PreciseBatchNorm,
    ProgressBar,
    Recorder,
    restore,
)
from paddlevideo_fast.engine.output import move_aside, move_earlier_run_aside, writing
from paddlevideo_fast.engine.sinks import ConsoleSink, JsonLinesSink, Sink, VisualDLSink
from paddlevideo_fast.errors import BadSampleShareError, CheckpointError, ConfigError
from paddlevideo_fast.loader import BadSamples, WorkerOptions, build_dataset, build_loader, check_labels
from paddlevideo_fast.loader.dali import DaliOptions, to_tensor
from paddlevideo_fast.log import add_log_file, get_logger
from paddlevideo_fast.modeling import MacCounter, Preprocess, build_model, count_parameters, load_weights
from paddlevideo_fast.planning import RunPlan, batch_shapes, plan_run
from paddlevideo_fast.registry import METRICS, MIXES
from paddlevideo_fast.schedule import Phase
from paddlevideo_fast.solver import build_optimizer

logger = get_logger(__name__)

_TRAINING_SECTIONS = ("OPTIMIZER", "DATASET.train")


@dataclass
class Split:
    """One part of the data, ready to be iterated."""

    loader: Any
    preprocess: Any
    bad_samples: BadSamples


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

    def phase_loader(self) -> Callable[[Phase], Any]:
        """A function from a phase to the loader of its batches; there is one loader, which keeps its workers.

        Raises:
            LoaderError: there are fewer samples than a phase has in a batch.
        """
        loader, batch_size = self.split.loader, DatasetSettings.from_config(self.cfg).batch_size
        samplers = {
            phase: loader.batch_sampler.reshaped(batch_shapes(phase, batch_size, accumulation_of(self.cfg)))
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
            mix=build(MIXES, self.cfg["MIX"]) if self.cfg.get("MIX") else None,
            seed=self.settings.seed,
            accumulate_steps=accumulation_of(self.cfg),
            max_iters=self.settings.max_iters,
            on_failures=self.split.bad_samples.add,
            data_identity=data_identity,
        )


def training_parts(cfg: Config, folder: Optional[Path] = None, load_pretrained: bool = True) -> TrainingParts:
    """Builds model, optimizer and data of a config.

    Args:
        cfg: checked.
        folder: where files that do not decode are listed; None: nowhere.
        load_pretrained: whether the weights that the backbone names are loaded.

    Raises:
        PaddleVideoFastError: as its message says.
    """
    _require(cfg, "training", *_TRAINING_SECTIONS)
    settings = RunSettings.from_config(cfg)
    plan = plan_run(cfg)
    paddle.seed(settings.seed)
    model = build_model(cfg["MODEL"], load_pretrained=load_pretrained)
    optimizer, curve = build_optimizer(cfg["OPTIMIZER"], model)
    split = _split(cfg, "train", folder, model.layout)
    return TrainingParts(cfg, settings, plan, model, optimizer, plan.curve or curve, split)


def train(cfg: Config) -> Trainer:
    """Trains as a config says and returns the trainer at the end of the run.

    Raises:
        PaddleVideoFastError: as its message says.
        TrainingInterrupted: a signal came and the run saved.
    """
    settings = RunSettings.from_config(cfg)
    _require(cfg, "training", *_TRAINING_SECTIONS)  # before there is an output folder
    if settings.validate:
        _require(cfg, "validate", "DATASET.valid")
    plan_run(cfg)
    store = CheckpointStore(settings.output_dir, settings.model_name)
    store.prepare()
    checkpoint = _checkpoint_to_resume(settings, store)
    parts = training_parts(cfg, store.folder, load_pretrained=not (checkpoint or settings.weights))
    if settings.weights and checkpoint is None:
        logger.info(load_weights(parts.model, settings.weights, strict=True).summary())
    split = parts.split
    valid = _split(cfg, "valid", store.folder, parts.model.layout) if settings.validate else None
    trainer = parts.trainer(
        parts.phase_loader(),
        _callbacks(cfg, settings, store, parts, valid),
        data_identity=_data_identity(cfg, split),
    )
    if checkpoint is not None:
        restore(trainer, checkpoint)
    # Only now, when all of the above has worked: a wrong config leaves the folder as it was.
    _open_output(cfg, store, trainer, checkpoint)
    _describe(trainer, cfg, settings, split, checkpoint)
    with contextlib.ExitStack() as stack:
        for used in (split, valid):
            if used is not None:
                stack.callback(used.loader.close)
        stack.enter_context(trainer.interrupt)
        trainer.fit()
    return trainer


def test(cfg: Config) -> Dict[str, float]:
    """Evaluates `weights` on DATASET.test and returns the metrics; see `engine.evaluate`."""
    settings = RunSettings.from_config(cfg)
    _require(cfg, "--test", "DATASET.test")
    if not settings.weights:
        raise ConfigError(["weights: --test needs a weight file; give it with -w FILE"])
    store = CheckpointStore(settings.output_dir, settings.model_name)
    model = build_model(cfg["MODEL"], load_pretrained=False)
    logger.info(load_weights(model, settings.weights, strict=True).summary())
    split = _split(cfg, "test", store.folder, model.layout)
    with contextlib.closing(split.loader):
        metrics = _evaluate(cfg, settings, model, split)
    if not metrics["num_samples"]:
        raise BadSampleShareError(f"none of the {metrics['num_failed']} samples of DATASET.test decodes")
    logger.info("test %s", "  ".join(f"{name}: {_shown(value)}" for name, value in metrics.items()))
    return metrics


def _callbacks(
    cfg: Config,
    settings: RunSettings,
    store: CheckpointStore,
    parts: TrainingParts,
    valid: Optional[Split],
) -> List[Callback]:
    """The run's callbacks, in order.

    What a clip costs is counted in the first step only. The rate is set before a step and the average follows
    it, so evaluation sees the newest average. Precise BN comes before evaluation and checkpoint, evaluation
    before the records, which hold its result, and the records before the checkpoint: a run that dies between
    the two repeats the steps and their records, it never lacks them. The bar is last, below the lines.
    """
    model = parts.model
    callbacks: List[Callback] = [
        Complexity(MacCounter(model)),
        BatchNormSplits(model),
        LearningRate(parts.curve),
    ]
    ema = EmaSettings.from_config(cfg)
    if ema is not None:
        callbacks.append(ExponentialMovingAverage(model, ema.decay))
    precise = PreciseBNSettings.from_config(cfg)
    if precise is not None:
        callbacks.append(
            PreciseBatchNorm(
                measure=_population_measure(cfg, settings, precise, parts),
                interval=precise.preciseBN_interval,
                averaged=ema is not None,
            )
        )
    if valid is not None:
        callbacks.append(
            Evaluation(
                run=lambda trainer: _evaluate(
                    cfg, settings, model, valid, trainer.interrupt.raise_if_requested
                ),
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


def _split(cfg: Config, name: str, folder: Optional[Path], layout: Literal["NTCHW", "NCTHW"]) -> Split:
    """Loader, preprocessing and bad-sample count of DATASET.`name`."""
    settings, data = RunSettings.from_config(cfg), DatasetSettings.from_config(cfg)
    training = name == "train"
    dataset = build_dataset(
        cfg["DATASET"][name], cfg["PIPELINE"][name], training=training, seed=settings.seed
    )
    num_classes = cfg["MODEL"].get("head", {}).get("num_classes")
    if num_classes is not None:
        check_labels(dataset.records, num_classes, cfg["DATASET"][name]["file_path"])
    dali = _dali_options(settings, name, layout)
    drop_last = training and len(dataset) >= data.batch_size
    loader = _loader(cfg, name, dataset, dali, drop_last)
    bad = BadSamples(folder and folder / "bad_samples.txt", total=len(dataset), max_share=data.max_bad_share)
    preprocess = to_tensor if dali else Preprocess(*dataset.pipeline.normalization, layout)
    return Split(loader, preprocess, bad)


def _loader(cfg: Config, name: str, dataset: Any, dali: Optional[DaliOptions], drop_last: bool) -> Any:
    settings, data = RunSettings.from_config(cfg), DatasetSettings.from_config(cfg)
    return build_loader(
        dataset,
        batch_size=data.batch_size_of(name),  # type: ignore[arg-type]
        num_workers=data.num_workers_of(name),  # type: ignore[arg-type]
        shuffle=name == "train",
        drop_last=drop_last,
        seed=settings.seed,
        worker_options=WorkerOptions(
            affinity=data.worker_affinity,
            stall_timeout_sec=data.stall_timeout_sec,
            stall_limit_sec=data.stall_limit_sec,
        ),
        dali=dali,
    )


def _dali_options(
    settings: RunSettings, name: str, layout: Literal["NTCHW", "NCTHW"]
) -> Optional[DaliOptions]:
    return DaliOptions(_gpu_number(), layout) if settings.train_dali and name != "test" else None


def _gpu_number() -> Optional[int]:
    """The GPU that Paddle computes on, None for the CPU."""
    kind, _, number = paddle.device.get_device().partition(":")
    return int(number) if kind == "gpu" else None


def _population_measure(
    cfg: Config, settings: RunSettings, precise: PreciseBNSettings, parts: TrainingParts
) -> Callable[[Trainer], Any]:
    """What takes the batch-norm statistics of a run, over its training data with the last, smaller batch.

    The clips have the configured shape in every phase. Their workers end with each pass.
    """
    split, model = parts.split, parts.model
    dali = _dali_options(settings, "train", model.layout)
    loader = _loader(cfg, "train", split.loader.dataset, dali, drop_last=False)

    def measure(trainer: Trainer) -> Any:
        with contextlib.closing(loader):
            return population_statistics(
                model,
                loader,
                split.preprocess,
                epoch=trainer.state.epoch,
                max_batches=min(precise.num_iters_preciseBN, settings.max_iters or sys.maxsize),
                on_failures=split.bad_samples.add,
                show_progress=sys.stdout.isatty(),
                check_stop=trainer.interrupt.raise_if_requested,
            )

    return measure


def _evaluate(
    cfg: Config,
    settings: RunSettings,
    model: Any,
    split: Split,
    check_stop: Optional[Callable[[], None]] = None,
) -> Dict[str, float]:
    return evaluate(
        model,
        split.loader,
        split.preprocess,
        build(METRICS, cfg["METRIC"]),
        on_failures=split.bad_samples.add,
        max_iters=settings.max_iters,
        show_progress=sys.stdout.isatty(),
        check_stop=check_stop,
    )


def _data_identity(cfg: Config, split: Split) -> Dict[str, Any]:
    """What decides which samples a step sees."""
    records = "\n".join(f"{record.path} {record.label}" for record in split.loader.dataset.records)
    return {
        "batch_size": DatasetSettings.from_config(cfg).batch_size,
        "num_samples": len(split.loader.dataset),
        "list_crc32": zlib.crc32(records.encode("utf-8", errors="surrogateescape")),
    }


def _open_output(
    cfg: Config, store: CheckpointStore, trainer: Trainer, checkpoint: Optional[Checkpoint]
) -> None:
    """Makes room in the output folder, and opens the run's log and config there."""
    if checkpoint is not None and Path(checkpoint.prefix).resolve().parent == store.folder.resolve():
        _move_later_checkpoints_aside(store, trainer)
    else:
        move_earlier_run_aside(store.folder, store.name)
    with writing(store.folder):
        add_log_file(store.folder / "train.log")
        _without_start(cfg).save(store.folder / "config.yaml")


def _without_start(cfg: Config) -> Config:
    """The config without what says where this start began: loading it gives the run from its beginning."""
    start = ("resume", "resume_epoch", "weights")
    return Config({key: value for key, value in cfg.items() if key not in start}, path=cfg.path)


def _move_later_checkpoints_aside(store: CheckpointStore, trainer: Trainer) -> None:
    """A run that goes on from an older checkpoint leaves a branch behind, which resume=auto must not take."""
    position = trainer.state.step, trainer.state.epoch
    later = [prefix for *place, prefix in store.complete() if tuple(place) > position]
    target = move_aside(store.folder, [path for prefix in later for path in store.files(prefix)])
    if target is not None:
        logger.info("%d checkpoints after the resumed one were moved to '%s'", len(later), target)


def _checkpoint_to_resume(settings: RunSettings, store: CheckpointStore) -> Optional[Checkpoint]:
    if settings.resume_epoch:
        return load_checkpoint(str(store.prefix(f"epoch_{settings.resume_epoch:05d}")))
    if not settings.resume:
        return None
    if settings.resume != "auto" and not Path(settings.resume).is_dir():
        return load_checkpoint(settings.resume)
    folder = store if settings.resume == "auto" else CheckpointStore(settings.resume, settings.model_name)
    latest = folder.latest()
    if latest is not None:
        return load_checkpoint(latest)
    if settings.resume != "auto":
        raise CheckpointError(f"no checkpoint of '{settings.model_name}' in '{settings.resume}'")
    logger.info("resume=auto: '%s' holds no checkpoint yet, the run starts anew", store.folder)
    return None


def _require(cfg: Config, what: str, *names: str) -> None:
    for name in names:
        section: Any = cfg
        for key in name.split("."):
            section = section.get(key) if section else None
        if not section:
            raise ConfigError([f"{cfg.path}  {name}: {what} needs this section"])


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
        "%s: %.2f M parameters, %d clips an epoch in %d batches, %d epochs, paddle %s on %s, seed %d, to %s",
        settings.model_name,
        count_parameters(trainer.model) / 1e6,
        len(split.loader.dataset),
        len(trainer.make_loader(trainer.phase_of(trainer.state.epoch))),
        trainer.num_epochs,
        paddle.__version__,
        paddle.device.get_device(),
        settings.seed,
        settings.output_dir,
    )


def _shown(value: float) -> str:
    return f"{value:.5f}" if isinstance(value, float) else str(value)

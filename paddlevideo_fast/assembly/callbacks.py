"""What happens around the steps of a run, in which order."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, Dict, List, Optional

from paddlevideo_fast.assembly.data import Split, dali_options, loader_of
from paddlevideo_fast.assembly.parts import TrainingParts
from paddlevideo_fast.assembly.reporting import Reporting, hyperparameters
from paddlevideo_fast.config import (
    Config,
    DistributedSettings,
    EmaSettings,
    PreciseBNSettings,
    RunSettings,
    build,
)
from paddlevideo_fast.engine import (
    CheckpointStore,
    Distribution,
    Precision,
    Trainer,
    evaluate,
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
    ProfilerOptions,
    Profiling,
    ProgressBar,
    Recorder,
)
from paddlevideo_fast.engine.sinks import ConsoleSink, JsonLinesSink, Sink, VisualDLSink
from paddlevideo_fast.metrics import PredictionMetric
from paddlevideo_fast.modeling import MacCounter
from paddlevideo_fast.registry import METRICS


def callbacks_of(
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
    the two repeats the steps and their records, it never lacks them. Reporting reads the records, and comes
    when all else is saved. The profiler, which may end the run, comes behind all that keeps a step. The bar
    is last, below the lines.
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
    metric = None
    if valid is not None:
        metric = metric_of(cfg)
        callbacks.append(_evaluation(cfg, settings, store, valid, metric))
    main = parts.distribution.is_main
    sinks: List[Sink] = [ConsoleSink(), JsonLinesSink(store.folder / "metrics.jsonl")] if main else []
    board = None
    if settings.use_visualdl and main:
        numbers = ["train_epoch/loss", *(["valid/top1"] if valid else [])]
        board = VisualDLSink(store.folder / "vdl", hyperparameters(cfg), numbers)
        sinks.append(board)
    one_process_ips = DistributedSettings.from_config(cfg).one_process_ips
    callbacks.append(Recorder(sinks, settings.log_interval, one_process_ips))
    callbacks.append(
        Checkpointing(
            store,
            interval=settings.save_interval,
            every_steps=settings.save_every_steps,
            keep_last=settings.keep_last,
        )
    )
    if main:
        callbacks.append(Reporting(parts, store.folder, valid, metric, board))
    if settings.profiler_options is not None:
        options = ProfilerOptions.parse(settings.profiler_options)
        callbacks.append(Profiling(options, store.folder / "profile", parts.distribution.rank))
    if _is_on_terminal(parts.distribution):
        callbacks.append(ProgressBar())
    return callbacks


def _evaluation(
    cfg: Config, settings: RunSettings, store: CheckpointStore, valid: Split, metric: Any
) -> Evaluation:
    """What validates between epochs and keeps the best weights."""

    def run(trainer: Trainer) -> Dict[str, float]:
        return evaluate_split(
            cfg,
            settings,
            trainer.model,
            valid,
            trainer.precision,
            trainer.distribution,
            trainer.interrupt.raise_if_requested,
            metric,
        )

    def save_best(trainer: Trainer) -> None:
        store.save_weights("best", trainer.model.state_dict())

    return Evaluation(run, settings.val_interval, save_best)


def _population_measure(
    cfg: Config, settings: RunSettings, precise: PreciseBNSettings, parts: TrainingParts
) -> Callable[[Trainer], Any]:
    """What takes the batch-norm statistics of a run, over its training data with the last, smaller batch.

    The clips have the configured shape in every phase. Their workers end with each pass.
    """
    split, model = parts.split, parts.model
    dali = dali_options(settings, "train", model.layout)
    loader = loader_of(
        cfg, "train", split.loader.dataset, dali, drop_last=False, distribution=parts.distribution, pad=False
    )

    def measure(trainer: Trainer) -> Any:
        with contextlib.closing(loader):
            return population_statistics(
                model,
                loader,
                split.preprocess,
                epoch=trainer.state.epoch,
                max_batches=min(precise.num_iters_preciseBN, settings.max_iters or sys.maxsize),
                on_failures=split.bad_samples.add,
                show_progress=_is_on_terminal(parts.distribution),
                check_stop=trainer.interrupt.raise_if_requested,
                precision=trainer.precision,
                distribution=parts.distribution,
            )

    return measure


def metric_of(cfg: Config) -> PredictionMetric:
    """The configured metric, and beside it the predictions that it judged."""
    return PredictionMetric(build(METRICS, cfg["METRIC"]))


def evaluate_split(
    cfg: Config,
    settings: RunSettings,
    model: Any,
    split: Split,
    precision: Precision,
    distribution: Distribution,
    check_stop: Optional[Callable[[], None]] = None,
    metric: Optional[PredictionMetric] = None,
) -> Dict[str, float]:
    """The metrics of a model on one part of the data; see `engine.evaluate`.

    Where a `metric` is given, it holds the predictions afterwards.
    """
    return evaluate(
        model,
        split.loader,
        split.preprocess,
        metric or metric_of(cfg),
        on_failures=split.bad_samples.add,
        max_iters=settings.max_iters,
        show_progress=_is_on_terminal(distribution),
        check_stop=check_stop,
        distribution=distribution,
        precision=precision,
    )


def _is_on_terminal(distribution: Distribution) -> bool:
    """Whether somebody watches this process."""
    return distribution.is_main and sys.stdout.isatty()

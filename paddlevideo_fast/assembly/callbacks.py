"""Builds the callbacks of a run, in the order in which they run, and the evaluator that they share."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paddlevideo_fast.assembly.build import TrainingSetup
from paddlevideo_fast.assembly.data import Split, make_loader
from paddlevideo_fast.config import RunSpec, build_list
from paddlevideo_fast.config.sections import NamedItem
from paddlevideo_fast.config.settings import PreciseBNSettings
from paddlevideo_fast.config.spec import VISUALDL, names_of
from paddlevideo_fast.config.yaml_source import dump
from paddlevideo_fast.engine import CheckpointStore, Distribution, Evaluator, Precision
from paddlevideo_fast.engine.callbacks import checkpointing, evaluation, profiling, recorder, schedule
from paddlevideo_fast.engine.sinks import ConsoleSink, JsonLinesSink, Sink
from paddlevideo_fast.engine.trackers import TrackedRun, Tracker, VisualDL, flattened
from paddlevideo_fast.engine.trainer import Callback
from paddlevideo_fast.errors import SettingError
from paddlevideo_fast.io.files import working_folder
from paddlevideo_fast.io.urls import shown_url
from paddlevideo_fast.loader.class_names import classes_of_config
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.metrics import VideoMetric
from paddlevideo_fast.modeling import MacCounter
from paddlevideo_fast.registry import CALLBACKS, TRACKERS, Registry
from paddlevideo_fast.report import Naming, ReportedRun
from paddlevideo_fast.report.results import Reporting

_COMPARED = (
    *("MODEL", "OPTIMIZER", "MIX", "FINETUNE", "LORA", "DISTILLATION", "EMA", "MULTIGRID", "DISTRIBUTED"),
)


def callbacks_of(
    setup: TrainingSetup,
    store: CheckpointStore,
    valid: Split | None,
    further: Sequence[Callback] = (),
    class_names: Sequence[str] | None = None,
) -> list[Callback]:
    """The run's callbacks, in order.

    What a clip costs is counted in the first step only. The rate is set before a step and the average follows
    it, so evaluation sees the newest average. Precise BN comes before evaluation and checkpoint, evaluation
    before the records, which hold its result, and the records before the checkpoint: a run that dies between
    the two repeats the steps and their records, it never lacks them. The user's own callbacks see the result
    of the evaluation, and what they change is in the records and the checkpoint. Reporting reads the records,
    and comes when all else is saved; trackers get its page. The caller's callbacks (`further`) are next: they
    see what is on the disk. The profiler, which may end the run, comes behind all that keeps a step. The bar
    is last, below the lines.

    Raises:
        ConfigError: a callback or tracker is listed twice, or is none.
    """
    spec, model, distribution = setup.spec, setup.model, setup.distribution
    run, main = spec.run, distribution.is_main
    callbacks: list[Callback] = [
        schedule.PhaseLog(spec.clips_of_update(distribution.world_size)),
        recorder.Complexity(MacCounter(model)),
        schedule.BatchNormSplits(model),
        schedule.LearningRate(setup.curve),
    ]
    freezing = setup.freezing
    if freezing is not None:
        callbacks.append(schedule.Unfreezing(freezing))
    if spec.ema is not None:
        later = freezing.later if freezing else ()
        callbacks.append(evaluation.ExponentialMovingAverage(model, spec.ema.decay, later))
    if spec.precise_bn is not None and spec.run.features is None:
        evaluator = statistics_evaluator(spec, setup.split, setup.plan.precision, distribution)
        interval = spec.precise_bn.preciseBN_interval
        callbacks.append(evaluation.PreciseBatchNorm(evaluator, interval, averaged=spec.ema is not None))
    metric = setup.plan.metric
    if valid is not None and metric is not None:
        evaluator = make_evaluator(spec, valid, setup.plan.precision, distribution)
        selection = evaluation.Selection(spec.selection)
        callbacks.append(evaluation.Evaluation(evaluator, metric, run.val_interval, store, selection))
    _require(spec, "CALLBACKS", CALLBACKS, spec.callbacks, Callback)
    callbacks += build_list(CALLBACKS, spec.callbacks)
    trackers, board = _trackers(spec, store.folder, metric) if main else ([], None)
    sinks: list[Sink] = [ConsoleSink(), JsonLinesSink(store.folder / "metrics.jsonl"), *trackers]
    rate = spec.distributed.one_process_ips
    callbacks.append(recorder.Recorder(sinks if main else [], run.log_interval, rate))
    kept = run.save_interval, run.save_every_steps, run.keep_last
    callbacks.append(checkpointing.Checkpointing(store, *kept, class_names))
    if main:
        reported = reported_run(spec)
        if reported.with_page or board is not None:
            trained = setup.split.dataset
            evaluated = valid.dataset if valid else trained
            naming = make_naming(spec, model.num_classes, evaluated)
            callbacks.append(Reporting(reported, trained, evaluated, naming, metric, board))
        callbacks.append(recorder.Tracking(trackers, store))
    callbacks += further
    if run.profiler_options is not None:
        options = profiling.ProfilerOptions.parse(run.profiler_options)
        callbacks.append(profiling.Profiling(options, store.folder / "profile", distribution.rank))
    if _is_on_terminal(distribution):
        callbacks.append(recorder.ProgressBar())
    name, count = Counter(type(callback).__name__ for callback in callbacks).most_common(1)[0]
    if count > 1:
        text = f"a run has one callback of a name, whose state a checkpoint holds; {count} are {name}"
        raise SettingError("CALLBACKS", text)
    return callbacks


def _trackers(
    spec: RunSpec, folder: Path, metric: VideoMetric | None
) -> tuple[list[Tracker], VisualDL | None]:
    """The trackers of a run, and which of them is VisualDL's board."""
    name, count = Counter([*names_of(spec.trackers), ""]).most_common(1)[0]
    if count > 1:
        raise SettingError("TRACKERS", f"{name} is listed {count} times")
    compared = flattened(_compared(spec))
    measured = (metric.value_names or ("top1",))[0] if metric else ""
    run = TrackedRun(spec.run.model_name, folder, dict(spec.config), compared, measured)
    _require(spec, "TRACKERS", TRACKERS, spec.trackers, Tracker)
    trackers = build_list(TRACKERS, spec.trackers, run=run)
    return trackers, next((each for each in trackers if isinstance(each, VisualDL)), None)


def _require(spec: RunSpec, key: str, registry: Registry, items: Sequence[NamedItem], base: type) -> None:
    for number, name in enumerate(names_of(items)):
        if not issubclass(registry.get(name), base):
            text = f"{name} is no subclass of {base.__module__}.{base.__name__}"
            raise SettingError(f"{key}.{number}", text)


def _compared(spec: RunSpec) -> dict[str, Any]:
    """The settings in which runs differ, for the table of runs of a tracker."""
    return {
        "epochs": spec.run.epochs,
        "seed": spec.run.seed,
        "accumulate_steps": spec.run.accumulate_steps,
        "DATASET.batch_size": spec.data.batch_size,
        **{name: value for name, value in spec.config.items() if name in _COMPARED},
    }


def statistics_evaluator(
    spec: RunSpec, split: Split, precision: Precision, distribution: Distribution
) -> Evaluator:
    """Runs precise BN over the training data `split`, the last, smaller batch included.

    The clips have the configured shape in every phase.
    """
    settings = spec.precise_bn or PreciseBNSettings()
    loader = make_loader(spec, "train", split.dataset, distribution, pad=False)
    num_batches = min(settings.num_iters_preciseBN, spec.run.max_iters or sys.maxsize)
    split = replace(split, loader=loader)
    return make_evaluator(spec, split, precision, distribution, num_batches)


def make_evaluator(
    spec: RunSpec,
    split: Split,
    precision: Precision,
    distribution: Distribution,
    max_batches: int | None = None,
) -> Evaluator:
    """Runs a model over one part of the data: at most `max_batches` batches; None: `max_iters`."""
    return Evaluator(
        split.loader,
        split.preprocess,
        precision,
        distribution,
        on_incidents=split.bad_samples.add,
        max_batches=spec.run.max_iters if max_batches is None else max_batches,
        show_progress=_is_on_terminal(distribution),
    )


def make_naming(spec: RunSpec, num_classes: int, dataset: ClipDataset) -> Naming:
    """Names of the classes and paths of the videos.

    Raises:
        AnnotationError: the file of names does not fit.
    """
    paths = [shown_url(record.path) for record in dataset.records]
    classes = classes_of_config(spec.config, num_classes)
    return Naming(classes.names if classes else [str(label) for label in range(num_classes)], paths)


def reported_run(spec: RunSpec) -> ReportedRun:
    """What the reports of a run say of it."""
    return ReportedRun(
        spec.run.model_name,
        working_folder(spec.run.output_dir),
        dump(dict(spec.config)),
        with_page=spec.run.report,
        with_board=VISUALDL in names_of(spec.trackers),
    )


def _is_on_terminal(distribution: Distribution) -> bool:
    """Whether somebody watches this process."""
    return distribution.is_main and sys.stdout.isatty()

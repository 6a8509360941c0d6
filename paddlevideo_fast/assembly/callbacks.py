"""Builds the callbacks of a run, in the order in which they run."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paddlevideo_fast.assembly.build import TrainingSetup, is_on_terminal
from paddlevideo_fast.config import RunSpec, build_list
from paddlevideo_fast.config.sections import NamedItem
from paddlevideo_fast.config.spec import VISUALDL, names_of
from paddlevideo_fast.config.yaml_source import dump
from paddlevideo_fast.engine import CheckpointStore
from paddlevideo_fast.engine.callbacks import checkpointing, recorder, schedule
from paddlevideo_fast.engine.sinks import ConsoleSink, JsonLinesSink, Sink
from paddlevideo_fast.engine.trainer import Callback
from paddlevideo_fast.errors import SettingError
from paddlevideo_fast.extensions.profiler import profiling
from paddlevideo_fast.extensions.report import Naming, ReportedRun
from paddlevideo_fast.extensions.report.results import Reporting
from paddlevideo_fast.extensions.trackers.trackers import TrackedRun, Tracker, VisualDL, flattened
from paddlevideo_fast.io.files import working_folder
from paddlevideo_fast.loader.class_names import classes_of_config
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.metrics import VideoMetric
from paddlevideo_fast.modeling import MacCounter
from paddlevideo_fast.registry import CALLBACKS, TRACKERS, Registry
from paddlevideo_fast.sources.remote.urls import shown_url

_COMPARED = (
    *("MODEL", "OPTIMIZER", "MIX", "FINETUNE", "LORA", "DISTILLATION", "EMA", "MULTIGRID", "DISTRIBUTED"),
)


def callbacks_of(
    setup: TrainingSetup,
    store: CheckpointStore,
    further: Sequence[Callback] = (),
    class_names: Sequence[str] | None = None,
) -> list[Callback]:
    """The run's callbacks, slot by slot; see `Slot`. In a slot stand the core's, the extensions', the user's.

    The caller's callbacks (`further`) see what is on the disk.

    Raises:
        ConfigError: a callback or tracker is listed twice, or is none.
    """
    spec, model, distribution = setup.spec, setup.model, setup.distribution
    run, main, metric = spec.run, distribution.is_main, setup.plan.metric
    trackers, board = _trackers(spec, store.folder, metric) if main else ([], None)
    sinks: list[Sink] = [ConsoleSink(), JsonLinesSink(store.folder / "metrics.jsonl"), *trackers]
    kept = run.save_interval, run.save_every_steps, run.keep_last
    _require(spec, "CALLBACKS", CALLBACKS, spec.callbacks, Callback)
    callbacks: list[Callback] = [
        schedule.PhaseLog(spec.clips_of_update(distribution.world_size)),
        recorder.Complexity(MacCounter(model)),
        schedule.BatchNormSplits(model),
        schedule.LearningRate(setup.curve),
        recorder.Recorder(sinks if main else [], run.log_interval, spec.distributed.one_process_ips),
        checkpointing.Checkpointing(store, *kept, class_names),
        *setup.callbacks,
        *(callback for extension in spec.extensions for callback in extension.callbacks(setup)),
        *build_list(CALLBACKS, spec.callbacks),
    ]
    if main:
        reported = reported_run(spec)
        if reported.with_page or board is not None:
            trained = setup.split.dataset
            evaluated = setup.valid.dataset if setup.valid else trained
            naming = make_naming(spec, model.num_classes, evaluated)
            callbacks.append(Reporting(reported, trained, evaluated, naming, metric, board))
        callbacks.append(recorder.Tracking(trackers, store))
    callbacks = [*sorted(callbacks, key=lambda callback: callback.slot), *further]
    if run.profiler_options is not None:
        options = profiling.ProfilerOptions.parse(run.profiler_options)
        callbacks.append(profiling.Profiling(options, store.folder / "profile", distribution.rank))
    if is_on_terminal(distribution):
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

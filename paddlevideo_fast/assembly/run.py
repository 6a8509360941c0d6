"""A training run and a test, from their config to their end."""

import contextlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import paddle

from paddlevideo_fast.assembly.build import TrainingSetup, make_evaluator, training_setup
from paddlevideo_fast.assembly.callbacks import callbacks_of
from paddlevideo_fast.assembly.checks import check_evaluation
from paddlevideo_fast.assembly.classes import checked_class_names, class_names
from paddlevideo_fast.assembly.data import Pipelines, Split, data_identity, make_split
from paddlevideo_fast.assembly.plan import RunPlan, make_metric, make_precision, plan_run
from paddlevideo_fast.config import Config, RunSpec
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.config.settings import SplitName
from paddlevideo_fast.config.types import leaves
from paddlevideo_fast.config.yaml_source import dotted
from paddlevideo_fast.device import tune_gpu
from paddlevideo_fast.engine import Trainer, TrainingInterrupted
from paddlevideo_fast.engine.callbacks import Callback, restore
from paddlevideo_fast.engine.callbacks.evaluation import best_of
from paddlevideo_fast.engine.checkpoint import Snapshot, read_mark, writing
from paddlevideo_fast.engine.distribution import Distribution, launched_rank, make_distribution
from paddlevideo_fast.engine.output import (
    BackgroundStore,
    CheckpointStore,
    ReadOnlyStore,
    folder_of_run,
    run_with,
)
from paddlevideo_fast.engine.protocols import Preprocess
from paddlevideo_fast.engine.trainer import TrainingEnds
from paddlevideo_fast.errors import (
    AnnotationError,
    BadSampleShareError,
    OutputError,
    PaddleVideoFastError,
    SettingError,
    shown,
)
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.io.paths import file_system
from paddlevideo_fast.loader import build_dataset
from paddlevideo_fast.loader.class_names import write_class_names
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.log import get_logger, log_file
from paddlevideo_fast.machine import MKL_PATH, available_cores
from paddlevideo_fast.metrics.accuracy import with_certainty
from paddlevideo_fast.metrics.predictions import Predictions
from paddlevideo_fast.modeling import count_parameters
from paddlevideo_fast.modeling.recognizers import build_for_clips, classes_of
from paddlevideo_fast.modeling.weights import load_weights

logger = get_logger(__name__)

_NUM_CHANGES = 6  # shown


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
        with distribution.failure_detector(), contextlib.ExitStack() as held:
            return _train(plan, distribution, held, callbacks)


def _train(
    plan: RunPlan, distribution: Distribution, held: contextlib.ExitStack, callbacks: Sequence[Callback]
) -> Trainer:
    """See `train`; `held` keeps other runs out of the output folder as long as it is open."""
    if not plan.spec.config.get("output_dir"):
        plan = replace(plan, spec=_in_own_folder(plan.spec, distribution))
    spec, run = plan.spec, plan.spec.run
    # further callbacks find the checkpoint of an epoch on the disk, so they are not ahead of it
    writing_store = CheckpointStore if callbacks else BackgroundStore
    store = (writing_store if distribution.is_main else ReadOnlyStore)(run.output_dir, run.model_name)

    def take_output() -> None:
        store.prepare()
        if distribution.is_main:
            held.enter_context(only_writer(store.folder, given_by="output_dir"))
            held.enter_context(_uploading(store))

    distribution.gather_from(take_output)
    checkpoint = store.checkpoint_to_resume(run.resume, run.resume_epoch, distribution)
    backbone: Any = spec.model.get("backbone") or {}
    if not (checkpoint or run.weights or backbone.get("pretrained")):
        needs = {key: text for each in spec.extensions for key, text in each.needs_weights.items()}
        if backbone.get("partial_bn"):
            text = "keeps statistics of pretrained weights, and none are loaded"
            needs["MODEL.backbone.partial_bn"] = f"{text}: set it to false, or name weights"
        for key, text in needs.items():
            raise SettingError(key, text)
    trained = [] if checkpoint is None else [f"{checkpoint.prefix}.pdparams"]
    names = distribution.gather_from(lambda: checked_class_names(spec, *trained))[0]
    load_pretrained = not (checkpoint or run.weights)
    setup = training_setup(plan, store.folder, load_pretrained, distribution)
    if run.weights and checkpoint is None:
        report = load_weights(setup.model, run.weights, strict=True, classes=class_names(spec))
        logger.info(report.summary())
        for extension in spec.extensions:
            extension.on_weights(setup, report)
    setup.store = store
    if run.validate:
        setup.valid = _validation(setup)
    trainer = setup.trainer(
        setup.phase_loader(),
        callbacks_of(setup, store, callbacks, names),
        data_identity=data_identity(spec, setup.split),
    )
    if checkpoint is not None:
        restore(trainer, checkpoint)
    for extension in spec.extensions:
        extension.begin(setup)
    # Only now, when all of the above has worked on all ranks: a wrong config leaves the folder as it was, and
    # weights that are read from it stay in place until the last rank has them.
    distribution.barrier()
    if distribution.is_main:
        _open_output(spec, store, trainer, checkpoint, held)
        if names is not None:
            with writing(store.folder):
                write_class_names(store.folder, names)
    _describe(trainer, setup, checkpoint)
    with contextlib.ExitStack() as stack:
        for used in (setup.split, setup.valid):
            if used is not None:
                stack.callback(used.loader.close)
        stack.enter_context(trainer.interrupt)
        stack.enter_context(contextlib.suppress(TrainingEnds))
        try:
            trainer.fit()
        except TrainingInterrupted as stopped:
            stopped.folder = run.output_dir
            raise
    if distribution.is_main:
        _tell_end(spec, store, trainer)
    return trainer


def _validation(setup: TrainingSetup) -> Split:
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


def _in_own_folder(spec: RunSpec, distribution: Distribution) -> RunSpec:
    """The run in the output folder that rank 0 chooses, where the config names none."""
    base, run = spec.run.output_dir, spec.run
    resume = "auto" if run.resume_epoch else run.resume
    folder = distribution.gather_from(lambda: str(folder_of_run(base, resume)))[0]
    if folder != base:
        verb = "goes on in" if resume else "writes to"
        logger.info("%s holds an earlier run: this one %s %s", base, verb, folder)
    return spec.in_folder(folder)


@contextlib.contextmanager
def _uploading(store: CheckpointStore) -> Iterator[None]:
    """Puts what is in the folder of a URL into the store when the block ends, also after an error."""
    try:
        yield
    except BaseException:
        try:
            store.upload()
        except PaddleVideoFastError as error:
            logger.error("%s", error)
        raise
    store.upload()


@dataclass(frozen=True)
class FinishedTest:
    """A test of weights, as extensions write of it.

    Attributes:
        spec: of the test.
        weights: the tested file.
        metrics: see `Evaluator.run`.
        predictions: the scores of the videos; None: the metric keeps none.
        model: the network, with the weights.
        preprocess: from clips of the data set to what the network takes.
        dataset: the tested videos.
        note: a sentence beside the result; "": none.
    """

    spec: RunSpec
    weights: str
    metrics: Mapping[str, float]
    predictions: Predictions | None
    model: Any
    preprocess: Preprocess
    dataset: ClipDataset
    note: str


def test(cfg: Config) -> dict[str, float]:
    """Evaluates `weights` on DATASET.test and returns the metrics; see `Evaluator.run`."""
    with cfg.placing():
        cfg.require("--test", "DATASET.test")
        spec = RunSpec.of(cfg)
        pipelines = check_evaluation(spec, "test")
        if not spec.run.weights:
            raise SettingError("weights", "--test needs a weight file; give it with -w FILE")
        distribution = make_distribution(spec.distributed)
        with distribution.failure_detector(), contextlib.ExitStack() as held:
            return _test(spec, pipelines, spec.run.weights, distribution, held)


def _test(
    spec: RunSpec, pipelines: Pipelines, weights: str, distribution: Distribution, held: contextlib.ExitStack
) -> dict[str, float]:
    """See `test`; `held` keeps other tests out of the output folder as long as it is open."""
    if not spec.config.get("output_dir"):  # beside the tested weights, if they are of a run of this config
        spec = spec.in_folder(str(run_with(spec.run.output_dir, weights) or spec.run.output_dir))
    store = CheckpointStore(spec.run.output_dir, spec.run.model_name)

    def take_output() -> None:
        if distribution.is_main:
            try:
                held.enter_context(only_writer(store.folder, "test", given_by="output_dir"))
                held.enter_context(_uploading(store))
            except OutputError as error:  # told now, not after all videos
                logger.warning("%s: the numbers will be in this log alone", error)

    distribution.gather_from(take_output)
    precision = make_precision(spec)
    model = build_for_clips(spec.model, spec.run.amp, load_pretrained=False)
    if told := tune_gpu(has_fixed_shapes=True, in_16_bits=spec.run.amp):
        logger.info("device: %s", told)
    distribution.gather_from(lambda: checked_class_names(spec, weights))  # says more than another shape does
    logger.info(load_weights(model, weights, strict=True).summary())
    split = make_split(spec, "test", model.layout, distribution, store.folder, pipelines)
    metric = make_metric(spec)
    with contextlib.closing(split.loader):
        evaluator = make_evaluator(spec, split, precision, distribution)
        metrics = evaluator.run(model, metric)
    if not metrics["num_samples"]:
        raise BadSampleShareError(f"none of the {metrics['num_failed']} samples of DATASET.test decodes")
    note = _not_new(spec, weights, split.dataset, pipelines) if distribution.is_main else ""
    try:
        if distribution.is_main:
            finished = FinishedTest(
                spec, weights, metrics, metric.predictions, model, evaluator.preprocess, split.dataset, note
            )
            for extension in spec.extensions:
                extension.tested(finished)
    finally:  # the numbers are told even where the files cannot be written
        if note:
            logger.warning(note)
        values = with_certainty(metrics)
        logger.info("test %s", "  ".join(f"{name}: {_shown(value)}" for name, value in values.items()))
    return metrics


def _not_new(spec: RunSpec, weights: str, tested: ClipDataset, pipelines: Pipelines) -> str:
    """What the tested videos had to do with the weights, in words; empty where they are new to them."""
    share = f"of the {len(tested)} tested videos"
    trained, chose = (_num_shared(spec, name, tested, pipelines) for name in ("train", "valid"))
    texts = [f"{trained} {share} are in DATASET.train"] if trained else []
    file = Path(weights).with_suffix("")
    if chose and re.search("_best$|^best_model$|_average_greedy", file.name):
        texts.append(f"{chose} {share} chose these weights in validation")
        store = CheckpointStore(file.parent, spec.run.model_name)
        mark = read_mark(Path(f"{store.latest()}.json"))
        if mark and file.name.endswith("_best"):
            state = (mark["trainer"].get(key, {}) for key in ("best", "choice", "last_validation"))
            texts[-1] += f" ({best_of(*state)})"
    return f"{'; '.join(texts)}. Expect less on new videos; train --folds K measures that" if texts else ""


def _num_shared(spec: RunSpec, name: SplitName, tested: ClipDataset, pipelines: Pipelines) -> int:
    """How many of the tested videos DATASET.`name` has, too; 0 where its list cannot be read."""
    if not spec.holds(f"DATASET.{name}") or not file_system(spec.splits[name].dataset["file_path"]).is_local:
        return 0
    try:
        other = build_dataset(
            spec.splits[name].dataset,
            pipelines[name],
            training=name == "train",
            seed=spec.run.seed,
            class_names=spec.data.class_names,
        )
    except PaddleVideoFastError:
        return 0
    there = {os.path.normpath(record.path) for record in other.records}
    return sum(os.path.normpath(record.path) in there for record in tested.records)


def _open_output(
    spec: RunSpec,
    store: CheckpointStore,
    trainer: Trainer,
    checkpoint: Snapshot | None,
    held: contextlib.ExitStack,
) -> None:
    """Makes room in the output folder and writes the run's config there; `held` keeps its log open."""
    store.archive_earlier_run(trainer.state, checkpoint)
    # what belongs to this start alone is left out: loading the file gives the run from its beginning
    options = [extension for extension in spec.extensions if extension.is_of_one_start]
    start = {"resume", "resume_epoch", "weights", *(key.name for each in options for key in fields(each))}
    saved = Config({key: value for key, value in spec.config.items() if key not in start})
    file = "config.yaml"
    with writing(store.folder):
        held.enter_context(log_file(store.folder / "train.log"))
        if checkpoint is not None and (store.folder / file).is_file():
            _tell_changes(load_config(store.folder / file, check=False), saved)
        saved.save(store.folder / file)


def _tell_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Warns about keys that differ from the config that a resumed run had so far."""
    old, new = ({dotted(path): value for path, value in leaves(each)} for each in (before, now))
    changed = [
        f"{key} was {shown(old.get(key))} and is {shown(new.get(key))}"
        for key in {**old, **new}
        if old.get(key) != new.get(key) and key not in ("output_dir", "imports")
    ]
    if changed:
        more = f" and {len(changed) - _NUM_CHANGES} more" if len(changed) > _NUM_CHANGES else ""
        text = "this start changes keys of the run that it goes on with: %s%s"
        logger.warning(text, ", ".join(changed[:_NUM_CHANGES]), more)


def _describe(trainer: Trainer, setup: TrainingSetup, checkpoint: Snapshot | None) -> None:
    run = setup.spec.run
    if checkpoint is not None:
        done, step = trainer.state.epoch, trainer.state.step_in_epoch
        logger.info("resumed %s: epoch %d, step %d of it", checkpoint.prefix, done + 1, step)
        if done >= trainer.num_epochs:
            logger.info("nothing is left to train: %d of %d epochs are done", done, trainer.num_epochs)
    if setup.spec.multigrid and not run.multigrid:
        logger.info("MULTIGRID has no effect: add --multigrid to train in its schedule")
    loader, num_clips = trainer.make_loader(trainer.phase_of(trainer.state.epoch)), len(setup.split.dataset)
    num_batches = min(trainer.steps_in_epoch(loader) * trainer.accumulate_steps, len(loader))
    num_taken = num_clips * num_batches // max(len(loader), 1)
    precision = trainer.precision
    how = f"{precision.name} ({precision.reason})" if precision.reason else precision.name
    logger.info(
        f"{run.model_name}: {count_parameters(trainer.model) / 1e6:.2f} M parameters, {num_taken} clips an "
        f"epoch in {num_batches} batches, {trainer.num_epochs} epochs, paddle {paddle.__version__} on "
        f"{paddle.device.get_device()} in {how}, seed {run.seed}, to {run.output_dir}"
    )
    dataset = setup.split.dataset
    if num_taken < num_clips:
        logger.info("max_iters: an epoch takes %d of the %d clips", num_taken, num_clips)
    if dataset.clips_per_video > 1:
        share = -(-len(dataset) // dataset.clips_per_video)
        text = "an epoch reads %d of the %d videos and makes %d clips of each"
        logger.info(text, share, len(dataset), dataset.clips_per_video)
    for note in setup.notes:
        logger.info(note)
    flags = [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith("FLAGS_") or name in ("NVIDIA_TF32_OVERRIDE", MKL_PATH)
    ]
    cores = ",".join(map(str, available_cores()))
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    logger.info("%s CPU threads on cores %s; flags: %s", threads, cores, " ".join(flags) or "none")


def _tell_end(spec: RunSpec, store: CheckpointStore, trainer: Trainer) -> None:
    """Says where the results of a training are, and what to type next."""
    folder, run = store.folder, spec.run
    best = folder / f"{run.model_name}_best.pdparams"
    last = store.latest()
    weights = best if best.exists() else last and Path(f"{last}.pdparams")
    if not weights:
        return
    kind, found = "best" if weights == best else "last", store.mirror.address(weights)
    state = trainer.state
    chosen = best_of(state.best, state.choice, state.last_validation)
    logger.info("%s weights: %s (%s)", kind, found, chosen)
    if not classes_of(spec.model):
        logger.info("next: fine-tune a classifier with -o MODEL.backbone.pretrained=%s", shlex.quote(found))
        return
    where = shlex.quote(str(folder))
    if spec.holds("DATASET.test"):
        logger.info("test:    paddlevideo-fast test %s", where)
    logger.info("export:  paddlevideo-fast export %s", where)
    logger.info("predict: paddlevideo-fast predict %s -i new_video.mp4", where)


def _shown(value: Any) -> str:
    return f"{value:.5f}" if isinstance(value, float) else str(value)

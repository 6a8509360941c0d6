"""Averages the checkpoints of a run; `engine.averaging` has the means."""

import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import paddle

from paddlevideo_fast.assembly.callbacks import make_evaluator, statistics_evaluator
from paddlevideo_fast.assembly.checks import check_evaluation
from paddlevideo_fast.assembly.classes import checked_class_names
from paddlevideo_fast.assembly.data import make_split
from paddlevideo_fast.assembly.plan import make_metric, make_precision
from paddlevideo_fast.config import Config, RunSpec
from paddlevideo_fast.engine import CheckpointStore, Distribution
from paddlevideo_fast.engine.averaging import Averager, Metrics
from paddlevideo_fast.engine.checkpoint import writing
from paddlevideo_fast.engine.selection import Selection
from paddlevideo_fast.errors import BadSampleShareError, CheckpointError
from paddlevideo_fast.io.files import as_path, atomic_write_all
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.loader import Classes, check_classes, classes_of_weights, write_class_names
from paddlevideo_fast.modeling import build_model, take_network_layout


class Averaged(NamedTuple):
    """What `average` has written.

    Attributes:
        path: of the weights.
        report: of the JSON file beside them.
        facts: its content.
    """

    path: Path
    report: Path
    facts: dict[str, Any]


def average(
    cfg: Config, last: int | None, files: Sequence[Path] = (), output: Path | None = None
) -> Averaged:
    """Averages checkpoints, measures the batch norms of the mean anew, and validates it.

    Args:
        cfg: a checked config, of the run whose checkpoints are averaged.
        last: how many of the newest; None: greedy. That begins with the best checkpoint in validation and
            adds the others from the best to the worst, each if the validation does not become worse.
        files: weights to choose from, oldest first; none: the run's checkpoints at ends of epochs.
        output: file of the mean; None: `<model_name>_average_last5.pdparams` or
            `<model_name>_average_greedy.pdparams` in the run's folder.

    Raises:
        PaddleVideoFastError: as its message says.
    """
    with cfg.placing():
        cfg.require("average", "DATASET.valid")
        spec = RunSpec.of(cfg)
        check_evaluation(spec, "valid")
        paths = _candidates(spec, files, last)
        names = checked_class_names(spec, *map(str, paths))
        how = "greedy" if last is None else f"last{last}"
        output = output or as_path(spec.run.output_dir) / f"{spec.run.model_name}_average_{how}.pdparams"
        report = output.with_name(f"{output.stem}_report.json")
        there = names and classes_of_weights(str(output))  # of other weights in its folder
        if names and there:
            check_classes(Classes(names, str(paths[0])), there)
        with only_writer(output.parent, output.name), contextlib.ExitStack() as stack:
            averager = _averager(spec, stack)
            facts = averager.last(paths) if last is not None else averager.greedy(paths)
            with writing(output), atomic_write_all(output, report) as partials:
                paddle.save(averager.model.state_dict(), str(partials[0]))
                partials[1].write_text(json.dumps(facts, indent=1), encoding="utf-8")
                if names is not None:
                    write_class_names(output.parent, names)
        return Averaged(output, report, facts)


def _candidates(spec: RunSpec, files: Sequence[Path], last: int | None) -> list[Path]:
    """The files to choose from.

    Raises:
        CheckpointError: there are too few.
    """
    where = "-w"
    paths = list(files)
    if not paths:
        store = CheckpointStore(spec.run.output_dir, spec.run.model_name)
        where = f"'{store.folder}'"
        store.fetch_marks()
        prefixes = [prefix for *_, prefix in store.complete() if re.search(r"_epoch_\d+$", prefix)]
        for prefix in prefixes:
            store.fetch(prefix)
        paths = [Path(f"{prefix}.pdparams") for prefix in prefixes]
    wanted = last or 2
    if len(paths) < wanted:
        raise CheckpointError(
            f"{where} has {len(paths)} checkpoints of epochs, and {wanted} are wanted: keep more with a "
            "lower save_interval or a higher keep_last, or name weight files with -w"
        )
    return paths[-wanted:] if last else paths


def _averager(spec: RunSpec, stack: contextlib.ExitStack) -> Averager:
    """What validates weights of the run's network; `stack` ends its loaders."""
    model = build_model(spec.model, load_pretrained=False)
    take_network_layout(model)
    selection, metric = Selection(spec.selection), make_metric(spec)
    if metric.value_names:
        selection.check(metric.value_names)
    distribution, precision = Distribution(), make_precision(spec)
    valid = make_split(spec, "valid", model.layout, distribution)
    stack.callback(valid.loader.close)
    evaluator = make_evaluator(spec, valid, precision, distribution)
    statistics = None
    if spec.holds("DATASET.train"):
        train = make_split(spec, "train", model.layout, distribution)
        statistics = statistics_evaluator(spec, train, precision, distribution)
        stack.callback(statistics.loader.close)

    def evaluate() -> Metrics:
        metrics = evaluator.run(model, metric)
        if not metrics["num_samples"]:
            raise BadSampleShareError(f"none of the {metrics['num_failed']} samples of DATASET.valid decodes")
        return metrics

    return Averager(model, evaluate, selection, statistics)

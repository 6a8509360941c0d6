"""One network from several checkpoints of a run: the mean of their weights.

Reference: Wortsman et al., "Model soups: averaging weights of multiple fine-tuned models improves accuracy
without increasing inference time", arXiv 2203.05482 (the uniform soup).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.assembly.build import make_evaluator
from paddlevideo_fast.assembly.checks import check_evaluation
from paddlevideo_fast.assembly.data import Pipelines, make_split
from paddlevideo_fast.assembly.plan import make_metric
from paddlevideo_fast.config import Config, RunSpec
from paddlevideo_fast.engine import CheckpointStore, Distribution, Evaluator
from paddlevideo_fast.engine.callbacks.evaluation import Selection
from paddlevideo_fast.engine.callbacks.precise_bn import PreciseBN, population_statistics, put_statistics
from paddlevideo_fast.engine.checkpoint import writing
from paddlevideo_fast.engine.output import run_of_config
from paddlevideo_fast.engine.precision import make_precision
from paddlevideo_fast.errors import BadSampleShareError, CheckpointError, WeightError
from paddlevideo_fast.io.files import as_path, atomic_write_all
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.loader.class_names import (
    Classes,
    check_classes,
    checked_class_names,
    classes_of_weights,
    write_class_names,
)
from paddlevideo_fast.log import counted, get_logger
from paddlevideo_fast.modeling import build_for_clips, classes_of, load_weights
from paddlevideo_fast.modeling.layers.batch_norm import BATCH_NORMS
from paddlevideo_fast.modeling.weights import has_record, read_weights

logger = get_logger(__name__)

Weights = Mapping[str, np.ndarray]
Metrics = dict[str, float]


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


def average(cfg: Config, last: int, files: Sequence[Path] = (), output: Path | None = None) -> Averaged:
    """Averages checkpoints, measures the batch norms of the mean anew, and validates it.

    Args:
        cfg: a checked config, of the run whose checkpoints are averaged.
        last: how many of the newest.
        files: weights to choose from, oldest first; none: the run's checkpoints at ends of epochs.
        output: file of the mean; None: such as `<model_name>_average_last5.pdparams` in the run's folder.

    Raises:
        PaddleVideoFastError: as its message says.
    """
    with cfg.placing():
        cfg.require("average", "DATASET.valid")
        spec = RunSpec.of(cfg).in_folder(run_of_config(cfg))
        pipelines = check_evaluation(spec, "valid")
        paths = _newest(spec, files, last)
        names = checked_class_names(spec.config, classes_of(spec.model), *map(str, paths))
        name = f"{spec.run.model_name}_average_last{last}.pdparams"
        output = output or as_path(spec.run.output_dir) / name
        report = output.with_name(f"{output.stem}_report.json")
        there = names and classes_of_weights(str(output))  # of other weights in its folder
        if names and there:
            check_classes(Classes(names, str(paths[0])), there)
        with only_writer(output.parent, output.name, "--output_file"), contextlib.ExitStack() as stack:
            averager = _averager(spec, pipelines, stack)
            facts = averager.average(paths)
            with writing(output), atomic_write_all(output, report) as partials:
                paddle.save(averager.model.state_dict(), str(partials[0]))
                partials[1].write_text(json.dumps(facts, indent=1), encoding="utf-8")
                if names is not None:
                    write_class_names(output.parent, names)
        return Averaged(output, report, facts)


def _newest(spec: RunSpec, files: Sequence[Path], last: int) -> list[Path]:
    """The files to average.

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
    if len(paths) < last:
        raise CheckpointError(
            f"{where} has {counted(len(paths), 'checkpoint')} of epochs, and {last} are wanted: keep more "
            "with a lower save_interval or a higher keep_last, or name weight files with -w"
        )
    return paths[-last:]


def _averager(spec: RunSpec, pipelines: Pipelines, stack: contextlib.ExitStack) -> Averager:
    """What validates weights of the run's network; `stack` ends its loaders."""
    model = build_for_clips(spec.model, spec.run.amp, load_pretrained=False)
    selection, metric = spec.extension(Selection) or Selection(), make_metric(spec.metric)
    if metric.value_names:
        selection.check(metric.names_with(classes_of(spec.model)))
    distribution, precision = Distribution(), make_precision(spec.run)
    valid = make_split(spec, "valid", model.layout, distribution, pipelines=pipelines)
    stack.callback(valid.loader.close)
    evaluator = make_evaluator(valid, precision, distribution, spec.run.max_iters)
    statistics = None
    if spec.holds("DATASET.train"):
        max_batches = (spec.extension(PreciseBN) or PreciseBN()).num_iters_preciseBN
        num_batches = min(max_batches, spec.run.max_iters or max_batches)
        train = make_split(spec, "train", model.layout, distribution, pipelines=pipelines)
        statistics = make_evaluator(train.of_statistics(), precision, distribution, num_batches)
        stack.callback(statistics.loader.close)

    def evaluate() -> Metrics:
        metrics = evaluator.run(model, metric)
        if not metrics["num_samples"]:
            raise BadSampleShareError(f"none of the {metrics['num_failed']} samples of DATASET.valid decodes")
        return metrics

    return Averager(model, evaluate, selection, statistics)


class Mean:
    """The mean of weights, summed in float64 in the order in which they are added.

    Attributes:
        paths: of the weights in the sum.
        differing: names of the tensors that are not equal in all files.
    """

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.differing: set[str] = set()
        self._first: Weights = {}
        self._sums: dict[str, np.ndarray] = {}

    def add(self, path: Path, weights: Weights) -> None:
        """Adds the weights of one more file.

        Raises:
            WeightError: they are of another network than the weights before them.
        """
        if self.paths:
            _require_same_network(self.paths[0], self._first, path, weights)
        else:
            self._first = weights
        for name, value in weights.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.astype(np.float64)
            if not np.array_equal(value, self._first[name]):
                self.differing.add(name)
        self.paths.append(path)

    def weights(self) -> dict[str, np.ndarray]:
        """The mean, in the types of the files; what is equal in all files stays as it is, to the last bit."""
        count = len(self.paths)
        return {
            name: (self._sums[name] / count).astype(value.dtype) if name in self.differing else value
            for name, value in self._first.items()
        }


@dataclass(eq=False)
class Averager:
    """Puts means of weights into a network and validates them.

    Attributes:
        model: gets the weights; after `average` their mean.
        evaluate: validates the model as it is.
        selection: names the number that messages and the report show.
        statistics: over the training data, for the batch norms of a mean; None: their statistics are
            averaged.
    """

    model: nn.Layer
    evaluate: Callable[[], Metrics]
    selection: Selection
    statistics: Evaluator | None = None

    def average(self, paths: Sequence[Path]) -> dict[str, Any]:
        """Puts the mean of the files into the model; returns what the report says."""
        mean, before = Mean(), []
        for path in paths:
            weights = self._read(path)
            mean.add(path, weights)
            self._put(weights)
            metrics = self.evaluate()
            logger.info("%s: %s", path.name, self._in_words(metrics))
            before.append({"weights": str(path), **metrics})
        self._put(mean.weights())
        with self._only_differing(mean) as num_layers:
            batch_norm = "averaged" if num_layers else "equal in all"
            if num_layers and self.statistics is not None:
                put_statistics(self.model, population_statistics(self.statistics, self.model))
                batch_norm = "measured"
        metrics = self.evaluate()
        logger.info("mean of %d checkpoints: %s", len(paths), self._in_words(metrics))
        return {
            "value": self._deciding(metrics),
            "averaged": [str(path) for path in paths],
            "before": before,
            "after": metrics,
            "batch_norm": batch_norm,
        }

    def _read(self, path: Path) -> Weights:
        weights = read_weights(path)
        if has_record(weights):  # the mean of completed weights; a mean of parts may be another network
            load_weights(self.model, path, strict=True)
            return self._weights()
        weights = {name: value for name, value in weights.items() if isinstance(value, np.ndarray)}
        _require_same_network(Path("the network of the config"), self._weights(), path, weights)
        return weights

    def _weights(self) -> Weights:
        return {name: tensor.numpy() for name, tensor in self.model.state_dict().items()}

    def _put(self, weights: Weights) -> None:
        target = self.model.state_dict()
        for name, value in weights.items():
            target[name].set_value(value)

    @contextlib.contextmanager
    def _only_differing(self, mean: Mean) -> Any:
        """Context in which batch norms with equal statistics in all files, frozen ones, keep these."""
        layers = {
            name: layer for name, layer in self.model.named_sublayers() if isinstance(layer, BATCH_NORMS)
        }
        frozen = [layer for name, layer in layers.items() if f"{name}._mean" not in mean.differing]
        with contextlib.ExitStack() as before:
            for layer in frozen:
                before.callback(setattr, layer, "_use_global_stats", layer._use_global_stats)
                layer._use_global_stats = True
            yield len(layers) - len(frozen)

    def _deciding(self, metrics: Metrics) -> str:
        """Name of the number that decides which validation is better."""
        value = self.selection.value_of(metrics)
        assert value is not None  # something was evaluated
        return value[0]

    def _in_words(self, metrics: Metrics) -> str:
        name = self._deciding(metrics)
        loss = "" if name == "loss" else f", loss {metrics['loss']:.5f}"
        return f"{name} {metrics[name]:.5f}{loss}"


def _require_same_network(first: Path, expected: Weights, path: Path, weights: Weights) -> None:
    for name in sorted({*expected, *weights}):
        one, other = (
            list(each[name].shape) if isinstance(each.get(name), np.ndarray) else None
            for each in (expected, weights)
        )
        if one != other:
            raise WeightError(
                f"{path}: is of another network than {first}: {name} is {other or 'missing'} here and "
                f"{one or 'missing'} there; average checkpoints of one network, with its config"
            )

"""A test of weights, from its config to its metrics."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paddlevideo_fast import annexes
from paddlevideo_fast.assembly.build import make_evaluator
from paddlevideo_fast.assembly.checks import check_evaluation
from paddlevideo_fast.assembly.data import Pipelines, make_split
from paddlevideo_fast.assembly.plan import make_metric
from paddlevideo_fast.config import Config, RunSpec
from paddlevideo_fast.device import tune_gpu
from paddlevideo_fast.engine.distribution import Distribution, make_distribution
from paddlevideo_fast.engine.output import CheckpointStore, run_with
from paddlevideo_fast.engine.precision import make_precision
from paddlevideo_fast.engine.protocols import Preprocess
from paddlevideo_fast.errors import BadSampleShareError, OutputError, SettingError
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.io.urls import shown_url
from paddlevideo_fast.loader.class_names import checked_class_names
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.log import get_logger, value_text
from paddlevideo_fast.metrics.accuracy import with_certainty
from paddlevideo_fast.metrics.predictions import Predictions
from paddlevideo_fast.modeling.recognizers import build_for_clips, classes_of
from paddlevideo_fast.modeling.weights import load_weights

logger = get_logger(__name__)


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

    @property
    def results(self) -> dict[str, Any]:
        """What was measured, of which weights, and where files about it are."""
        return {**self.metrics, "weights": shown_url(self.weights), "output_dir": self.spec.run.output_dir}


def test(cfg: Config) -> FinishedTest:
    """Evaluates `weights` on DATASET.test; on rank 0 the extensions write of it."""
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
) -> FinishedTest:
    """See `test`; `held` keeps other tests out of the output folder as long as it is open."""
    if not spec.config.get("output_dir"):  # beside the tested weights, if they are of a run of this config
        spec = spec.in_folder(str(run_with(spec.run.output_dir, weights) or spec.run.output_dir))
    store = CheckpointStore(spec.run.output_dir, spec.run.model_name)

    def take_output() -> None:
        if distribution.is_main:
            try:
                held.enter_context(only_writer(store.folder, "test", given_by="output_dir"))
                held.enter_context(store.uploading())
            except OutputError as error:  # a warning now, not after all videos
                logger.warning("%s: the numbers will be in this log alone", error)

    distribution.gather_from(take_output)
    precision = make_precision(spec.run)
    model = build_for_clips(spec.model, spec.run.amp, load_pretrained=False)
    if tuning := tune_gpu(has_fixed_shapes=True, in_16_bits=spec.run.amp):
        logger.info("device: %s", tuning)
    num_classes = classes_of(spec.model)  # other names say more than another shape does
    distribution.gather_from(lambda: checked_class_names(spec.config, num_classes, weights))
    logger.info(load_weights(model, weights, strict=True).summary())
    split = make_split(spec, "test", model.layout, distribution, store.folder, pipelines)
    metric = make_metric(spec.metric)
    with contextlib.closing(split.loader):
        evaluator = make_evaluator(split, precision, distribution, spec.run.max_iters)
        metrics = evaluator.run(model, metric)
    if not metrics["num_samples"]:
        raise BadSampleShareError(f"none of the {metrics['num_failed']} samples of DATASET.test decodes")
    module = annexes.load("advice", "test") if distribution.is_main else None
    note = module.overlap(spec, weights, split.dataset, pipelines) if module else ""
    if note:
        logger.warning(note)
    values = with_certainty(metrics)
    logger.info("test %s", "  ".join(f"{name}: {value_text(value)}" for name, value in values.items()))
    finished = FinishedTest(
        spec, weights, metrics, metric.predictions, model, evaluator.preprocess, split.dataset, note
    )
    # pictures take their time, and files that cannot be written end the test
    for extension in spec.extensions if distribution.is_main else ():
        extension.tested(finished)
    return finished

"""What each rank of `test_evaluation_over_ranks` does: `python evaluation_ranks.py FOLDER`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddlevideo_fast  # isort: skip  # noqa: F401  before Paddle 2.6
import numpy as np
import paddle

from paddlevideo_fast.assembly.build import make_evaluator
from paddlevideo_fast.assembly.data import make_split
from paddlevideo_fast.assembly.plan import make_metric
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.engine import Distribution, Evaluator, FleetDistribution, Precision
from paddlevideo_fast.engine.callbacks.precise_bn import population_statistics
from paddlevideo_fast.errors import ConfigError, PaddleVideoFastError
from paddlevideo_fast.modeling import build_model
from tests.support.small_runs import Batches, batch_of


def metrics_of(
    config: Path,
    distribution: Distribution,
    check_stop: Callable[[], None] | None = None,
    state: Callable[[], Any] | None = None,
) -> dict[str, Any]:
    """What an evaluation gives, with the scores of each video, and the files that each rank knows not to
    decode; or its error.
    """
    spec = RunSpec.of(load_config(str(config)))
    paddle.seed(3)
    model = build_model(spec.model, load_pretrained=False)
    split = make_split(spec, "test", model.layout, distribution, config.parent)
    metric: Any = make_metric(spec.metric)
    metric.state = state or metric.state
    try:
        evaluator = make_evaluator(split, Precision(), distribution, spec.run.max_iters)
        metrics = evaluator.run(model, metric, check_stop)
    except PaddleVideoFastError as error:
        return {"error": [type(error).__name__, str(error)]}
    metrics["predictions"] = {name: array.tolist() for name, array in metric.predictions._asdict().items()}
    return {**metrics, "bad": sorted(Path(path).name for path in split.bad_samples.causes)}


def share_of(rank: int, world_size: int) -> Batches:
    """Of six batches every n-th one; a rank's share need not be as large as another's."""
    rng = np.random.default_rng(0)
    sizes = [3, 5, 2, 0, 4, 1]
    batches = [rng.normal(10 * index, 1 + index, (size, 3)) for index, size in enumerate(sizes)]
    own = [batch_of(batch.astype("float32"), np.arange(len(batch))) for batch in batches[rank::world_size]]
    return Batches(lambda epoch: own)


def statistics_of(distribution: Distribution, max_batches: int | None) -> dict[str, Any]:
    """Population statistics of the batches."""
    model = paddle.nn.Sequential(paddle.nn.BatchNorm1D(3))
    share = share_of(distribution.rank, distribution.world_size)
    evaluator = Evaluator(share, paddle.to_tensor, distribution=distribution, max_batches=max_batches)
    mean, variance = population_statistics(evaluator, model)["0"]
    return {"mean": mean.numpy().tolist(), "variance": variance.numpy().tolist()}


def main(folder: Path) -> None:
    distribution = FleetDistribution()

    def stop() -> None:
        if distribution.rank == 1:
            raise ConfigError(["the first", "the second"])

    results = {config.stem: metrics_of(config, distribution) for config in sorted(folder.glob("*.yaml"))}
    results["stopped"] = metrics_of(folder / "one_view.yaml", distribution, stop)
    state = stop if distribution.rank == 1 else None
    results["without_state"] = metrics_of(folder / "one_view.yaml", distribution, state=state)
    for max_batches in (None, 4, 1):
        results[f"statistics {max_batches}"] = statistics_of(distribution, max_batches)
    (folder / f"{distribution.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""What each rank of `test_evaluation_over_ranks` does: `python evaluation_ranks.py FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Optional

import paddlevideo_fast  # isort: skip  # noqa: F401  before Paddle 2.6
import numpy as np
import paddle

from paddlevideo_fast.assembly.callbacks import evaluate_split, metric_of
from paddlevideo_fast.assembly.data import split_of
from paddlevideo_fast.config import RunSettings, load_config
from paddlevideo_fast.engine import Distribution, FleetDistribution, Precision, population_statistics
from paddlevideo_fast.errors import ConfigError, PaddleVideoFastError
from paddlevideo_fast.loader import Batch
from paddlevideo_fast.modeling import build_model


def metrics_of(
    config: Path, distribution: Distribution, check_stop: Optional[Callable[[], None]] = None
) -> Dict[str, Any]:
    """What an evaluation gives, with the scores of each video, and the files that each rank knows not to
    decode; or its error.
    """
    cfg = load_config(str(config))
    paddle.seed(3)
    model = build_model(cfg["MODEL"], load_pretrained=False)
    split = split_of(cfg, "test", config.parent, model.layout, distribution)
    settings, metric = RunSettings.from_config(cfg), metric_of(cfg)
    try:
        metrics = evaluate_split(cfg, settings, model, split, Precision(), distribution, check_stop, metric)
    except PaddleVideoFastError as error:
        return {"error": [type(error).__name__, str(error)]}
    metrics["predictions"] = {name: array.tolist() for name, array in metric.predictions._asdict().items()}
    return {**metrics, "bad": sorted(Path(path).name for path in split.bad_samples.causes)}


class Share:
    """Of six batches every n-th one; a rank's share need not be as large as another's."""

    def __init__(self, rank: int, world_size: int) -> None:
        rng = np.random.default_rng(0)
        sizes = [3, 5, 2, 0, 4, 1]
        batches = [rng.normal(10 * index, 1 + index, (size, 3)) for index, size in enumerate(sizes)]
        self.batches = [batch.astype("float32") for batch in batches[rank::world_size]]

    def __len__(self) -> int:
        return len(self.batches)

    def epoch(self, epoch: int, start_batch: int = 0) -> Any:
        for batch in self.batches:
            ids = np.arange(len(batch))
            yield Batch(batch, ids, ids, ids)


def statistics_of(distribution: Distribution, max_batches: Optional[int]) -> Dict[str, Any]:
    """Population statistics of the batches."""
    model = paddle.nn.Sequential(paddle.nn.BatchNorm1D(3))
    share = Share(distribution.rank, distribution.world_size)
    mean, variance = population_statistics(
        model, share, paddle.to_tensor, max_batches=max_batches, distribution=distribution
    )["0"]
    return {"mean": mean.numpy().tolist(), "variance": variance.numpy().tolist()}


def main(folder: Path) -> None:
    distribution = FleetDistribution()

    def stop() -> None:
        if distribution.rank == 1:
            raise ConfigError(["the first", "the second"])

    results = {config.stem: metrics_of(config, distribution) for config in sorted(folder.glob("*.yaml"))}
    results["stopped"] = metrics_of(folder / "one_view.yaml", distribution, stop)
    for max_batches in (None, 4, 1):
        results[f"statistics {max_batches}"] = statistics_of(distribution, max_batches)
    (folder / f"{distribution.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

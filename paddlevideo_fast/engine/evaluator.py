"""One pass over a loader without gradients."""

from __future__ import annotations

import functools
import itertools
from typing import Any, Callable, Dict, Optional, Set

import paddle
from tqdm import tqdm

from paddlevideo_fast.engine.distribution import Distribution
from paddlevideo_fast.engine.precision import Precision
from paddlevideo_fast.engine.prefetch import to_device
from paddlevideo_fast.engine.state import Average


def evaluate(
    model: Any,
    loader: Any,
    preprocess: Callable[[Any], Any],
    metric: Any,
    on_failures: Optional[Callable[[Any, Any], None]] = None,
    max_iters: Optional[int] = None,
    show_progress: bool = False,
    check_stop: Optional[Callable[[], None]] = None,
    distribution: Optional[Distribution] = None,
    precision: Optional[Precision] = None,
) -> Dict[str, float]:
    """Evaluates a model.

    A sample that does not decode is left out of the means and counted: never replaced, never silent.

    Args:
        model: as the `Trainer`'s; its train or eval mode is the same afterwards.
        loader: every sample once, in order.
        preprocess: uint8 clips [N, T, H, W, C] to the model's float32 input.
        metric: `reset()`, `update(logits, labels, ids, views)`, `accumulate()`.
        on_failures: called with the `failures` and `replaced` of each batch that has any; may raise past a
            share.
        max_iters: stops after so many batches, for trials.
        show_progress: draws a bar; for a terminal.
        check_stop: called before each batch; what it raises ends the evaluation.
        distribution: what one rank raises is raised on all; their metrics are those of rank 0.
        precision: as the `Trainer`'s.

    Returns:
        The metric's values, "loss" (the mean over clips), "num_samples" and "num_failed", which count a
        sample once, however many views of it there are, and "num_replaced", the frames that did not decode
        and were replaced by others.
    """
    forward = functools.partial((precision or Precision()).forward, model)

    def work() -> Dict[str, float]:
        return _evaluate(
            model, forward, loader, preprocess, metric, on_failures, max_iters, show_progress, check_stop
        )

    return (distribution or Distribution()).gather_from(work)[0]


def _evaluate(
    model: Any,
    forward: Callable[[Any], Any],
    loader: Any,
    preprocess: Callable[[Any], Any],
    metric: Any,
    on_failures: Optional[Callable[[Any, Any], None]],
    max_iters: Optional[int],
    show_progress: bool,
    check_stop: Optional[Callable[[], None]],
) -> Dict[str, float]:
    was_training = model.training
    model.eval()
    metric.reset()
    loss = Average()
    num_replaced = 0
    ids: Set[int] = set()
    failed: Set[str] = set()
    num_batches = min(len(loader), max_iters or len(loader))
    batches = itertools.islice(to_device(loader.epoch(0)), num_batches)
    bar = tqdm(batches, "evaluation", num_batches, leave=False, disable=not show_progress)
    try:
        with paddle.no_grad():
            for batch in bar:
                if check_stop is not None:
                    check_stop()
                failed.update(path for path, _ in batch.failures)
                num_replaced += batch.num_replaced
                if on_failures is not None and (batch.failures or batch.replaced):
                    on_failures(batch.failures, batch.replaced)
                if len(batch.labels) == 0:
                    continue
                labels = paddle.to_tensor(batch.labels)
                logits = forward(preprocess(batch.clips))
                loss.add(float(model.loss(logits, labels)), len(batch.labels))
                metric.update(logits, labels, batch.ids, batch.views)
                ids.update(batch.ids.tolist())
    finally:
        if was_training:
            model.train()
    counts: Dict[str, float] = {
        "num_samples": len(ids),
        "num_failed": len(failed),
        "num_replaced": num_replaced,
    }
    if not ids:
        return counts
    return {**metric.accumulate(), "loss": loss.mean, **counts}

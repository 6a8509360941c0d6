"""One pass over a loader without gradients."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Dict, Optional

import numpy as np
import paddle

from paddlevideo_fast.engine.data_pass import visit_batches
from paddlevideo_fast.engine.distribution import Distribution
from paddlevideo_fast.engine.precision import Precision


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

    A sample that does not decode is left out of the means and counted: never replaced, never silent. Where
    ranks share out the batches, the result is what one process gets, to the last bit.

    Args:
        model: as the `Trainer`'s; its train or eval mode is the same afterwards.
        loader: every sample once, in order; on each rank its own share, which may be empty.
        preprocess: uint8 clips [N, T, H, W, C] to the model's float32 input.
        metric: `reset()`, `update(logits, labels, ids, views)`, `state()` of this process and
            `accumulate(states)` of all.
        on_failures: called with the `failures` and `replaced` of each batch that has any; may raise past a
            share. In the end each rank has called it with those of all.
        max_iters: stops after so many batches, counted on all ranks together, for trials.
        show_progress: draws a bar; for a terminal.
        check_stop: called before each batch; what it raises ends the evaluation.
        distribution: the processes that share the samples; what one of them raises is raised on all.
        precision: as the `Trainer`'s.

    Returns:
        The metric's values, "loss" (the mean over clips), "num_samples" and "num_failed", which count a
        sample once, however many views of it there are, and "num_replaced", the frames that did not decode
        and were replaced by others. The same on all ranks.
    """
    distribution = distribution or Distribution()
    forward = functools.partial((precision or Precision()).forward, model)
    clips, losses = [np.empty((0, 2), np.int64)], [np.empty(0, np.float32)]
    metric.reset()

    def visit(batch: Any) -> None:
        labels = paddle.to_tensor(batch.labels)
        logits = forward(preprocess(batch.clips))
        clips.append(np.stack([batch.ids, batch.views], axis=1))
        losses.append(_loss_of_each(model, logits, labels))
        metric.update(logits, labels, batch.ids, batch.views)

    failures, replaced = visit_batches(
        visit,
        model,
        loader,
        0,
        max_iters,
        "evaluation",
        on_failures,
        show_progress,
        check_stop,
        distribution,
    )
    shares = distribution.gather((np.concatenate(clips), np.concatenate(losses), metric.state()))
    seen, each_loss = (np.concatenate(parts) for parts in list(zip(*shares))[:2])
    _, first = np.unique(seen, axis=0, return_index=True)  # a clip that comes again counts once
    counts: Dict[str, float] = {
        "num_samples": len(np.unique(seen[:, 0])),
        "num_failed": len({path for path, _ in failures}),
        "num_replaced": sum(num_frames for _, num_frames in replaced),
    }
    if not len(seen):
        return counts
    loss = math.fsum(each_loss[first]) / len(first)  # rounded once, so the order makes no difference
    return {**metric.accumulate([state for *_, state in shares]), "loss": loss, **counts}


def _loss_of_each(model: Any, logits: Any, labels: Any) -> np.ndarray:
    """float32 [N]: their mean can be taken over clips of other batches, too."""
    pairs = zip(logits.split(len(labels)), labels.split(len(labels)))
    return paddle.stack([model.loss(*pair) for pair in pairs]).astype("float32").numpy().reshape(-1)

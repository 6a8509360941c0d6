"""What validation and precise BN have in common: the processes go over data once, and nothing is trained."""

from __future__ import annotations

import itertools
from typing import Any, Callable, List, Optional, Tuple

import paddle
from tqdm import tqdm

from paddlevideo_fast.engine.distribution import Distribution
from paddlevideo_fast.engine.prefetch import to_device


def visit_batches(
    visit: Callable[[Any], None],
    model: Any,
    loader: Any,
    epoch: int,
    max_batches: Optional[int],
    title: str,
    on_failures: Optional[Callable[[Any, Any], None]],
    show_progress: bool,
    check_stop: Optional[Callable[[], None]],
    distribution: Distribution,
) -> Tuple[List[Any], List[Any]]:
    """Visits the batches of each rank's loader, with the model in eval mode and without gradients.

    Ranks may have different numbers of batches; none waits for another before the end.

    Args:
        visit: called with each batch that has clips.
        model: its train or eval mode is the same afterwards.
        loader: on each rank its own share.
        epoch: of the loader.
        max_batches: ends the pass after so many, counted on all ranks together; None: all.
        title: of the bar.
        on_failures: called with the `failures` and `replaced` of each batch that has any, and in the end with
            those of the other ranks, so that each rank knows of all.
        show_progress: draws a bar; for a terminal.
        check_stop: called before each batch; what it raises ends the pass.
        distribution: the ranks.

    Returns:
        The `failures` and `replaced` of all batches of all ranks.

    Raises:
        Exception: what is raised on one rank is raised on all.
    """
    num_batches = len(loader)
    if max_batches is not None:
        each, rest = divmod(max_batches, distribution.world_size)
        num_batches = min(num_batches, each + int(distribution.rank < rest))

    def own_pass() -> Tuple[List[Any], List[Any]]:
        failures: List[Any] = []
        replaced: List[Any] = []
        batches = itertools.islice(to_device(loader.epoch(epoch)), num_batches)
        for batch in tqdm(batches, title, num_batches, leave=False, disable=not show_progress):
            if check_stop is not None:
                check_stop()
            failures += batch.failures
            replaced += batch.replaced
            if on_failures is not None and (batch.failures or batch.replaced):
                on_failures(batch.failures, batch.replaced)
            if len(batch.labels):
                visit(batch)
        return failures, replaced

    was_training = model.training
    model.eval()
    try:
        with paddle.no_grad():
            told = distribution.gather_from(own_pass)
    finally:
        if was_training:
            model.train()

    def hear_of_others() -> None:
        for rank, (failures, replaced) in enumerate(told):
            if on_failures is not None and rank != distribution.rank and (failures or replaced):
                on_failures(failures, replaced)

    distribution.gather_from(hear_of_others)
    all_failures, all_replaced = (list(itertools.chain(*parts)) for parts in zip(*told))
    return all_failures, all_replaced

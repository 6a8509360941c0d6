"""What each rank of `test_resumed_ranks` does: `python resumed_ranks.py FOLDER`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paddlevideo_fast  # isort: skip  # noqa: F401  before Paddle 2.6
import numpy as np
import paddle

from paddlevideo_fast.engine import CheckpointStore, Evaluator, FleetDistribution, Trainer, load_checkpoint
from paddlevideo_fast.engine.callbacks import BatchNormSplits, Callback, Checkpointing, Evaluation, restore
from paddlevideo_fast.engine.callbacks.ema import ExponentialMovingAverage
from paddlevideo_fast.engine.interrupt import TrainingInterrupted
from paddlevideo_fast.engine.output import ReadOnlyStore
from paddlevideo_fast.loader import Batch
from paddlevideo_fast.metrics import CenterCropMetric
from paddlevideo_fast.modeling.layers.batch_norm import SubBatchNorm3D
from paddlevideo_fast.schedule.phases import plain_phases
from tests.support.small_runs import Classifier, StopAt, batch_of

EPOCHS, STEPS, BATCHES, VALID_BATCHES = 3, 4, 7, 2


class Loader:
    """Random clips of one rank. Rank 1 never has a last batch, and nothing at all in the second epoch."""

    def __init__(self, rank: int, num_batches: int, in_training: bool = True) -> None:
        self.rank, self.num_batches, self.in_training = rank, num_batches, in_training
        self.request: Any = lambda number: None

    def __len__(self) -> int:
        return self.num_batches

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        for number in range(start_batch, self.num_batches):
            self.request(number)
            is_lost = self.in_training and self.rank == 1 and (epoch == 1 or number == self.num_batches - 1)
            rng = np.random.default_rng((epoch, number, self.rank, self.in_training))
            size = 0 if is_lost else 2
            clips = rng.normal(size=(size, 2, 3, 5, 5)).astype("float32")
            ids = np.arange(size) + 2 * number + 100 * self.rank
            yield batch_of(clips, rng.integers(0, 4, size), ids)

    def close(self) -> None:
        """There are no workers to end."""


class Net(Classifier):
    """A small network with dropout, and a batch norm whose statistics differ between the ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = paddle.nn.Conv3D(2, 6, 3, padding=1, bias_attr=False)
        self.norm = SubBatchNorm3D(6)
        self.drop = paddle.nn.Dropout(0.3)
        self.fc = paddle.nn.Linear(6, 4)

    def forward(self, clips: Any) -> Any:
        return self.fc(self.drop(paddle.tanh(self.norm(self.conv(clips))).mean([2, 3, 4])))


def make(distribution: Any, folder: Path, *further: Callback, every_steps: int | None = None) -> Trainer:
    """A trainer of a new network, with output in `folder`."""
    model = Net()
    store = (CheckpointStore if distribution.is_main else ReadOnlyStore)(folder, "m")
    store.prepare()
    rank = distribution.rank
    train, valid = Loader(rank, BATCHES), Loader(rank, VALID_BATCHES, in_training=False)
    evaluator = Evaluator(valid, paddle.to_tensor, distribution=distribution)
    trainer = Trainer(
        model,
        paddle.optimizer.Momentum(0.2, 0.9, model.parameters(), weight_decay=0.01),
        lambda phase: train,
        paddle.to_tensor,
        plain_phases(EPOCHS),
        [
            *further,
            BatchNormSplits(model),
            ExponentialMovingAverage(model, 0.9),
            Evaluation(evaluator, CenterCropMetric()),
            Checkpointing(store, every_steps=every_steps),
        ],
        distribution=distribution,
        accumulate_steps=2,
    )
    trainer.valid = valid
    return trainer


def outcome(trainer: Trainer) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """All that a finished run has: parameters, statistics and averages; position, best and means."""
    arrays = {name: np.array(value) for name, value in trainer.model.state_dict().items()}
    for callback in trainer.callbacks:
        arrays |= {f"{type(callback).__name__} {k}": np.array(v) for k, v in callback.tensors().items()}
    return arrays, trainer.state.state_dict()


def stopped(distribution: Any, folder: Path, step: int = 0, validation: int = -1) -> str:
    """The checkpoint of a run that one rank has asked to stop: after a step, or in a batch of validation."""
    paddle.seed(7)
    further = [StopAt(step)] if step % 2 == distribution.rank else []
    trainer = make(distribution, folder, *further)
    count = iter(range(EPOCHS * VALID_BATCHES))

    def request(number: int) -> None:
        if next(count) == validation and validation % 2 == distribution.rank:
            trainer.interrupt.requested = 15

    trainer.valid.request = request
    try:
        trainer.fit()
    except TrainingInterrupted:
        return str(trainer.last_checkpoint)
    raise AssertionError(f"the run was not stopped: step {step}, validation {validation}")


def main(folder: Path) -> None:
    """Trains once without a stop; then stops or dies at each place, goes on and compares."""
    distribution = FleetDistribution()
    wholes = {}  # a checkpoint sets the statistics of batch norms to their mean: how often is part of a run
    for every_steps in (1, None):
        paddle.seed(7)
        whole = make(distribution, folder / f"whole{every_steps}", every_steps=every_steps)
        whole.fit()
        wholes[every_steps] = outcome(whole)
    prefixes = {f"killed after {path.stem}": path for path in sorted((folder / "whole1").glob("*.json"))}
    for step in range(1, EPOCHS * STEPS):
        prefixes[f"stopped after step {step}"] = stopped(distribution, folder / f"step{step}", step=step)
    for batch in range(EPOCHS * VALID_BATCHES):
        place = folder / f"validation{batch}"
        prefixes[f"stopped in validation batch {batch}"] = stopped(distribution, place, validation=batch)
    found = {}
    for title, prefix in prefixes.items():
        distribution.barrier()
        paddle.seed(99)
        every_steps = 1 if title.startswith("killed") else None
        arrays, state = wholes[every_steps]
        trainer = make(distribution, folder / "resumed", every_steps=every_steps)
        try:
            restore(trainer, load_checkpoint(str(prefix)))
            trainer.fit()
        except Exception as error:
            found[title] = f"{type(error).__name__}: {error}"
            break  # the ranks may no longer be at the same message
        own, own_state = outcome(trainer)
        differing = [name for name in arrays if not np.array_equal(arrays[name], own[name])]
        found[title] = ", ".join(differing) or ("" if own_state == state else f"{own_state} != {state}")
    (folder / f"{distribution.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""What tests of checkpoints and of stopped runs share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import paddle
import pytest

from paddlevideo_fast.engine import CheckpointStore, Snapshot, Trainer, TrainingInterrupted, load_checkpoint
from paddlevideo_fast.engine.callbacks import Callback, restore
from paddlevideo_fast.loader import Batch


class RandomClips:
    """Random clips whose order depends on the epoch alone."""

    def __init__(self, num_samples: int = 24, batch_size: int = 4, side: int = 4) -> None:
        rng = np.random.default_rng(0)
        self.clips = rng.integers(0, 255, (num_samples, 2, side, side, 3), dtype=np.uint8)
        self.labels = rng.integers(0, 3, num_samples)
        self.batch_size = batch_size

    def __len__(self) -> int:
        return len(self.labels) // self.batch_size

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        order = np.random.default_rng(epoch).permutation(len(self.labels))
        for at in range(start_batch, len(self)):
            ids = order[at * self.batch_size : (at + 1) * self.batch_size]
            yield batch_of(self.clips[ids], self.labels[ids], ids)

    def close(self) -> None:
        """There are no workers to end."""


class Batches:
    """A loader over the batches that `make(epoch)` gives."""

    def __init__(self, make: Callable[[int], Sequence[Batch]]) -> None:
        self.make = make

    def __len__(self) -> int:
        return len(self.make(0))

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        return iter(self.make(epoch)[start_batch:])


def batch_of(clips: Any, labels: Any, ids: Any = None, incidents: Sequence[Any] = ()) -> Batch:
    """A batch of the first views of clips, which are numbered from 0 on where `ids` says nothing else."""
    ids = np.arange(len(labels)) if ids is None else ids
    return Batch(clips, labels, ids, np.zeros_like(ids), list(incidents))


class Classifier(paddle.nn.Layer):
    """A network that learns by the cross entropy of its logits."""

    def loss(self, logits: Any, labels: Any) -> Any:
        return paddle.nn.functional.cross_entropy(logits, labels)


class Changed:
    """A loader whose batches are changed: `change(batch, epoch)` gives those that come in its place."""

    def __init__(self, loader: Any, change: Callable[[Batch, int], Iterable[Batch]]) -> None:
        self.loader, self.change = loader, change

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        for batch in self.loader.epoch(epoch, start_batch):
            yield from self.change(batch, epoch)


class StopAt(Callback):
    """Asks the run to stop after a step, as a signal does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def step_end(self, trainer: Trainer) -> None:
        if trainer.state.step == self.step:
            trainer.interrupt.requested = 15


def weights(trainer: Trainer) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in trainer.model.state_dict().items()}


def assert_same(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Both have the same arrays, to the last bit."""
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def assert_resumes(begin: Callable[..., tuple[Trainer, CheckpointStore]], step: int) -> Snapshot:
    """A run that stops after a step and goes on is the run that nothing stops, to the last bit.

    Args:
        begin: from the name of a folder and further callbacks to a trainer that saves there, and its store.
        step: after which the run is stopped.

    Returns:
        The last checkpoint.
    """
    whole, whole_store = begin("whole")
    whole.fit()
    stopped, _ = begin("parts", StopAt(step))
    with pytest.raises(TrainingInterrupted):
        stopped.fit()
    resumed, store = begin("parts")
    for parameter in resumed.model.parameters():  # whatever it starts from must not matter
        parameter.set_value(paddle.zeros_like(parameter))
    restore(resumed, load_checkpoint(store.latest()))
    assert resumed.state.step == step
    resumed.fit()
    assert_same(weights(whole), weights(resumed))
    final, other = (load_checkpoint(each.latest()) for each in (whole_store, store))
    assert_same(final.optimizer, other.optimizer)
    assert_same(final.tensors, other.tensors)
    for part in ("trainer", "precision"):
        assert final.state[part] == other.state[part]
    return final


def snapshot(value: float = 1.0, step: int = 6, epoch: int = 1) -> Snapshot:
    state = {"trainer": {"step": step, "epoch": epoch}, "run": {}, "precision": {}, "callbacks": {}}
    return Snapshot({"fc.weight": paddle.full([2, 2], value)}, {}, {}, state)


def save(
    store: CheckpointStore, tag: str = "epoch_00001", value: float = 1.0, step: int = 6, epoch: int = 1
) -> str:
    return store.save(tag, snapshot(value, step, epoch))

"""A problem small enough to count by hand: linear classification of random clips."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import paddle
import pytest

from paddlevideo_fast.engine import Trainer
from paddlevideo_fast.engine.callbacks import Callback
from paddlevideo_fast.loader import Batch
from paddlevideo_fast.schedule.phases import plain_phases


class FakeLoader:
    """Random clips whose order depends on the epoch alone."""

    def __init__(self, num_samples: int = 24, batch_size: int = 4) -> None:
        rng = np.random.default_rng(0)
        self.clips = rng.integers(0, 255, (num_samples, 2, 4, 4, 3), dtype=np.uint8)
        self.labels = rng.integers(0, 3, num_samples)
        self.batch_size = batch_size

    def __len__(self) -> int:
        return len(self.labels) // self.batch_size

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        order = np.random.default_rng(epoch).permutation(len(self.labels))
        for at in range(start_batch, len(self)):
            ids = order[at * self.batch_size : (at + 1) * self.batch_size]
            yield Batch(self.clips[ids], self.labels[ids], ids, np.zeros_like(ids))


class LinearModel(paddle.nn.Layer):
    """One linear layer behind dropout."""

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.dropout = paddle.nn.Dropout(dropout)
        self.fc = paddle.nn.Linear(96, 3)

    def forward(self, clips: Any) -> Any:
        return self.fc(self.dropout(clips.flatten(1)))

    def loss(self, logits: Any, labels: Any) -> Any:
        return paddle.nn.functional.cross_entropy(logits, labels)


def to_float(clips: np.ndarray) -> Any:
    return paddle.to_tensor(clips.astype("float32") / 255)


@pytest.fixture
def make_trainer() -> Callable[..., Trainer]:
    def make(
        callbacks: list[Callback] | None = None,
        epochs: int = 2,
        batch_size: int = 4,
        dropout: float = 0.5,
        optimizer: str = "Momentum",
        **arguments: Any,
    ) -> Trainer:
        paddle.seed(5)
        model = LinearModel(dropout)
        loader = FakeLoader(batch_size=batch_size)
        return Trainer(
            model=model,
            optimizer=getattr(paddle.optimizer, optimizer)(0.1, parameters=model.parameters()),
            make_loader=lambda phase: loader,
            preprocess=to_float,
            phases=plain_phases(epochs),
            callbacks=callbacks or [],
            **arguments,
        )

    return make

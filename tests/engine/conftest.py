"""A problem small enough to count by hand: linear classification of random clips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest

from paddlevideo_fast.engine import Trainer
from paddlevideo_fast.engine.callbacks import Callback
from paddlevideo_fast.schedule.phases import plain_phases
from tests.support.small_runs import Classifier, RandomClips


class LinearModel(Classifier):
    """One linear layer behind dropout."""

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.dropout = paddle.nn.Dropout(dropout)
        self.fc = paddle.nn.Linear(96, 3)

    def forward(self, clips: Any) -> Any:
        return self.fc(self.dropout(clips.flatten(1)))


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
        loader = RandomClips(batch_size=batch_size)
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

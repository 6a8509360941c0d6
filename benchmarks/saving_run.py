"""Trains a network that is mostly parameters: python benchmarks/saving_run.py FOLDER PARAMETERS STEPS.

It saves in the background after every step and resumes from the newest checkpoint of the folder.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

import paddlevideo_fast  # isort: skip  # noqa: F401  before Paddle 2.6
import numpy as np
import paddle

from paddlevideo_fast.apps.doctor.device_check import BatchList
from paddlevideo_fast.engine import Trainer, load_checkpoint
from paddlevideo_fast.engine.callbacks import Checkpointing, restore
from paddlevideo_fast.engine.output import BackgroundStore
from paddlevideo_fast.loader import Batch
from paddlevideo_fast.schedule.phases import plain_phases

_LAYERS = 10


class Net(paddle.nn.Layer):
    """Linear layers, one after the other.

    Args:
        num_parameters: about so many.
    """

    def __init__(self, num_parameters: int) -> None:
        super().__init__()
        self.width = max(int((num_parameters / _LAYERS) ** 0.5), 2)
        self.layers = paddle.nn.LayerList([paddle.nn.Linear(self.width, self.width) for _ in range(_LAYERS)])

    def forward(self, clips: Any) -> Any:
        for layer in self.layers:
            clips = paddle.tanh(layer(clips))
        return clips

    def loss(self, logits: Any, labels: Any) -> Any:
        return paddle.nn.functional.cross_entropy(logits, labels)


def make_trainer(num_parameters: int, num_steps: int) -> Trainer:
    """A trainer whose steps are a function of their number alone."""
    paddle.seed(0)
    model = Net(num_parameters)
    optimizer = paddle.optimizer.Momentum(0.01, 0.9, parameters=model.parameters())
    loader = BatchList([_batch(step, model.width) for step in range(num_steps)])
    return Trainer(model, optimizer, lambda phase: loader, paddle.to_tensor, plain_phases(1))


def _batch(step: int, width: int) -> Batch:
    clips = np.random.default_rng(step).standard_normal((2, width)).astype("float32")
    ids = np.array([2 * step, 2 * step + 1])
    return Batch(clips, ids % 2, ids, np.zeros_like(ids))


def main(argv: list[str]) -> None:
    """Trains; see the module."""
    folder, num_parameters, num_steps = argv
    store = BackgroundStore(folder, "net")
    store.prepare()
    trainer = make_trainer(int(num_parameters), int(num_steps))
    trainer.callbacks = [Checkpointing(store, every_steps=1, keep_last=2)]
    newest = store.latest()
    if newest is not None:
        restore(trainer, load_checkpoint(newest))
    trainer.fit()


if __name__ == "__main__":
    main(sys.argv[1:])

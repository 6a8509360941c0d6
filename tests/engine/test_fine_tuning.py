"""Training with frozen parts: what keeps its bits, and runs that are resumed around the epoch of freeing."""

import numpy as np
import paddle
import pytest

from paddlevideo_fast.engine import CheckpointStore, Evaluator, RoundedPrecision, Trainer
from paddlevideo_fast.engine.callbacks import (
    BatchNormSplits,
    Callback,
    Checkpointing,
    ExponentialMovingAverage,
    PreciseBatchNorm,
    Unfreezing,
    restore,
)
from paddlevideo_fast.engine.checkpoint import load_checkpoint
from paddlevideo_fast.modeling import Preprocess, build_model
from paddlevideo_fast.modeling.freezing import Freezing
from paddlevideo_fast.modeling.stages import parameters_in
from paddlevideo_fast.schedule.phases import plain_phases
from paddlevideo_fast.solver import build_optimizer
from tests.support.small_runs import RandomClips, assert_same, weights

MODEL = {
    "framework": "Recognizer2D",
    "backbone": {"name": "ResNetTSM", "depth": 18, "num_seg": 2, "width": 4, "stage_blocks": [1, 1, 1, 1]},
    "head": {"name": "TSMHead", "num_classes": 3, "in_channels": 32},
}
MOMENTUM = {"name": "Momentum", "learning_rate": 0.05, "weight_decay": 0.1, "decay_bn_bias": True}
ADAMW = {"name": "AdamW", "learning_rate": 0.01, "weight_decay": 0.1, "decay_bn_bias": True}
PREPROCESS = Preprocess((0.45, 0.45, 0.45), (0.2, 0.2, 0.2))


class StartOnly(Callback):
    """Keeps the model's state at the first step."""

    def fit_begin(self, trainer):
        self.state = weights(trainer)


def make(
    optimizer=MOMENTUM, freeze=("stem", "res2"), unfreeze_at=None, epochs=2, folder=None, further=(),
    bn_splits=1, batch_size=6, **arguments,
):  # fmt: skip
    paddle.seed(3)
    model = build_model(MODEL)
    freezing = Freezing(model, freeze, unfreeze_at)
    loader = RandomClips(18, batch_size, side=24)
    ema = ExponentialMovingAverage(model, 0.9, freezing.later)
    store = [Checkpointing(CheckpointStore(folder, "tiny"), every_steps=1)] if folder else []
    own = [BatchNormSplits(model), Unfreezing(freezing), ema, *(each(loader) for each in further), *store]
    phases = plain_phases(epochs)
    if bn_splits > 1:
        phases = [phases[0].__class__(**{**vars(phases[0]), "bn_splits": bn_splits})]
    return Trainer(
        model=model,
        optimizer=build_optimizer(optimizer, model)[0],
        make_loader=lambda phase: loader,
        preprocess=PREPROCESS,
        phases=phases,
        callbacks=[*own, StartOnly()],
        **arguments,
    )


def state_of(trainer):
    tensors = {
        f"{type(each).__name__}/{name}": value.numpy()
        for each in trainer.callbacks
        for name, value in each.tensors().items()
    }
    return {**weights(trainer), **tensors}


def precise_bn(loader):
    return PreciseBatchNorm(Evaluator(loader, PREPROCESS), 1, averaged=True)


CASES = {
    "momentum": {},
    "adamw": {"optimizer": ADAMW},
    "splits": {"bn_splits": 3},
    "precise_bn": {"further": [precise_bn]},
    "bfloat16": {"precision": RoundedPrecision("O2")},
    "accumulated": {"batch_size": 3, "accumulate_steps": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_frozen_parts_keep_every_bit(case):
    trainer = make(**CASES[case])
    trainer.fit()
    start, end = trainer.callbacks[-1].state, state_of(trainer)
    stages = trainer.model.stages
    frozen = [
        name
        for name in start
        if name.startswith(tuple(f"{layer}." for part in ("stem", "res2") for layer in stages[part].layers))
    ]
    assert any(name.endswith("_variance") for name in frozen)
    for name in frozen:
        np.testing.assert_array_equal(start[name], end[name], name)
    assert all((start[name] != end[name]).any() for name in parameters_in(trainer.model, "res4", "key"))
    # evaluation and checkpoints see the moving average, so it must leave them alone, too
    for callback in trainer.callbacks:
        callback.before_evaluation(trainer)
    for name in frozen:
        np.testing.assert_array_equal(start[name], trainer.model.state_dict()[name].numpy(), name)


@pytest.mark.parametrize("optimizer", [MOMENTUM, ADAMW], ids=["momentum", "adamw"])
def test_a_run_resumed_at_any_step_takes_the_same_steps_across_unfreezing(tmp_path, optimizer):
    options = {"optimizer": optimizer, "unfreeze_at": {"res2": 1, "stem": 2}, "epochs": 3, "bn_splits": 2}
    whole = make(folder=tmp_path, **options)
    whole.fit()
    expected = state_of(whole)
    start = whole.callbacks[-1].state
    for part in ("stem", "res2"):
        assert all((start[name] != expected[name]).any() for name in parameters_in(whole.model, part, "key"))
    for step in (1, 3, 4, 6, 7):
        resumed = make(**options)
        restore(resumed, load_checkpoint(str(tmp_path / f"tiny_step_{step:08d}")))
        resumed.fit()
        assert_same(expected, state_of(resumed))


def test_a_part_that_begins_to_train_has_the_optimizers_state_of_a_first_step():
    """Adam corrects the bias of its means by the steps of the parameter, not of the run."""
    trainer = make({"name": "Adam", "learning_rate": 0.01}, ["stem"], unfreeze_at=1, max_iters=1)
    trainer.fit()
    start, end = trainer.callbacks[-1].state, state_of(trainer)
    name = "backbone.conv._conv.weight"  # the first step of Adam has the size of the rate
    np.testing.assert_allclose(np.abs(end[name] - start[name]), 0.01, rtol=0.02)

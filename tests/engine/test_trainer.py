"""The loop against arithmetic by hand, and against itself after a stop."""

import numpy as np
import paddle
import pytest

from paddlevideo_fast.engine import CheckpointStore, Distribution, TrainingInterrupted, load_checkpoint
from paddlevideo_fast.engine.callbacks import (
    Callback,
    Checkpointing,
    ExponentialMovingAverage,
    LearningRate,
    restore,
)
from paddlevideo_fast.engine.trainer import step_seed
from paddlevideo_fast.errors import CheckpointError, NonFiniteLossError
from paddlevideo_fast.schedule import Phase
from tests.support.small_runs import StopAt, assert_resumes, assert_same, weights


class Curve:
    """A rate that differs at every step."""

    def at(self, epoch):
        return 0.1 / (1 + epoch)


class Trace(Callback):
    def __init__(self):
        self.calls = []

    def __getattribute__(self, name):
        if name in ("fit_begin", "phase_begin", "epoch_begin", "epoch_end", "fit_end"):
            self.calls.append(name)
        return super().__getattribute__(name)


@pytest.mark.smoke
def test_the_loop_equals_a_loop_by_hand(make_trainer):
    trainer = make_trainer([LearningRate(Curve())])
    by_hand = make_trainer()
    model, optimizer, loader = by_hand.model, by_hand.optimizer, by_hand.make_loader(None)
    model.set_state_dict(trainer.model.state_dict())
    trainer.fit()
    step = 0
    for epoch in range(2):
        for batch in loader.epoch(epoch):
            paddle.seed(step_seed(0, step))
            optimizer.set_lr(0.1 / (1 + step / 6))
            logits = model(by_hand.preprocess(batch.clips))
            model.loss(logits, paddle.to_tensor(batch.labels)).backward()
            optimizer.step()
            optimizer.clear_grad()
            step += 1
    assert step == trainer.state.step == 12
    assert_same(weights(trainer), weights(by_hand))


@pytest.mark.parametrize("optimizer", ["Momentum", "Adam", "RMSProp"])
@pytest.mark.parametrize("stop", [1, 5, 6, 7, 11])
def test_a_stopped_and_resumed_run_takes_the_same_steps(make_trainer, tmp_path, stop, optimizer):
    def begin(folder, *more):
        trainer, store = make_trainer(optimizer=optimizer), CheckpointStore(tmp_path / folder, "m")
        store.prepare()
        ema = ExponentialMovingAverage(trainer.model, 0.9)
        trainer.callbacks = [LearningRate(Curve()), ema, *more, Checkpointing(store)]
        return trainer, store

    assert_resumes(begin, stop)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_accumulation_takes_the_step_of_the_whole_batch(make_trainer, size):
    whole = make_trainer(batch_size=4 * size, dropout=0.0, epochs=1)
    parts = make_trainer(batch_size=4, dropout=0.0, epochs=1, accumulate_steps=size)
    parts.model.set_state_dict(whole.model.state_dict())
    whole.fit()
    parts.fit()
    assert whole.state.step == parts.state.step == 6 // size
    for name, value in weights(whole).items():
        np.testing.assert_allclose(value, weights(parts)[name], rtol=2e-5, atol=1e-6)


# six batches are four and two; with `max_iters` each epoch ends sooner
@pytest.mark.parametrize(("arguments", "steps"), [({"accumulate_steps": 4}, 4), ({"max_iters": 1}, 2)])
def test_steps_of_two_epochs(make_trainer, arguments, steps):
    trainer = make_trainer(**arguments)
    trainer.fit()
    assert (trainer.state.epoch, trainer.state.step) == (2, steps)


def test_hooks_run_in_order(make_trainer):
    trace = Trace()
    make_trainer([trace]).fit()
    epoch = ["epoch_begin", "epoch_end"]
    assert trace.calls == ["fit_begin", "phase_begin", *epoch, *epoch, "fit_end"]


class Phases(Callback):
    """Which phase each hook sees."""

    def __init__(self):
        self.seen = []

    def phase_begin(self, trainer):
        self.seen.append(("begin", trainer.phases.index(trainer.phase)))

    def epoch_begin(self, trainer):
        self.seen.append((trainer.state.epoch, trainer.phases.index(trainer.phase)))


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (0, [("begin", 0), (0, 0), (1, 0), ("begin", 1), (2, 1)]),
        (1, [("begin", 0), (1, 0), ("begin", 1), (2, 1)]),
        (2, [("begin", 1), (2, 1)]),  # the first phase is over and does not begin again
        (3, []),
    ],
)
def test_a_run_goes_through_the_phases_that_are_left(make_trainer, epoch, expected):
    phases = Phases()
    trainer = make_trainer([phases])
    trainer.phases = [Phase(0, 2), Phase(2, 3)]
    trainer.state.epoch = epoch
    trainer.fit()
    assert phases.seen == expected


def test_positions_in_phases_of_different_length(make_trainer):
    trainer = make_trainer(accumulate_steps=4)
    trainer.phases = [Phase(0, 2), Phase(2, 3, batch_multiplier=2)]
    loaders = {1: range(9), 2: range(4)}  # 3 steps an epoch, then 1
    trainer.make_loader = lambda phase: loaders[phase.batch_multiplier]
    assert [trainer.steps_before(epoch) for epoch in range(4)] == [0, 3, 6, 7]
    assert [trainer.phases.index(trainer.phase_of(epoch)) for epoch in range(5)] == [0, 0, 1, 1, 1]
    trainer.max_iters = 2
    assert [trainer.steps_before(epoch) for epoch in range(4)] == [0, 2, 4, 5]


def test_a_loss_that_is_not_finite_names_step_clips_and_checkpoint(make_trainer, tmp_path):
    store = CheckpointStore(tmp_path, "m")

    class Poison(Callback):
        def step_begin(self, trainer):
            if trainer.state.step == 8:
                with paddle.no_grad():
                    trainer.model.fc.weight.set_value(np.full([96, 3], np.nan, "float32"))

    trainer = make_trainer([Poison(), Checkpointing(store)])
    with pytest.raises(NonFiniteLossError) as error:
        trainer.fit()
    ids = list(np.random.default_rng(1).permutation(24)[8:12])
    assert "at step 9" in str(error.value)
    assert str([int(i) for i in ids]) in str(error.value)
    assert f"last good checkpoint: {tmp_path}/m_epoch_00001" in str(error.value)
    assert np.isfinite(load_checkpoint(store.latest()).weights["fc.weight"]).all()


def test_a_mid_epoch_checkpoint_refuses_another_epoch_length(make_trainer, tmp_path):
    store = CheckpointStore(tmp_path, "m")
    trainer = make_trainer([StopAt(2), Checkpointing(store)])
    with pytest.raises(TrainingInterrupted):
        trainer.fit()
    other = make_trainer([Checkpointing(store)], batch_size=8)
    restore(other, load_checkpoint(store.latest()))
    with pytest.raises(CheckpointError, match="step 2 of an epoch of 6, which now has 3"):
        other.fit()


def test_ranks_go_on_from_the_end_of_an_epoch(make_trainer, tmp_path):
    """Two ranks with the same clips; the checkpoint of step 6 precedes the validation of the first epoch."""

    class Twins(Distribution):
        world_size = 2

        def sum_on_device(self, values):
            return values * 2

        def gather(self, value):
            return [value, value]

    store = CheckpointStore(tmp_path, "m")
    whole = make_trainer([Checkpointing(store, every_steps=6)], distribution=Twins())
    whole.fit()
    resumed = make_trainer([Checkpointing(store)], distribution=Twins())
    restore(resumed, load_checkpoint(str(store.prefix("step_00000006"))))
    resumed.fit()
    assert_same(weights(whole), weights(resumed))
    assert whole.state == resumed.state


@pytest.mark.parametrize("shared", [True, False])
def test_an_epoch_whose_end_fails_is_saved_where_all_ranks_fail(make_trainer, tmp_path, shared):
    class Ranks(Distribution):
        def is_shared(self, error):
            return shared

    class Failing(Callback):
        def epoch_end(self, trainer):
            raise ZeroDivisionError

    saving = Checkpointing(CheckpointStore(tmp_path, "m"))
    trainer = make_trainer([Failing(), saving], distribution=Ranks())
    with pytest.raises(ZeroDivisionError):
        trainer.fit()
    saved = [step for step, *_ in saving.store.complete()]
    assert saved == ([trainer.steps_per_epoch] if shared else [])


def test_the_moving_average_is_the_formula(make_trainer):
    seen = []

    class Watch(Callback):
        def step_end(self, trainer):
            seen.append(trainer.model.fc.weight.numpy().copy())

    trainer = make_trainer([Watch()], epochs=1)
    start = trainer.model.fc.weight.numpy().copy()
    ema = ExponentialMovingAverage(trainer.model, 0.3)
    trainer.callbacks.append(ema)
    trainer.fit()
    average = start
    for step, value in enumerate(seen, 1):
        decay = min(0.3, (1 + step) / (10 + step))
        average = average * decay + value * (1 - decay)
    np.testing.assert_allclose(ema.tensors()["fc.weight"].numpy(), average, rtol=1e-5)
    ema.before_evaluation(trainer)
    np.testing.assert_allclose(trainer.model.fc.weight.numpy(), average, rtol=1e-5)
    ema.after_evaluation(trainer)
    np.testing.assert_array_equal(trainer.model.fc.weight.numpy(), seen[-1])

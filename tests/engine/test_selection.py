"""Which epoch is the best, and when training stops early: also after a stop and a resume."""

import json
import math
from dataclasses import replace

import numpy as np
import paddle
import pytest

from paddlevideo_fast.engine import CheckpointStore, TrainingInterrupted, load_checkpoint
from paddlevideo_fast.engine.callbacks import Callback, Checkpointing, Evaluation, Recorder, restore
from paddlevideo_fast.engine.callbacks.evaluation import Selection, best_of
from paddlevideo_fast.engine.sinks import ConsoleSink
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.metrics import CenterCropMetric, MeanAveragePrecision, MultiCropMetric
from paddlevideo_fast.modeling.weights import read_weights
from tests.support.small_runs import assert_same

# No improvement from epoch 2 on: 3 is worse, 4 is equal, 5 gains too little, 6 is not finite.
TOP1 = [0.3, 0.5, 0.4, 0.5, 0.505, 0.9, 0.95, 0.96, 0.97, 0.98]
LOSS = [2.0, 1.5, 1.6, 1.5, 1.495, math.nan, 1.0, 0.9, 0.8, 0.7]


class Script:
    """In place of an evaluator: the answer depends on the epoch that the trainer has finished."""

    def __init__(self, top1=TOP1, loss=LOSS):
        self.trainer = None
        self.seen = []
        self.top1, self.loss = top1, loss

    def run(self, model, metric, check_stop=None):
        epoch = self.trainer.state.epoch
        self.seen.append(epoch)
        check_stop()
        counts = {"num_samples": 16, "num_failed": 0, "num_replaced": 0}
        return {"top1": self.top1[epoch - 1], "top5": 1.0, "loss": self.loss[epoch - 1], **counts}


class Killed(BaseException):
    """In place of SIGKILL: nothing is saved."""


class StopAt(Callback):
    """A signal or a kill in a step, or a signal at the end of an epoch, where the validation is over."""

    def __init__(self, step=None, epoch=None, kill=None):
        self.step, self.epoch, self.kill = step, epoch, kill

    def step_end(self, trainer):
        if trainer.state.step == self.step:
            trainer.interrupt.requested = 15
        if trainer.state.step == self.kill:
            raise Killed

    def epoch_end(self, trainer):
        if trainer.state.epoch == self.epoch:
            raise TrainingInterrupted(15)


@pytest.fixture
def run(make_trainer, tmp_path):
    """`run(folder, settings, stop, resume)`: a trainer at its end, or where it was stopped.

    Unless `mean_of` says more, each validation decides alone.
    """

    def start(folder, settings, stop=None, resume=False, epochs=10, interval=1, mean_of=1):
        settings = replace(settings, mean_of=mean_of)
        store = CheckpointStore(tmp_path / folder, "m")
        store.prepare()
        evaluator = Script()
        evaluation = Evaluation(evaluator, None, interval, store, settings)
        trainer = make_trainer([evaluation, *([stop] if stop else []), Checkpointing(store)], epochs=epochs)
        evaluator.trainer = trainer
        if resume:
            restore(trainer, load_checkpoint(store.latest()))
        if stop is None:
            trainer.fit()
        else:
            with pytest.raises((TrainingInterrupted, Killed)):
                trainer.fit()
        return trainer, store

    return start


PATIENT = Selection(patience=4, min_delta=0.01)


def test_training_stops_after_validations_without_an_improvement(run, caplog):
    caplog.set_level("INFO", "paddlevideo_fast")
    trainer, store = run("run", PATIENT)
    assert trainer.state.epoch == 6
    assert trainer.state.best == {"top1": 0.505, "epoch": 5}  # any improvement gives the best weights
    assert store.latest().endswith("m_epoch_00006")
    assert (
        "training stops after epoch 6 of 10: no validation has improved by more than 0.01 since epoch 2 "
        "(top1 0.50000), 4 in a row (SELECTION.patience 4)"
    ) in caplog.text


@pytest.mark.parametrize(
    ("settings", "interval", "last", "best"),
    [
        (Selection(), 1, 10, {"top1": 0.98, "epoch": 10}),
        (Selection(patience=2), 1, 4, {"top1": 0.5, "epoch": 2}),
        (Selection(patience=2, min_delta=0.3), 1, 3, {"top1": 0.5, "epoch": 2}),
        (Selection(patience=1), 2, 4, {"top1": 0.5, "epoch": 2}),  # epochs 2 and 4
        (Selection("loss"), 1, 10, {"loss": 0.7, "epoch": 10}),
        (Selection("loss", patience=2), 1, 4, {"loss": 1.5, "epoch": 2}),
        (Selection("loss", mode="max"), 1, 10, {"loss": 2.0, "epoch": 1}),
        (Selection("top1", mode="min", patience=3), 1, 4, {"top1": 0.3, "epoch": 1}),
        (Selection("top5", patience=3), 1, 4, {"top5": 1.0, "epoch": 2}),
    ],
)
def test_value_direction_and_patience_decide(run, settings, interval, last, best):
    trainer, _ = run("run", settings, interval=interval)
    assert (trainer.state.epoch, trainer.state.best) == (last, best)


@pytest.mark.parametrize("mean_of", [1, None])
@pytest.mark.parametrize(
    "stop", [{"step": 7}, {"step": 31}, {"epoch": 2}, {"epoch": 4}, {"epoch": 5}, {"kill": 14}, {"kill": 33}]
)
def test_a_stopped_and_resumed_run_ends_with_the_same_epoch_and_bits(run, stop, mean_of):
    whole, whole_store = run("whole", PATIENT, mean_of=mean_of)
    run("parts", PATIENT, StopAt(**stop), mean_of=mean_of)
    resumed, store = run("parts", PATIENT, resume=True, mean_of=mean_of)
    assert resumed.stop_reason == whole.stop_reason
    left, right = (load_checkpoint(each.latest()) for each in (whole_store, store))
    for part in ("trainer", "callbacks"):
        assert json.dumps(left.state[part]) == json.dumps(right.state[part])  # NaN equals NaN
    best = [read_weights(each.folder / "m_best.pdparams") for each in (whole_store, store)]
    for one, other in ((left.weights, right.weights), (left.optimizer, right.optimizer), best):
        assert_same(one, other)


def test_a_run_that_has_stopped_trains_nothing_more_until_patience_allows_it(run):
    run("run", PATIENT)
    again, _ = run("run", PATIENT, resume=True)
    assert again.state.epoch == 6
    assert "training stops after epoch 6" in again.stop_reason
    more, _ = run("run", Selection(patience=5, min_delta=0.01), resume=True)
    assert more.state.epoch == 10
    assert more.state.best == {"top1": 0.98, "epoch": 10}


def test_a_run_that_goes_on_by_another_value_begins_its_best_anew(run, caplog):
    caplog.set_level("INFO", "paddlevideo_fast")
    run("run", Selection(), epochs=3)
    trainer, _ = run("run", Selection("loss"), resume=True, epochs=5)
    assert trainer.state.best == {"loss": 1.495, "epoch": 5}
    assert "epoch 2 was the best by another value; loss decides now" in caplog.text


LUCKY = [0.3, 0.5, 0.6, 0.65, 0.7, 0.7, 0.7, 0.75, 0.7, 0.9375, *[0.75] * 13]


@pytest.mark.parametrize("lucky", [1, 2, 10, 22, 23])
def test_one_lucky_epoch_does_not_decide(make_trainer, lucky):
    """At the end of a plateau the mean of five decides; a mean of fewer, as of the first epochs, never."""
    top1 = [0.75] * 23
    top1[lucky - 1] = 0.9375
    top1[lucky % 23] = 0.5625  # what one epoch wins by luck the next one loses
    top1[14] = 0.8
    evaluator = Script(top1, [1.0] * 23)
    trainer = make_trainer([Evaluation(evaluator, None)], epochs=23)
    evaluator.trainer = trainer
    trainer.fit()
    means = [np.mean(top1[max(0, end - 5) : end]) for end in range(1, 24)]
    best = int(trainer.state.best["epoch"])
    assert best >= 5
    assert means[best - 1] == pytest.approx(max(means[4:]))
    assert trainer.state.choice == {"validations": 23, "mean_of": 5, "mean": pytest.approx(means[best - 1])}
    assert trainer.state.best["top1"] == top1[best - 1]


def test_the_best_is_shown_beside_the_last_and_how_it_was_chosen(make_trainer, caplog):
    evaluator = Script(LUCKY, [1.0 - 0.01 * epoch for epoch in range(23)])
    trainer = make_trainer([Evaluation(evaluator, None), Recorder([ConsoleSink()])], epochs=23)
    evaluator.trainer = trainer
    with caplog.at_level("INFO", logger="paddlevideo_fast"):
        trainer.fit()
    lines = [text for text in caplog.messages if " val loss" in text]
    assert lines[0].endswith(f"; best epoch so far: 1 (top1: {LUCKY[0]:.5f})")
    assert lines[-1].endswith(
        "; best epoch so far: 14 (top1: 0.75000), by the mean of 5 validations in a row: 0.78750"
    )
    state = trainer.state
    assert best_of(state.best, state.choice, state.last_validation) == (
        "top1 0.75, epoch 14, chosen from 23 validations by the mean of 5 in a row, 0.7875; "
        "last: top1 0.75, epoch 23, 95 % interval 0.505 to 0.898 of 16 samples"
    )
    assert best_of({}, {}, {}) == "not validated"


@pytest.mark.parametrize(("epochs", "interval", "mean_of"), [(3, 1, 1), (8, 1, 2), (60, 1, 5), (23, 7, 1)])
def test_how_many_validations_are_compared_by_their_mean(make_trainer, epochs, interval, mean_of):
    evaluator = Script([0.5] * 60, [1.0 - 0.01 * epoch for epoch in range(60)])
    trainer = make_trainer([Evaluation(evaluator, None, interval)], epochs=epochs, max_iters=1)
    evaluator.trainer = trainer
    trainer.fit()
    count = -(-epochs // interval)
    assert trainer.state.choice == {"validations": count, "mean_of": mean_of, "mean": 0.5}
    assert trainer.state.best == {"top1": 0.5, "epoch": epochs}  # of equal means the lower loss


def test_without_a_top_value_the_first_value_decides():
    selection = Selection()
    assert selection.value_of({"mAP": 0.4, "loss": 1.0, "num_samples": 3}) == ("mAP", 0.4)
    assert selection.value_of({"mAP": 0.4, "top3": 0.7, "loss": 1.0}) == ("top3", 0.7)
    assert selection.value_of({"num_samples": 0, "num_failed": 2}) is None
    assert not selection.is_better("mAP", math.nan, None)
    assert not selection.is_better("mAP", math.nan, 0.1)


def test_an_unknown_value_is_told_with_those_there_are(run):
    with pytest.raises(ConfigError, match=r"SELECTION.metric=mAP: .*loss, top1, top5"):
        run("run", Selection("mAP"))


@pytest.mark.parametrize("metric", [CenterCropMetric([1, 3]), MultiCropMetric([2]), MeanAveragePrecision()])
def test_metrics_give_the_values_that_they_declare(metric):
    labels = paddle.to_tensor(np.array([0, 1, 0]))
    if metric.activation == "sigmoid":
        labels = paddle.nn.functional.one_hot(labels, 3)
    metric.update(paddle.to_tensor(np.eye(3, dtype="float32")), labels, [0, 1, 2], [0, 0, 0])
    assert tuple(metric.accumulate()) == metric.names_with(3)

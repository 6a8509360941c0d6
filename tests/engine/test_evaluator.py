"""Passes without training: which batches they see, what they leave as it was, and which epoch is the best."""

import math
from functools import partial

import numpy as np
import paddle
import pytest

from paddlevideo_fast.engine import CheckpointStore, Distribution, Evaluator
from paddlevideo_fast.engine.callbacks import Evaluation
from paddlevideo_fast.loader import DecodeFailure
from paddlevideo_fast.metrics import CenterCropMetric
from tests.support.small_runs import Batches, batch_of


def batches(epoch):
    """Ten batches, of which the fourth has no clip that decodes."""
    rng, found = np.random.default_rng(epoch), []
    for index in range(10):
        ids = np.arange(2 * index, 2 * index + 2 * (index != 3))
        clips = rng.integers(0, 255, (len(ids), 2, 4, 4, 3), np.uint8)
        incidents = [DecodeFailure(f"{index}.mp4", "failed", "cut short")] if index in (3, 5) else []
        found.append(batch_of(clips, ids % 3, ids, incidents))
    return found


LOADER = Batches(batches)


class Rank(Distribution):
    """A rank whose own pass is all that there is."""

    def __init__(self, rank, world_size):
        self.rank = rank
        self.world_size = world_size


@pytest.mark.parametrize(
    ("max_batches", "world_size", "expected"),
    [
        (None, 1, [10]),
        (0, 1, [0]),
        (4, 1, [4]),
        (11, 1, [10]),
        (None, 3, [10, 10, 10]),
        (4, 3, [2, 1, 1]),
        (5, 3, [2, 2, 1]),
        (6, 3, [2, 2, 2]),
        (2, 3, [1, 1, 0]),
        (31, 3, [10, 10, 10]),
    ],
)
def test_a_limit_counts_the_batches_of_all_ranks(make_trainer, max_batches, world_size, expected):
    trainer = make_trainer()
    for rank, num_batches in enumerate(expected):
        stops = []
        evaluator = Evaluator(
            LOADER, trainer.preprocess, distribution=Rank(rank, world_size), max_batches=max_batches
        )
        evaluator.visit(
            trainer.model, lambda batch, logits: None, "test", check_stop=partial(stops.append, 1)
        )
        assert len(stops) == num_batches


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_pass_leaves_the_model_as_it_was(make_trainer, training, fails):
    trainer, seen = make_trainer(), []
    trainer.model.train() if training else trainer.model.eval()

    def visit(batch, logits):
        seen.append((len(batch), trainer.model.training, logits.stop_gradient))
        if fails:
            raise ZeroDivisionError

    evaluator = Evaluator(LOADER, trainer.preprocess)
    if fails:
        with pytest.raises(ZeroDivisionError):
            evaluator.visit(trainer.model, visit, "test")
    else:
        assert [incident.path for incident in evaluator.visit(trainer.model, visit, "test")] == [
            "3.mp4",
            "5.mp4",
        ]
    assert seen == [(2, False, True)] * (1 if fails else 9)  # the batch without clips is not visited
    assert trainer.model.training == training


def test_each_rank_hears_of_all_incidents_once(make_trainer):
    class Second(Rank):
        def gather_from(self, work):
            own = work()
            return [[DecodeFailure("other.mp4", "failed", "gone")], own] if own else [None, own]

    trainer, heard = make_trainer(), []
    evaluator = Evaluator(LOADER, trainer.preprocess, distribution=Second(1, 2), on_incidents=heard.extend)
    incidents = evaluator.visit(trainer.model, lambda batch, logits: None, "test")
    assert [incident.path for incident in heard] == ["3.mp4", "5.mp4", "other.mp4"]
    assert [incident.path for incident in incidents] == ["other.mp4", "3.mp4", "5.mp4"]


def test_an_evaluation_may_end_early(make_trainer):
    trainer = make_trainer()
    values = Evaluator(LOADER, trainer.preprocess, max_batches=4).run(trainer.model, CenterCropMetric())
    assert (values["num_samples"], values["num_failed"]) == (6, 1)
    none = Evaluator(LOADER, trainer.preprocess, max_batches=0).run(trainer.model, CenterCropMetric())
    assert none == {"num_samples": 0, "num_failed": 0, "num_replaced": 0}


class Answers:
    """In place of an evaluator: one answer after the other."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def run(self, model, metric, check_stop=None):
        return self.answers.pop(0)


@pytest.mark.parametrize(
    ("interval", "epochs"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (4, [4, 5]), (5, [5]), (9, [5])]
)
def test_an_evaluation_comes_every_interval_and_at_the_end(make_trainer, interval, epochs):
    seen = []
    evaluator = Answers(*[{"top1": 0.5}] * 5)
    callback = Evaluation(evaluator, metric=None, interval=interval)
    trainer = make_trainer([callback], epochs=5)
    run = evaluator.run
    evaluator.run = lambda *arguments: seen.append(trainer.state.epoch) or run(*arguments)
    trainer.fit()
    assert seen == epochs
    assert trainer.state.last_validation["epoch"] == 5


def test_of_equal_ones_the_best_has_the_lowest_loss_which_is_finite(make_trainer, tmp_path):
    class Marked(Answers):
        def run(self, model, metric, check_stop=None):
            with paddle.no_grad():
                model.fc.bias.set_value(np.full(3, len(self.answers), "float32"))
            return super().run(model, metric)

    values = [
        {"top1": 0.2, "top5": 0.9, "loss": 1.0},
        {"top1": 0.5, "top5": 0.8, "loss": 1.0},
        {"top1": 0.5, "top5": 0.7, "loss": 0.5},  # the first "top" decides
        {"top1": 0.5, "top5": 0.9, "loss": 0.5},  # equal is not better
        {"top1": 0.5, "top5": 0.9, "loss": 0.6},
        {"top1": 0.8, "top5": 0.9, "loss": math.nan},
    ]
    store = CheckpointStore(tmp_path, "m")
    trainer = make_trainer([Evaluation(Marked(*values), metric=None, store=store)], epochs=6)
    trainer.fit()
    assert trainer.state.best == {"top1": 0.5, "epoch": 3}
    assert paddle.load(str(tmp_path / "m_best.pdparams"))["fc.bias"].tolist() == [4.0, 4.0, 4.0]

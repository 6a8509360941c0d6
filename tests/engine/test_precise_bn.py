"""Population statistics against brute force over all that reaches a batch norm."""

import signal

import numpy as np
import paddle
import pytest
from paddle import nn

from paddlevideo_fast.engine import CheckpointStore, Evaluator, TrainingInterrupted, load_checkpoint
from paddlevideo_fast.engine.callbacks import (
    Checkpointing,
    Evaluation,
    ExponentialMovingAverage,
    PreciseBatchNorm,
    restore,
)
from paddlevideo_fast.engine.callbacks.precise_bn import population_statistics
from paddlevideo_fast.errors import BadSampleShareError
from paddlevideo_fast.loader import DecodeFailure
from paddlevideo_fast.modeling.layers.batch_norm import (
    SubBatchNorm2D,
    SubBatchNorm3D,
    set_num_splits,
    split_statistics,
)
from tests.support.small_runs import Classifier, assert_same, batch_of, weights

SIZES = [5, 5, 1, 3]


class Clips:
    """Batches of unequal sizes with unequal contents; one of them is empty: nothing of it decoded."""

    def __init__(self, sizes=SIZES, on_epoch=None):
        self.sizes = [*sizes[:2], 0, *sizes[2:]]
        self.epochs = []
        self.on_epoch = on_epoch
        self.is_open = False

    def __len__(self):
        return len(self.sizes)

    def epoch(self, epoch, start_batch=0):
        self.epochs.append(epoch)
        self.is_open = True
        if self.on_epoch is not None:
            self.on_epoch()
        rng = np.random.default_rng(epoch)
        for index, size in enumerate(self.sizes):
            clips = rng.normal(100 + 5 * index, 1 + index, (size, 2, 4, 4, 3))
            incidents = [] if size else [DecodeFailure("bad.mp4", "failed", "cut")]
            yield batch_of(clips, np.arange(size) % 3, incidents=incidents)

    def close(self):
        self.is_open = False


class Net(Classifier):
    """Two batch norms with a nonlinearity between them, after dropout and before it."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        norm = {"2d": SubBatchNorm2D, "nhwc": SubBatchNorm2D, "3d": SubBatchNorm3D, "plain": nn.BatchNorm3D}
        arguments = {"data_format": "NHWC"} if kind == "nhwc" else {}
        self.first = norm[kind](3, **arguments)
        self.dropout = nn.Dropout(0.5)
        self.second = norm[kind](3, **arguments)
        self.fc = nn.Linear(96, 3)

    def forward(self, clips):
        if self.kind in ("2d", "nhwc"):
            clips = clips.flatten(0, 1)
        x = self.second(self.dropout(nn.functional.relu(self.first(clips))))
        return self.fc(x.reshape([-1, 96]))


def layout_of(kind):
    def preprocess(clips):
        clips = paddle.to_tensor(clips.astype("float64"))
        order = {"2d": [0, 1, 4, 2, 3], "nhwc": [0, 1, 2, 3, 4]}.get(kind, [0, 4, 1, 2, 3])
        return clips.transpose(order)

    return preprocess


def by_hand(loader, net, epoch=0, num_batches=None):
    """Mean and variance of the inputs of both batch norms, of all values together."""
    firsts, seconds = [], []
    for batch in list(loader.epoch(epoch))[:num_batches]:
        if not len(batch.labels):
            continue
        x = batch.clips.reshape(-1, 3)
        firsts.append(x)
        normal = (x - x.mean(0)) / np.sqrt(x.var(0) + net.first._epsilon)
        seconds.append(np.maximum(normal * net.first.weight.numpy() + net.first.bias.numpy(), 0))
    firsts, seconds = np.concatenate(firsts), np.concatenate(seconds)
    return {name: (x.mean(0), x.var(0)) for name, x in (("first", firsts), ("second", seconds))}


def check(found, expected):
    assert sorted(found) == sorted(expected)
    for name, values in expected.items():
        for mine, theirs in zip(found[name], values):
            np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-9)


def make_net(kind, num_splits=1):
    paddle.seed(3)
    paddle.set_default_dtype("float64")
    try:
        net = Net(kind)
    finally:
        paddle.set_default_dtype("float32")
    net.first.weight.set_value(np.array([0.5, 1.5, 2]))
    net.first.bias.set_value(np.array([0.3, -0.2, 0.1]))
    set_num_splits(net, num_splits)
    return net


@pytest.mark.smoke
@pytest.mark.parametrize("num_splits", [1, 4])
@pytest.mark.parametrize("kind", ["2d", "3d", "nhwc", "plain"])
def test_it_equals_brute_force_over_the_whole_set_and_changes_nothing(kind, num_splits):
    net, incidents = make_net(kind, num_splits), []
    net.train()
    before = {name: value.numpy() for name, value in {**net.state_dict(), **split_statistics(net)}.items()}
    found = population_statistics(Evaluator(Clips(), layout_of(kind), on_incidents=incidents.extend), net)
    check(found, by_hand(Clips(), net))
    assert incidents == [DecodeFailure("bad.mp4", "failed", "cut")]
    assert net.training
    assert net.second.training
    assert_same(before, {**net.state_dict(), **split_statistics(net)})
    net.eval()
    check(population_statistics(Evaluator(Clips(), layout_of(kind)), net), by_hand(Clips(), net))
    assert not net.training


def test_some_batches_of_another_epoch():
    net, loader = make_net("3d"), Clips()
    found = population_statistics(Evaluator(loader, layout_of("3d"), max_batches=2), net, epoch=7)
    assert loader.epochs == [7]
    check(found, by_hand(Clips(), net, epoch=7, num_batches=2))


def test_batch_norms_that_are_not_trained_are_left_out():
    net = make_net("2d")
    net.second._use_global_stats = True
    assert list(population_statistics(Evaluator(Clips(), layout_of("2d")), net)) == ["first"]


def test_no_clip_decodes():
    with pytest.raises(BadSampleShareError, match="no clip of the batches for precise BN decodes"):
        population_statistics(Evaluator(Clips([0, 0]), layout_of("3d")), make_net("3d"))


def precise(interval, averaged=False, on_epoch=None):
    return PreciseBatchNorm(Evaluator(Clips(on_epoch=on_epoch), layout_of("3d")), interval, averaged)


class FakeEvaluator:
    def __init__(self, look=lambda model: None):
        self.look = look

    def run(self, model, metric, check_stop=None):
        self.look(model)
        return {"top1": 0.5}


def interrupt():
    raise TrainingInterrupted(signal.SIGTERM)


@pytest.fixture
def make_run(make_trainer, tmp_path):
    def make(*callbacks, epochs=3):
        trainer = make_trainer([], epochs=epochs)
        trainer.model = make_net("3d", num_splits=2)
        trainer.optimizer = paddle.optimizer.Momentum(0.1, parameters=trainer.model.parameters())
        trainer.preprocess = layout_of("3d")
        trainer.callbacks = [*callbacks, Checkpointing(CheckpointStore(tmp_path, "m"))]
        return trainer

    return make


def running(model):
    layers = {"first": model.first, "second": model.second}
    return {name: (layer._mean, layer._variance) for name, layer in layers.items()}


def test_it_comes_every_interval_and_at_the_end_for_every_split(make_run, tmp_path):
    callback = precise(interval=2)
    trainer = make_run(callback)
    trainer.fit()
    assert callback.evaluator.loader.epochs == [2, 3]
    assert not callback.evaluator.loader.is_open  # its workers would stand idle until the next pass
    check(running(trainer.model), by_hand(Clips(), trainer.model, epoch=3))
    for name, value in split_statistics(trainer.model).items():
        layer, kind = name.split(".")
        own = getattr(getattr(trainer.model, layer), kind).numpy()
        np.testing.assert_array_equal(value.numpy(), np.stack([own, own]))
    for epoch, is_precise in ((1, False), (2, True), (3, True)):
        net = make_net("3d")
        net.set_state_dict(load_checkpoint(str(tmp_path / f"m_epoch_{epoch:05d}")).weights)
        mean = by_hand(Clips(), net, epoch=epoch)["second"][0]
        assert np.allclose(net.second._mean.numpy(), mean, rtol=1e-4) == is_precise


def test_a_resumed_run_takes_the_same_steps(make_run, tmp_path):
    whole = make_run(precise(interval=1))
    whole.fit()
    resumed = make_run(precise(interval=1))
    restore(resumed, load_checkpoint(str(tmp_path / "m_epoch_00001")))
    resumed.fit()
    assert resumed.state.step == whole.state.step
    assert_same(weights(whole), weights(resumed))


def test_a_run_that_was_stopped_in_the_pass_repeats_it(make_run):
    whole = make_run(precise(interval=2))
    whole.fit()
    first = make_run(precise(interval=2, on_epoch=interrupt))
    with pytest.raises(TrainingInterrupted):
        first.fit()
    resumed = make_run(precise(interval=2))
    restore(resumed, load_checkpoint(first.last_checkpoint))
    assert resumed.state.epoch == 1
    resumed.fit()
    assert resumed.state.step == whole.state.step
    assert_same(weights(whole), weights(resumed))


def test_averaged_weights_are_evaluated_with_statistics_of_their_own(make_run):
    seen = []

    def look(model):
        check(running(model), by_hand(Clips(), model, epoch=trainer.state.epoch))
        seen.append(model.first.weight.numpy())

    trainer = make_run(epochs=2)
    trainer.callbacks[:0] = [
        ExponentialMovingAverage(trainer.model, 0.9),
        precise(interval=1, averaged=True),
        Evaluation(FakeEvaluator(look), metric=None),
    ]
    trainer.fit()
    assert len(seen) == 2
    assert (seen[-1] != trainer.model.first.weight.numpy()).all()
    check(running(trainer.model), by_hand(Clips(), trainer.model, epoch=2))  # of the trained weights again


def test_an_interruption_before_the_evaluation_puts_the_trained_weights_back(make_run, tmp_path):
    calls = []

    def on_epoch():
        calls.append(trainer.model.fc.weight.numpy())
        if len(calls) == 2:  # the averaged weights are in place
            interrupt()

    trainer = make_run()
    trainer.callbacks[:0] = [
        ExponentialMovingAverage(trainer.model, 0.9),
        precise(interval=1, averaged=True, on_epoch=on_epoch),
        Evaluation(FakeEvaluator(), metric=None),
    ]
    with pytest.raises(TrainingInterrupted):
        trainer.fit()
    assert (calls[0] != calls[1]).any()
    saved = load_checkpoint(trainer.last_checkpoint).weights
    np.testing.assert_array_equal(saved["fc.weight"], calls[0])

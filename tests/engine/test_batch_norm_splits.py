"""Runs whose phases split their batches: resumed, they take the same steps."""

import paddle
import pytest

from paddlevideo_fast.engine import CheckpointStore, Trainer, load_checkpoint
from paddlevideo_fast.engine.callbacks import (
    BatchNormSplits,
    Checkpointing,
    ExponentialMovingAverage,
    restore,
)
from paddlevideo_fast.modeling.layers.batch_norm import SubBatchNorm3D, split_statistics
from paddlevideo_fast.schedule.phases import Phase
from tests.support.small_runs import Classifier, assert_same, weights

PHASES = [Phase(0, 2, bn_splits=4), Phase(2, 3, bn_splits=2), Phase(3, 4)]


class NormModel(Classifier):
    """A linear layer behind a batch norm."""

    def __init__(self):
        super().__init__()
        self.norm = SubBatchNorm3D(3)
        self.fc = paddle.nn.Linear(96, 3)

    def forward(self, clips):
        return self.fc(self.norm(clips).flatten(1))


def channels_first(clips):
    return paddle.to_tensor(clips.astype("float32") / 255).transpose([0, 4, 1, 2, 3])


class StopAt(Checkpointing):
    """Saves and stops after a step, as a process does that is told to end."""

    stop_at = None

    def step_end(self, trainer):
        if trainer.state.step == self.stop_at:
            self.save(trainer, f"step_{trainer.state.step:08d}")
            raise KeyboardInterrupt


@pytest.fixture
def make_run(make_trainer, tmp_path):
    def make(stop_at=None):
        paddle.seed(7)
        model = NormModel()
        checkpointing = StopAt(CheckpointStore(tmp_path, "m"), interval=100)
        checkpointing.stop_at = stop_at
        callbacks = [BatchNormSplits(model), ExponentialMovingAverage(model, 0.9), checkpointing]
        return Trainer(
            model=model,
            optimizer=paddle.optimizer.Momentum(0.1, parameters=model.parameters()),
            make_loader=make_trainer(batch_size=8).make_loader,
            preprocess=channels_first,
            phases=PHASES,
            callbacks=callbacks,
        )

    return make


def test_splits_follow_the_phase(make_run):
    run, seen = make_run(), []
    save = run.train_step
    run.train_step = lambda batches: (seen.append(run.model.norm.num_splits), save(batches))
    run.fit()
    assert seen == [4] * 6 + [2] * 3 + [1] * 3


# inside a phase, at the end of one before and after the next begins, and with one split
@pytest.mark.parametrize("stop_at", [2, 6, 7, 9, 11])
def test_a_resumed_run_takes_the_same_steps(make_run, tmp_path, stop_at):
    whole = make_run()
    whole.fit()
    with pytest.raises(KeyboardInterrupt):
        make_run(stop_at).fit()
    resumed = make_run()
    restore(resumed, load_checkpoint(str(tmp_path / f"m_step_{stop_at:08d}")))
    assert len(split_statistics(resumed.model)) == (2 if stop_at <= 9 else 0)
    resumed.fit()
    assert_same(weights(whole), weights(resumed))


def test_without_the_statistics_of_the_splits_it_would_not(make_run, tmp_path):
    whole = make_run()
    whole.fit()
    with pytest.raises(KeyboardInterrupt):
        make_run(5).fit()
    resumed = make_run()
    checkpoint = load_checkpoint(str(tmp_path / "m_step_00000005"))
    checkpoint.tensors.pop("BatchNormSplits/norm._mean")
    restore(resumed, checkpoint)
    resumed.fit()
    assert (whole.model.norm._variance.numpy() != resumed.model.norm._variance.numpy()).any()


def test_a_checkpoint_holds_a_plain_models_weights(make_run, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        make_run(3).fit()
    weights = paddle.load(str(tmp_path / "m_step_00000003.pdparams"))
    assert {name: value.shape for name, value in weights.items()} == {
        name: value.shape for name, value in NormModel().state_dict().items()
    }

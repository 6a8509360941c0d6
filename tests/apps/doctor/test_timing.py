"""Training steps and stages are counted as they happen, and what was wrapped to time them is as before."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from paddlevideo_fast.apps.doctor import timing
from paddlevideo_fast.apps.doctor.timing import (
    Stopwatch,
    SyntheticLoader,
    own_loader,
    time_steps,
    time_training_stages,
)
from paddlevideo_fast.assembly import plan_run, training_setup
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.errors import PaddleVideoFastError


class Clock:
    """Seconds that pass only when `sleep` is called."""

    def __init__(self):
        self.now = 0.0

    def sleep(self, seconds):
        self.now += seconds

    def fail_after(self, seconds):
        self.sleep(seconds)
        raise ZeroDivisionError


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: made.now))
    return made


@pytest.fixture
def parts(config):
    spec = RunSpec.for_training(load_config(str(config())))
    return training_setup(plan_run(spec), load_pretrained=False)


def test_the_data_are_read_by_the_pipeline_that_was_checked(parts):
    assert parts.split.dataset.pipeline is parts.plan.pipelines["train"]


def test_a_stage_inside_another_counts_for_itself(clock):
    class Thing:
        def outer(self):
            clock.sleep(1)
            return self.inner()

        def inner(self):
            clock.sleep(3)
            return "done"

    thing = Thing()
    with Stopwatch() as watch:
        watch.wrap(thing, "outer", "outer")
        watch.wrap(Thing, "inner", "inner")
        assert thing.outer() == "done"
        assert thing.outer() == "done"
    assert watch.seconds == {"inner": 6, "outer": 2}
    assert not vars(thing)
    thing.outer()
    assert watch.seconds == {"inner": 6, "outer": 2}


def test_a_stage_that_fails_is_counted_and_ends(clock):
    with Stopwatch() as watch:
        with pytest.raises(ZeroDivisionError), watch.stage("division"):
            clock.fail_after(1)
        with watch.stage("after"):
            clock.sleep(2)
    assert watch.seconds == {"division": 1, "after": 2}


def test_steps_are_timed_past_the_end_of_an_epoch_and_leave_the_weights(parts):
    before = {name: value.numpy() for name, value in parts.model.named_parameters()}
    loader = parts.split.loader
    times = time_steps(parts, loader, num_steps=len(loader) + 2)
    assert times.num_steps == len(loader) + 2
    assert times.num_clips == 4 * times.num_steps
    assert 0 < times.wait_sec < times.total_sec
    for name, value in parts.model.named_parameters():
        if not value.stop_gradient:
            np.testing.assert_array_equal(value.numpy(), before[name])


def test_a_slow_run_is_cut_short(parts):
    assert time_steps(parts, parts.split.loader, num_steps=1000, budget_sec=0.0).num_steps == 2


def test_every_stage_of_a_step_is_timed_and_unwrapped(parts):
    forward = parts.model.forward
    stages = time_training_stages(parts, SyntheticLoader(4, (4, 28, 28, 3), parts.model), num_steps=3)
    assert min(stages[name] for name in ("normalise", "forward", "backward", "optimizer")) > 0
    assert stages["mix"] == 0
    assert parts.model.forward == forward
    assert "forward" not in vars(parts.model)


def test_made_up_batches_are_like_real_ones(parts):
    real = next(parts.split.loader.epoch(0))
    made_up = next(SyntheticLoader(4, real.clips.shape[1:], parts.model).epoch(0))
    assert made_up.clips.shape == real.clips.shape
    assert made_up.clips.dtype == real.clips.dtype
    assert made_up.labels.dtype == real.labels.dtype
    assert made_up.labels.max() < parts.model.num_classes
    assert made_up.clips.std() > 50


def test_another_loader_is_refused(parts):
    made_up = SyntheticLoader(1, (4, 28, 28, 3), parts.model)
    with pytest.raises(PaddleVideoFastError, match="train_dali=false"):
        own_loader(replace(parts, split=replace(parts.split, loader=made_up)))
    assert own_loader(parts) is parts.split.loader

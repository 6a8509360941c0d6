"""`tools/benchmark.py train`: real and made-up batches go through the same trainer."""

from __future__ import annotations

import json

import numpy as np
import pytest

from paddlevideo_fast.assembly import training_parts
from paddlevideo_fast.bench import train
from paddlevideo_fast.bench.training import (
    SyntheticLoader,
    clip_shape,
    time_steps,
    time_training_stages,
)
from paddlevideo_fast.config import load_config
from paddlevideo_fast.errors import BadSampleShareError


@pytest.fixture
def parts(config):
    return training_parts(load_config(str(config())), load_pretrained=False)


@pytest.mark.parametrize(("flags", "batches"), [([], "real"), (["--synthetic"], "synthetic")])
def test_the_command_prints_rates(config, command, capsys, flags, batches):
    arguments = ["train", "-c", str(config()), "--steps", "3", "--warmup", "1", *flags]
    assert command("benchmark").main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["batches"], result["steps"]) == (batches, 3)
    assert result["clips_per_sec"] == pytest.approx(4 * result["steps_per_sec"])
    assert 0 <= result["wait_share"] < 1
    assert "steps/s" in train.table(result)


def test_made_up_batches_have_the_shape_of_real_ones(parts):
    real = next(iter(parts.split.loader.epoch(0)))
    made_up = next(SyntheticLoader(4, clip_shape(parts), parts.model.num_classes).epoch(0))
    assert made_up.clips.shape == real.clips.shape
    assert made_up.clips.dtype == real.clips.dtype
    assert made_up.labels.dtype == real.labels.dtype
    assert made_up.labels.max() < parts.model.num_classes
    assert made_up.clips.std() > 50


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


def test_the_stages_of_a_step_add_up_and_everything_is_unwrapped(parts):
    loader = SyntheticLoader(4, (4, 28, 28, 3), 8)
    forward = parts.model.forward
    stages = time_training_stages(parts, loader, num_steps=3)
    assert min(stages[name] for name in ("normalise", "forward", "backward", "optimizer")) > 0
    assert stages["mix"] == 0
    assert parts.model.forward == forward
    assert "forward" not in vars(parts.model)


def test_no_clip_that_decodes_is_an_error(config, tmp_path, make_clip):
    for name in ("a.mp4", "b.mp4"):
        (tmp_path / name).write_bytes(b"no video")
    (tmp_path / "train.list").write_text("a.mp4 0\nb.mp4 1\n")
    broken = training_parts(load_config(str(config(data=tmp_path, list=tmp_path / "train.list"))))
    with pytest.raises(BadSampleShareError, match=r"train\.list .*[ab]\.mp4"):
        clip_shape(broken)

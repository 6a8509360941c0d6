from __future__ import annotations

import dataclasses

import pytest

from paddlevideo_fast.config import DatasetSettings, EmaSettings, RunSettings, accumulation_of, load_config
from paddlevideo_fast.config.reference import argument_texts
from paddlevideo_fast.errors import ConfigError


def test_defaults():
    settings = RunSettings.from_config({"model_name": "TSM", "epochs": 2, "MODEL": {}, "extra": 1})
    assert settings.output_dir == "output/TSM"
    assert (settings.log_interval, settings.val_interval, settings.accumulate_steps) == (10, 1, 1)
    assert settings.resume is None
    assert dataclasses.replace(settings, output_dir="x").output_dir == "x"


def test_every_setting_is_documented():
    for cls in (RunSettings, DatasetSettings, EmaSettings):
        assert list(argument_texts(cls)) == [field.name for field in dataclasses.fields(cls)]


def test_batch_sizes_and_workers_of_each_split():
    section = {"batch_size": 16, "num_workers": 4, "test_num_workers": 0, "train": {"format": "VideoDataset"}}
    settings = DatasetSettings.from_config({"DATASET": section})
    assert [settings.batch_size_of(split) for split in ("train", "valid", "test")] == [16, 16, 8]
    assert [settings.num_workers_of(split) for split in ("train", "valid", "test")] == [4, 4, 0]


def test_ema_is_off_without_its_section():
    assert EmaSettings.from_config({}) is None
    assert EmaSettings.from_config({"EMA": {}}) == EmaSettings()
    assert EmaSettings.from_config({"EMA": {"decay": 0.5}}).decay == 0.5


def test_accumulation():
    run = {"model_name": "m", "epochs": 1, "DATASET": {"batch_size": 8}}
    assert accumulation_of(run) == 1
    assert accumulation_of({**run, "accumulate_steps": 3}, world_size=4) == 3
    by_batch = {**run, "GRADIENT_ACCUMULATION": {"global_batch_size": 64}}
    assert accumulation_of(by_batch) == 8
    assert accumulation_of(by_batch, world_size=4) == 2


def test_accumulation_problems_name_the_line(write, good):
    text = good + "GRADIENT_ACCUMULATION:\n    global_batch_size: 40\n"
    config = load_config(write("a.yaml", text), check=False)
    key = "GRADIENT_ACCUMULATION.global_batch_size"
    with pytest.raises(ConfigError) as caught:
        accumulation_of(config, world_size=2)
    assert caught.value.problems == [
        f"a.yaml:30  {key}=40: no multiple of the 32 clips of one step (DATASET.batch_size 16 on 2 processes)"
    ]
    config["accumulate_steps"] = 2
    with pytest.raises(ConfigError) as caught:
        accumulation_of(config)
    assert caught.value.problems == [f"a.yaml:30  {key}: accumulate_steps is set too; keep one of the two"]

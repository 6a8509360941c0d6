"""From a checked config to the typed record of its run."""

import dataclasses

import pytest

from paddlevideo_fast.config import Config, RunSpec, load_config
from paddlevideo_fast.config import settings as settings_module
from paddlevideo_fast.config.settings import DatasetSettings, MultigridSettings
from paddlevideo_fast.engine.callbacks import Ema, Selection
from paddlevideo_fast.errors import ConfigError
from tools.config_reference import argument_texts

PLAIN = {"model_name": "TSM", "epochs": 2, "MODEL": {"framework": "Recognizer2D"}}
CLASSES = [
    cls
    for cls in vars(settings_module).values()
    if dataclasses.is_dataclass(cls) and cls.__module__ == settings_module.__name__
]


def spec_of(**sections):
    return RunSpec.of(Config({**PLAIN, **sections}))


def test_defaults():
    spec = spec_of(extra=1)
    assert spec.run.output_dir == "output/TSM"
    assert (spec.run.log_interval, spec.run.val_interval, spec.run.accumulate_steps) == (10, 1, 1)
    assert spec.run.resume is None
    assert spec.run.keep_last == 5
    assert (spec.multigrid, spec.optimizer, spec.splits) == (None, None, {})
    assert spec.extension(Selection) == Selection()
    assert spec.distributed.sharding_degree == 1


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_setting_is_documented(cls):
    assert list(argument_texts(cls)) == [field.name for field in dataclasses.fields(cls)]


def test_batch_sizes_and_workers_of_each_split():
    section = {"batch_size": 16, "num_workers": 4, "test_num_workers": 0, "train": {"format": "VideoDataset"}}
    data = spec_of(DATASET=section).data
    assert data == DatasetSettings(batch_size=16, num_workers=4, test_num_workers=0)
    assert [data.batch_size_of(split) for split in ("train", "valid", "test")] == [16, 16, 8]
    assert [data.num_workers_of(split) for split in ("train", "valid", "test")] == [4, 4, 0]


def test_a_section_that_is_there_and_empty_has_its_defaults():
    assert spec_of(EMA={}).extension(Ema) == Ema()
    assert spec_of(EMA={"decay": 0.5}).extension(Ema) == Ema(0.5)
    assert spec_of(EMA=None).extension(Ema) is None
    assert spec_of(MULTIGRID={"LONG_CYCLE": True}).multigrid == MultigridSettings(LONG_CYCLE=True)


def test_accumulation():
    data = {"batch_size": 8}
    assert spec_of(DATASET=data).accumulate_steps() == 1
    assert spec_of(DATASET=data, accumulate_steps=3).accumulate_steps(world_size=4) == 3
    by_batch = spec_of(DATASET=data, GRADIENT_ACCUMULATION={"global_batch_size": 64})
    assert by_batch.accumulate_steps() == 8
    assert by_batch.accumulate_steps(world_size=4) == 2
    assert by_batch.global_batch_size(world_size=4) == 64


def test_a_run_validates_where_it_can():
    assert spec_of().run.validate is False
    assert spec_of(DATASET={"valid": {"file_path": "x"}}).run.validate is True
    assert spec_of(DATASET={"valid": {"file_path": "x"}}, validate=False).run.validate is False


def test_accumulation_problems_name_the_line(write, good):
    text = good + "GRADIENT_ACCUMULATION:\n    global_batch_size: 40\n"
    config = load_config(write("a.yaml", text), check=False)
    key = "GRADIENT_ACCUMULATION.global_batch_size"
    with pytest.raises(ConfigError) as caught:
        RunSpec.of(config).accumulate_steps(world_size=2)
    assert caught.value.problems == [
        f"a.yaml:30  {key}=40: no multiple of the 32 clips of one step (DATASET.batch_size 16 on 2 processes)"
    ]
    config["accumulate_steps"] = 2
    with pytest.raises(ConfigError) as caught:
        RunSpec.of(config).accumulate_steps()
    assert caught.value.problems == [f"a.yaml:30  {key}: accumulate_steps is set too; keep one of the two"]


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("OPTIMIZER=", "-o #1  OPTIMIZER: training needs this section"),
        ("DATASET.train=", "-o #1  DATASET.train: training needs this section"),
        ("validate=true", "-o #1  DATASET.valid: validate needs this section"),
    ],
)
def test_sections_that_training_needs(write, override, problem):
    config = load_config(write("a.yaml"), [override], check=False)
    with pytest.raises(ConfigError) as caught:
        RunSpec.for_training(config)
    assert caught.value.problems == [problem]

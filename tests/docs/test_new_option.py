"""docs/*/extending.md: the option of a plug-in is checked, trains, and is resumed to the last bit."""

import re
from pathlib import Path

import numpy as np
import pytest

from paddlevideo_fast.assembly import plan_run, train
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.engine import CheckpointStore, load_checkpoint
from paddlevideo_fast.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "en" / "extending.md"  # the Chinese page has the same blocks
MAX_LINES = 80  # of the file, blank lines and docstrings included
SMALL = ("num_frames=4", "crop_size=24", "DATASET.num_workers=0", "max_iters=2", "report=false")


@pytest.fixture
def config(tmp_path, motion_dataset):
    """`config(*overrides, SWA=...)`: a config of the motion set with the option of the page."""
    (source,) = re.findall(
        r"<!-- file: my_option.py -->\n\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert source.count("\n") < MAX_LINES
    (tmp_path / "my_option.py").write_text(source)
    file = tmp_path / "swa.yaml"
    lists = [f"DATASET.train.file_path={motion_dataset.train_list}"]
    lists += [f"DATASET.valid.file_path={motion_dataset.valid_list}"]
    lists += [f"DATASET.{name}.data_prefix={motion_dataset.root}" for name in ("train", "valid")]

    def load(*overrides, swa="{start: 2}"):
        file.write_text(f"_BASE_: tsm_motion\nimports: [./my_option.py]\nSWA: {swa}\n")
        return load_config(file, [*lists, *SMALL, *overrides])

    return load


@pytest.mark.parametrize(
    ("swa", "overrides", "problem"),
    [
        ("{strat: 2}", [], "swa.yaml:3  SWA.strat: unknown key; did you mean 'start'?"),
        ("{start: 0}", [], "swa.yaml:3  SWA.start=0: expected int, at least 1"),
        ("{start: 9}", ["epochs=3"], "swa.yaml:3  SWA.start=9: the run ends after 3 epochs"),
        ("{start: 2}", ["EMA={}"], "EMA: SWA averages the weights, too; keep one of the two"),
    ],
)
def test_its_section_is_checked(config, swa, overrides, problem):
    with pytest.raises(ConfigError) as error:
        plan_run(RunSpec.for_training(config("OPTIMIZER.learning_rate=0.01", *overrides, swa=swa)))
    assert problem in str(error.value)


def test_it_trains_and_is_resumed_to_the_last_bit(config, tmp_path):
    def trained(folder, *overrides):
        cfg = config("OPTIMIZER.learning_rate=0.01", f"output_dir={tmp_path / folder}", *overrides)
        train(cfg)
        newest = CheckpointStore(tmp_path / folder, cfg["model_name"]).latest()
        return load_checkpoint(newest)

    whole = trained("whole", "epochs=3", "save_interval=1")
    trained("parts", "epochs=2", "save_interval=1")
    resumed = trained("parts", "epochs=3", "save_interval=1", "resume=auto")
    assert whole.state["callbacks"]["EpochMean"] == {"count": 2}
    assert any(name.startswith("EpochMean/") for name in whole.tensors)
    assert whole.tensors.keys() == resumed.tensors.keys()
    for name, value in whole.tensors.items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(resumed.tensors[name]))

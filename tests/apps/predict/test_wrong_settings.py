"""Settings files of exports with one wrong value: an error of ours, or a prediction, in little memory."""

import copy
import shutil

import numpy as np
import pytest
import yaml

from paddlevideo_fast.apps.export.export import ExportOptions
from paddlevideo_fast.apps.predict.predictor import Predictor, Unread
from paddlevideo_fast.config.yaml_source import parse
from paddlevideo_fast.errors import PaddleVideoFastError
from tests.fuzz_config import limits

VALUES = [0, -1, 3, 60_000, 10**8, 2**63, 1e300, float("nan")]
OTHERS = [None, "", "{:99999999999}", [], [[1, 2, 3]], {"name": "x"}]
MAX_BYTES = 2**30  # Paddle loads the program in it


@pytest.fixture(scope="module")
def program(exported, tmp_path_factory):
    """A copy of a small program, whose settings may be changed."""
    made = exported("tsm", ExportOptions()).program
    folder = tmp_path_factory.mktemp("settings")
    for file in made.parent.iterdir():
        shutil.copy(file, folder)
    return folder / made.name


def changed(settings, path, value):
    settings = copy.deepcopy(settings)
    container = settings
    for key in path[:-1]:
        container = container[key]
    container[path[-1]] = value
    return settings


@pytest.mark.slow
def test_any_value_of_a_settings_file_may_be_wrong(program, motion_videos, monkeypatch):
    video = next(motion_videos.rglob("*.mp4"))
    file = program.with_suffix(".yaml")
    good = yaml.safe_load(file.read_text("utf-8"))
    good.update(num_ensemble_views=1, num_spatial_crops=1)
    loaded = Predictor(program).program  # once: what is tried are the settings
    monkeypatch.setattr("paddlevideo_fast.apps.predict.predictor.open_program", lambda *_: loaded)
    outcomes = {}
    for path in filter(None, parse(yaml.safe_dump(good), "settings").lines):
        for value in VALUES + OTHERS:
            file.write_text(yaml.safe_dump(changed(good, path, value)), "utf-8")
            try:
                with limits(None, MAX_BYTES):
                    (result,) = Predictor(program).predict([video])
            except PaddleVideoFastError as error:
                outcome = type(error).__name__
            else:
                outcome = "unread" if isinstance(result, Unread) else "predicted"
                assert outcome == "unread" or np.isfinite(result.scores).all()
            outcomes.setdefault(outcome, []).append((path, value))
    file.write_text(yaml.safe_dump(good), "utf-8")
    assert {"ConfigError", "unread", "predicted"} <= set(outcomes)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_ensemble_views", 10**9, "num_ensemble_views=1000000000: expected int, from 1 to 1000 or null"),
        ("num_classes", 2**40, "num_classes=1099511627776: expected int, from 1 to 65536"),
        ("input_shape", [8], "expected list of 3: int, from -1 to 65536"),
        ("checksums", {".json": "x"}, "checksums..json='x': expected int"),
        ("class_names", "x" * 2**17, "expected list of str or null"),
    ],
)
def test_a_wrong_number_is_named_with_its_line(program, key, value, message):
    file = program.with_suffix(".yaml")
    before = file.read_text("utf-8")
    file.write_text(yaml.safe_dump({**yaml.safe_load(before), key: value}, sort_keys=False), "utf-8")
    try:
        with pytest.raises(PaddleVideoFastError) as caught, limits(None, MAX_BYTES):
            Predictor(program)
    finally:
        file.write_text(before, "utf-8")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 5000

"""The wheel, installed outside of the repository, trains, exports and predicts from any folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import wheel_trial
from tests.support.json_lines import entries_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder in which pip has put the wheel, which it builds from a copy of the repository."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    for name in ("paddlevideo_fast", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", "-q", *offline, "--target", target, source]
    subprocess.run(command, check=True, capture_output=True, text=True)
    shutil.rmtree(source)
    return target


@pytest.mark.slow
def test_the_wheel_works_from_another_folder(installed, tmp_path):
    program = [sys.executable, str(installed / "bin" / "paddlevideo-fast")]
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    names = ("zoo", "motion", "train", "export", "predict", "doctor")
    others = [path.relative_to(ROOT) for path in (ROOT / "paddlevideo_fast").rglob("*.*") if path.is_file()]
    assert [path for path in others if path.suffix != ".pyc" and not (installed / path).is_file()] == []
    said = {name: wheel_trial.run(program, name, tmp_path, environment) for name in names}
    assert f"{installed}/paddlevideo_fast/configs/quickstart/tsm_motion.yaml" in said["zoo"]
    assert "weights: output/tsm_motion/TSM_motion_best.pdparams\n" in said["train"]
    assert "limits this run" in said["doctor"]
    assert [len(entry["top"]) for entry in entries_of(said["predict"])] == [5] * 4

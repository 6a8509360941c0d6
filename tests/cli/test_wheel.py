"""The wheel, installed outside of the repository, trains, exports and predicts from any folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NETWORK = ("MODEL.backbone.width=8", "MODEL.head.in_channels=64")
SHORT = ("DATASET.num_workers=0", "DATASET.batch_size=4", "epochs=1", "use_visualdl=false")


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
    program = installed / "bin" / "paddlevideo-fast"
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}

    def run(*words):
        done = subprocess.run(
            [sys.executable, program, *map(str, words)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    listed = run("zoo", "tsm_motion")
    assert f"{installed}/paddlevideo_fast/configs/quickstart/tsm_motion.yaml" in listed
    run("data", "motion", "--train=8", "--valid=4", "--size=64", "--frames=8", "--workers=1")
    options = [word for option in (*NETWORK, *SHORT) for word in ("-o", option)]
    trained = run("train", "-c", "tsm_motion", "--validate", "--max_iters=1", *options)
    assert "best top1" in trained
    (best,) = tmp_path.glob("output/TSM_motion/*best.pdparams")
    network = [word for option in NETWORK for word in ("--override", option)]
    run("export", "-c", "tsm_motion", "-p", best, "--uint8", *network)
    shown = run("predict", "-i", "data/motion/valid", "--model_file", "inference/TSM_motion", "--json")
    assert [len(entry["top"]) for entry in json.loads(shown)] == [5] * 4

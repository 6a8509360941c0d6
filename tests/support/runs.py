"""Runs of the real command line on real encoded clips."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlevideo_fast.cli import main
from paddlevideo_fast.engine import CheckpointStore, load_checkpoint
from tests.support.forking import Fresh
from tests.support.launching import MAIN, ROOT, Job, overriding
from tests.support.tiers import WHOLE_TREE

TINY = """
MODEL:
  framework: Recognizer2D
  backbone: {{name: ResNetTSM, depth: 18, num_seg: 4, width: 4, stage_blocks: [1, 1, 1, 1]}}
  head: {{name: TSMHead, num_classes: 4, in_channels: 32, drop_ratio: 0.5, std: 0.01}}
DATASET:
  batch_size: 4
  num_workers: 0
  train: {{format: VideoDataset, data_prefix: {data}, file_path: {data}/train.list}}
  valid: {{format: VideoDataset, data_prefix: {data}, file_path: {data}/valid.list}}
  test: {{format: VideoDataset, data_prefix: {data}, file_path: {data}/valid.list}}
PIPELINE:
  train:
    decode: {{name: VideoDecoder}}
    sample: {{name: Sampler, num_seg: 4, seg_len: 1, valid_mode: false, select_left: true}}
    transform: [{{RandomCrop: {{target_size: 28}}}}, Image2Array: ]
  valid: &valid
    decode: {{name: VideoDecoder}}
    sample: {{name: Sampler, num_seg: 4, seg_len: 1, valid_mode: true, select_left: true}}
    transform: [{{CenterCrop: {{target_size: 28}}}}, Image2Array: ]
  test: *valid
OPTIMIZER:
  name: Momentum
  momentum: 0.9
  learning_rate: {{name: CustomWarmupCosineDecay, iter_step: true, max_epoch: 2, warmup_epochs: 1,
                  warmup_start_lr: 0.001, cosine_base_lr: 0.02}}
  weight_decay: {{name: L2, value: 1e-4}}
METRIC: {{name: CenterCropMetric}}
model_name: tiny
output_dir: {output}
epochs: 2
log_interval: 1
save_interval: 1
validate: true
report: false
"""
if os.environ.get(WHOLE_TREE):  # the tests of the core alone
    TINY = re.sub("^(report|use_visualdl):.*\n", "", TINY, flags=re.MULTILINE)


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The environment of a child that imports the package from this tree, on one thread."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def motion_data(tmp_path_factory: Any, run_script: Callable[..., Any]) -> Path:
    """24 training and 8 validation clips of the four directions, 32×32, 8 frames."""
    folder = tmp_path_factory.mktemp("motion")
    options = {
        "train": 24,
        "valid": 8,
        "size": 32,
        "frames": 8,
        "classes": "left,right,up,down",
        "workers": 1,
    }
    arguments = (f"--{name}={value}" for name, value in options.items())
    run_script("data/make_motion_dataset.py", "--output", folder, *arguments)
    return folder


@pytest.fixture(scope="session")
def tiny_text() -> str:
    """A config to fill in, `tiny_text.format(data=..., output=...)`."""
    return TINY


@pytest.fixture
def tiny_config(motion_data: Path, tmp_path: Path, tiny_text: str) -> Path:
    """A config that trains in seconds; its output goes to `tmp_path / "out"`."""
    path = tmp_path / "tiny.yaml"
    path.write_text(tiny_text.format(data=motion_data, output=tmp_path / "out"))
    return path


@pytest.fixture(scope="session")
def run_main(environment: dict[str, str], template: Fresh) -> Callable[..., Any]:
    """Runs tools/main.py to its end, which must be with `code`; the result has stdout and stderr.

    The process is forked from `template`. With `fresh=True`, Python starts anew, for what is settled before
    Paddle is imported.
    """

    def run(config: Any, *arguments: Any, code: int = 0, fresh: bool = False) -> Any:
        done = (Fresh(environment) if fresh else template).run([MAIN, "-c", config, *arguments], ROOT)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def finished_run(motion_data: Path, tiny_text: str, run_main: Any, tmp_path_factory: Any) -> Path:
    """The output of a run of the tiny config over one epoch; not to be changed."""
    root = tmp_path_factory.mktemp("finished")
    (root / "tiny.yaml").write_text(tiny_text.format(data=motion_data, output=root / "out"))
    run_main(root / "tiny.yaml", *overriding("epochs=1", "save_every_steps=4"))
    return root / "out"


@pytest.fixture
def after_run(finished_run: Path, tmp_path: Path) -> Path:
    """The output folder of `tiny_config`, with a copy of `finished_run` in it."""
    return shutil.copytree(finished_run, tmp_path / "out")


@pytest.fixture
def run(tiny_config: Path) -> Callable[..., int]:
    """`run("-o", …)`: the exit code of the command line on the tiny config, in this process."""
    return lambda *arguments: main(["-c", str(tiny_config), *map(str, arguments)])


@pytest.fixture
def assert_refused(tmp_path: Path, capfd: Any) -> Callable[..., str]:
    """`assert_refused(config, message, "key=value", …)`: exit code 2, nothing is written; gives the text."""

    def check(config: Any, message: str, *overrides: str, flags: Sequence[str] = ()) -> str:
        try:
            code = main(["-c", str(config), *flags, *overriding(*overrides)])
        except SystemExit as ended:
            code = ended.code
        printed = "".join(capfd.readouterr())
        assert code == 2, printed
        assert message in printed
        assert "Traceback" not in printed
        assert not (tmp_path / "out" / "config.yaml").exists()
        return printed

    return check


@pytest.fixture
def start(template: Fresh) -> Iterator[Callable[..., Any]]:
    """Starts tools/main.py in a process group of its own, which does not outlive the test."""
    processes: list[Any] = []

    def run(config: Any, *arguments: Any) -> Any:
        processes.append(template.start([MAIN, "-c", config, *arguments], ROOT))
        return processes[-1]

    yield run
    for process in processes:
        kill(process)


def kill(process: Any) -> None:
    """Kills a process and all of its group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """`job(name, command, num_processes, …)`: a `Job` with its outputs in a folder of that name."""
    jobs = []

    def start(name: str, command: Any, num_processes: int = 2, **options: Any) -> Job:
        jobs.append(Job(command, num_processes, tmp_path / name, **options))
        return jobs[-1]

    yield start
    for one in jobs:
        one.end()


@pytest.fixture
def records() -> Callable[[Path], list[dict[str, Any]]]:
    """The lines of a run's metrics.jsonl without what differs between two equal runs: times."""
    times = ("batch_cost", "reader_cost", "ips", "eta_sec", "sec")

    def read(folder: Path) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [{name: value for name, value in line.items() if name not in times} for line in lines]

    return read


@pytest.fixture
def assert_same_run(records: Callable[[Path], Any]) -> Callable[..., None]:
    """`assert_same_run(one, other)`: parameters, optimizer, position, best and metrics, bit for bit."""

    def check(one: Path, other: Path, last: str = "tiny_epoch_00002") -> None:
        left, right = (load_checkpoint(str(folder / last)) for folder in (one, other))
        assert left.weights
        assert left.optimizer
        for part in ("weights", "optimizer", "tensors"):
            first, second = getattr(left, part), getattr(right, part)
            assert first.keys() == second.keys()
            for name in first:
                np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        assert left.state["trainer"] == right.state["trainer"]
        assert records(one) == records(other)

    return check


@pytest.fixture
def assert_resumes(run_main: Any, assert_same_run: Any, tmp_path: Path) -> Callable[..., str]:
    """`assert_resumes(whole, checkpoint, config, …)`: from that checkpoint, a run goes on as the same run.

    It does so in a copy, which has lost the later checkpoints, but not the records of later steps: as after
    SIGKILL. Gives what the resumed run prints.
    """

    def check(whole: Path, checkpoint: str, config: Any, *arguments: Any) -> str:
        folder = shutil.copytree(whole, tmp_path / "resumed")
        prefixes = [
            Path(prefix) for *_, prefix in CheckpointStore(folder, checkpoint.split("_")[0]).complete()
        ]
        later = prefixes[prefixes.index(folder / checkpoint) + 1 :]
        for path in [path for prefix in later for path in folder.glob(f"{prefix.name}.*")]:
            path.unlink()
        done = run_main(config, *arguments, *overriding(f"output_dir={folder}", "resume=auto"))
        assert f"{checkpoint}: epoch" in done.stderr, done.stderr
        assert_same_run(whole, folder, later[-1].name)
        return done.stderr

    return check


def _wait_until(holds: Callable[[], bool], what: str, process: Any) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError(f"{what} never came: {process.communicate()}")


@pytest.fixture
def wait_for_step() -> Callable[[Path, int, Any], None]:
    """`wait_for_step(folder, step, process)`: until the run has recorded the step."""

    def wait(folder: Path, step: int, process: Any) -> None:
        path = folder / "metrics.jsonl"
        line = f'"step": {step},'
        _wait_until(lambda: path.exists() and line in path.read_text(), f"step {step}", process)

    return wait


@pytest.fixture
def wait_for_checkpoint() -> Callable[[Path, Any], None]:
    """`wait_for_checkpoint(prefix, process)`: until a run has saved it, which it does in the background."""

    def wait(prefix: Path, process: Any) -> None:
        _wait_until(Path(f"{prefix}.json").exists, prefix.name, process)

    return wait

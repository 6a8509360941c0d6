"""All measurements of the README that need a GPU, each into a result file named after the device.

It needs the data of the quick start (data/motion). What is measured already is left out, so a run goes on
where it was stopped. Commit the files, and add a row to docs/en/benchmarks.md, by a pull request.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import paddle

from benchmarks.measuring import RESULTS, ROOT, write_clips
from paddlevideo_fast.doctor.device_check import environment, no_gpu
from paddlevideo_fast.errors import PaddleVideoFastError

_TSM = ("train", "-c", "configs/quickstart/tsm_motion.yaml", "--synthetic")
_SLOWFAST = ("train", "-c", "configs/quickstart/slowfast_motion.yaml", "--synthetic", "-o")
_SIZE = "PIPELINE.train.transform.1.MultiCrop.target_size"
MEASUREMENTS: dict[str, list[str]] = {
    "shift": ["shift"],
    "trainer": ["trainer"],
    "loader": ["loader"],
    "train_float32": [*_TSM],
    "train_float16": [*_TSM, "-o", "amp=true"],
    "train_float16_o2": [*_TSM, "-o", "amp=true", "-o", "amp_level=O2"],
    "train_bfloat16": [*_TSM, "-o", "amp=true", "-o", "amp_dtype=bfloat16"],
    "train_channels_last": [
        *(*_TSM, "-o", "MODEL.backbone.data_format=NHWC", "-o", "MODEL.head.data_format=NHWC")
    ],
    **{f"slowfast_{side}px": [*_SLOWFAST, f"{_SIZE}={side}"] for side in (20, 28, 40)},
    "onnx_gpu": ["onnx_gpu"],
    "dali": ["dali", "--gpu", "0", "CLIPS"],
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument("--only", choices=MEASUREMENTS, action="append", help="measure this one only")
    parser.add_argument(
        "--output", type=Path, default=RESULTS / "gpu", help="folder of the result files (results/gpu)"
    )


def run(only: Sequence[str] | None, output: Path) -> None:
    """Measures one after the other.

    Raises:
        PaddleVideoFastError: there is no GPU, or measurements failed.
    """
    if reason := no_gpu():
        listed = ", ".join(only or MEASUREMENTS)
        raise PaddleVideoFastError(f"{reason}. With a GPU this would measure: {listed}")
    failed = [name for name in only or MEASUREMENTS if not measure(name, output)]
    if failed:
        raise PaddleVideoFastError(f"failed: {', '.join(failed)}; the others are in {output}")


def measure(name: str, folder: Path) -> bool:
    """Runs a measurement, unless its file is there; False: it failed."""
    file = result_file(name, folder)
    if file.exists():
        print(f"{file}: is there already")
        return True
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as clips:
        words = list(MEASUREMENTS[name])
        if words[-1] == "CLIPS":
            words[-1:] = map(str, write_clips(Path(clips)))
        command = [sys.executable, str(ROOT / "tools" / "benchmark.py"), *words, "--save", str(file)]
        return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def result_file(name: str, folder: Path) -> Path:
    """Where a result goes: NAME-DEVICE-paddleVERSION.json."""
    device = environment().get("device", "cpu").partition(",")[0]
    slug = re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")
    return folder / f"{name}-{slug}-paddle{paddle.__version__}.json"

"""What the benchmarks share: sides measured in turn, clips to measure with, results printed and recorded."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import av
import numpy as np

from paddlevideo_fast.machine import num_cores
from paddlevideo_fast.report import save_json

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_PACKAGES = ("paddlepaddle", "paddlepaddle-gpu", "av", "decord", "numpy", "opencv-python-headless")


def in_turn(sides: Iterable[str], rounds: int, warmup: int = 0) -> Iterator[tuple[int, str]]:
    """(round, side) of measurements side by side: each side goes first in every other round.

    So a machine that becomes slower or faster meanwhile favours no side.

    Args:
        sides: names.
        rounds: how often each side is measured.
        warmup: rounds before these; their numbers are negative.
    """
    names = sorted(sides)
    for turn in range(-warmup, rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            yield turn, name


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `show`."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="also write the result, as benchmarks/results has it"
    )


def show(result: Mapping[str, Any], args: argparse.Namespace, table: Callable[[Any], str]) -> None:
    """Prints a result as text or JSON, and saves it with its command and environment.

    Args:
        result: JSON values.
        args: the command line, with the options of `add_output_arguments`.
        table: gives the text.

    Raises:
        PaddleVideoFastError: the file of --save cannot be written.
    """
    print(json.dumps(result, indent=1) if args.json else table(result))
    if args.save:
        save_json(record_of(result), args.save)


def load(name: str) -> Any:
    """The result that benchmarks/results/NAME.json records."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["result"]


def record_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result with the command, the environment, the date and the revision of its measurement."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    machine = f"{num_cores()} cores, {platform.machine()}"
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    revision = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "command": " ".join(["python", *sys.argv]),
        "environment": {"machine": machine, "python": platform.python_version(), **versions},
        "date": datetime.date.today().isoformat(),
        "revision": revision or "unknown",
        "result": result,
    }


def write_clips(folder: Path, num_clips: int = 3, num_frames: int = 120) -> list[Path]:
    """Encodes H.264 clips of 340×256 with a moving texture, for measurements without videos of the user.

    Args:
        folder: gets the files.
        num_clips: number of files.
        num_frames: frames of each.
    """
    paths = [folder / f"made_{number}.mp4" for number in range(num_clips)]
    for number, path in enumerate(paths):
        rng = np.random.default_rng(number)
        texture = np.repeat(np.repeat(rng.integers(0, 256, (64, 85, 3), np.uint8), 4, 0), 4, 1)
        with av.open(str(path), "w") as container:
            stream = container.add_stream("libx264", rate=30)
            stream.height, stream.width = texture.shape[:2]
            stream.pix_fmt = "yuv420p"
            for at in range(num_frames):
                picture = np.roll(texture, (at, 2 * at), (0, 1))
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode())
    return paths

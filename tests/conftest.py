"""Clips and small data sets that tests in every folder use. All are made here, with PyAV."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import av
import cv2
import numpy as np
import pytest

REPO = Path(__file__).resolve().parent.parent
_BITS = 10


@pytest.fixture(autouse=True)
def _untouched_logger() -> None:
    """Takes away what an earlier run of the command line left on the package's logger."""
    logger = logging.getLogger("paddlevideo_fast")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


class MotionDataset(NamedTuple):
    root: Path
    train_list: Path
    valid_list: Path
    classes: Tuple[str, ...]


class RawFrames(NamedTuple):
    root: Path
    list_file: Path
    num_frames: int


def _picture(number: int, width: int, height: int) -> np.ndarray:
    """A moving texture with `number` written as black and white blocks in its upper part; uint8 [H, W, 3]."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin((x + 2 * number) / (5 + c)) + np.cos((y - number) / (4 + c)) for c in range(3)]
    picture = (np.stack(waves, -1) * 50 + 128).astype(np.uint8)
    for bit in range(_BITS):
        left, right = bit * width // _BITS, (bit + 1) * width // _BITS
        picture[: height // 2, left:right] = 235 if number >> bit & 1 else 20
    return picture


def _number(picture: np.ndarray) -> int:
    """The number that `_picture` wrote."""
    height, width = picture.shape[:2]
    number = 0
    for bit in range(_BITS):
        middle = (2 * bit + 1) * width // (2 * _BITS)
        block = picture[height // 8 : 3 * height // 8, middle - 1 : middle + 2]
        number |= int(block.mean() > 128) << bit
    return number


def _make_clip(
    path: Any,
    num_frames: int = 24,
    size: Tuple[int, int] = (80, 48),
    codec: str = "libx264",
    gop: int = 12,
    bframes: int = 0,
    fps: int = 25,
    pix_fmt: str = "yuv420p",
    options: Optional[Dict[str, str]] = None,
    container_options: Optional[Dict[str, str]] = None,
    rotation: int = 0,
    variable_rate: bool = False,
    audio: bool = False,
) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    chosen = {"preset": "veryfast", "crf": "18"} if codec in ("libx264", "libx265") else {}
    if codec == "libx265":
        chosen["x265-params"] = "log-level=error"
    with av.open(str(path), "w", options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=fps, options={**chosen, **(options or {})})
        stream.width, stream.height = size
        stream.pix_fmt = pix_fmt
        stream.codec_context.gop_size = gop
        stream.codec_context.max_b_frames = bframes
        stream.codec_context.thread_count = 1
        sound = container.add_stream("aac", rate=16000) if audio else None
        for number in range(num_frames):
            frame = av.VideoFrame.from_ndarray(_picture(number, *size), format="rgb24")
            frame.pts = number + (number * number // 8 if variable_rate else 0)
            frame.time_base = Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if sound is not None:
            silence = av.AudioFrame.from_ndarray(
                np.zeros((1, 16000), np.float32), format="fltp", layout="mono"
            )
            silence.sample_rate = 16000
            container.mux(sound.encode(silence))
            container.mux(sound.encode())
    if rotation:
        _turn(path, rotation)
    return path


def _turn(path: Path, degrees: int) -> None:
    """Writes a clockwise rotation into the track header of an MP4 or MOV file, as phones do."""
    data = bytearray(path.read_bytes())
    matrix = data.index(b"tkhd") + 44
    cos, sin = {90: (0, 1), 180: (-1, 0), 270: (0, -1)}[degrees % 360]
    for place, value in ((0, cos), (4, sin), (12, -sin), (16, cos)):
        data[matrix + place : matrix + place + 4] = (value << 16).to_bytes(4, "big", signed=True)
    path.write_bytes(data)


@pytest.fixture(scope="session")
def make_clip() -> Callable[..., Path]:
    """Function that writes a clip whose frames carry their number: `make_clip(path, num_frames=24, ...)`.

    Further arguments: size (width, height), codec, gop, bframes, fps, pix_fmt, options (of the encoder),
    container_options, rotation (degrees clockwise; mp4 and mov only), variable_rate, audio. The ending of
    `path` decides the container.
    """
    return _make_clip


@pytest.fixture(scope="session")
def frame_number() -> Callable[[np.ndarray], int]:
    """Function from a decoded frame of `make_clip`, uint8 [H, W, 3], to its number."""
    return _number


@pytest.fixture(scope="session")
def run_script() -> Callable[..., subprocess.CompletedProcess]:
    """Function that runs a script of the repository: `run_script("data/x.py", *args, check=True)`."""

    def run(script: str, *args: Any, check: bool = True, timeout: float = 120) -> subprocess.CompletedProcess:
        command = [sys.executable, str(REPO / script), *map(str, args)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=REPO)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def motion_dataset(tmp_path_factory: pytest.TempPathFactory, run_script: Any) -> MotionDataset:
    """A motion data set: 32 training and 16 validation clips, 8 classes, 16 frames of 32×32."""
    root = tmp_path_factory.mktemp("motion") / "set"
    options = {"train": 32, "valid": 16, "size": 32, "frames": 16, "workers": 1}
    run_script("data/make_motion_dataset.py", "--output", root, *(f"--{k}={v}" for k, v in options.items()))
    classes = tuple((root / "classes.txt").read_text().split())
    return MotionDataset(root, root / "train.list", root / "valid.list", classes)


@pytest.fixture(scope="session")
def rawframes_dataset(tmp_path_factory: pytest.TempPathFactory) -> RawFrames:
    """Six folders of 12 frames `img_00001.jpg` …, three classes; list lines `folder num_frames label`."""
    root = tmp_path_factory.mktemp("rawframes")
    lines = []
    for clip in range(6):
        folder = root / f"class{clip % 3}" / f"clip{clip}"
        folder.mkdir(parents=True)
        for number in range(12):
            bgr = cv2.cvtColor(_picture(number, 80, 48), cv2.COLOR_RGB2BGR)
            assert cv2.imwrite(str(folder / f"img_{number + 1:05}.jpg"), bgr)
        lines.append(f"{folder.relative_to(root)} 12 {clip % 3}\n")
    list_file = root / "frames.list"
    list_file.write_text("".join(lines))
    return RawFrames(root, list_file, 12)


@pytest.fixture(scope="session")
def broken_videos(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Path]:
    """Files that do not decode, by what is wrong with them; `one_frame` alone is intact."""
    root = tmp_path_factory.mktemp("broken")
    files = {
        name: root / f"{name}.mp4" for name in ("empty", "text", "truncated", "damaged", "folder", "missing")
    }
    files["empty"].write_bytes(b"")
    files["text"].write_text("This is a text file with an unfortunate name.\n" * 20)
    files["folder"].mkdir()
    intact = _make_clip(root / "intact.mp4", 40, container_options={"movflags": "faststart"}).read_bytes()
    files["truncated"].write_bytes(intact[: len(intact) * 2 // 3])
    damaged = bytearray(intact)
    middle = len(intact) * 3 // 4
    damaged[middle : middle + 600] = bytes(600)
    files["damaged"].write_bytes(damaged)
    bgr = cv2.cvtColor(_picture(0, 80, 48), cv2.COLOR_RGB2BGR)
    for kind in ("jpg", "png"):
        files[f"picture_{kind}"] = root / f"picture_{kind}.mp4"
        files[f"picture_{kind}"].write_bytes(cv2.imencode(f".{kind}", bgr)[1].tobytes())
    files["audio_only"] = root / "audio_only.mp4"
    with av.open(str(files["audio_only"]), "w") as container:
        sound = container.add_stream("aac", rate=16000)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 16000), np.float32), format="fltp", layout="mono")
        silence.sample_rate = 16000
        container.mux(sound.encode(silence))
        container.mux(sound.encode())
    files["one_frame"] = _make_clip(root / "one_frame.mp4", 1)
    return files


@pytest.fixture(scope="session")
def real_clips_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of intact and damaged clips: real ones where they lie beside the repository, else generated.

    The file `corrupted.mp4` is damaged; all others are intact.
    """
    shared = Path(os.environ.get("PADDLEVIDEO_FAST_CLIPS", REPO.parent / "shared" / "clips"))
    if shared.is_dir():
        return shared
    root = tmp_path_factory.mktemp("clips")
    _make_clip(root / "ucf_example.avi", 60, (160, 120), codec="mpeg4", gop=60)
    _make_clip(root / "mma_demo.mp4", 80, (170, 128), gop=40, bframes=3, audio=True)
    _make_clip(root / "pancake.mkv", 70, (160, 90), gop=30)
    _make_clip(root / "rot90.mov", 3, (160, 90), rotation=90)
    data = bytearray((root / "mma_demo.mp4").read_bytes())
    data[len(data) // 3 : len(data) // 3 + 2000] = bytes(2000)
    (root / "corrupted.mp4").write_bytes(data)
    return root

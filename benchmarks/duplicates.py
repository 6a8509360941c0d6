"""Copies that `paddlevideo-fast data check --duplicates` finds among real and generated videos, and its time.

The real videos are parts of 2 to 4 seconds of a few clips, which do not overlap: the same scenes and cameras,
at other times. Of a shot in which next to nothing moves, one part is used: others show the same picture. The
generated ones are clips of `data motion`, and textures that are panned, zoomed and mixed. Some have copies.
"""

import contextlib
import io
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from benchmarks.measuring import Natural, Positive, write_video
from paddlevideo_fast.apps.data.fingerprints import Fingerprint
from paddlevideo_fast.apps.data.lists import check
from paddlevideo_fast.apps.data.matching import matches
from paddlevideo_fast.apps.data.motion import CLASSES, render_clip
from paddlevideo_fast.decode import open_video

_CLIPS = ("ucf_example.avi", "mma_demo.mp4", "mma_test.avi", "pancake.mkv", "nasa.mp4", "av1.mkv")
_STILL = {"nasa.mp4": ((0, 130), (200, 325))}  # frames of shots in which next to nothing moves
_NUM_COPIES = 60
_FPS, _SIDE = 24, 128  # of generated videos
_CRF = 20  # of originals


class _Clip(NamedTuple):
    """A video: frames uint8 [T, H, W, 3], and frames a second."""

    frames: np.ndarray
    fps: float


def _scaled(clip: _Clip) -> _Clip:
    pictures = [
        cv2.resize(frame, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA) for frame in clip.frames
    ]
    return clip._replace(frames=np.stack(pictures))


def _with_logo(clip: _Clip) -> _Clip:
    """In the upper right corner, a quarter of the width, 4 % of the picture."""
    frames = clip.frames.copy()
    height, width = frames.shape[1:3]
    frames[:, height // 25 : height // 5, width * 7 // 10 : width * 95 // 100] = 255
    for frame in frames:
        corner = width * 72 // 100, height * 17 // 100
        cv2.putText(frame, "TV", corner, cv2.FONT_HERSHEY_SIMPLEX, height / 240, (200, 0, 0), 2)
    return clip._replace(frames=frames)


# kind of copy → what it is made by, and its CRF
COPIES: dict[str, tuple[Callable[[_Clip], _Clip], int]] = {
    "CRF 23": (lambda clip: clip, 23),
    "CRF 30": (lambda clip: clip, 30),
    "CRF 37": (lambda clip: clip, 37),
    "scaled": (_scaled, 28),
    "trimmed": (lambda clip: clip._replace(frames=clip.frames[len(clip.frames) // 3 :]), 28),
    "logo": (_with_logo, 28),
    "mirrored": (lambda clip: clip._replace(frames=clip.frames[:, :, ::-1]), 28),
}


def run(*, clips: Path, videos: Positive = 300, seed: Natural = 1) -> dict[str, Any]:
    """Writes the videos, and looks for the copies.

    Args:
        clips: folder of the real clips.
        videos: without copies.
        seed: of parts and textures.

    Returns:
        "real": how many videos are parts of real clips; "kinds": for each kind of copy, how many there
        are and were
        "found" beside their original; "pairs": that were reported, and how many are "right"; "recall",
        without the mirrored ones, and "precision"; "read_ms": time to read a video, and "compare_sec": to
        compare all, of CPU time.
    """
    with tempfile.TemporaryDirectory(prefix="duplicates-") as name:
        folder = Path(name)
        originals, copies = _write(folder, clips, videos, np.random.default_rng(seed))
        return {"real": originals, **_found(folder, copies)}


# --- videos


def _write(
    folder: Path, clips: Path, num_videos: int, rng: np.random.Generator
) -> tuple[int, dict[str, str]]:
    """Writes the videos; returns the number of real ones, and name of each copy → name of its original.

    All copies of a kind are of different videos; half of them are of real ones, as far as there are.
    """
    names, num_real = [], 0
    for number, clip in enumerate(_originals(clips, num_videos, rng)):
        name, is_real = f"{number:03d}.mp4", clip.frames.shape[1:3] != (_SIDE, _SIDE)
        _encode(folder / name, clip, _CRF)
        num_real += is_real
        names.append(name)
    copies = {}
    kinds = [kind for _, kind in zip(range(_NUM_COPIES), list(COPIES) * _NUM_COPIES)]
    real, generated = rng.permutation(num_real), num_real + rng.permutation(num_videos - num_real)
    for number, kind in enumerate(kinds):
        source = real[number // 2 % num_real] if number % 2 else generated[number // 2 % len(generated)]
        with open_video(str(folder / names[source])) as reader:
            clip = _Clip(np.stack(list(reader)), reader.avg_fps)
        name = f"{number:03d} {kind}.mp4"
        make, crf = COPIES[kind]
        _encode(folder / name, make(clip), crf)
        copies[name] = names[source]
    return num_real, copies


def _encode(path: Path, clip: _Clip, crf: int) -> None:
    options = {"crf": str(crf), "preset": "veryfast", "x264-params": "log-level=-1"}
    write_video(path, clip.frames, rate=clip.fps, options=options)


def _originals(clips: Path, num_videos: int, rng: np.random.Generator) -> Iterator[_Clip]:
    num_real = 0
    for name in _CLIPS:
        with open_video(str(clips / name)) as reader:
            frames, fps = np.stack(list(reader)), reader.avg_fps
        first, is_used = 0, set()
        while len(frames) - first >= 2 * fps:
            stop = min(first + round(rng.uniform(2, 4) * fps), len(frames))
            shot = next((one for one in _STILL.get(name, ()) if first < one[1] and stop > one[0]), None)
            if shot is None or shot not in is_used:
                is_used.add(shot)
                num_real += 1
                yield _Clip(frames[first:stop], fps)
            first = stop
    for number in range(num_videos - num_real):
        length = round(rng.uniform(2, 4) * _FPS)
        if number % 2:
            yield _Clip(render_clip([*CLASSES][number // 2 % len(CLASSES)], length, _SIDE, rng), _FPS)
        else:
            yield _Clip(_textures(length, rng), _FPS)


def _textures(length: int, rng: np.random.Generator) -> np.ndarray:
    """Two layers of noise, each panned, zoomed and turned: uint8 [T, SIDE, SIDE, 3]."""
    layers = []
    for cells in rng.integers(4, 24, 2):
        grid = rng.uniform(0, 255, (cells, cells, 3)).astype(np.float32)
        layer = cv2.resize(grid, (3 * _SIDE, 3 * _SIDE), interpolation=cv2.INTER_CUBIC)
        layers.append((layer, rng.uniform(-1.5, 1.5, 2), rng.uniform(-0.3, 0.3), rng.uniform(-30, 30)))
    frames = np.empty((length, _SIDE, _SIDE, 3), np.uint8)
    for phase, frame in zip(np.linspace(-0.5, 0.5, length), frames):
        pictures = []
        for layer, pan, zoom, turn in layers:
            middle = (1.5 * _SIDE, 1.5 * _SIDE)
            matrix = cv2.getRotationMatrix2D(middle, turn * phase, 1 + zoom * phase)
            matrix[:, 2] += pan * phase * _SIDE / 2 - _SIDE
            pictures.append(cv2.warpAffine(layer, matrix, (_SIDE, _SIDE)))
        frame[:] = np.clip(sum(pictures) / 2, 0, 255)
    return frames


# --- what the command finds


def _found(folder: Path, copies: dict[str, str]) -> dict[str, Any]:
    """Runs the command on the videos in a folder; what `run` returns of it."""
    output = folder / "pairs.jsonl"
    began = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        check(["--duplicates", str(folder), "--output_file", str(output), "--workers=1"])
    spent_sec = time.process_time() - began
    pairs = [tuple(Path(video["path"]).name for video in one["videos"]) for one in _lines(output)]
    fingerprints = _lines(output.with_suffix(".fingerprints.jsonl"))
    found = (Fingerprint(*value).prints(None) for _, value in fingerprints)
    prints = [one for one in found if one]
    began = time.process_time()
    matches(prints, lambda one, other: True)
    compare_sec = time.process_time() - began

    right = [pair for pair in pairs if len({copies.get(name, name) for name in pair}) == 1]
    kinds: dict[str, dict[str, int]] = {kind: {"copies": 0, "found": 0} for kind in COPIES}
    for name, source in copies.items():
        row = kinds[Path(name).stem.partition(" ")[2]]
        row["copies"] += 1
        row["found"] += (name, source) in pairs or (source, name) in pairs
    plain = [row for kind, row in kinds.items() if kind != "mirrored"]
    return {
        "kinds": kinds,
        "pairs": len(pairs),
        "right": len(right),
        "recall": sum(row["found"] for row in plain) / sum(row["copies"] for row in plain),
        "precision": len(right) / max(len(pairs), 1),
        "read_ms": 1000 * (spent_sec - compare_sec) / len(prints),
        "compare_sec": compare_sec,
    }


def _lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

"""CPU time and wrong frames of OpenCV, decord, PyAV in sequence and our reader, also on prepared videos."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from benchmarks.measuring import add_output_arguments, show, write_clips
from paddlevideo_fast.cli import count
from paddlevideo_fast.decode import VIDEO_EXTENSIONS, open_video
from paddlevideo_fast.errors import PaddleVideoFastError

PREPARED = "ours, prepared"
BASELINE = "decord"
_ALONE = " (stream 1)"
_GROUPS = {"as_is": "files", "one_stream": "streams"}
# Levels of 255. Readers round colours differently, which moves all frames alike; neighbours of a still scene
# are nearer to each other than this.
_SAME = 0.5
_SMALL_PX = 32

Read = Callable[[str, Sequence[int]], np.ndarray]


def _sparse(num_frames: int, rng: np.random.Generator) -> list[int]:
    """TSN's pattern: one frame from each of 8 segments."""
    return [min(int((segment + rng.random()) * num_frames / 8), num_frames - 1) for segment in range(8)]


def _dense(num_frames: int, rng: np.random.Generator) -> list[int]:
    """SlowFast's pattern: 32 frames at stride 2. A shorter video repeats its last frame."""
    first = int(rng.integers(max(num_frames - 64, 0) + 1))
    return [min(first + 2 * step, num_frames - 1) for step in range(32)]


PATTERNS = {"sparse-8": _sparse, "32x2": _dense}


def _opencv(path: str, indices: Sequence[int]) -> np.ndarray:
    capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
    frames = {}
    for number in range(max(indices) + 1):
        if not capture.grab():
            raise ValueError(f"stops at frame {number}")
        if number in indices:
            frames[number] = cv2.cvtColor(capture.retrieve()[1], cv2.COLOR_BGR2RGB)
    capture.release()
    return np.stack([frames[index] for index in indices])


def _decord(path: str, indices: Sequence[int]) -> np.ndarray:
    import decord

    frames: np.ndarray = decord.VideoReader(path, num_threads=1).get_batch(list(indices)).asnumpy()
    return frames


def _in_sequence(path: str, indices: Sequence[int] | None = None) -> np.ndarray:
    """Frames by decoding from the beginning. The other readers are checked against this plain loop."""
    frames = {}
    with av.open(path) as container:
        container.streams.video[0].codec_context.thread_count = 1
        for number, frame in enumerate(container.decode(video=0)):
            if indices is None or number in indices:
                frames[number] = np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90))
                if indices is not None and number == max(indices):
                    break
    return np.stack([frames[index] for index in (range(len(frames)) if indices is None else indices)])


def _ours(path: str, indices: Sequence[int]) -> np.ndarray:
    with open_video(path, "pyav") as reader:
        return reader.read(indices)


READERS: dict[str, Read] = {
    "OpenCV": _opencv,
    BASELINE: _decord,
    "PyAV in sequence": _in_sequence,
    "ours": _ours,
    PREPARED: _ours,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument("--clips", help="folder of videos (default: three generated ones)")
    parser.add_argument("--prepared", help="output folder of data/prepare_videos.py for the same videos")
    parser.add_argument(
        "--rounds", type=count(1), default=15, help="how often each reader reads each pattern"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the frames")
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    with tempfile.TemporaryDirectory() as folder:
        clips = _videos(Path(args.clips)) if args.clips else write_clips(Path(folder))
        result = run(clips, args.prepared and Path(args.prepared), args.rounds, args.seed)
    show(result, args, table)


def run(
    clips: Sequence[Path], prepared: Path | None = None, rounds: int = 15, seed: int = 0
) -> dict[str, Any]:
    """Opens and reads videos with every reader in turn, on one thread each, and checks the frames.

    Args:
        clips: video files.
        prepared: folder of the prepared videos, named alike apart from the ending; None: not measured.
        rounds: how often each reader reads each pattern.
        seed: of the frames; all readers read the same ones.

    Returns:
        "machine", "versions", "rounds", "seed", "means" and "rows": one row a clip, pattern and reader, with
        "ms" (the median CPU time of a read with opening), "ratio" to decord (the median over the rounds; None
        without it) and its quartiles "spread", "wrong" (frames given that are not the one asked for) out of
        "frames", and "error", which says why a reader gives none. A clip with several video streams, of which
        decord reads the largest and the others the first, is followed by a copy that has the first alone.
        "means" has the geometric means of the ratios, by pattern and reader: "as_is" over the clips,
        "one_stream" over the copies and the clips that need none.

    Raises:
        PaddleVideoFastError: a prepared video is missing.
    """
    with tempfile.TemporaryDirectory() as folder:
        copies = {clip: copy for clip in clips if (copy := stream_alone(clip, Path(folder)))}
        files = [file for clip in clips for file in (clip, copies.get(clip)) if file]
        rows = [row for file in files for row in _measure_clip(file, prepared, rounds, seed)]
    packages = ("av", "decord", "decord2", "numpy", "opencv-python-headless", "opencv-python")
    versions = {name: _version(name) for name in packages if _version(name)}
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    groups = {
        "as_is": {clip.name for clip in clips},
        "one_stream": {copies.get(clip, clip).name for clip in clips},
    }
    means = {
        pattern: {group: _means(rows, pattern, names) for group, names in groups.items()}
        for pattern in PATTERNS
    }
    return {
        "machine": machine,
        "versions": versions,
        "rounds": rounds,
        "seed": seed,
        "rows": rows,
        "means": means,
    }


def table(result: dict[str, Any]) -> str:
    """The result of `run` as text."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [
        f"CPU time of opening and reading, medians of {result['rounds']} rounds, seed {result['seed']}; "
        "ratios to decord, with their quartiles",
        f"{result['machine']}; {versions}",
        f"{'clip':<26}{'pattern':<10}{'reader':<20}{'ms':>8}{'ratio':>8}{'spread':>14}{'wrong frames':>16}",
    ]
    for row in result["rows"]:
        start = f"{row['clip']:<26}{row['pattern']:<10}{row['reader']:<20}"
        if row["error"]:
            lines.append(f"{start}  {row['error'][:60]}")
            continue
        spread = "{:.2f}-{:.2f}".format(*row["spread"]) if row["spread"] else "-"
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        wrong = f"{row['wrong']} of {row['frames']}"
        lines.append(f"{start}{row['ms']:>8.1f}{ratio:>8}{spread:>14}{wrong:>16}")
    for pattern, groups in result["means"].items():
        for group, readers in groups.items():
            for reader, mean in readers.items():
                what = f"geometric mean, {_GROUPS[group]}"
                lines.append(f"{what:<26}{pattern:<10}{reader:<20}{'':>8}{mean:>8.2f}")
    return "\n".join(lines)


def _measure_clip(clip: Path, prepared: Path | None, rounds: int, seed: int) -> list[dict[str, Any]]:
    has_decord = importlib.util.find_spec("decord") is not None
    sources = {
        BASELINE: clip if has_decord else None,
        PREPARED: prepared and _prepared_file(clip, prepared),
    }
    files = {name: file for name in READERS if (file := sources.get(name, clip)) is not None}
    checks = {file: Check(_in_sequence(str(file))) for file in set(files.values())}
    rows = []
    for pattern, draw in PATTERNS.items():
        rng = np.random.default_rng(seed)
        draws = [draw(checks[clip].num_frames, rng) for _ in range(rounds)]
        measured: dict[str, dict[str, Any]] = {
            name: {"seconds": [], "wrong": 0, "frames": 0, "error": None} for name in files
        }
        for indices in draws:
            for name, file in files.items():  # in turn: all see the same machine
                _measure(measured[name], READERS[name], file, indices, checks[file])
        seconds = {name: side.pop("seconds") for name, side in measured.items()}
        baseline = seconds.get(BASELINE, [])
        for name, side in measured.items():
            costs = _costs(seconds[name], baseline) if not side["error"] else _costs([], [])
            rows.append({"clip": clip.name, "pattern": pattern, "reader": name, **costs, **side})
    return rows


def _measure(side: dict[str, Any], read: Read, file: Path, indices: Sequence[int], check: Check) -> None:
    if side["error"]:
        return
    began = time.process_time()
    try:
        frames = read(str(file), indices)
    except Exception as error:  # every reader has types of its own
        side["error"] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        return
    side["seconds"].append(time.process_time() - began)
    side["frames"] += len(indices)
    side["wrong"] += check.count_wrong(frames, indices)


class Check:
    """Recognises frames of a video by small versions of all of them.

    Args:
        frames: all frames, uint8 [T, H, W, 3].
    """

    def __init__(self, frames: np.ndarray) -> None:
        self.num_frames = len(frames)
        self._shape = frames.shape[1:]
        self._small = _shrink(frames)

    def count_wrong(self, frames: np.ndarray, indices: Sequence[int]) -> int:
        """How many frames are not rotated for display, or look more like another frame of the video.

        Args:
            frames: uint8 [T, H, W, 3].
            indices: the requested frame numbers.
        """
        if frames.shape[1:] != self._shape:
            return len(indices)
        wrong = 0
        for small, index in zip(_shrink(frames), indices):
            distances = np.abs(self._small - small).mean(axis=(1, 2, 3))
            wrong += bool(distances[index] > distances.min() + _SAME)
        return wrong


def _shrink(frames: np.ndarray) -> np.ndarray:
    size = (_SMALL_PX, _SMALL_PX)
    return np.stack([cv2.resize(frame, size, interpolation=cv2.INTER_AREA) for frame in frames]).astype(
        np.float32
    )


def _costs(seconds: list[float], baseline: list[float]) -> dict[str, Any]:
    # round by round; none where one of them did not take part in all
    ratios = [a / b for a, b in zip(seconds, baseline)] if len(seconds) == len(baseline) else []
    return {
        "ms": statistics.median(seconds) * 1e3 if seconds else None,
        "ratio": statistics.median(ratios) if ratios else None,
        "spread": [float(value) for value in np.quantile(ratios, (0.25, 0.75))] if ratios else None,
    }


def _means(rows: Sequence[dict[str, Any]], pattern: str, names: set[str]) -> dict[str, float]:
    """Reader → geometric mean of its ratios over the clips `names`."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row["pattern"] == pattern and row["clip"] in names and row["ratio"] is not None:
            ratios.setdefault(row["reader"], []).append(row["ratio"])
    return {reader: statistics.geometric_mean(values) for reader, values in ratios.items()}


def stream_alone(clip: Path, folder: Path) -> Path | None:
    """A copy of the clip with only its first video stream, not encoded again; None if it has no other."""
    copy = folder / f"{clip.stem}{_ALONE}{clip.suffix}"
    with av.open(str(clip)) as source:
        if len(source.streams.video) < 2:
            return None
        stream = source.streams.video[0]
        with av.open(str(copy), "w") as target:
            written = target.add_stream_from_template(stream)
            for packet in source.demux(stream):
                if packet.dts is not None:  # the last one only says that there is no more
                    packet.stream = written
                    target.mux(packet)
    return copy


def _videos(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise PaddleVideoFastError(f"{folder}: no such folder of videos")
    videos = [path for path in sorted(folder.glob("*")) if path.suffix.lower() in VIDEO_EXTENSIONS]
    readable = [path for path in videos if _can_decode(path)]
    if not readable:
        raise PaddleVideoFastError(f"{folder}: has no video that decodes")
    for path in sorted(set(videos) - set(readable)):
        print(f"left out, for it does not decode: {path}", file=sys.stderr)
    return readable


def _can_decode(path: Path) -> bool:
    try:
        return len(_in_sequence(str(path))) > 0
    except (av.FFmpegError, ValueError):
        return False


def _prepared_file(clip: Path, folder: Path) -> Path:
    stem = clip.stem.replace(_ALONE, "")
    found = [path for path in sorted(folder.rglob(f"{stem}.*")) if path.suffix.lower() in VIDEO_EXTENSIONS]
    if not found:
        raise PaddleVideoFastError(f"{folder}: has no prepared video of {clip.name}")
    return found[0]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None

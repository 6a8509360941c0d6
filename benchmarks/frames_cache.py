"""CPU time of reading, in runs that share decoded frames (STORAGE.frames_cache) and in runs that do not.

Several trainings with other seeds run at once, each with one worker, on the same videos. Their losses must be
equal, bit for bit, with the cache and without it.
"""

import json
import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from benchmarks.measuring import ROOT, Positive, children_sec, write_clips, write_list, write_video
from paddlevideo_fast.apps.doctor.command import timed_progress
from paddlevideo_fast.cli.commands import COMMANDS
from paddlevideo_fast.decode import VIDEO_EXTENSIONS, open_video
from paddlevideo_fast.errors import PaddleVideoFastError

_CONFIG = "configs/quickstart/tsm_motion.yaml"
_BATCH_SIZE = 8
_SETTINGS = {
    "max_iters": "null",
    "log_interval": 1,
    "validate": "false",
    "report": "false",
    "use_visualdl": "false",
    "DATASET.batch_size": _BATCH_SIZE,
    "DATASET.num_workers": 1,
    "PIPELINE.train.transform.0": "{MultiScaleCrop: {target_size: 56}}",
}
_SIZE = (340, 256)
_NUM_FRAMES = 280
_KEY_DISTANCES = (12, 250)
SPARSE, DENSE = "8 of the whole video", "32, every second"
_SAMPLE: dict[str, dict[str, Any]] = {
    SPARSE: {},
    DENSE: {
        "MODEL.backbone.num_seg": 32,
        "PIPELINE.train.sample": "{name: DecodeSampler, num_frames: 32, sampling_rate: 2}",
    },
}


class Case(NamedTuple):
    """Runs that are measured with the cache and without.

    Attributes:
        sampling: frames of a clip.
        key_distance: frames from one keyframe to the next.
        runs: at once.
        share: of the frames of all videos that fits into the cache.
    """

    sampling: str
    key_distance: int
    runs: int
    share: float = 1.0


CASES = (
    *(Case(*each) for each in product((SPARSE, DENSE), (250, 12), (2, 4))),
    Case(SPARSE, 250, 2, 0.5),
)


def run(clips: Path | None = None, copies: Positive = 8, epochs: Positive = 3) -> dict[str, Any]:
    """Trains all cases.

    Args:
        clips: folder of videos, whose first frames are encoded with two distances of keyframes; made ones by
            default.
        copies: of each video; each copy counts as a video of its own.
        epochs: of each run.

    Returns:
        "videos", "frames" and "rows": "sampling", "key_distance", "runs", "share" and "clips" that
        were read; "without_ms" and "with_ms", CPU time of the workers for a clip; "ratio" of the two;
        "later_ms" and "later_ratio" of runs that find all frames; "kept_mb"; how many "losses" were equal.

    Raises:
        PaddleVideoFastError: a run fails, or its losses differ with the cache.
    """
    import paddlevideo_fast.assembly  # noqa: F401  # with Paddle, once for all runs

    progress = timed_progress()
    cv2.setNumThreads(0)  # runs are forked
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lists = {distance: _encode(clips, distance, copies, folder) for distance in _KEY_DISTANCES}
        rows = []
        for number, case in enumerate(CASES):
            progress(f"{case.runs} runs, {case.sampling}, a keyframe in {case.key_distance}")
            rows.append(_row(case, lists[case.key_distance], epochs, folder / str(number)))
        num_videos = len(lists[_KEY_DISTANCES[0]].read_text().splitlines())
    return {"videos": num_videos, "frames": _NUM_FRAMES, "rows": rows}


def _row(case: Case, listed: Path, epochs: int, folder: Path) -> dict[str, Any]:
    num_bytes = len(listed.read_text().splitlines()) * _NUM_FRAMES * _SIZE[0] * _SIZE[1] * 1.5
    max_gb = 50.0 if case.share == 1 else num_bytes * case.share / 1e9
    cache = {"STORAGE.frames_cache": folder / "frames", "STORAGE.frames_cache_gb": max_gb}
    alone = _trainings(case, listed, epochs, folder / "alone", {})
    shared = _trainings(case, listed, epochs, folder / "shared", cache)
    again = _trainings(case, listed, epochs, folder / "again", cache) if case.runs == 4 else None
    for one in (shared, again):
        if one and one["losses"] != alone["losses"]:
            raise PaddleVideoFastError(f"{case}: the losses differ with the cache")
    kept = sum(path.stat().st_size for path in (folder / "frames").glob("*/*"))
    return {
        **case._asdict(),
        "clips": alone["clips"],
        "without_ms": alone["ms"],
        "with_ms": shared["ms"],
        "ratio": shared["ms"] / alone["ms"],
        "later_ms": again and again["ms"],
        "later_ratio": again and again["ms"] / alone["ms"],
        "kept_mb": kept / 1e6,
        "losses": sum(map(len, alone["losses"])),
    }


def _trainings(
    case: Case, listed: Path, epochs: int, folder: Path, storage: Mapping[str, Any]
) -> dict[str, Any]:
    """Runs with seeds 0, 1, … at once: CPU milliseconds of the workers for a clip, and all losses."""
    files = {"DATASET.train.file_path": listed, "DATASET.train.data_prefix": listed.parent}
    commands = []
    for seed in range(case.runs):
        own = {"seed": seed, "epochs": epochs, "output_dir": folder / str(seed)}
        settings = {**_SETTINGS, **_SAMPLE[case.sampling], **files, **storage, **own}
        flags = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        commands.append(["-c", str(ROOT / _CONFIG), *flags])
    logs = [folder / f"{seed}.log" for seed in range(case.runs)]
    folder.mkdir(parents=True)
    # Paddle need not be imported again
    with ProcessPoolExecutor(case.runs, mp_context=multiprocessing.get_context("fork")) as pool:
        seconds = sum(pool.map(_train, commands, logs))
    losses = []
    for seed in range(case.runs):
        records = map(json.loads, (folder / str(seed) / "metrics.jsonl").read_text().splitlines())
        losses.append([record["loss"] for record in records if record["kind"] == "train"])
    num_clips = sum(map(len, losses)) * _BATCH_SIZE
    return {"ms": seconds * 1e3 / num_clips, "clips": num_clips, "losses": losses}


def _train(words: list[str], log: Path) -> float:
    """Trains in this process; the CPU seconds of its worker, which has ended."""
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    before, code = children_sec(), COMMANDS["train"].start(words)
    if code:
        raise PaddleVideoFastError(f"a run failed:\n{log.read_text()[-2000:]}")
    return children_sec() - before


def _encode(clips: Path | None, key_distance: int, copies: int, folder: Path) -> Path:
    """A list of videos that are encoded with this distance of keyframes, in a folder of their own."""
    target = folder / f"key{key_distance}"
    target.mkdir()
    sources = sorted(path for path in clips.iterdir() if path.suffix in VIDEO_EXTENSIONS) if clips else []
    videos = []
    for path in sources or write_clips(folder, num_frames=_NUM_FRAMES):
        options = {"g": str(key_distance), "keyint_min": str(key_distance)}
        made = write_video(target / f"{path.stem}.mp4", _frames(path), options=options)
        for copy in range(copies):
            videos.append(target / f"{path.stem}_{copy}.mp4")
            videos[-1].write_bytes(made.read_bytes())
    return write_list(target, videos, 8)


def _frames(path: Path) -> Iterator[np.ndarray]:
    with open_video(path) as reader:
        for frame in islice(reader, _NUM_FRAMES):
            yield cv2.resize(frame, _SIZE, interpolation=cv2.INTER_AREA)

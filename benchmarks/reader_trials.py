"""Trials of our reader, decord, OpenCV and torchcodec: wrong without a word, refused, or right.

The files are generated: their frames carry their numbers, which tell which frame a reader gave.
"""

from __future__ import annotations

import argparse
import base64
import functools
import importlib
import json
import select
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import av
import cv2
import numpy as np

from benchmarks.exactness import silence
from benchmarks.isolated import Lost, map_isolated
from benchmarks.measuring import ROOT, add_output_arguments, show
from paddlevideo_fast.cli import count
from paddlevideo_fast.decode import OnCorrupt, open_video
from paddlevideo_fast.decode.colour import RgbConverter
from paddlevideo_fast.errors import PaddleVideoFastError, VideoDecodeError
from tests.support.damaged_clips import NUM_FRAMES, SOURCES, damaged, write_sources
from tests.support.exact_corpus import CORPUS, Clip, write_corpus_clip
from tests.support.joined_clips import JOINED, write_joined_clip
from tests.support.numbered_clips import read_number

_LIMIT_SEC = 20

# Levels of 255, of the mean of 8×8 pixels. Right frames differ by up to 12 between readers; those that were
# decoded with the parameters of another part of the file, by 80 and more.
_OTHER_PIXELS = 24

# From the worst on. A trial counts as the worst that one of its reads gave.
ANOTHER, SPOILT, DIED, REFUSED, REPLACED, COUNT, RIGHT = OUTCOMES = (
    *("another frame", "spoilt picture", "died", "refused", "replaced", "other number of frames", "right"),
)
WITHOUT_A_WORD = (ANOTHER, SPOILT, COUNT)


class Trial(NamedTuple):
    """A file, and what is read from it.

    Attributes:
        path: of the file.
        group: what the trial is counted with, such as the kind of the file.
        numbers: of the frames that the file shows, or showed before it was damaged.
        reads: one after the other, from one reader; each a list of positions from 0 to 1 in the video.
        about: what is particular about the file; JSON values.
        small: the frames in order, as `_shrink` gives them; None where only their numbers are known.
    """

    path: Path
    group: str
    numbers: list[int]
    reads: list[list[float]]
    about: dict[str, Any]
    small: np.ndarray | None = None


class Given(NamedTuple):
    """What a reader gave.

    Attributes:
        announced: the number of frames; None where it does not open the file.
        reads: the frames of each read, None for a read that was refused.
        replaced: how many frames the reader says it replaced, by read.
    """

    announced: int | None
    reads: list[Sequence[np.ndarray] | None]
    replaced: Sequence[int] = ()


def damage_trials(folder: Path, num_trials: int, seed: int) -> list[Trial]:
    """Files with a range of bytes zeroed, cut out, doubled or swapped: `tests/support/damaged_clips.py`."""
    (folder / "whole").mkdir()
    seeds = range(seed, seed + num_trials)
    write_sources(folder / "whole", sorted({SOURCES[number % len(SOURCES)] for number in seeds}))
    trials = []
    for number in seeds:
        damage, data = damaged(folder / "whole", number)
        path = folder / f"{number}_{damage.source}"
        path.write_bytes(data)
        reads = [[position] for position in np.random.default_rng(number).random(8).tolist()]
        about = {"seed": number, **damage._asdict()}
        trials.append(Trial(path, path.suffix[1:], list(range(NUM_FRAMES)), reads, about))
    return trials


def whole_trials(folder: Path, num_trials: int, seed: int) -> list[Trial]:
    """The files that are damaged in the other trials, and the corpus of odd but intact files."""
    sources = SOURCES[:num_trials]
    write_sources(folder, sources)
    clips = [Clip(folder / name, list(range(NUM_FRAMES)), 0) for name in sources]
    (folder / "corpus").mkdir()
    corpus = [name for name in CORPUS if "turned" not in name][: num_trials - len(sources)]
    clips += [write_corpus_clip(folder / "corpus", name) for name in corpus]
    trials = []
    for number, clip in enumerate(clips, seed):
        reads = [[position] for position in np.random.default_rng(number).random(8).tolist()]
        trials.append(Trial(clip.path, clip.path.suffix[1:], clip.numbers, reads, {"file": clip.path.name}))
    return trials


def sequence_trials(folder: Path, num_trials: int, seed: int) -> list[Trial]:
    """Intact files, each read several times, forth and back: joined ones, and the corpus."""
    kinds = [*JOINED, *(name for name in CORPUS if "turned" not in name)]
    clips: dict[str, tuple[Clip, np.ndarray]] = {}
    trials = []
    for number in range(seed, seed + num_trials):
        name = kinds[number % len(kinds)]
        if name not in clips:
            clip = write_joined_clip(folder, name) if name in JOINED else write_corpus_clip(folder, name)
            clips[name] = clip, _shrink(_in_sequence(clip.path))
        clip, small = clips[name]
        rng = np.random.default_rng(number)
        reads = [rng.random(rng.integers(1, 5)).tolist() for _ in range(8)]
        group = "joined" if name in JOINED else "of one encode"
        trials.append(Trial(clip.path, group, clip.numbers, reads, {"seed": number, "file": name}, small))
    return trials


def _in_sequence(path: Path) -> np.ndarray:
    to_rgb = RgbConverter()
    with av.open(str(path)) as container:
        return np.stack([to_rgb(frame).copy() for frame in container.decode(video=0)])


def _shrink(frames: np.ndarray) -> np.ndarray:
    """Means of 8×8 pixels: [N, H, W, 3] to uint8 [N, H // 8, W // 8, 3]."""
    height, width = frames.shape[1] // 8, frames.shape[2] // 8
    blocks = frames[:, : height * 8, : width * 8].reshape(len(frames), height, 8, width, 8, 3)
    means: np.ndarray = blocks.mean(axis=(2, 4)).astype(np.uint8)
    return means


# By name: temporary folder, number of trials, seed of the first -> trials.
PARTS: dict[str, Callable[[Path, int, int], list[Trial]]] = {
    "whole": whole_trials,
    "sequences": sequence_trials,
    "damage": damage_trials,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; repeatable")
    parser.add_argument("--trials", type=count(1), default=2040, help="number of files of each part, at most")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first file; each has its own")
    parser.add_argument(
        "--torchcodec",
        metavar="PYTHON",
        help="also try torchcodec, which this Python has; it needs FFmpeg's libraries in LD_LIBRARY_PATH",
    )
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the trials and prints their outcomes."""
    result = run(args.part or list(PARTS), args.trials, args.seed, args.torchcodec)
    show(result, args, table)


def run(
    parts: Sequence[str], num_trials: int, seed: int = 0, torchcodec: str | None = None
) -> dict[str, Any]:
    """Gives the same files to all readers, and asks them for the same frames.

    Args:
        parts: keys of `PARTS`.
        num_trials: files of each part.
        seed: of the first file; the next ones have the next seeds.
        torchcodec: a Python that has torchcodec; None leaves torchcodec out.

    Returns:
        "versions", "seed" and "parts": by part "num_trials", "readers" (outcome -> how many trials, by
        reader), "groups" (the same, by group and reader) and "ours": where our strict reader failed.

    Raises:
        PaddleVideoFastError: torchcodec does not start.
    """
    versions = {name: importlib.import_module(name).__version__ for name in ("av", "decord", "cv2")}
    found = {}
    for part in parts:
        with tempfile.TemporaryDirectory() as folder:
            trials = PARTS[part](Path(folder), num_trials, seed)
            outcomes = {reader: _outcomes(reader, trials) for reader in READERS}
            if torchcodec is not None:
                versions["torchcodec"], outcomes["torchcodec"] = _torchcodec_outcomes(torchcodec, trials)
        groups = sorted({trial.group for trial in trials})
        found[part] = {
            "num_trials": len(trials),
            "readers": {reader: _counted(outcomes[reader]) for reader in outcomes},
            "groups": {
                group: {
                    reader: _counted(
                        [o for o, trial in zip(outcomes[reader], trials) if trial.group == group]
                    )
                    for reader in outcomes
                }
                for group in groups
            },
            "ours": [
                {"outcome": outcome, **trial.about}
                for outcome, trial in zip(outcomes["ours"], trials)
                if outcome in (*WITHOUT_A_WORD, DIED) or (outcome != RIGHT and part == "whole")
            ],
        }
    return {"versions": versions, "seed": seed, "parts": found}


def _counted(outcomes: Sequence[str]) -> dict[str, int]:
    counter = Counter(outcomes)
    return {outcome: counter[outcome] for outcome in OUTCOMES}


def _outcomes(reader: str, trials: Sequence[Trial]) -> list[str]:
    results = map_isolated(functools.partial(outcome_of, reader), trials, _LIMIT_SEC)
    return [DIED if isinstance(result, Lost) else result for result in results]


def outcome_of(reader: str, trial: Trial) -> str:
    """What one reader makes of a trial: one of `OUTCOMES`."""
    with silence():
        return judge(trial, READERS[reader](trial))


def judge(trial: Trial, given: Given) -> str:
    """The worst of what a reader gave: one of `OUTCOMES`."""
    if not given.announced:
        return REFUSED
    found = {RIGHT if given.announced == len(trial.numbers) else COUNT}
    for place, (positions, frames) in enumerate(zip(trial.reads, given.reads)):
        num_replaced = given.replaced[place] if given.replaced else 0
        if frames is None:
            found.add(REFUSED)
        elif num_replaced:
            found.add(REPLACED)
        else:
            for position, frame in zip(positions, frames):
                index, number = int(position * given.announced), read_number(frame)
                expected = trial.numbers[index] if index < len(trial.numbers) else -1
                if number != expected:
                    found.add(SPOILT if number is None else ANOTHER)
                elif trial.small is not None and _differs(frame, trial.small[index]):
                    found.add(SPOILT)
    return min(found, key=OUTCOMES.index)


def _differs(frame: np.ndarray, small: np.ndarray) -> bool:
    """Whether a frame has other pixels, by more than readers differ in how they convert colours."""
    found = _shrink(frame[None])[0].astype(int)
    return found.shape != small.shape or int(np.abs(found - small).max()) > _OTHER_PIXELS


def _ours(on_corrupt: OnCorrupt, trial: Trial, verify: bool = False) -> Given:
    given: list[Sequence[np.ndarray] | None] = []
    replaced = []
    try:
        with open_video(trial.path, on_corrupt=on_corrupt) as reader:
            if verify:
                reader.verify()
            for positions in trial.reads:
                before = reader.num_replaced
                try:
                    given.append(list(reader.read(_indices(positions, reader.num_frames))))
                except VideoDecodeError:
                    given.append(None)
                replaced.append(reader.num_replaced - before)
            return Given(reader.num_frames, given, replaced)
    except VideoDecodeError:
        return Given(None, [])


def _decord(trial: Trial) -> Given:
    decord = importlib.import_module("decord")
    decord.logging.set_level(decord.logging.QUIET)
    given: list[Sequence[np.ndarray] | None] = []
    try:
        reader = decord.VideoReader(str(trial.path), num_threads=1)
        announced = len(reader)
    except Exception:  # it has a type of its own
        return Given(None, [])
    for positions in trial.reads:
        try:
            given.append(list(reader.get_batch(_indices(positions, announced)).asnumpy()))
        except Exception:
            given.append(None)
    return Given(announced, given)


def _opencv(trial: Trial) -> Given:
    capture = cv2.VideoCapture(str(trial.path), cv2.CAP_FFMPEG)
    announced = int(capture.get(cv2.CAP_PROP_FRAME_COUNT)) if capture.isOpened() else 0
    given: list[Sequence[np.ndarray] | None] = []
    for positions in trial.reads if announced > 0 else ():
        frames = []
        for index in _indices(positions, announced):
            capture.set(cv2.CAP_PROP_POS_FRAMES, index)
            frames.append(capture.read())
        given.append([picture[..., ::-1] for _, picture in frames] if all(ok for ok, _ in frames) else None)
    return Given(max(announced, 0), given)


def _indices(positions: Sequence[float], announced: int) -> list[int]:
    return [int(position * announced) for position in positions]


READERS: dict[str, Callable[[Trial], Given]] = {
    "ours": functools.partial(_ours, "raise"),
    "ours, nearest": functools.partial(_ours, "nearest"),
    "ours, checked": functools.partial(_ours, "raise", verify=True),
    "decord": _decord,
    "OpenCV": _opencv,
}


def _torchcodec_outcomes(python: str, trials: Sequence[Trial]) -> tuple[str, list[str]]:
    """The version of torchcodec, and its outcomes; its process is started anew where it dies or hangs."""
    version = ""
    outcomes: list[str] = []
    while len(outcomes) < len(trials):
        with subprocess.Popen(
            [python, str(ROOT / "benchmarks" / "torchcodec_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as worker:
            hello = _line(worker, 120)
            if not hello:
                raise PaddleVideoFastError(f"torchcodec does not start: {python} -c 'import torchcodec'")
            version = hello["version"]
            for trial in trials[len(outcomes) :]:
                assert worker.stdin is not None
                request = {"path": str(trial.path), "reads": trial.reads}
                worker.stdin.write(json.dumps(request).encode() + b"\n")
                worker.stdin.flush()
                answer = _line(worker, _LIMIT_SEC)
                outcomes.append(judge(trial, _pixels(answer)) if answer else DIED)
                if not answer:
                    break
            worker.kill()
    return version, outcomes


def _line(worker: Any, limit_sec: float) -> Any:
    """The next line of a process, or None where it ends or takes too long."""
    ready, _, _ = select.select([worker.stdout], [], [], limit_sec)
    line = worker.stdout.readline() if ready else b""
    return json.loads(line) if line else None


def _pixels(answer: dict[str, Any]) -> Given:
    reads = [
        read and [np.frombuffer(base64.b64decode(text), np.uint8).reshape(shape) for shape, text in read]
        for read in answer["reads"]
    ]
    return Given(answer["announced"], reads)


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = [", ".join(f"{name} {version}" for name, version in result["versions"].items())]
    for part, found in result["parts"].items():
        lines.append(f"\n{part}, {found['num_trials']} files from seed {result['seed']} on")
        lines.append(f"{'':<16}" + "".join(f"{outcome:>24}" for outcome in OUTCOMES))
        for reader, outcomes in found["readers"].items():
            lines.append(f"{reader:<16}" + "".join(f"{outcomes[outcome]:>24}" for outcome in OUTCOMES))
        lines.append("without a word, by kind of file")
        for group, readers in found["groups"].items():
            cells = [f"{reader} {sum(o[key] for key in WITHOUT_A_WORD)}" for reader, o in readers.items()]
            lines.append(
                f"{group:<16}{sum(next(iter(readers.values())).values()):>6} files: {', '.join(cells)}"
            )
    return "\n".join(lines)

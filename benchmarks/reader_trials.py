"""Trials of our reader, decord, OpenCV and torchcodec: wrong without a word, refused, or right.

The files are generated: their frames carry their numbers, which tell which frame a reader gave.
"""

import base64
import functools
import importlib
import json
import os
import select
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import av
import cv2
import numpy as np

from benchmarks.measuring import ROOT, Natural, Positive
from paddlevideo_fast.decode import OnCorrupt, open_video
from paddlevideo_fast.decode.colour import RgbConverter
from paddlevideo_fast.errors import PaddleVideoFastError, VideoDecodeError
from tests.support.damaged_clips import NUM_FRAMES, SOURCES, damaged, write_sources
from tests.support.exact_corpus import CORPUS, Clip, write_corpus_clip
from tests.support.isolated import Lost, map_isolated
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
        reads: one after the other, from one reader; each a list of positions from 0 to 1 in the video, or of
            frame numbers.
        about: what is particular about the file; JSON values.
        small: the frames in order, as `_shrink` gives them; None where only their numbers are known.
    """

    path: Path
    group: str
    numbers: list[int]
    reads: Sequence[Sequence[float]]
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
        about = {"seed": number, **damage._asdict()}
        trials.append(_single_frames(number, Clip(path, list(range(NUM_FRAMES)), 0), about))
    return trials


def whole_trials(folder: Path, num_trials: int, seed: int) -> list[Trial]:
    """The files that are damaged in the other trials, and the corpus of odd but intact files."""
    sources = SOURCES[:num_trials]
    write_sources(folder, sources)
    clips = [Clip(folder / name, list(range(NUM_FRAMES)), 0) for name in sources]
    (folder / "corpus").mkdir()
    corpus = [name for name in CORPUS if "turned" not in name][: num_trials - len(sources)]
    clips += [write_corpus_clip(folder / "corpus", name) for name in corpus]
    return [_single_frames(number, clip, {"file": clip.path.name}) for number, clip in enumerate(clips, seed)]


def _single_frames(number: int, clip: Clip, about: dict[str, Any]) -> Trial:
    reads = [[position] for position in np.random.default_rng(number).random(8).tolist()]
    return Trial(clip.path, clip.path.suffix[1:], clip.numbers, reads, about)


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
        turns = ((frame, round(frame.rotation / 90) % 4) for frame in container.decode(video=0))
        return np.stack([to_rgb(frame, orientation).copy() for frame, orientation in turns])


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


def run(
    part: Annotated[Sequence[str], PARTS] = tuple(PARTS),
    trials: Positive = 2040,
    seed: Natural = 0,
    torchcodec: str | None = None,
) -> dict[str, Any]:
    """Gives the same files to all readers, and asks them for the same frames.

    Args:
        part: of the trials; by default, all.
        trials: number of files of each part, at most.
        seed: of the first file; the next ones have the next seeds.
        torchcodec: also try torchcodec, which this Python has; it needs FFmpeg's libraries in
            LD_LIBRARY_PATH.

    Returns:
        "versions" and "parts": by part "num_trials", "readers" (outcome -> how many trials, by
        reader), "groups" (the same, by group and reader) and "ours": where our strict reader failed.

    Raises:
        PaddleVideoFastError: torchcodec does not start.
    """
    versions, found = reader_versions(), {}
    for name in part:
        with tempfile.TemporaryDirectory() as folder:
            made = PARTS[name](Path(folder), trials, seed)
            outcomes = {reader: _outcomes(reader, made) for reader in TRIED}
            if torchcodec is not None:
                versions["torchcodec"], outcomes["torchcodec"] = _torchcodec_outcomes(torchcodec, made)

        groups = sorted({trial.group for trial in made})
        noted = (*WITHOUT_A_WORD, DIED) if name != "whole" else set(OUTCOMES) - {RIGHT}
        found[name] = {
            "num_trials": len(made),
            "readers": _counted(outcomes, made),
            "groups": {group: _counted(outcomes, made, group) for group in groups},
            "ours": [
                {"outcome": outcome, **trial.about}
                for outcome, trial in zip(outcomes["ours"], made)
                if outcome in noted
            ],
        }
    return {"versions": versions, "parts": found}


def _counted(
    outcomes: Mapping[str, Sequence[str]], trials: Sequence[Trial], group: str | None = None
) -> dict[str, dict[str, int]]:
    """How many trials of a group, or of all, had each outcome, by reader."""
    of_group = {
        reader: [outcome for outcome, trial in zip(each, trials) if group in (None, trial.group)]
        for reader, each in outcomes.items()
    }
    return {reader: {one: each.count(one) for one in OUTCOMES} for reader, each in of_group.items()}


def reader_versions() -> dict[str, str]:
    """The versions of the readers in this process."""
    return {name: importlib.import_module(name).__version__ for name in ("av", "decord", "cv2")}


def _outcomes(reader: str, trials: Sequence[Trial]) -> list[str]:
    results = map_isolated(functools.partial(outcome_of, reader), trials, _LIMIT_SEC)
    return [DIED if isinstance(result, Lost) else result for result in results]


@contextmanager
def silence() -> Iterator[None]:
    """Hides file descriptor 2, to which decoders print from C."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def outcome_of(reader: str, trial: Trial) -> str:
    """What one reader makes of a trial: one of `OUTCOMES`."""
    with silence():
        return judge(trial, READERS[reader](trial))


def judge(trial: Trial, given: Given) -> str:
    """The worst of what a reader gave: one of `OUTCOMES`."""
    if not given.announced:
        return REFUSED
    found = {RIGHT if given.announced == len(trial.numbers) else COUNT}
    for turn, (positions, frames) in enumerate(zip(trial.reads, given.reads)):
        num_replaced = given.replaced[turn] if given.replaced else 0
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


def _given(
    trial: Trial,
    announced: int,
    read: Callable[[list[int]], Iterable[np.ndarray]],
    error: type[Exception] = Exception,
) -> Given:
    """What a reader that announces so many frames gives; `error` says that it refuses a read."""
    reads: list[Sequence[np.ndarray] | None] = []
    for positions in trial.reads if announced > 0 else ():
        try:
            reads.append(list(read([at if isinstance(at, int) else int(at * announced) for at in positions])))
        except error:
            reads.append(None)
    return Given(max(announced, 0), reads)


def _ours(on_corrupt: OnCorrupt, trial: Trial, verify: bool = False) -> Given:
    replaced = [0]
    try:
        with open_video(trial.path, on_corrupt=on_corrupt) as reader:

            def read(indices: list[int]) -> Iterable[np.ndarray]:
                try:
                    return reader.read(indices)
                finally:
                    replaced.append(reader.num_replaced)

            if verify:
                reader.verify()
            given = _given(trial, reader.num_frames, read, VideoDecodeError)
            return given._replace(replaced=np.diff(replaced).tolist())
    except VideoDecodeError:
        return Given(None, [])


def _decord(trial: Trial) -> Given:
    decord = importlib.import_module("decord")
    decord.logging.set_level(decord.logging.QUIET)
    try:
        reader = decord.VideoReader(str(trial.path), num_threads=1)
        announced = len(reader)
    except Exception:  # it has a type of its own
        return Given(None, [])
    return _given(trial, announced, lambda indices: reader.get_batch(indices).asnumpy())


def _opencv(trial: Trial) -> Given:
    capture = cv2.VideoCapture(str(trial.path), cv2.CAP_FFMPEG)

    def read(index: int) -> np.ndarray:
        capture.set(cv2.CAP_PROP_POS_FRAMES, index)
        ok, picture = capture.read()
        if not ok:
            raise ValueError("no frame")
        return picture[..., ::-1]

    announced = int(capture.get(cv2.CAP_PROP_FRAME_COUNT)) if capture.isOpened() else 0
    return _given(trial, announced, lambda indices: map(read, indices))


def _opencv_in_sequence(trial: Trial) -> Given:
    capture = cv2.VideoCapture(str(trial.path), cv2.CAP_FFMPEG)
    frames = []
    while (found := capture.read())[0]:
        frames.append(found[1][..., ::-1])
    return _given(trial, len(frames), lambda indices: [frames[index] for index in indices])


READERS: dict[str, Callable[[Trial], Given]] = {
    "ours": functools.partial(_ours, "raise"),
    "ours, nearest": functools.partial(_ours, "nearest"),
    "ours, checked": functools.partial(_ours, "raise", verify=True),
    "decord": _decord,
    "OpenCV": _opencv,
    "cv2 sequence": _opencv_in_sequence,
}
TRIED = ("ours", "ours, nearest", "ours, checked", "decord", "OpenCV")


def _torchcodec_outcomes(python: str, trials: Sequence[Trial]) -> tuple[str, list[str]]:
    """The version of torchcodec, and its outcomes."""
    with TorchCodec(python) as worker:
        answers = (worker.ask({"path": str(trial.path), "reads": trial.reads}) for trial in trials)
        outcomes = [
            judge(trial, given_of(answer)) if answer else DIED for trial, answer in zip(trials, answers)
        ]
    return worker.version, outcomes


class TorchCodec:
    """torchcodec in a process of its own, which is started anew where it dies or hangs.

    Args:
        python: interpreter that has torchcodec, or paddlecodec with Paddle.

    Attributes:
        package: torchcodec, or paddlecodec.
        version: its version.

    Raises:
        PaddleVideoFastError: it does not start.
    """

    def __init__(self, python: str) -> None:
        self._python = python
        self._start()

    def _start(self) -> None:
        words = [self._python, str(ROOT / "benchmarks" / "torchcodec_worker.py")]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process: Any = subprocess.Popen(words, env=one_thread, **streams)  # type: ignore[call-overload]
        hello = self._line(120)
        if not hello:
            raise PaddleVideoFastError(f"torchcodec does not start: {self._python} -c 'import torchcodec'")
        self.package, self.version = hello["package"], hello["version"]

    def __enter__(self) -> "TorchCodec":
        return self

    def __exit__(self, *error: Any) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, request: Mapping[str, Any]) -> Any:
        """The answer to a request; None where the process died or hung."""
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._line(_LIMIT_SEC)
        if answer is None:
            self.__exit__()
            self._start()
        return answer

    def _line(self, limit_sec: float) -> Any:
        """The next line of the process, or None where it ends or takes too long."""
        ready, _, _ = select.select([self._process.stdout], [], [], limit_sec)
        line = self._process.stdout.readline() if ready else b""
        return json.loads(line) if line else None


def given_of(answer: Mapping[str, Any]) -> Given:
    """What torchcodec gave, from the answer of its process."""
    reads = [
        read and [np.frombuffer(base64.b64decode(text), np.uint8).reshape(shape) for shape, text in read]
        for read in answer["reads"]
    ]
    return Given(answer["announced"], reads)

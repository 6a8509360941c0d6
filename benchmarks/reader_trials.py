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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import av
import numpy as np

from benchmarks.measuring import ROOT, Natural, Positive
from paddlevideo_fast.decode.colour import RgbConverter
from paddlevideo_fast.errors import PaddleVideoFastError
from tests.support.damaged_clips import NUM_FRAMES, SOURCES, damaged, write_sources
from tests.support.exact_corpus import CORPUS, Clip, write_corpus_clip
from tests.support.isolated import Lost, map_isolated
from tests.support.joined_clips import JOINED, write_joined_clip
from tests.support.judged_readers import (
    DIED,
    OUTCOMES,
    RIGHT,
    TRIED,
    WITHOUT_A_WORD,
    Given,
    Trial,
    judge,
    outcome_of,
    shrink,
)

_LIMIT_SEC = 20
_WORKER = ROOT / "benchmarks" / "torchcodec_worker.py"


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
            clips[name] = clip, shrink(_in_sequence(clip.path))
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
        streams: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process: Any = subprocess.Popen([self._python, _WORKER], env=one_thread, **streams)
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

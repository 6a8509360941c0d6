"""Readers of videos, ours and others, asked for frames that carry their numbers; and what counts as right.

Tests of the decoder and benchmarks use them.
"""

import functools
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from paddlevideo_fast.decode import OnCorrupt, open_video
from paddlevideo_fast.errors import VideoDecodeError
from tests.support.numbered_clips import read_number

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
        small: the frames in order, as `shrink` gives them; None where only their numbers are known.
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


def shrink(frames: np.ndarray) -> np.ndarray:
    """Means of 8×8 pixels: [N, H, W, 3] to uint8 [N, H // 8, W // 8, 3]."""
    height, width = frames.shape[1] // 8, frames.shape[2] // 8
    blocks = frames[:, : height * 8, : width * 8].reshape(len(frames), height, 8, width, 8, 3)
    means: np.ndarray = blocks.mean(axis=(2, 4)).astype(np.uint8)
    return means


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
    found = shrink(frame[None])[0].astype(int)
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

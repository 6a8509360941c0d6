"""Counts the wrong frames of our reader, decord and OpenCV, on clips whose frames carry their numbers."""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import av
import cv2
import numpy as np

from benchmarks.isolated import Lost, map_isolated
from benchmarks.measuring import add_output_arguments, show
from paddlevideo_fast.decode import open_video
from tests.support.exact_corpus import CORPUS, Clip, write_corpus_clip
from tests.support.numbered_clips import read_number

_LIMIT_SEC = 60
# how many frames a reader announces, and frame number -> picture, or None where there is none
Opened = tuple[int, Callable[[int], np.ndarray | None]]


class Tally(NamedTuple):
    """What a reader returned for a clip.

    Attributes:
        announced: number of frames that the reader reports; None where it does not open the file.
        wrong: frames that differ from the requested ones, or are not rotated for display.
        errors: frames that the reader did not return.
        failure: why the reading process ended early; all frames then count as errors.
    """

    announced: int | None
    wrong: int
    errors: int
    failure: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument(
        "--clip",
        action="append",
        choices=CORPUS,
        metavar="NAME",
        help="only this file; repeatable",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of the frames")
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    result = run(args.clip or CORPUS, args.seed)
    show(result, args, table)


def run(names: Sequence[str] = CORPUS, seed: int = 0) -> dict[str, Any]:
    """Asks every reader for every frame of every clip, one by one, in random order.

    Args:
        names: files of the corpus.
        seed: of the order of the frames.

    Returns:
        "versions", "seed", "num_clips", "num_frames", "sums" ("wrong" and "errors" of each reader over all
        clips), and "rows": one a clip, with "clip", "frames" and, by reader, "readers": a `Tally` as a dict.
    """
    with tempfile.TemporaryDirectory() as folder:
        clips = [write_corpus_clip(Path(folder), name) for name in names]
        tallies = {
            reader: [
                Tally(None, 0, len(clip.numbers), tally.cause) if isinstance(tally, Lost) else tally
                for clip, tally in zip(
                    clips, map_isolated(functools.partial(count_wrong, reader, seed=seed), clips, _LIMIT_SEC)
                )
            ]
            for reader in _READERS
        }
    rows = [
        {
            "clip": name,
            "frames": len(clip.numbers),
            "readers": {reader: tallies[reader][place]._asdict() for reader in _READERS},
        }
        for place, (name, clip) in enumerate(zip(names, clips))
    ]
    sums = {
        reader: {key: sum(getattr(tally, key) for tally in found) for key in ("wrong", "errors")}
        for reader, found in tallies.items()
    }
    return {
        "versions": _versions(),
        "seed": seed,
        "num_clips": len(clips),
        "num_frames": sum(len(clip.numbers) for clip in clips),
        "sums": sums,
        "rows": rows,
    }


def count_wrong(reader: str, clip: Clip, seed: int = 0) -> Tally:
    """Asks one reader for every frame of a clip, and hides what the reader prints."""
    with silence():
        return _count_wrong(reader, clip, seed)


def _count_wrong(reader: str, clip: Clip, seed: int) -> Tally:
    everything = len(clip.numbers)
    try:
        announced, get = _READERS[reader](str(clip.path))
    except Exception as error:  # each reader has types of its own
        return Tally(None, 0, everything, f"{type(error).__name__}: {error}".splitlines()[0])
    wrong = errors = 0
    for index in np.random.default_rng(seed).permutation(everything).tolist():
        try:
            frame = get(index)
        except Exception:
            frame = None
        if frame is None:
            errors += 1
        elif read_number(np.rot90(frame, clip.rotation // 90)) != clip.numbers[index]:
            wrong += 1
    return Tally(announced, wrong, errors)


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


def table(result: dict[str, Any]) -> str:
    """The result as text: wrong frames, and after a plus the frames that were not returned."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [
        f"wrong frames + frames not given; every frame, in random order; {versions}",
        f"{'clip':<34}{'frames':>7}" + "".join(f"{reader:>14}" for reader in _READERS),
    ]
    for row in result["rows"]:
        cells = [_cell(row["readers"][reader]) for reader in _READERS]
        lines.append(f"{row['clip']:<34}{row['frames']:>7}" + "".join(f"{cell:>14}" for cell in cells))
    cells = [_cell(result["sums"][reader]) for reader in _READERS]
    lines.append(f"{'all':<34}{result['num_frames']:>7}" + "".join(f"{cell:>14}" for cell in cells))
    return "\n".join(lines)


def _cell(tally: dict[str, Any]) -> str:
    return f"{tally['wrong']}" + (f" + {tally['errors']}" if tally["errors"] else "")


def _ours(path: str) -> Opened:
    reader = open_video(path)
    return reader.num_frames, lambda index: reader.read([index])[0]


def _decord(path: str) -> Opened:
    decord = importlib.import_module("decord")
    decord.logging.set_level(decord.logging.QUIET)
    reader = decord.VideoReader(path, num_threads=1)
    return len(reader), lambda index: reader.get_batch([index]).asnumpy()[0]


def _cv2_in_sequence(path: str) -> Opened:
    frames = list(_cv2_frames(_cv2_open(path)))
    return len(frames), frames.__getitem__


def _cv2_seek(path: str) -> Opened:
    capture = _cv2_open(path)

    def get(index: int) -> np.ndarray | None:
        capture.set(cv2.CAP_PROP_POS_FRAMES, index)
        return next(_cv2_frames(capture), None)

    return int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), get


def _cv2_open(path: str) -> cv2.VideoCapture:
    capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG)
    if not capture.isOpened():
        raise ValueError("OpenCV does not open it")
    return capture


def _cv2_frames(capture: cv2.VideoCapture) -> Iterator[np.ndarray]:
    while True:
        ok, picture = capture.read()
        if not ok:
            return
        yield picture


_READERS: dict[str, Callable[[str], Opened]] = {
    "ours": _ours,
    "decord": _decord,
    "cv2 sequence": _cv2_in_sequence,
    "cv2 seek": _cv2_seek,
}


def _versions() -> dict[str, str]:
    decord = importlib.import_module("decord")
    return {"av": av.__version__, "decord": decord.__version__, "cv2": cv2.__version__}

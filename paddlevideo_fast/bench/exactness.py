"""Wrong frames of our reader, decord and OpenCV on clips whose every frame carries its number."""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

import av
import cv2
import numpy as np

from paddlevideo_fast.bench.exact_corpus import CORPUS, Clip, write_corpus_clip
from paddlevideo_fast.bench.isolated import Lost, map_isolated
from paddlevideo_fast.bench.numbered_clips import read_number
from paddlevideo_fast.decode import open_video

_LIMIT_SEC = 60
# how many frames a reader announces, and frame number -> picture, or None where there is none
Opened = Tuple[int, Callable[[int], Optional[np.ndarray]]]


class Tally(NamedTuple):
    """How a reader does on a clip.

    Attributes:
        announced: how many frames it says there are; None where it does not open the file.
        wrong: frames given that are not the one asked for, or not turned as they are shown.
        errors: frames not given.
        failure: what ended the process, if something did; then all frames are errors.
    """

    announced: Optional[int]
    wrong: int
    errors: int
    failure: Optional[str] = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument(
        "--clip", action="append", choices=CORPUS, metavar="NAME", help="only this file; repeat"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the order in which frames are asked for")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def main(args: argparse.Namespace) -> int:
    """Runs the benchmark and prints it."""
    result = run(args.clip or CORPUS, args.seed)
    print(json.dumps(result, indent=1) if args.json else table(result))
    return 0


def run(names: Sequence[str] = CORPUS, seed: int = 0) -> Dict[str, Any]:
    """Asks every reader for every frame of every clip, one by one, in random order.

    Args:
        names: of the corpus.
        seed: of the order.

    Returns:
        "versions", "seed", and "rows": one a clip, with "clip", "frames" and, by reader, "readers": a `Tally`
        as a dict.
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
    return {"versions": _versions(), "seed": seed, "rows": rows}


def count_wrong(reader: str, clip: Clip, seed: int = 0) -> Tally:
    """Asks one reader for every frame of a clip; what it prints on the way is lost."""
    with _silence():
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
def _silence() -> Iterator[None]:
    """Decoders print from C, to file descriptor 2."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def table(result: Dict[str, Any]) -> str:
    """`run`'s result as text: wrong frames, and after a plus those not given."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [
        f"wrong frames + frames not given; every frame, in random order; {versions}",
        f"{'clip':<34}{'frames':>7}" + "".join(f"{reader:>14}" for reader in _READERS),
    ]
    for row in result["rows"]:
        cells = [_cell(row["readers"][reader]) for reader in _READERS]
        lines.append(f"{row['clip']:<34}{row['frames']:>7}" + "".join(f"{cell:>14}" for cell in cells))
    sums = [_sum(result["rows"], reader) for reader in _READERS]
    frames = sum(row["frames"] for row in result["rows"])
    return "\n".join([*lines, f"{'all':<34}{frames:>7}" + "".join(f"{cell:>14}" for cell in sums)])


def _cell(tally: Dict[str, Any]) -> str:
    return f"{tally['wrong']}" + (f" + {tally['errors']}" if tally["errors"] else "")


def _sum(rows: Sequence[Dict[str, Any]], reader: str) -> str:
    return _cell({key: sum(row["readers"][reader][key] for row in rows) for key in ("wrong", "errors")})


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

    def get(index: int) -> Optional[np.ndarray]:
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


_READERS: Dict[str, Callable[[str], Opened]] = {
    "ours": _ours,
    "decord": _decord,
    "cv2 sequence": _cv2_in_sequence,
    "cv2 seek": _cv2_seek,
}


def _versions() -> Dict[str, str]:
    decord = importlib.import_module("decord")
    return {"av": av.__version__, "decord": decord.__version__, "cv2": cv2.__version__}

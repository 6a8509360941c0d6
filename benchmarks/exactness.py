"""Counts the wrong frames of our reader, decord and OpenCV, on clips whose frames carry their numbers."""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from benchmarks.measuring import Natural
from benchmarks.reader_trials import reader_versions
from tests.support.exact_corpus import CORPUS, Clip, write_corpus_clip
from tests.support.isolated import Lost, map_isolated
from tests.support.judged_readers import READERS, Trial, silence
from tests.support.numbered_clips import read_number

_LIMIT_SEC = 60
# The names of the readers here, and in `READERS`.
_READERS = {"ours": "ours", "decord": "decord", "cv2 sequence": "cv2 sequence", "cv2 seek": "OpenCV"}


class Tally(NamedTuple):
    """What a reader returned for a clip.

    Attributes:
        announced: number of frames that the reader reports; None where it does not open the file.
        wrong: frames that differ from the requested ones, or are not rotated for display.
        errors: frames that the reader did not return.
        failure: why the reading process died or was killed; all frames then count as errors.
    """

    announced: int | None
    wrong: int
    errors: int
    failure: str | None = None


def run(clip: Annotated[Sequence[str], CORPUS] = tuple(CORPUS), seed: Natural = 0) -> dict[str, Any]:
    """Asks every reader for every frame of every clip, one by one, in random order.

    Args:
        clip: names of files of the corpus.
        seed: of the order of the frames.

    Returns:
        "versions", "num_clips", "num_frames", "sums" ("wrong" and "errors" of each reader over all
        clips), and "rows": one a clip, with "clip", "frames" and, by reader, "readers": a `Tally` as a dict.
    """
    with tempfile.TemporaryDirectory() as folder:
        clips = [write_corpus_clip(Path(folder), name) for name in clip]
        tallies = {
            reader: list(map_isolated(partial(count_wrong, reader, seed=seed), clips, _LIMIT_SEC))
            for reader in _READERS
        }
    rows: list[dict[str, Any]] = []
    sums = {reader: {"wrong": 0, "errors": 0} for reader in _READERS}
    for name, each, *found in zip(clip, clips, *tallies.values()):
        rows.append({"clip": name, "frames": len(each.numbers), "readers": {}})
        for reader, tally in zip(_READERS, found):
            if isinstance(tally, Lost):
                tally = Tally(None, 0, len(each.numbers), tally.cause)
            rows[-1]["readers"][reader] = tally._asdict()
            sums[reader]["wrong"] += tally.wrong
            sums[reader]["errors"] += tally.errors
    counts = {"num_clips": len(clips), "num_frames": sum(row["frames"] for row in rows)}
    return {"versions": reader_versions(), **counts, "sums": sums, "rows": rows}


def count_wrong(reader: str, clip: Clip, seed: int = 0) -> Tally:
    """Asks one reader for every frame of a clip, and hides what the reader prints."""
    order = np.random.default_rng(seed).permutation(len(clip.numbers)).tolist()
    with silence():
        found = READERS[_READERS[reader]](Trial(clip.path, "", clip.numbers, [[at] for at in order], {}))
    frames = [(at, read[0]) for at, read in zip(order, found.reads) if read is not None]
    turns = clip.rotation // 90
    wrong = sum(read_number(np.rot90(frame, turns)) != clip.numbers[at] for at, frame in frames)
    return Tally(found.announced or None, wrong, len(order) - len(frames))

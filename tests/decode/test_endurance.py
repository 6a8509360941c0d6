"""Five thousand reads: no leak, no hang, no wrong frame."""

from __future__ import annotations

import statistics
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from paddlevideo_fast.decode import open_video
from tests.support.exact_corpus import CORPUS, write_corpus_clip
from tests.support.isolated import call_isolated, resident_bytes
from tests.support.numbered_clips import read_number

NUM_READS = 5_000
_REAL_SHARE = 0.03  # of the reads: they take much longer
_REAL_FRAMES = 100  # only the first frames of a real clip are read, for the same reason


class Source(NamedTuple):
    """A file and what identifies its frames: numbers drawn into them, or checksums."""

    path: str
    identities: list[int]
    is_real: bool


def identity(frame: np.ndarray, is_real: bool) -> Any:
    return zlib.crc32(frame.tobytes()) if is_real else read_number(frame)


@pytest.fixture(scope="module")
def sources(tmp_path_factory, real_clips_dir) -> list[Source]:
    folder = tmp_path_factory.mktemp("endurance")
    generated = [write_corpus_clip(folder, name, num_frames=24) for name in CORPUS if "turned" not in name]
    found = [Source(str(clip.path), clip.numbers, False) for clip in generated]
    for path in sorted(real_clips_dir.iterdir()):
        if path.suffix in (".mp4", ".avi", ".mkv", ".mov") and path.stem != "corrupted":
            with open_video(path) as reader:
                frames = reader.read(range(min(reader.num_frames, _REAL_FRAMES)))
            found.append(Source(str(path), [identity(frame, True) for frame in frames], True))
    return found


def endure(sources: Sequence[Source], num_reads: int, seed: int) -> tuple[list[str], list[int]]:
    """Reads random frames of random files: by path and from bytes, with new and with old readers.

    Returns:
        What is wrong, and the resident memory after each read in bytes.
    """
    rng = np.random.default_rng(seed)
    generated, real = ([source for source in sources if source.is_real == kind] for kind in (False, True))
    kept = {source.path: open_video(source.path) for source in generated[::8]}
    wrong, resident = [], []
    for _ in range(num_reads):
        among = real if rng.random() < _REAL_SHARE else generated
        source = among[int(rng.integers(len(among)))]
        indices = rng.integers(0, len(source.identities), int(rng.integers(1, 5))).tolist()
        if source.path in kept:
            frames = kept[source.path].read(indices)
        else:
            path = Path(source.path)
            with open_video(path if rng.random() < 0.5 else path.read_bytes()) as reader:
                frames = reader.read(indices)
        found = [identity(frame, source.is_real) for frame in frames]
        expected = [source.identities[index] for index in indices]
        if found != expected:
            wrong.append(f"{source.path}: frames {indices} are {found}, not {expected}")
        resident.append(resident_bytes())
    for reader in kept.values():
        reader.close()
    return wrong, resident


@pytest.mark.slow
def test_reads_in_one_process(sources):
    wrong, resident = call_isolated(endure, sources, NUM_READS, 0)
    assert wrong == []
    quarter = NUM_READS // 4
    second, last = (statistics.median(resident[number * quarter :][:quarter]) for number in (1, 3))
    assert abs(last / second - 1) < 0.05

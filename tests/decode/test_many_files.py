"""Hundreds of files: each frame alone and in sequence is what decoding in sequence gives."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from paddlevideo_fast.decode import open_video, picture_decoder
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.sources.frame_cache.frame_cache import FrameCache
from paddlevideo_fast.sources.index_cache.index_cache import IndexCache
from tests.support.exact_corpus import in_sequence
from tests.support.many_clips import MANY, write_one_of_many
from tests.support.numbered_clips import read_number

# Intact files that are refused, and why.
REFUSED: dict[str, str] = {}


def wrong_frames(path: Path, numbers: list[int]) -> list[int]:
    """Frames that differ from decoding in sequence, read in sequence, alone, through caches, or of bytes."""
    expected = in_sequence(path)
    assert [read_number(frame) for frame in expected] == numbers, path.name
    with open_video(path) as reader:
        assert reader.num_frames == len(expected), path.name
        found = [index for index, frame in enumerate(reader) if not np.array_equal(frame, expected[index])]
        for index in np.random.default_rng(0).permutation(len(expected)).tolist():
            if not np.array_equal(reader.read([index])[0], expected[index]):
                found.append(index)
    indexes = IndexCache(str(path.parent / "indexes"))
    for options in ({"frames": FrameCache(path.parent / "frames", 1.0)}, {"cache": indexes}, {}):
        for index in (20 % len(expected), 5, 20 % len(expected)):  # kept, and read again
            with open_video(path if options else path.read_bytes(), **options) as reader:
                if not np.array_equal(reader.read([index])[0], expected[index]):
                    found.append(index)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("codec", sorted({name.split(".")[0].split("_")[0] for name in MANY}))
def test_all_files_of_a_codec(codec, tmp_path, monkeypatch):
    monkeypatch.setattr(picture_decoder, "_MIN_STORED", 1)
    wrong, refused = {}, {}
    names = [name for name in MANY if re.split("[._]", name)[0] == codec]
    for name in names:
        path, numbers = write_one_of_many(tmp_path, name)
        try:
            wrong[name] = wrong_frames(path, numbers)
        except VideoDecodeError as error:
            refused[name] = str(error)
    assert {name: frames for name, frames in wrong.items() if frames} == {}
    for name, cause in refused.items():
        assert any(re.fullmatch(kind, name) and why in cause for kind, why in REFUSED.items()), cause
    assert len(wrong) + len(refused) == len(names)


def test_there_are_many():
    assert len(MANY) > 300

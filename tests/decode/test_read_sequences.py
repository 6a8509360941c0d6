"""What a reader has read before changes nothing: each read equals that of a new reader, and the whole file.

Files joined from several encodes are the ones that show it: parameters come in their middle.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from paddlevideo_fast.decode import check_video, open_video
from paddlevideo_fast.decode.parameter_sets import ParameterSetChanges, ParameterSetSearch
from paddlevideo_fast.errors import VideoDecodeError
from tests.support.exact_corpus import CORPUS, in_sequence, write_corpus_clip
from tests.support.joined_clips import COLOURED, JOINED, PART_FRAMES, RESIZED, write_joined_clip
from tests.support.numbered_clips import read_number

NUM_STEPS = 14


def read_somehow(reader: Any, expected: list[np.ndarray], rng: np.random.Generator) -> None:
    """One step of a sequence: frames in any order, or a part of an iteration, or all of one."""
    if rng.random() < 0.15:
        count = int(rng.integers(1, len(expected) + 1))
        found, indices = list(islice(reader, count)), list(range(count))
    else:
        indices = rng.integers(0, len(expected), int(rng.integers(1, 5))).tolist()
        found = list(reader.read(indices))
    wrong = [index for index, frame in zip(indices, found) if not np.array_equal(frame, expected[index])]
    assert wrong == [], indices


@pytest.mark.parametrize("name", JOINED)
def test_any_sequence_of_reads_of_a_joined_file(name, tmp_path):
    clip = write_joined_clip(tmp_path, name)
    expected = in_sequence(clip.path)
    assert [read_number(frame) for frame in expected] == clip.numbers
    rng = np.random.default_rng(len(name))
    for on_corrupt in ("raise", "nearest"):
        with open_video(clip.path, on_corrupt=on_corrupt) as reader:
            for _ in range(NUM_STEPS):
                read_somehow(reader, expected, rng)
            assert reader.num_replaced == 0
    for index in rng.integers(0, len(expected), 5):
        with open_video(clip.path) as reader:
            assert np.array_equal(reader.read([index])[0], expected[index]), index
    assert check_video(clip.path) is None


@pytest.mark.parametrize("name", COLOURED)
def test_each_part_has_its_own_colours(name, tmp_path):
    path = write_joined_clip(tmp_path, name).path
    alone = []
    for index in range(4 * PART_FRAMES):
        with open_video(path) as reader:
            alone.append(reader.read([index])[0])
    rng = np.random.default_rng(len(name))
    with open_video(path) as reader:
        assert all(map(np.array_equal, reader, alone))
        assert np.array_equal(reader.read(range(len(alone))), alone)
        for _ in range(NUM_STEPS):
            read_somehow(reader, alone, rng)


def test_a_file_object_that_is_shared_with_a_forked_process(tmp_path):
    """Its position is shared too, so nothing is read from it after the opening."""
    path = write_joined_clip(tmp_path, "hevc_joined.mp4").path
    expected = in_sequence(path)
    with open(path, "rb") as file, open_video(file) as reader:
        file.close()
        for index in (40, 3, 30, 7):
            assert np.array_equal(reader.read([index])[0], expected[index])


@pytest.mark.parametrize("name", RESIZED)
def test_frames_of_another_size_are_an_error(name, tmp_path):
    path = write_joined_clip(tmp_path, name).path
    rng = np.random.default_rng(0)
    with open_video(path) as reader:
        for index in rng.permutation(reader.num_frames)[:16].tolist():
            if index < PART_FRAMES:
                assert read_number(reader.read([index])[0]) == index
            else:
                with pytest.raises(VideoDecodeError, match="the frame size changes .* 112×64 .* 80×48"):
                    reader.read([index])
    assert "the frame size changes" in check_video(path)


def changes_of(path: Path) -> ParameterSetChanges:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        search = ParameterSetSearch(stream.codec_context)
        search.add([packet for packet in container.demux(stream) if packet.size])
        return search.changes()


@pytest.mark.parametrize(
    ("name", "access_points", "reset_points"),
    [
        ("h264_joined_back.mkv", range(0, 96, 12), {24, 48, 72}),  # each key packet brings all
        ("h264_joined_said_once.mp4", [0, 12, 24], {24}),  # a new decoder would not know it at 36
        ("h264_joined_header.mp4", [0, 12, 24], {24}),
    ],
)
def test_where_a_new_decoder_knows_everything(name, access_points, reset_points, tmp_path):
    changes = changes_of(write_joined_clip(tmp_path, name).path)
    assert changes
    assert not changes.is_constant
    assert changes.random_access_points == list(access_points)
    assert changes.reset_points == reset_points


@pytest.mark.parametrize("name", [name for name in CORPUS if name.startswith(("h264", "hevc", "mp", "av1"))])
def test_ordinary_files_keep_their_decoder(name, tmp_path):
    """Where nothing changes, a flush is enough, and costs less than a new decoder."""
    changes = changes_of(write_corpus_clip(tmp_path, name, 26).path)
    assert changes.is_constant


def test_decoding_begins_where_the_version_of_an_old_x264_stands(tmp_path):
    """The first packet alone says it, and in 4:4:4 the pixels depend on it."""
    path = write_corpus_clip(tmp_path, "h264_444.mp4", 26).path
    assert len(changes_of(path).random_access_points) > 1
    data = path.read_bytes()
    at = data.index(b"x264 - core ") + len(b"x264 - core ")
    path.write_bytes(data[:at] + b"142" + data[at + 3 :])
    assert changes_of(path).random_access_points == [0]

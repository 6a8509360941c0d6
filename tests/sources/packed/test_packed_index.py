"""Indexes with a right checksum and one wrong number: an error of ours or no effect, in little memory."""

import json
import struct
import zlib

import cv2
import numpy as np
import pytest

from paddlevideo_fast.errors import PaddleVideoFastError, ShardError, VideoDecodeError
from paddlevideo_fast.loader import ClipRequest, DecodeSampler
from paddlevideo_fast.sources.packed.packed import open_shards
from paddlevideo_fast.sources.packed.packed_format import FRAME, HEADER, VIDEO, PackSettings, ShardWriter
from tests.fuzz_config import MAX_BYTES, limits

NUM_VIDEOS, NUM_FRAMES = 2, 3  # frames of each
SIZE = (16, 12)
NUMBERS = (0, 1, 2, 3, 5, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
FLOATS = (float("nan"), float("inf"), -1.0, 1e300, 5e-324)
# Nothing is computed from these, or any value in range is a right one.
FREE = {"plan", "reserved", "short_side", "quality", "label", "fps"}


def jpeg(number, size=SIZE):
    picture = np.full((size[1], size[0], 3), 40 * number, np.uint8)
    return cv2.imencode(".jpg", picture)[1].tobytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("set")
    with ShardWriter(folder, PackSettings(0, 1, 12, 90, bytes(16))) as shard:
        for video in range(NUM_VIDEOS):
            images = [jpeg(video * NUM_FRAMES + frame) for frame in range(NUM_FRAMES)]
            shard.add(f"{video}.mp4", video, 25.0, SIZE, images)
        shard.add_failure("c.mp4", "cut off")
    return folder


@pytest.fixture(scope="module")
def good(folder):
    """The bytes of the index."""
    return (folder / "00000.index").read_bytes()


@pytest.fixture(autouse=True)
def _the_good_index_afterwards(folder, good):
    yield
    (folder / "00000.index").write_bytes(good)


def read_all(folder):
    """All frames of a set, and what a data set does with the other numbers of its index."""
    pictures = []
    for shard in open_shards(folder):
        for video in range(len(shard)):
            with shard.open(video) as reader:
                frames = DecodeSampler(4, 2).sample(
                    reader.num_frames, reader.avg_fps, ClipRequest(0, 0), np.random.default_rng(0)
                )
                reader.read(frames.tolist())
                pictures += list(reader)
    return np.stack(pictures)


def outcome(folder, index):
    """Name of the error of a set with this index, or "reads" where its frames are the right ones."""
    (folder / "00000.index").write_bytes(index)
    try:
        with limits(None, MAX_BYTES):
            pictures = read_all(folder)
    except PaddleVideoFastError as error:
        return type(error).__name__
    means = pictures.mean(axis=(1, 2, 3))
    np.testing.assert_allclose(means, 40 * np.arange(NUM_VIDEOS * NUM_FRAMES), atol=2)
    return "reads"


def with_checksum(index, frames_offset):
    directory = bytes(index[16:frames_offset])
    return index[:12] + struct.pack("<I", zlib.crc32(directory)) + directory + index[frames_offset:]


def fields(record, start):
    """(name, place, kind) of the fields of a record."""
    for name, (kind, place) in record.fields.items():
        yield name, start + place, kind


def changes(good):
    """(field, index with another value in it, value), the checksum right, for each field of each record."""
    header = np.frombuffer(good, HEADER, 1)[0]
    end = int(header["frames_offset"])
    places = list(fields(HEADER, 0))
    for video in range(NUM_VIDEOS):
        places += fields(VIDEO, HEADER.itemsize + video * VIDEO.itemsize)
    for frame in (0, NUM_VIDEOS * NUM_FRAMES - 1):
        places += fields(FRAME, end + frame * FRAME.itemsize)
    for name, place, kind in places:
        if name == "crc32" and place < end:
            continue
        values = [struct.pack("<Q", number)[: kind.itemsize] for number in NUMBERS]
        if kind.kind == "f":
            values += [struct.pack("<d", number) for number in FLOATS]
        for value in values:
            value += bytes(kind.itemsize - len(value))
            changed = good[:place] + value + good[place + kind.itemsize :]
            if changed != good:
                yield name, with_checksum(changed, end), value


def test_any_number_of_an_index_may_be_wrong(folder, good):
    assert (
        outcome(folder, with_checksum(good, len(good) - 6 * FRAME.itemsize))
        == outcome(folder, good)
        == "reads"
    )
    outcomes = {}
    for name, index, value in changes(good):
        result = outcome(folder, index)
        outcomes.setdefault(result, set()).add(name)
        assert result != "reads" or name in FREE, (name, value)
    assert set(outcomes) == {"reads", "ShardError", "VideoDecodeError"}
    assert {"fps", "label", "quality", "num_shards", "frames_offset"} <= outcomes["ShardError"]


TEXTS = [
    {"names": ["a"]},
    {"names": ["a"], "failures": []},
    {"names": ["a", "b", "c"], "failures": []},
    {"names": ["a", 1], "failures": []},
    {"names": ["a", None], "failures": []},
    {"names": "ab", "failures": []},
    {"names": {"a": 1, "b": 2}, "failures": []},
    {"names": 2**70, "failures": []},
    {"names": ["a", "b"], "failures": [["a"]]},
    {"names": ["a", "b"], "failures": ["ab"]},
    {"names": ["a", "b"], "failures": [["a", 1]]},
    {"names": ["a", "b"], "failures": 1},
    {"failures": []},
    ["a", "b"],
    1,
    None,
]
RAW_TEXTS = [b"", b"{", b"\xff", b"[" * 100_000, b'{"names": ' + b"[" * 100_000, b"1" * 10_000, b"NaN"]


def test_any_text_of_an_index_may_be_wrong(folder, good):
    header = np.frombuffer(good, HEADER, 1).copy()
    start, end = HEADER.itemsize + NUM_VIDEOS * VIDEO.itemsize, int(header["frames_offset"][0])
    for text in [*(json.dumps(text).encode() for text in TEXTS), *RAW_TEXTS]:
        text += bytes(-len(text) % 16)
        header["frames_offset"] = start + len(text)
        index = header.tobytes() + good[HEADER.itemsize : start] + text + good[end:]
        expected = "reads" if b'["ab"]' in text else "ShardError"  # a word of two letters is a pair, too
        assert outcome(folder, with_checksum(index, start + len(text))) == expected, text[:40]


def test_numbers_that_contradict_each_other_are_named(folder, good):
    def problem(record, **values):
        changed = record.copy()
        for name, value in values.items():
            changed[name] = value
        place = 0 if record.dtype == HEADER else HEADER.itemsize
        index = good[:place] + changed.tobytes() + good[place + changed.nbytes :]
        (folder / "00000.index").write_bytes(with_checksum(index, len(good) - 6 * FRAME.itemsize))
        with pytest.raises(ShardError) as caught:
            read_all(folder)
        return str(caught.value).partition("is wrong: ")[2]

    header = np.frombuffer(good, HEADER, 1)
    videos = np.frombuffer(good, VIDEO, 2, HEADER.itemsize)
    again = "; pack this shard again"
    assert problem(header, num_videos=2**40) == f"it has no room for {2**40} videos{again}"
    assert problem(header, num_videos=1) == f"its videos have fewer than its 6 frames{again}"
    assert problem(header, shard=1) == f"shard 1 of 1, quality 90{again}"
    assert problem(videos, fps=np.nan) == f"video 0 has fps nan{again}"
    assert problem(videos, label=[1, -2]) == f"video 1 has label -2{again}"
    assert problem(videos, num_frames=[2**32 - 1, 3]) == f"video 1 has first_frame 3{again}"
    assert problem(videos, num_frames=[3, 4]) == f"video 1 has num_frames 4{again}"
    (folder / "00000.index").write_bytes(
        with_checksum(good[:20] + struct.pack("<I", 2**32 - 1) + good[24:], len(good) - 6 * FRAME.itemsize)
    )
    with pytest.raises(ShardError, match=r"4294967294 of 4294967295 shards are missing.*00001\.data"):
        read_all(folder)


def test_an_image_of_another_size_than_the_index_says(tmp_path):
    with ShardWriter(tmp_path, PackSettings(0, 1, 12, 90, bytes(16))) as shard:
        huge = bytearray(jpeg(1))
        start = huge.index(b"\xff\xc0") + 5
        huge[start : start + 4] = struct.pack(">HH", 30_000, 30_000)
        png = cv2.imencode(".png", np.zeros((9, 9, 3), np.uint8))[1].tobytes()
        shard.add("a.mp4", 0, 25.0, SIZE, [jpeg(0), bytes(huge), jpeg(1, (20, 12)), png])
    (shard,) = open_shards(tmp_path)
    with shard.open(0) as reader:
        reader.read([0])
        for frame, size in ((1, "30000×30000"), (2, "20×12"), (3, "9×9")):
            with (
                limits(None, MAX_BYTES),
                pytest.raises(VideoDecodeError, match=f"has {size}, its index says 16×12"),
            ):
                reader.read([frame])

"""Bytes lost, doubled or moved between frames: damage, and never other numbers for the frames left."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measuring import load
from paddlevideo_fast.decode import check_video, open_video
from paddlevideo_fast.errors import VideoDecodeError
from tests.support.damaged_clips import NUM_FRAMES, damaged, write_sources
from tests.support.judged_readers import READERS, REFUSED, REPLACED, RIGHT, WITHOUT_A_WORD, Trial, judge
from tests.support.numbered_clips import packets_of, read_number, write_clip

# Files in which libav reads on behind a hole, and that are written fast.
NAMES = (
    *("h264.mkv", "h264_live.mkv", "h264.ts", "h264.flv", "h264_fragments.mp4"),
    *("mpeg4.avi", "mjpeg.avi", "mpeg2.mpg"),
)
NUM_TRIALS = 64
LIVE = {"live": "1", "cluster_time_limit": "300"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    write_sources(folder, NAMES)
    return folder


def zeroed(path: Path, first: int, stop: int, target: Path) -> Path:
    """A copy without the bytes of packets `first` to `stop` - 1, in decoding order."""
    begins = [packet.pos for packet in packets_of(path)]
    data = bytearray(path.read_bytes())
    data[begins[first] : begins[stop]] = bytes(begins[stop] - begins[first])
    target.write_bytes(data)
    return target


def numbers_of(reader: Any) -> list[Any]:
    """The number of each frame; None for a frame that was replaced."""
    found = []
    for index in range(reader.num_frames):
        before = reader.num_replaced
        number = read_number(reader.read([index])[0])
        found.append(number if reader.num_replaced == before else None)
    return found


@pytest.mark.parametrize("reader", ["ours", "ours, nearest"])
def test_no_wrong_frame_without_a_word(reader, whole, tmp_path):
    """The trial of benchmarks/reader_trials.py in small; `damaged(folder, seed, NAMES)` gives a file."""
    outcomes = {}
    for seed in range(NUM_TRIALS):
        damage, data = damaged(whole, seed, NAMES)
        path = tmp_path / damage.source
        path.write_bytes(data)
        trial = Trial(path, "", list(range(NUM_FRAMES)), [[at / 7.01] for at in range(8)], {})
        outcomes[seed, damage] = judge(trial, READERS[reader](trial))
    counted = Counter(outcomes.values())
    silent = {key: outcome for key, outcome in outcomes.items() if outcome not in (REFUSED, REPLACED, RIGHT)}
    allowed = (
        {"h264_fragments.mp4", "h264_live.mkv"} if reader != "ours" else set()
    )  # nothing says their length
    assert [key for key in silent if key[1].source not in allowed] == []
    assert len(silent) <= 4
    assert counted[REFUSED] + counted[REPLACED] > NUM_TRIALS * 3 // 4
    assert (counted[REPLACED] > 0) == (reader != "ours")


@pytest.mark.smoke
def test_the_recorded_trial():
    result = load("reader_trials")
    damage, whole = result["parts"]["damage"], result["parts"]["whole"]
    assert damage["num_trials"] >= 2000
    assert all(sum(outcomes.values()) == damage["num_trials"] for outcomes in damage["readers"].values())
    assert len(damage["ours"]) < damage["num_trials"] // 100
    assert not any(damage["readers"]["ours, checked"][outcome] for outcome in WITHOUT_A_WORD)
    assert whole["readers"]["ours"][RIGHT] == whole["readers"]["ours, nearest"][RIGHT] == whole["num_trials"]
    assert "torchcodec" in damage["readers"]


@pytest.mark.parametrize("on_corrupt", ["raise", "nearest"])
@pytest.mark.parametrize("name", ["h264.mkv", "mpeg4.avi", "mjpeg.avi"])
def test_a_hole_in_the_middle(name, on_corrupt, whole, tmp_path):
    """A key frame and the frames behind it are lost, up to the next group and beyond it."""
    path = zeroed(whole / name, 36, 50, tmp_path / name)
    with pytest.raises(VideoDecodeError, match="damaged or cut off"):
        open_video(path, on_corrupt=on_corrupt)
    assert check_video(path)


@pytest.mark.parametrize("share", [0.35, 0.6, 0.9])
@pytest.mark.parametrize("name", [*NAMES[:-1], "h264.mp4"])
def test_frames_before_a_cut_keep_their_numbers(name, share, whole, tmp_path):
    """Replaced are frames that B-frames behind the cut may precede, and frames that the file counts there."""
    path = whole / name
    if name == "h264.mp4":
        path = tmp_path / name
        write_clip(path, NUM_FRAMES, bframes=2, gop=30, container_options={"movflags": "faststart"})
    data, path = path.read_bytes(), tmp_path / name
    path.write_bytes(data[: int(len(data) * share) - 5])
    with pytest.raises(VideoDecodeError, match="cut off"):
        open_video(path)
    with open_video(path, on_corrupt="nearest") as reader:
        numbers = numbers_of(reader)
        num_kept = sum(number is not None for number in numbers)
        assert reader.num_replaced == len(numbers) - num_kept
    assert [number for index, number in enumerate(numbers) if number not in (None, index)] == []
    assert num_kept > 0.7 * share * NUM_FRAMES - 22  # the first frame is larger


def lose_two_groups(packets):
    return [packet for place, packet in enumerate(packets) if not 24 <= place < 48]


@pytest.mark.parametrize("on_corrupt", ["raise", "nearest"])
def test_whole_groups_are_missing_from_a_live_recording(on_corrupt, tmp_path):
    """Nothing in the file has a size; only the time shows that frames are lost."""
    for name in ("clip.mkv", "clip.flv", "clip.ts"):
        path = tmp_path / name
        options = LIVE if name == "clip.mkv" else {}
        write_clip(path, 96, gop=12, container_options=options, arrange=lose_two_groups)
        with pytest.raises(VideoDecodeError, match=r"no frame for 25 frames' time after 0\.\d\d s"):
            open_video(path, on_corrupt=on_corrupt)


def test_whole_groups_are_missing_and_the_end_too(tmp_path):
    """A cut end does not hide the hole before it."""
    path = tmp_path / "clip.ts"
    write_clip(path, 96, gop=12, arrange=lose_two_groups)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(VideoDecodeError, match="ends within a packet"):
        open_video(path)
    with pytest.raises(VideoDecodeError, match="no frame for 25 frames' time"):
        open_video(path, on_corrupt="nearest")


def test_pauses_of_a_variable_rate_are_no_holes(tmp_path):
    """A recording of a screen, and one file of a constant rate that states the size of all its parts."""

    def pause_often(packets):
        return [packet for place, packet in enumerate(packets) if place % 5 or place % 12 == 0]

    def drop_one(packets):
        return packets[:30] + packets[31:]

    for name, options, arrange in (
        ("dropped.flv", {}, drop_one),
        ("live.mkv", LIVE, pause_often),
        ("screen.ts", {}, pause_often),
        ("sized.mkv", {}, lose_two_groups),
        ("table.mp4", {}, lose_two_groups),
    ):
        codec = {"gop": 1} if name.endswith(("ts", "flv")) else {"codec": "mjpeg", "pix_fmt": "yuvj420p"}
        numbers = write_clip(tmp_path / name, 60, container_options=options, arrange=arrange, **codec)
        with open_video(tmp_path / name) as reader:
            assert numbers_of(reader) == numbers, name


def test_an_mp4_whose_table_is_shorter_than_its_header(tmp_path):
    path = tmp_path / "clip.mp4"
    write_clip(path, 60, bframes=2)
    data = bytearray(path.read_bytes())
    for box in (b"stsz", b"stts"):
        at = data.index(box) + 12
        if data[at : at + 4] == (60).to_bytes(4, "big"):
            data[at : at + 4] = (40).to_bytes(4, "big")
    path.write_bytes(data)
    with pytest.raises(VideoDecodeError):
        open_video(path)


def test_a_message_is_heard_each_time(whole, tmp_path):
    """Two files with the same damage, one after the other: PyAV would pass over the second message."""
    path = zeroed(whole / "h264.mkv", 36, 50, tmp_path / "clip.mkv")
    causes = {check_video(path) for _ in range(3)}
    assert len(causes) == 1
    assert None not in causes


def test_a_damaged_time_does_not_make_millions_of_frames(tmp_path):
    path = tmp_path / "clip.flv"
    write_clip(path, 30, gop=1)
    data = bytearray(path.read_bytes())
    tag = packets_of(path)[-1].pos
    assert data[tag] == 9  # type, then 3 bytes of size, 3 of the time in milliseconds, and its highest byte
    data[tag + 4 : tag + 8] = b"\xff\xff\xff\x7f"
    path.write_bytes(data)
    for on_corrupt in ("raise", "nearest"):
        with pytest.raises(VideoDecodeError):
            open_video(path, on_corrupt=on_corrupt)

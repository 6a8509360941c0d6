"""Packed frames: what is written is read, and what is damaged is named."""

import contextlib
import os
import pickle
import subprocess
import sys

import cv2
import numpy as np
import pytest

from paddlevideo_fast.decode import open_frames
from paddlevideo_fast.decode.image_folder import decode_image, jpeg_size
from paddlevideo_fast.errors import ShardError, VideoDecodeError
from paddlevideo_fast.sources.packed.packed import open_shards
from paddlevideo_fast.sources.packed.packed_format import HEADER, PackSettings, ShardWriter

NAMES = ["walk/clip 0.mp4", "läuft.mp4"]
FPS = [25.0, 0.0]
LABELS = [7, 0]
SIZE = (64, 48)


def settings(shard=0, num_shards=1):
    return PackSettings(shard, num_shards, 48, 90, bytes(range(16)))


def jpeg_files(count, seed):
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 255, (count, 6, 8, 3), dtype=np.uint8)
    return [cv2.imencode(".jpg", cv2.resize(picture, SIZE))[1].tobytes() for picture in coarse]


@pytest.fixture(scope="module")
def images():
    """The JPEG files of two videos."""
    return [jpeg_files(9, 0), jpeg_files(5, 1)]


@pytest.fixture
def folder(tmp_path, images):
    """A set of one shard with both videos."""
    with ShardWriter(tmp_path / "set", settings()) as shard:
        for name, label, fps, files in zip(NAMES, LABELS, FPS, images):
            shard.add(name, label, fps, SIZE, files)
        shard.add_failure("broken.mp4", "cut off")
    return tmp_path / "set"


def rgb(file):
    return cv2.cvtColor(cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


def test_what_was_written_is_read(folder, images):
    (shard,) = open_shards(folder)
    assert len(shard) == 2
    assert shard.directory.names == NAMES
    assert shard.directory.videos["label"].tolist() == LABELS
    assert shard.directory.failures == [("broken.mp4", "cut off")]
    assert shard.directory.settings == settings()
    for video, files in enumerate(images):
        with shard.open(video) as reader:
            assert (reader.num_frames, reader.avg_fps) == (len(files), FPS[video])
            assert (reader.width, reader.height) == SIZE
            expected = np.stack([rgb(file) for file in files])
            np.testing.assert_array_equal(np.stack(list(reader)), expected)
            some = [3, 0, 3, 4]
            np.testing.assert_array_equal(reader.read(some), expected[some])
            with pytest.raises(VideoDecodeError, match="out of range"):
                reader.read([len(files)])
        with pytest.raises(VideoDecodeError, match="closed"):
            reader.read([0])


def test_a_repeated_frame_is_decoded_once(folder, monkeypatch):
    decoded = []
    monkeypatch.setattr(
        "paddlevideo_fast.decode.image_folder.decode_image",
        lambda data, path, *rest: decoded.append(path) or decode_image(data, path, *rest),
    )
    open_shards(folder)[0].open(0).read([2, 5, 2, 2])
    assert len(decoded) == 2


def test_an_altered_frame_is_named_and_others_stay_readable(folder, images):
    data = folder / "00000.data"
    content = bytearray(data.read_bytes())
    place = sum(map(len, images[0][:6])) + len(images[0][6]) // 2
    content[place] ^= 1
    data.write_bytes(content)
    (shard,) = open_shards(folder)
    reader = shard.open(0)
    reader.read([0, 5, 7])
    with pytest.raises(VideoDecodeError, match="frame 6 is altered") as error:
        reader.read([5, 6])
    assert error.value.path == f"{data}:{NAMES[0]}"


def test_a_data_file_cut_off_while_it_is_open(folder, images):
    reader = open_shards(folder)[0].open(1)
    reader.read([0, 4])
    os.truncate(folder / "00000.data", sum(map(len, images[0])) + len(images[1][0]))
    reader.read([0])
    with pytest.raises(VideoDecodeError, match=r"läuft.mp4: cannot be decoded: frame 1 is cut off"):
        reader.read([1])


def test_an_index_cut_off_while_it_is_open(folder):
    reader = open_shards(folder)[0].open(1)
    reader.read([0])
    os.truncate(folder / "00000.index", 300)
    with pytest.raises(ShardError, match=r"00000\.index: was cut off while it was in use"):
        reader.read([0])


def test_a_data_file_taken_away_before_the_first_read(folder):
    reader = open_shards(folder)[0].open(1)
    (folder / "00000.data").unlink()
    with pytest.raises(ShardError, match=r"00000\.data: cannot be read any more"):
        reader.read([0])


def alter(place, value):
    def change(content):
        content[place : place + len(value)] = value

    return change


def cut(content):
    del content[-5:]


DAMAGE = {
    "not an index": ("index", alter(0, b"x"), "is no index of packed frames"),
    "other version": ("index", alter(8, b"\2"), "has version 2 of the format, and this program reads 1"),
    "altered label": ("index", alter(HEADER.itemsize + 16, b"\xee"), "its checksum differs"),
    "altered name": ("index", alter(HEADER.itemsize + 2 * 32 + 15, b"zz"), "its checksum differs"),
    "cut index": ("index", cut, "is cut off or altered"),
    "short header": ("index", lambda content: content.__delitem__(slice(40, None)), "is cut off"),
    "empty index": ("index", bytearray.clear, "is empty"),
    "cut data": ("data", cut, "cut off: it has"),
    "longer data": ("data", lambda content: content.extend(b"more"), "altered: it has"),
}


@pytest.mark.parametrize(("ending", "change", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_shard_does_not_open(folder, ending, change, message):
    path = folder / f"00000.{ending}"
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    with pytest.raises(ShardError, match=message) as error:
        open_shards(folder)
    assert str(error.value).startswith(str(path))


def test_a_set_that_is_not_whole_does_not_open(tmp_path, images):
    with pytest.raises(ShardError, match="no folder of packed frames"):
        open_shards(tmp_path / "nowhere")
    with pytest.raises(ShardError, match="make them with  paddlevideo-fast data pack"):
        open_shards(tmp_path)
    for shard in (0, 2):
        with ShardWriter(tmp_path, settings(shard, 3)) as writer:
            writer.add("a", 0, 0.0, SIZE, images[0])
    with pytest.raises(ShardError, match=r"1 of 3 shards are missing, the first one is .*00001\.data"):
        open_shards(tmp_path)
    with ShardWriter(tmp_path, settings(1, 2)) as writer:
        writer.add("a", 0, 0.0, SIZE, images[0])
    with pytest.raises(ShardError, match="belong to different sets"):
        open_shards(tmp_path)
    with ShardWriter(tmp_path, settings(1, 3)) as writer:
        writer.add("a", 0, 0.0, SIZE, images[0])
    assert len(open_shards(tmp_path)) == 3
    (tmp_path / "00002.data").unlink()
    with pytest.raises(ShardError, match=r"00002\.data: cannot be read"):
        open_shards(tmp_path)
    os.rename(tmp_path / "00001.index", tmp_path / "00002.index")
    os.rename(tmp_path / "00001.data", tmp_path / "00002.data")
    with pytest.raises(ShardError, match="was packed as number 1"):
        open_shards(tmp_path)


def test_what_is_not_finished_leaves_nothing(tmp_path, images):
    def breaks_off():
        yield images[0][0]
        raise VideoDecodeError("clip", "cut off")

    with ShardWriter(tmp_path, settings()) as shard:
        shard.add("a", 0, 0.0, SIZE, images[0])
        with pytest.raises(VideoDecodeError):
            shard.add("b", 0, 0.0, SIZE, breaks_off())
        with pytest.raises(ValueError, match="no frames"):
            shard.add("c", 0, 0.0, SIZE, [])
        shard.add("d", 1, 0.0, SIZE, images[1])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before["00000.data"] == b"".join(images[0] + images[1])
    assert open_shards(tmp_path)[0].directory.names == ["a", "d"]
    with contextlib.suppress(InterruptedError), ShardWriter(tmp_path, settings()) as shard:
        shard.add("e", 0, 0.0, SIZE, images[0])
        raise InterruptedError
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_shard_without_videos(tmp_path):
    with ShardWriter(tmp_path, settings()) as shard:
        shard.add_failure("a", "cut off")
    (shard,) = open_shards(tmp_path)
    assert (len(shard), shard.directory.failures) == (0, [("a", "cut off")])


def open_handles():
    return len(os.listdir("/proc/self/fd"))


def test_many_shards_take_few_handles_and_give_them_back(tmp_path, images, monkeypatch):
    monkeypatch.setattr("paddlevideo_fast.sources.packed.packed._MAX_MAPS", 6)
    for number in range(20):
        with ShardWriter(tmp_path, settings(number, 20)) as writer:
            writer.add("a", 0, 0.0, SIZE, images[number % 2])
    before = open_handles()
    shards = open_shards(tmp_path)
    assert open_handles() == before
    for number in list(range(20)) * 2:
        np.testing.assert_array_equal(shards[number].open(0).read([2])[0], rgb(images[number % 2][2]))
        assert open_handles() <= before + 6
    del shards
    assert open_handles() == before


def test_a_spawned_process_gets_shards_without_their_maps(folder, images):
    (shard,) = open_shards(folder)
    shard.open(0).read([0])
    code = "import pickle, sys; s = pickle.load(sys.stdin.buffer); print(s.open(0).read([1]).tobytes().hex())"
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(shard), capture_output=True, check=True
    )
    assert bytes.fromhex(done.stdout.decode()) == rgb(images[0][1]).tobytes()


def test_the_size_of_a_jpeg_is_in_its_header(images):
    file = images[0][0]
    exif = b"\xff\xe1\0\x0aExif\0\0\0\0"
    comment = b"\xff\xfe\0\x06text"
    progressive = cv2.imencode(".jpg", rgb(file)[:30], [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes()
    assert jpeg_size(file) == jpeg_size(file[:2] + comment + file[2:]) == SIZE
    assert jpeg_size(progressive) == (64, 30)
    for other in (
        file[:2] + exif + file[2:],
        file[:100],
        b"",
        b"\xff\xd8",
        cv2.imencode(".png", rgb(file))[1].tobytes(),
    ):
        assert jpeg_size(other) is None


def test_a_folder_of_frames_decodes_no_frame_for_its_size(tmp_path, images, monkeypatch):
    for number, file in enumerate(images[0], 1):
        (tmp_path / f"img_{number:05}.jpg").write_bytes(file)
    decoded = []
    monkeypatch.setattr(
        "paddlevideo_fast.decode.image_folder.decode_image",
        lambda data, path, *rest: decoded.append(path) or decode_image(data, path, *rest),
    )
    with open_frames(tmp_path) as reader:
        assert (reader.width, reader.height) == SIZE
        np.testing.assert_array_equal(reader.read([4, 4])[0], rgb(images[0][4]))
    assert decoded == [str(tmp_path / "img_00005.jpg")]


def test_a_folder_with_an_image_cut_off(tmp_path, images):
    for number, file in enumerate(images[0], 1):
        (tmp_path / f"img_{number:05}.jpg").write_bytes(file[:-9] if number == 3 else file)
    reader = open_frames(tmp_path)
    reader.read([0, 3])
    with pytest.raises(VideoDecodeError, match=r"img_00003\.jpg: cannot be decoded: the image is cut off"):
        reader.read([2])


def test_a_damaged_image_is_an_error(images):
    file = images[0][0]
    np.testing.assert_array_equal(decode_image(file, "x.jpg"), rgb(file))
    np.testing.assert_array_equal(decode_image(file + bytes(100), "x.jpg"), rgb(file))
    for end in (len(file) - 1, len(file) // 2, 700):
        with pytest.raises(VideoDecodeError, match="the image is cut off"):
            decode_image(file[:end], "x.jpg")
    thumbnail = b"\xff\xe1" + (len(file) + 2).to_bytes(2, "big") + file  # as cameras embed it
    with_preview = file[:2] + thumbnail + file[2:]
    np.testing.assert_array_equal(decode_image(with_preview, "x.jpg"), rgb(file))
    with pytest.raises(VideoDecodeError, match="the image is cut off"):
        decode_image(with_preview[:-300], "x.jpg")
    start = file.index(b"\xff\xc0") + 5
    with pytest.raises(VideoDecodeError, match="not an image, or damaged"):  # it says it is 65500×65500
        decode_image(file[:start] + b"\xff\xdc\xff\xdc" + file[start + 4 :], "x.jpg")
    with pytest.raises(VideoDecodeError, match="empty"):
        decode_image(b"", "x.jpg")
    with pytest.raises(VideoDecodeError, match="not an image"):
        decode_image(b"text", "x.jpg")

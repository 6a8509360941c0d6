"""Pictures are turned and mirrored as the display matrix says, on every path; it is applied here by hand."""

import av
import cv2
import numpy as np
import pytest

from paddlevideo_fast.apps.data.encoding import Settings, prepare
from paddlevideo_fast.apps.predict.live import LiveSource
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.decode.orientation import turned
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.sources.frame_cache.frame_cache import FrameCache
from tests.support.exact_corpus import with_data
from tests.support.numbered_clips import draw, packets_of, write_clip, write_matrix

SIZE = (96, 64)
EIGHT = [
    (a, b, c, d) for a in (-1, 0, 1) for b in (-1, 0, 1) for c in (-1, 0, 1) for d in (-1, 0, 1)
    if abs(a * d - b * c) == 1 and a * b == c * d == 0 and abs(a) + abs(b) == 1
]  # fmt: skip


def shown(picture, matrix):
    """Where the matrix puts each pixel: (x, y) goes to (ax + cy, bx + dy), moved to begin at 0."""
    a, b, c, d = matrix
    height, width = picture.shape[:2]
    y, x = np.mgrid[:height, :width]
    to_x, to_y = a * x + c * y, b * x + d * y
    to_x, to_y = to_x - to_x.min(), to_y - to_y.min()
    result = np.empty((to_y.max() + 1, to_x.max() + 1, *picture.shape[2:]), picture.dtype)
    result[to_y, to_x] = picture
    return result


def sei(codec, quarter_turns, mirrored, wanted):
    """For `write_clip`: "display orientation", behind another message, in the packets with these numbers."""
    bits = f"0{mirrored:b}0{quarter_turns << 14:016b}"  # not cancelled; left and right, not top and bottom
    bits += "0100" if codec == "libx264" else "1"  # until the next one
    payload = int((bits + "1").ljust(24, "0"), 2).to_bytes(3, "big").replace(b"\0\0", b"\0\0\3")
    unit = b"\x06" if codec == "libx264" else b"\x4e\x01"
    unit = b"\0\0\0\1" + unit + b"\x05\x12" + bytes(range(1, 19)) + b"\x2f\x03" + payload + b"\x80"

    def arrange(packets):
        arranged = list(packets)
        for number in wanted:
            arranged[number] = with_data(packets[number], unit + bytes(packets[number]))
        return arranged

    return arrange


def require_all_paths(path, matrix, folder):
    """Reads a numbered clip on each path: every frame of it is shown as the matrix says."""

    def compare(frames, numbers, most):
        for frame, number in zip(frames, numbers, strict=True):
            expected = shown(draw(number, *SIZE), matrix)
            assert frame.shape == expected.shape
            assert np.abs(frame.astype(int) - expected).mean() < most

    cache = FrameCache(folder / "frames", 0.1)
    for options in ({}, {"frames": cache}, {"frames": cache}, {"backend": "cv2"}, {"on_corrupt": "nearest"}):
        with open_video(path, **options) as reader:
            compare(reader.read([17, 3]), [17, 3], 9)
            compare(list(reader), range(24), 9)
            assert (reader.height, reader.width) == shown(draw(0, *SIZE), matrix).shape[:2]
    copy = folder / "copy.mp4"
    prepare(path, copy, Settings("intra", 64))
    with av.open(str(copy)) as container:
        assert not any(frame.rotation for frame in container.decode(video=0))
    with open_video(copy) as reader:
        compare(list(reader), range(24), 9)
    with LiveSource(path, 100.0, "wait", num_reconnects=0) as source:
        source.wait_until(23 / 25 - 0.01)
        compare(source.take(0.0, 100.0), range(24), 9)


def test_the_eight_orientations(tmp_path):
    assert len(EIGHT) == 8
    chart = np.arange(24, dtype=np.uint8).reshape(4, 6)
    ways = {turned(chart, way).tobytes() + bytes(turned(chart, way).shape): way for way in range(8)}
    assert {ways[one.tobytes() + bytes(one.shape)] for matrix in EIGHT for one in [shown(chart, matrix)]} == {
        *range(8)
    }
    for number, matrix in enumerate(EIGHT):
        folder = tmp_path / str(number)
        write_clip(folder / "a.mp4", 24, SIZE, gop=8, bframes=2)
        require_all_paths(write_matrix(folder / "a.mp4", matrix), matrix, folder)


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
@pytest.mark.parametrize("ending", ["mp4", "mkv", "ts"])
@pytest.mark.parametrize(("way", "matrix"), [(1, (0, -1, 1, 0)), (3, (0, 1, -1, 0)), (4, (-1, 0, 0, 1))])
def test_orientation_beside_the_pictures(codec, ending, way, matrix, tmp_path):
    """It stands in the first packet, or in all key packets; decoders give it with these alone."""
    path = tmp_path / f"a.{ending}"
    for wanted in ([0], [0, 8, 16]):
        write_clip(path, 24, SIZE, codec, gop=8, arrange=sei(codec, way % 4, way // 4, wanted))
        require_all_paths(str(path), matrix, tmp_path / str(len(wanted)))


def test_orientation_of_a_recording_that_begins_between_key_frames(tmp_path):
    def arrange(packets):
        return sei("libx264", 1, 0, [0, 8, 16])(packets)[3:]

    write_clip(tmp_path / "a.ts", 24, SIZE, gop=8, arrange=arrange)
    with open_video(tmp_path / "a.ts") as video:
        assert (video.num_frames, video.width) == (16, SIZE[1])
        expected = shown(draw(13, *SIZE), (0, -1, 1, 0))
        assert np.abs(video.read([5])[0].astype(int) - expected).mean() < 9


@pytest.mark.parametrize("matrix", EIGHT)
def test_the_header_of_an_mp4_file_says_it_without_a_decoded_picture(matrix, tmp_path, monkeypatch):
    write_clip(tmp_path / "a.mp4", 8, SIZE)
    path, height_and_width = write_matrix(tmp_path / "a.mp4", matrix), shown(draw(0, *SIZE), matrix).shape[:2]
    with open_video(path) as by_picture:
        by_picture._decoder.stored_orientation = None
        orientation = by_picture.orientation
    with open_video(path) as video:
        monkeypatch.setattr(video._decoder, "_pictures", lambda: pytest.fail("a picture was decoded"))
        assert (video.height, video.width, video.orientation) == (*height_and_width, orientation)


def test_orientation_in_matroska(tmp_path):
    write_clip(tmp_path / "a.mp4", 8, SIZE, gop=8)
    for matrix in EIGHT:
        write_matrix(tmp_path / "a.mp4", matrix)
        with av.open(str(tmp_path / "a.mp4")) as source, av.open(str(tmp_path / "a.mkv"), "w") as copy:
            copy.metadata["title"] = "long" * 10_000  # it stands before the track
            stream = copy.add_stream_from_template(source.streams.video[0])
            for packet in source.demux(video=0):
                if packet.size:
                    packet.stream = stream
                    copy.mux(packet)
        with open_video(tmp_path / "a.mkv") as video:
            expected = shown(draw(5, *SIZE), matrix)
            assert (video.height, video.width) == expected.shape[:2]
            assert np.abs(video.read([5])[0].astype(int) - expected).mean() < 9


def test_an_odd_angle_is_told(tmp_path):
    write_clip(tmp_path / "a.mp4", 4, SIZE)
    half = 0.7071
    path = write_matrix(tmp_path / "a.mp4", (half, -half, half, half))
    for use in (lambda video: video.width, lambda video: video.read([2]), list):
        with open_video(path) as video, pytest.raises(VideoDecodeError, match="turned by 45°.*re-encode"):
            use(video)
    write_matrix(tmp_path / "a.mp4", (0.99999, 0.01, -0.01, 0.99999))  # half a degree is rounding
    with open_video(path) as video:
        assert np.abs(video.read([2])[0].astype(int) - draw(2, *SIZE)).mean() < 9


def test_orientation_that_changes_is_told(tmp_path):
    """Two recordings of one size, joined; the second one is shown upside down."""
    with open(tmp_path / "joined.ts", "wb") as joined:
        for way in (1, 3):
            write_clip(tmp_path / "one.ts", 12, SIZE, gop=12, arrange=sei("libx264", way, 0, [0]))
            joined.write((tmp_path / "one.ts").read_bytes())
    stream = b"".join(bytes(packet) for packet in packets_of(tmp_path / "joined.ts"))
    (tmp_path / "joined.h264").write_bytes(stream)
    with open_video(tmp_path / "joined.h264") as video:
        assert np.abs(turned(video.read([5])[0], 3).astype(int) - draw(5, *SIZE)).mean() < 9
        with pytest.raises(VideoDecodeError, match="not all turned in the same way"):
            video.read([19])


def exif(orientation):
    """The segment of a JPEG that says how a camera was held."""
    entry = bytes.fromhex("0112 0003 00000001") + orientation.to_bytes(2, "big") + bytes(2)
    content = b"Exif\0\0MM\0*\0\0\0\x08\0\x01" + entry + bytes(4)
    return b"\xff\xe1" + (len(content) + 2).to_bytes(2, "big") + content


# (a, b, c, d) of the display matrix by the number of Exif, from 1 on
EXIF = [(1, 0, 0, 1), (-1, 0, 0, 1), (-1, 0, 0, -1), (1, 0, 0, -1)]
EXIF += [(0, 1, 1, 0), (0, 1, -1, 0), (0, -1, -1, 0), (0, -1, 1, 0)]


@pytest.mark.parametrize("number", range(1, 9))
def test_motion_jpeg_is_shown_as_exif_says(number, tmp_path):
    def arrange(packets):
        return [with_data(packet, bytes(packet)[:2] + exif(number) + bytes(packet)[2:]) for packet in packets]

    write_clip(tmp_path / "a.avi", 24, SIZE, "mjpeg", pix_fmt="yuvj420p", arrange=arrange)
    require_all_paths(str(tmp_path / "a.avi"), EXIF[number - 1], tmp_path)


def test_images_are_shown_as_exif_says(tmp_path):
    """As the cameras of phones write photographs."""
    for number in (1, 2):
        _, jpeg = cv2.imencode(".jpg", draw(number, *SIZE)[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 98])
        marked = jpeg.tobytes()[:2] + exif(5) + jpeg.tobytes()[2:]  # transposed
        (tmp_path / f"img_0000{number}.jpg").write_bytes(marked)
    with open_video(tmp_path) as video:
        assert (video.width, video.height) == SIZE[::-1]
        assert np.abs(video.read([1])[0].astype(int) - shown(draw(2, *SIZE), (0, 1, 1, 0))).mean() < 3

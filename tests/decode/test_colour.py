"""RGB by the matrix and the range a picture is tagged with, against the equations of the standards."""

from __future__ import annotations

import av
import numpy as np
import pytest

from paddlevideo_fast.apps.data.encoding import Settings, prepare
from paddlevideo_fast.decode import colour, open_video
from paddlevideo_fast.decode.colour import Picture, RgbConverter
from paddlevideo_fast.errors import VideoDecodeError
from tests.support.numbered_clips import packets_of

# Share of red and of blue in the brightness, by AVColorSpace: BT.709, unknown, BT.601 (625 and 525), BT.2020.
_SHARES = {1: (0.2126, 0.0722), 2: (0.299, 0.114), 5: (0.299, 0.114), 6: (0.299, 0.114), 9: (0.2627, 0.0593)}
_YCGCO = 8
_YUV = (120, 90, 180)  # of 8 bits
_TOLERANCE = 2.5  # levels of 255: libswscale cuts off where the equations round


def equation(space: int, is_full: bool) -> np.ndarray:
    y, u, v = (value - 128 for value in _YUV)
    if space == _YCGCO:  # of RGB in the range of the picture
        rgb = np.array([y - u + v, y + u, y - u - v]) + 128
        return np.clip(rgb if is_full else (rgb - 16) * 255 / 219, 0, 255)
    red_share, blue_share = _SHARES[space]
    light = (y + 128) / 255 if is_full else (y + 112) / 219
    span = 255 if is_full else 224
    red, blue = light + 2 * (1 - red_share) * v / span, light + 2 * (1 - blue_share) * u / span
    green = (light - red_share * red - blue_share * blue) / (1 - red_share - blue_share)
    return np.clip(np.array([red, green, blue]) * 255, 0, 255)


def picture(pixel_format: str, space: int, colour_range: int) -> av.VideoFrame:
    frame = av.VideoFrame(66, 34, pixel_format)
    bits = frame.format.components[0].bits
    for plane, value in zip(frame.planes, _YUV):
        samples = plane.buffer_size // (2 if bits > 8 else 1)
        plane.update(np.full(samples, value << (bits - 8), np.uint16 if bits > 8 else np.uint8).tobytes())
    frame.colorspace, frame.color_range = space, colour_range
    return frame


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "yuvj420p"])
def test_matrix_and_range(pixel_format):
    to_rgb = RgbConverter()
    for colour_range in (0, 1, 2, 1, 0):  # unknown, limited, full, and back: nothing of the last one stays
        for space in (*_SHARES, _YCGCO, 1, 5):
            is_full = colour_range == 2 or "j" in pixel_format
            rgb = to_rgb(picture(pixel_format, space, colour_range))
            assert rgb.shape == (34, 66, 3)
            assert np.abs(rgb - equation(space, is_full)).max() <= _TOLERANCE, (space, colour_range)


def test_rgb_and_grey_stay_as_they_are():
    to_rgb = RgbConverter()
    noise = np.random.default_rng(0).integers(0, 256, (34, 66, 3), np.uint8)
    assert np.array_equal(to_rgb(av.VideoFrame.from_ndarray(noise, "rgb24")), noise)
    grey = to_rgb(av.VideoFrame.from_ndarray(noise[..., 0], "gray"))
    assert np.array_equal(grey, np.repeat(noise[..., :1], 3, axis=2))


@pytest.mark.parametrize(
    ("space", "told"), [(10, "constant luminance"), (12, "their primaries"), (14, "ICtCp"), (16, "YCgCo-Re")]
)
def test_other_colours_are_told(space, told):
    with pytest.raises(VideoDecodeError, match=rf"^a\.mp4: .*{told}.*not supported: re-encode"):
        RgbConverter("a.mp4")(picture("yuv420p", space, 1))


def chart_clip(path, space, colour_range, num_frames=6):
    """A clip of eight bars with the same values, whatever matrix and range its pictures are tagged with."""
    keys = {"x264-params": "log-level=-1"}
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"crf": "1", **keys})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.colorspace, stream.codec_context.color_range = space, colour_range
        for number in range(num_frames):
            frame = av.VideoFrame(64, 48, "yuv420p")
            for plane, low, high in zip(frame.planes, (80, 104, 104), (160, 152, 152)):
                bars = np.linspace(low, high, 8)[(np.arange(8) * (3, 5, 7)[plane.height % 3] + number) % 8]
                row = np.repeat(bars, plane.width // 8).astype(np.uint8)
                plane.update(np.resize(np.pad(row, (0, plane.line_size - len(row))), plane.buffer_size))
            frame.colorspace, frame.color_range, frame.pts = space, colour_range, number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def require_equal_copy(source, target, num_frames):
    """The prepared copy looks like its source, and says its colours in its header as in its pictures."""
    prepare(str(source), target, Settings("intra", 48))
    with open_video(source) as before, open_video(target) as after:
        assert after.num_frames == before.num_frames == num_frames
        for one, other in zip(before, after):
            assert np.abs(one.astype(int) - other).mean() < 3
    with av.open(str(target)) as container:
        codec = container.streams.video[0].codec_context
        header = (int(codec.colorspace), int(codec.color_range))
        assert {(int(frame.colorspace), int(frame.color_range)) for frame in container.decode(video=0)} == {
            header
        }
    return header


def test_a_copy_follows_the_pictures_where_the_header_says_otherwise(tmp_path):
    chart_clip(tmp_path / "a.mkv", 6, 1)
    matrix_is = b"\x55\xb1\x81"  # Matroska's element, of one byte
    data = (tmp_path / "a.mkv").read_bytes()
    assert data.count(matrix_is + b"\6") == 1
    (tmp_path / "a.mkv").write_bytes(data.replace(matrix_is + b"\6", matrix_is + b"\1"))
    with av.open(str(tmp_path / "a.mkv")) as container:
        assert int(container.streams.video[0].codec_context.colorspace) == 1
        assert int(next(container.decode(video=0)).colorspace) == 6
    assert require_equal_copy(tmp_path / "a.mkv", tmp_path / "copy.mp4", 6) == (6, 1)


@pytest.mark.parametrize("second", [(6, 1), (1, 2), (7, 2), (_YCGCO, 1)])
@pytest.mark.parametrize("first", [(1, 1), (6, 2), (_YCGCO, 2)])
def test_a_copy_has_the_colours_of_each_picture(first, second, tmp_path):
    stream = b""
    for tags in (first, second):
        chart_clip(tmp_path / "part.ts", *tags)
        stream += b"".join(bytes(packet) for packet in packets_of(tmp_path / "part.ts"))
    (tmp_path / "a.h264").write_bytes(stream)
    with open_video(tmp_path / "a.h264") as video:
        frames = video.read([0, 6]).astype(int)
        assert np.abs(frames[0] - frames[1]).max() >= 8  # the same values say other colours
    header = require_equal_copy(tmp_path / "a.h264", tmp_path / "copy.mp4", 12)
    assert header == (first if first[0] != _YCGCO else (6, 1))


@pytest.mark.parametrize(
    "pixel_format", ["yuv420p", "yuvj420p", "yuv422p", "yuv444p", "yuv420p10le", "nv12", "gray"]
)
def test_a_part_has_the_pixels_of_the_whole(pixel_format, monkeypatch):
    monkeypatch.setattr(colour, "_LEAST_SAVED", 0)
    rng, to_rgb = np.random.default_rng(0), RgbConverter()
    for number in range(60):
        width, height = (int(side) for side in rng.integers(20, 200, 2))
        frame = av.VideoFrame(width, height, pixel_format)
        for plane in frame.planes:
            has_16_bits = frame.format.components[0].bits > 8
            values = rng.integers(0, 1024 if has_16_bits else 256, plane.buffer_size >> has_16_bits)
            plane.update(values.astype(np.uint16 if has_16_bits else np.uint8).tobytes())
        frame.colorspace, frame.color_range = (1, 5)[number % 2], (1, 2)[number // 2 % 2]
        (top, bottom), (left, right) = (sorted(rng.integers(0, side, 2)) for side in (height, width))
        rows, columns = (
            slice(top, bottom + 1),
            slice(left, right + 3),
        )  # may reach over the edge, as of arrays
        for orientation in (0, 1, 4):
            shown = Picture(frame, to_rgb, orientation)
            whole = np.asarray(shown)
            assert shown.shape == whole.shape
            assert np.array_equal(shown[rows, columns], whole[rows, columns]), (width, height, rows, columns)


def test_only_a_part_of_a_large_picture_is_converted(monkeypatch):
    sizes = []
    convert = RgbConverter._converted
    monkeypatch.setattr(
        RgbConverter,
        "_converted",
        lambda self, frame: sizes.append((frame.width, frame.height)) or convert(self, frame),
    )
    monkeypatch.setattr(colour, "_LEAST_SAVED", 300)
    shown = Picture(picture("yuv420p", 1, 1), RgbConverter(), 0)
    assert shown[3:21, 9:20].shape == (18, 11, 3)
    assert shown[0:34, 0:60].shape == (34, 60, 3)
    assert sizes == [(12, 20), (66, 34)]  # from even pixels to even ones; most of it is converted as a whole

"""RGB by the matrix and the range a picture is tagged with, against the equations of the standards."""

from __future__ import annotations

import av
import numpy as np
import pytest

from paddlevideo_fast.decode.colour import RgbConverter

# Share of red and of blue in the brightness, by AVColorSpace: BT.709, unknown, BT.601 (625 and 525), BT.2020.
_SHARES = {1: (0.2126, 0.0722), 2: (0.299, 0.114), 5: (0.299, 0.114), 6: (0.299, 0.114), 9: (0.2627, 0.0593)}
_YUV = (120, 90, 180)  # of 8 bits
_TOLERANCE = 2.5  # levels of 255: libswscale cuts off where the equations round


def equation(space: int, is_full: bool) -> np.ndarray:
    red_share, blue_share = _SHARES[space]
    y, u, v = (value - 128 for value in _YUV)
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
        for space in (*_SHARES, 1, 5):
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

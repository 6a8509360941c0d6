"""What a video looks like, small enough to compare a hundred thousand of them.

Eight times a second, two hashes of 64 bits are taken of the picture on display, scaled to 32×32 grey pixels:

    look      signs of the lowest DCT coefficients of each quadrant, so a logo changes one quarter of it
    motion    signs of the lowest DCT coefficients of the difference between the pictures half a second later
              and half a second earlier, so what stands still, such as a scene or a logo, is no part of it

A re-encoded or scaled copy keeps nearly all bits of both. Two recordings of one scene share the look and
not the motion. The hashes of a mirrored video follow from the hashes of the video, see `Prints.mirrored`.

Reference:
    C. Zauner, "Implementation and benchmarking of perceptual image hash functions", 2010: signs of the lowest
    DCT coefficients as the hash of a picture.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np

from paddlevideo_fast.apps.data.clips import ReadClip
from paddlevideo_fast.decode import Span, VideoReader
from paddlevideo_fast.errors import VideoDecodeError

RATE = 8  # pictures a second

_VERSION = 2  # raised when the same video gives another fingerprint
_SIDE = 32  # pixels of the scaled picture
_SCALE = 4096  # of DCT coefficients, in each direction
_LAG = 4  # pictures between a picture and both ends of its motion
_MIN_CONTRAST = 6.0  # standard deviation in grey levels; a picture below is black or flat
_MIN_MOTION = 1.5  # grey levels; a smaller difference may be noise of the encoder
_MAX_SEC = 100 * 3600
_FPS_OF_IMAGES = 25  # where nothing says when frames are shown
_PRINT = np.dtype([("frame", "<u4"), ("look", "<u8"), ("motion", "<u8")])


def _dct(size: int, count: int) -> np.ndarray:
    """The first rows of the orthonormal DCT-II times 4096: whole numbers as float64 [count, size].

    Sums of their products with pictures are exact, so no machine rounds a sign differently.
    """
    rows = np.cos(np.pi * np.arange(count)[:, None] * (2 * np.arange(size) + 1) / (2 * size))
    rows[0] /= math.sqrt(2)
    return np.rint(rows * math.sqrt(2 / size) * _SCALE)


_OF_PICTURE, _OF_QUADRANT = _dct(_SIDE, 8), _dct(_SIDE // 2, 4)


def _packed(bits: np.ndarray) -> np.ndarray:
    """Hashes, uint64 [N], of bool [N, 64]."""
    return np.packbits(bits, axis=1).view("<u8")[:, 0]


_MIRRORS_MOTION = _packed(np.tile(np.arange(8) % 2 == 1, (1, 8)))[
    0
]  # coefficients odd in x change their sign
_MIRRORS_LOOK = _packed(np.tile(np.arange(4) % 2 == 1, (1, 16))).view("<u2")


class Prints(NamedTuple):
    """The fingerprint of a video or of a part of it.

    Attributes:
        frame_hashes: uint64 [N]; 0 where a picture is black or flat.
        motion_hashes: uint64 [N]; 0 where nothing moves.
    """

    frame_hashes: np.ndarray
    motion_hashes: np.ndarray

    @property
    def length_sec(self) -> float:
        """Length in seconds."""
        return len(self.frame_hashes) / RATE

    def mirrored(self) -> Prints:
        """The fingerprint of the video mirrored from left to right."""
        quadrants = self.frame_hashes.view("<u2").reshape(-1, 2, 2)[:, :, ::-1].reshape(-1, 4)
        frame_hashes = np.ascontiguousarray(quadrants ^ _MIRRORS_LOOK).view("<u8")[:, 0]
        return Prints(
            np.where(self.frame_hashes == 0, np.uint64(0), frame_hashes),
            np.where(self.motion_hashes == 0, np.uint64(0), self.motion_hashes ^ _MIRRORS_MOTION),
        )


class Fingerprint(NamedTuple):
    """What came of reading a video: `data`, or `cause` says why there is none.

    Attributes:
        cause: why the video cannot be read.
        state: size and time of the file.
        size: width and height of its pictures, in pixels.
        data: base64 of number, look and motion of each picture, as `_PRINT` has them.
    """

    cause: str | None
    state: list[int]
    size: Sequence[int] = (0, 0)
    data: str = ""

    def prints(self, span: Span | None) -> Prints | None:
        """The fingerprint of a span; None where it begins after the video."""
        pictures, (first, stop) = self._read(), self.ends(span)
        if first >= len(pictures):
            return None
        part = pictures[first : max(stop, first + 1)]
        return Prints(part["look"].astype(np.uint64), part["motion"].astype(np.uint64))

    def ends(self, span: Span | None) -> tuple[int, int]:
        """The pictures [first, stop) of a span."""
        pictures = self._read()
        if span is None:
            return 0, len(pictures)
        ends = (span.start, math.inf if span.end is None else span.end)
        if span.unit == "frames":
            first, stop = (int(np.searchsorted(pictures["frame"], end)) for end in ends)
            return first, stop
        first, stop = (int(min(math.ceil(end * RATE - 1e-6), len(pictures))) for end in ends)
        return first, stop

    def _read(self) -> np.ndarray:
        return np.frombuffer(base64.b64decode(self.data), _PRINT)


@dataclass(frozen=True)
class Video(ReadClip[Fingerprint]):
    """A video file, or a folder of frames, to take the fingerprint of."""

    outcome = Fingerprint

    version: int = _VERSION

    def read(self, reader: VideoReader, state: list[int]) -> Fingerprint:
        data = base64.b64encode(_prints(reader).tobytes()).decode("ascii")
        return Fingerprint(None, state, reader.square_size, data)


def times_of(reader: VideoReader) -> np.ndarray:
    """When each frame is shown, in seconds, float64 [N]."""
    try:
        return reader.times_sec()
    except VideoDecodeError:  # a folder of frames
        return np.arange(reader.num_frames) / _FPS_OF_IMAGES


def _prints(reader: VideoReader) -> np.ndarray:
    """`_PRINT` [N] of a video, RATE a second.

    Raises:
        VideoDecodeError: a frame does not decode, or the video is too long.
    """
    times = times_of(reader)
    if times[-1] > _MAX_SEC:
        raise VideoDecodeError(reader.path, f"by its times it lasts {times[-1]:.0f} s, which is too long")
    num_prints = int(times[-1] * RATE + 1e-6) + 1
    on_display = np.searchsorted(times, np.arange(num_prints) / RATE + 1e-4, side="right") - 1
    frames, slots = np.unique(on_display, return_inverse=True)
    coefficients = np.zeros((len(frames), 64))
    frame_hashes = np.zeros(len(frames), np.uint64)
    for frame, picture in reader.frames(frames.tolist()):
        slot = int(np.searchsorted(frames, frame))
        small = cv2.resize(picture, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
        grey = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY).astype(np.float64)
        coefficients[slot] = (_OF_PICTURE @ grey @ _OF_PICTURE.T).ravel()
        frame_hashes[slot] = _frame_hash(grey)
    coefficients[:, 0] = 0  # brightness
    prints = np.zeros(num_prints, _PRINT)
    prints["frame"], prints["look"] = on_display, frame_hashes[slots]
    prints["motion"] = _motion_hashes(coefficients[slots])
    return prints


def _frame_hash(grey: np.ndarray) -> np.uint64:
    """The hash of a picture, float64 [32, 32]: 16 bits a quadrant. 0: it is black or flat."""
    if grey.std() < _MIN_CONTRAST:
        return np.uint64(0)
    half = _SIDE // 2
    quadrants = grey.reshape(2, half, 2, half).swapaxes(1, 2)
    coefficients = _OF_QUADRANT @ quadrants @ _OF_QUADRANT.T
    means = coefficients[..., 0, 0]
    coefficients[..., 0, 0] = means - means[:, ::-1]  # in place of the brightness: is it left or right?
    return _packed(coefficients.reshape(1, 64) > 0)[0]


def _motion_hashes(coefficients: np.ndarray) -> np.ndarray:
    """The hashes, uint64 [N], of the differences of pictures with DCT coefficients float64 [N, 64]."""
    numbers, last = np.arange(len(coefficients)), len(coefficients) - 1
    later, earlier = np.minimum(numbers + _LAG, last), np.maximum(numbers - _LAG, 0)
    change = coefficients[later] - coefficients[earlier]
    is_moving = np.sqrt((change**2).sum(1)) / (_SIDE * _SCALE**2) >= _MIN_MOTION
    return np.where(is_moving, _packed(change > 0), np.uint64(0))

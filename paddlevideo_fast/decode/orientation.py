"""How a stored picture is turned and mirrored to be shown: the display matrix of its file."""

import math
import re
from collections.abc import Iterator
from typing import Any, Literal

import cv2
import numpy as np
from av.sidedata.sidedata import Type

from paddlevideo_fast.decode.codecs import sei_messages, units_of
from paddlevideo_fast.decode.gaps import boxes, matroska_parts
from paddlevideo_fast.decode.source import VideoSource
from paddlevideo_fast.errors import VideoDecodeError

MIRRORED = 4
_TURNS = {1: cv2.ROTATE_90_COUNTERCLOCKWISE, 2: cv2.ROTATE_180, 3: cv2.ROTATE_90_CLOCKWISE}
_LARGEST_ERROR = math.tan(math.radians(1))  # FFmpeg rounds as much


def turned(picture: np.ndarray, orientation: int) -> np.ndarray:
    """A picture [H, W] or [H, W, 3] as it is shown, see `orientation_of`."""
    if orientation & MIRRORED:
        picture = cv2.flip(picture, 1)
    quarter_turns = orientation % MIRRORED
    return cv2.rotate(picture, _TURNS[quarter_turns]) if quarter_turns else picture


def orientation_of(picture: Any, name: str, packet: Any) -> int:
    """How the display matrix of a picture of PyAV lets it be shown.

        0   1   2   3    quarter turns counterclockwise
        4   5   6   7    the same, after it was mirrored left and right

    Ask for few pictures: PyAV keeps one whose side data was looked at until Python collects its garbage.

    Args:
        picture: as the decoder gives it.
        name: of the video, for errors.
        packet: of the picture.

    Returns:
        0 to 7; 0 where the picture has no matrix.

    Raises:
        VideoDecodeError: it is turned by another angle, or sheared.
    """
    try:
        matrix = picture.side_data.get(Type.DISPLAYMATRIX)
    except ValueError:  # beside it is data of a kind that this PyAV does not know: Exif in JPEG
        return _EXIF_ORIENTATIONS.get(_exif_orientation(bytes(packet)[:_HEAD_BYTES]), 0)
    orientation = 0 if matrix is None else _orientation_by(np.frombuffer(matrix, np.int32))
    if orientation is None:
        cause = f"is shown turned by {picture.rotation}°, which is no quarter turn: re-encode it upright"
        raise VideoDecodeError(name, cause)
    return orientation


def _orientation_by(matrix: np.ndarray) -> int | None:
    """The orientation that a display matrix, int32 [9], gives; None where it is no quarter turn.

    A pixel at (x, y) is shown at (ax + cy, bx + dy).
    """
    (a, b), (c, d) = matrix.reshape(3, 3)[:2, :2].tolist()
    along, across = sorted([abs(a) + abs(d), abs(b) + abs(c)], reverse=True)
    if across > _LARGEST_ERROR * along:
        return None
    mirrored = MIRRORED if a * d < b * c else 0
    if mirrored:
        a, b = -a, -b
    return mirrored + round(math.atan2(-b, a) / (math.pi / 2)) % 4


# What Exif calls 1 to 8. Reference: Exif 2.32, 4.6.4, tag 0x0112.
_EXIF_ORIENTATIONS = dict(zip(range(1, 9), (0, 4, 2, 6, 5, 3, 7, 1)))


def _exif_orientation(data: bytes) -> int:
    """The number by which the Exif segment in a JPEG says the orientation; 0 where it says none."""
    content = data[data.find(_EXIF) + len(_EXIF) :]
    order: Literal["little", "big"] = "little" if content.startswith(b"II") else "big"
    first = int.from_bytes(content[4:8], order)
    count = int.from_bytes(content[first : first + 2], order)
    for at in range(first + 2, min(first + 2 + 12 * count, len(content)), 12):
        if int.from_bytes(content[at : at + 2], order) == 0x0112:
            return int.from_bytes(content[at + 8 : at + 10], order)
    return 0


# 16.16 and 2.30 fixed point, as an MP4 header writes the matrix of a picture that stays as it is.
_UPRIGHT = bytes.fromhex("00010000 00000000 00000000 00000000 00010000 00000000 00000000 00000000 40000000")

# The two versions of a track header: times of 4 or 8 bytes around the number of the track.
_TRACK_HEADER = re.compile(
    rb"tkhd(?:\0.{3}.{8}(?P<id0>.{4}).{8}|\1.{3}.{16}(?P<id1>.{4}).{12}).{16}(?P<matrix>.{36})", re.DOTALL
)

# H.264 and HEVC: first bytes of units with supplemental information, and the length of the unit's header.
_SEI = {"h264": ((6,), 1), "hevc": ((39 << 1, 40 << 1), 2)}
_DISPLAY_ORIENTATION = 47

# Matroska's elements around the angle, and around all tracks.
_PROJECTION, _TRACKS = b"\x76\x70", 0x1654AE6B

_HEAD_BYTES = 16384
_EXIF = b"Exif\0\0"


def stored_orientation(source: VideoSource, stream: Any, first_packet: Any) -> int | None:
    """How pictures are shown, as far as the headers say it; None where a decoded picture has to.

    See `orientation_of` for the numbers.
    """
    codec = stream.codec_context
    if codec.name in _SEI and _DISPLAY_ORIENTATION in _sei_types(codec, bytes(first_packet)):
        return None
    if codec.name == "mjpeg" and _EXIF in bytes(first_packet)[:_HEAD_BYTES]:
        return None
    format_name = stream.container.format.name
    if "mp4" in format_name:
        moov = ((at, size) for at, size, kind in boxes(source) if kind == b"moov" and size >= 8)
        return _orientation_of_track(source.read_at(*next(moov, (0, 0))), stream.id)
    for part in matroska_parts(source, source.check()) if "matroska" in format_name else ():
        if part.kind == _TRACKS and part.stop:
            return None if _PROJECTION in source.read_at(part.first, part.stop - part.first) else 0
    return None if "matroska" in format_name else 0


def _orientation_of_track(moov: bytes, track_id: int) -> int | None:
    """The orientation of a track of an MP4 file; None where more than the track's own matrix turns it.

    Reference: ISO 14496-12, 8.3.2 (track header).
    """
    num_headers = moov.count(b"tkhd") + moov.count(b"mvhd")
    num_turned = num_headers - moov.count(_UPRIGHT)
    if num_turned <= 0:
        return 0 if moov else None
    turned_tracks = [
        header["matrix"]
        for header in _TRACK_HEADER.finditer(moov)
        if header["matrix"] != _UPRIGHT and int.from_bytes(header["id0"] or header["id1"], "big") == track_id
    ]
    if num_turned > 1 or not turned_tracks:
        return None
    return _orientation_by(np.frombuffer(turned_tracks[0], ">i4"))


def _sei_types(codec: Any, packet: bytes) -> Iterator[int]:
    """Types of the supplemental information in a packet."""
    first_bytes, header_bytes = _SEI[codec.name]
    for start, stop in units_of(codec)(packet):
        if packet[start] in first_bytes:
            yield from (kind for kind, _ in sei_messages(packet[start + header_bytes : stop]))

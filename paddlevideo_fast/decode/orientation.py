"""How a stored picture is turned and mirrored to be shown: the display matrix of its file."""

import math
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
        matrices = [data for data in picture.side_data if data.type is Type.DISPLAYMATRIX]
    except ValueError:  # beside it is data of a kind that this PyAV does not know: Exif in JPEG
        return _EXIF_ORIENTATIONS.get(_exif_orientation(bytes(packet)[:_HEAD_BYTES]), 0)
    if not matrices:
        return 0
    # a pixel at (x, y) is shown at (ax + cy, bx + dy)
    (a, b), (c, d) = np.frombuffer(matrices[0], np.int32).reshape(3, 3)[:2, :2].tolist()
    along, across = sorted([abs(a) + abs(d), abs(b) + abs(c)], reverse=True)
    if across > _LARGEST_ERROR * along:
        cause = f"is shown turned by {picture.rotation}°, which is no quarter turn: re-encode it upright"
        raise VideoDecodeError(name, cause)
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

# H.264 and HEVC: first bytes of units with supplemental information, and the length of the unit's header.
_SEI = {"h264": ((6,), 1), "hevc": ((39 << 1, 40 << 1), 2)}
_DISPLAY_ORIENTATION = 47

# Matroska's elements around the angle, and around all tracks.
_PROJECTION, _TRACKS = b"\x76\x70", 0x1654AE6B

_HEAD_BYTES = 16384
_EXIF = b"Exif\0\0"


def may_be_turned(source: VideoSource, stream: Any, first_packet: Any) -> bool:
    """False only if pictures are surely shown as they are stored; which way else, a decoded one says."""
    codec = stream.codec_context
    if codec.name in _SEI and _DISPLAY_ORIENTATION in _sei_types(codec, bytes(first_packet)):
        return True
    if codec.name == "mjpeg" and _EXIF in bytes(first_packet)[:_HEAD_BYTES]:
        return True
    format_name = stream.container.format.name
    if "mp4" in format_name:
        found = next(
            ((at, size) for at, size, kind in boxes(source) if kind == b"moov" and size >= 8), (0, 0)
        )
        header = source.read_at(*found)
        return header.count(_UPRIGHT) < header.count(b"tkhd") + header.count(b"mvhd") or not header
    for part in matroska_parts(source, source.check()) if "matroska" in format_name else ():
        if part.kind == _TRACKS and part.stop:
            return _PROJECTION in source.read_at(part.first, part.stop - part.first)
    return "matroska" in format_name


def _sei_types(codec: Any, packet: bytes) -> Iterator[int]:
    """Types of the supplemental information in a packet."""
    first_bytes, header_bytes = _SEI[codec.name]
    for start, stop in units_of(codec)(packet):
        if packet[start] in first_bytes:
            yield from (kind for kind, _ in sei_messages(packet[start + header_bytes : stop]))

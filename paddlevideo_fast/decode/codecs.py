"""What the packets of a codec consist of: units, some of which are parameter sets and some are pictures.

H.264 and HEVC have a start code or a length in front of each unit, MPEG-1, 2 and 4 a start code. In AV1 the
length is inside. The first byte of a unit says what it is.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

START_CODE = b"\x00\x00\x01"
AV1 = ("libdav1d", "av1")
VP9 = ("vp9", "libvpx-vp9")
MPEG2 = ("mpeg1video", "mpeg2video")
JPEG_START = b"\xff\xd8"


class Bits:
    """Reads numbers of some bits, the highest first; behind the end all are 0."""

    def __init__(self, data: bytes) -> None:
        self._value, self._left = int.from_bytes(data, "big"), 8 * len(data)

    def read(self, num_bits: int) -> int:
        """The number in the next bits."""
        self._left -= num_bits
        return (self._value >> self._left if self._left >= 0 else 0) & ((1 << num_bits) - 1)

    def golomb(self) -> int:
        """The number in the next bits as H.264 and HEVC write it: ue(v)."""
        num_zeros = 0
        while self._left > 0 and not self.read(1):
            num_zeros += 1
        return (1 << num_zeros) - 1 + self.read(num_zeros)


class Syntax(NamedTuple):
    """What the first byte of a unit may be.

    Attributes:
        kept: of parameter sets and other units that a decoder keeps for the pictures after them.
        pictures: of pictures.
        coded: of units in which a run of zeros is damage. Padding and other units may be all zero.
    """

    kept: frozenset[int]
    pictures: frozenset[int]
    coded: frozenset[int]


def _first_bytes(types: Iterable[int], shift: int, mask: int) -> frozenset[int]:
    """The bytes that units of some types may begin with: `byte >> shift & mask` is the type."""
    kinds = set(types)
    return frozenset(byte for byte in range(256) if byte >> shift & mask in kinds)


_H264 = _first_bytes(range(1, 6), 0, 31)
_HEVC = _first_bytes(range(32), 1, 63)
_MPEG4 = frozenset({0xB6})
SYNTAX: dict[str, Syntax] = {
    "h264": Syntax(_first_bytes({7, 8, 13, 15}, 0, 31), _H264, _H264),
    "hevc": Syntax(_first_bytes({32, 33, 34}, 1, 63), _HEVC, _HEVC),
    "mpeg4": Syntax(frozenset({*range(0x30), 0xB0, 0xB2, 0xB5}), _MPEG4, _MPEG4),
    **dict.fromkeys(
        MPEG2, Syntax(frozenset({0xB3, 0xB5}), frozenset({0}), frozenset({*range(0xB0), 0xB3, 0xB8}))
    ),
    **dict.fromkeys(
        AV1, Syntax(_first_bytes({1}, 3, 15), _first_bytes({3, 6}, 3, 15), _first_bytes({3, 4, 6}, 3, 15))
    ),
}


def num_length_bytes(codec_context: Any) -> int:
    """Bytes of the length in front of each unit of H.264 or HEVC; 0 where start codes separate units."""
    header, codec = codec_context.extradata or b"", codec_context.name
    if codec == "h264" and len(header) > 6 and header[0] == 1:  # avcC
        return (header[4] & 3) + 1
    if codec == "hevc" and len(header) > 22 and header[:3] not in (START_CODE, b"\0\0\0"):  # hvcC
        return (header[21] & 3) + 1
    return 0


def units_of(codec_context: Any) -> Callable[[bytes], Iterator[tuple[int, int]]]:
    """A function that finds the units of a packet: the place of the first byte of each, and of its end."""
    if codec_context.name in AV1:
        return av1_units
    return partial(units, length=num_length_bytes(codec_context))


def units(data: bytes, length: int) -> Iterator[tuple[int, int]]:
    """First byte and end of each unit behind lengths of `length` bytes; 0: behind start codes."""
    at, end = 0, len(data)
    while length and at + length < end:
        start = at + length
        at = start + int.from_bytes(data[at:start], "big")
        yield start, min(at, end)
    if not length:
        at = data.find(START_CODE)
        while 0 <= at < end - 3:
            start, at = at + 3, data.find(START_CODE, at + 3)
            yield start, at if at >= 0 else end


def sei_messages(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and content of each supplemental information in a unit of H.264 or HEVC, behind the unit's header.

    Reference: ITU-T H.264, 7.3.2.3.1.
    """
    data, at = content.replace(b"\0\0\3", b"\0\0"), 0
    while at + 2 < len(data):
        numbers = []
        for _ in ("type", "size"):
            begin = at
            while data[at : at + 1] == b"\xff":
                at += 1
            numbers.append(255 * (at - begin) + int.from_bytes(data[at : at + 1], "big"))
            at += 1
        kind, size = numbers
        yield kind, data[at : at + size]
        at += size


def av1_units(data: bytes) -> Iterator[tuple[int, int]]:
    """First byte and end of each unit of AV1."""
    at, end = 0, len(data)
    while at < end:
        content, length = av1_content(data, at)
        yield at, min(content + length, end) if data[at] & 2 else end
        at = content + length if data[at] & 2 else end


def av1_content(data: bytes, at: int) -> tuple[int, int]:
    """Where the content of the unit at `at` begins, and its length, if the unit says it."""
    has_length, at, length, shift = data[at] & 2, at + 1 + (data[at] >> 2 & 1), 0, 0
    while has_length and at < len(data):
        length |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            break
    return at, length

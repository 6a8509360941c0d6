"""What the bytes of a codec cannot be: damage inside of packets, which many decoders pass over.

Where bytes between two packets are moved, the container may still be whole, and packets begin and end in the
middle of pictures: `Misplaced` looks at the bounds of all packets. Where a part of a packet is zeroed, many
decoders show something else without a word: `damage_test` looks into the packets that are decoded.
"""

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import av

from paddlevideo_fast.decode.codecs import AV1, JPEG_START, SYNTAX, VP9, num_length_bytes, units_of
from paddlevideo_fast.decode.container import LIBAV_ERRORS, explain

# Three bytes of zero occur only in front of a start code, and at the end of a unit: ITU-T H.264, 7.4.1;
# H.265, 7.4.2; ISO 13818-2, 5.2.3; ISO 14496-2, 5.2.2.
_ZEROS = re.compile(rb"\0\0\0[^\0\1]")

# An arithmetic coder writes 512 bits of zero where a symbol of next to no information follows the other, all
# of the likelier kind; the longest runs in VP9 and AV1 of flat, static and noisy pictures have 12 bytes.
_MANY_ZEROS = bytes(64)

_LENGTH = struct.Struct(">I")  # in front of a unit of H.264 and HEVC, in nearly all files

# Of packets that changed places, the first ones may by accident begin and end where they should.
_NEAR = 16
_ZEROED = 16  # bytes; no codec begins a picture with as many zeros

_JPEG_END = b"\xff\xd9"
_JPEG_PADDING = 64

_VP9_FIXED, _VP9_MARKER = 0xF0, 2  # the first byte has the marker and the profile


class Misplaced:
    """Finds packets that do not begin and end where pictures do, and those near them.

    Args:
        codec_context: of the stream.
    """

    def __init__(self, codec_context: Any) -> None:
        self._codec_name, self._length = codec_context.name, num_length_bytes(codec_context)
        self._num_packets = 0
        self._begins: set[int] = set()  # of packets of VP9
        self._odd: set[int] = set()
        self._near: set[int] = set()
        self._last: Any = None

    def add(self, packets: Sequence[Any]) -> None:
        """Looks at packets that follow those before."""
        for index in self._odd_indices(packets):
            number, before = self._num_packets + index, packets[index - 1] if index else self._last
            self._odd.add(number)
            # a packet that begins with zeros was overwritten where it stands, perhaps with the end of the one
            # before: nothing near it has moved
            if any(memoryview(packets[index])[:_ZEROED]):
                self._near.update(range(number - _NEAR, number + _NEAR + 1))
            if before is not None and not memoryview(before)[-1]:
                self._near.add(number - 1)
        self._num_packets += len(packets)
        self._last = packets[-1]

    def numbers(self) -> list[int]:
        """Numbers of the packets that were found."""
        if self._codec_name == "mjpeg" and {0, self._num_packets - 1} <= self._odd:
            return []  # none is a JPEG as one knows it
        return sorted((self._odd | self._near).intersection(range(self._num_packets)))

    def _odd_indices(self, packets: Sequence[Any]) -> list[int]:
        is_sound: Callable[[Any], bool]
        odd: Sequence[int] = range(len(packets))
        if self._length:
            is_sound = partial(_is_row_of_units, self._length)
            if self._length == _LENGTH.size:  # nearly all packets hold one unit
                odd = [
                    index
                    for index, packet in enumerate(packets)
                    if packet.size < _LENGTH.size
                    or _LENGTH.unpack_from(packet)[0] + _LENGTH.size != packet.size
                ]
        elif self._codec_name in VP9:
            begins = {memoryview(packet)[0] & _VP9_FIXED for packet in packets if packet.is_keyframe}
            self._begins.update(begin for begin in begins if begin >> 6 == _VP9_MARKER)
            is_sound = partial(_begins_as, self._begins)
        elif self._codec_name == "mjpeg":
            is_sound = _is_jpeg
        else:
            return []
        return [index for index in odd if not is_sound(packets[index])]


def _begins_as(begins: set[int], packet: Any) -> bool:
    return memoryview(packet)[0] & _VP9_FIXED in begins


def _is_row_of_units(length: int, packet: Any) -> bool:
    """Whether the lengths in a packet lead to its end; libav takes a rest that is too short for a length."""
    view, size, at = memoryview(packet), packet.size, 0
    while at + length < size:
        num_bytes = int.from_bytes(view[at : at + length], "big")
        at += length + num_bytes
        if not num_bytes or at > size:
            return False
    return True


def _is_jpeg(packet: Any) -> bool:
    """Whether a packet begins with a picture, and has the end of one before some padding."""
    view = memoryview(packet)
    if bytes(view[:2]) != JPEG_START:
        return False
    return bytes(view[-2:]) == _JPEG_END or _JPEG_END in bytes(view[-_JPEG_PADDING:])


def damage_test(codec_context: Any) -> Callable[[Any], bool] | None:
    """A function that says whether the data of a picture is none; None for a codec that may have any bytes.

    Returns:
        Packet -> bool: a range of it was zeroed. Only some damage shows so.
    """
    name = codec_context.name
    if name in VP9:
        return _has_many_zeros
    if name not in SYNTAX:
        return None
    length, coded, walk = num_length_bytes(codec_context), SYNTAX[name].coded, units_of(codec_context)
    has_zeros: Callable[..., Any] = _has_many_zeros if name in AV1 else _ZEROS.search

    def is_damaged(packet: Any) -> bool:
        if not has_zeros(packet, length):
            return False
        data = bytes(packet)  # a length may have zeros, too
        return any(data[start] in coded and has_zeros(data, start, stop) for start, stop in walk(data))

    return is_damaged


def _has_many_zeros(data: Any, start: int = 0, stop: int | None = None) -> bool:
    """Whether so many bytes of zero are followed by others; a writer may add zeros at the end."""
    data = bytes(data)[start:stop]
    at = data.find(_MANY_ZEROS)
    return at >= 0 and bool(data[at:].strip(b"\0"))


def refused_by_another(packets: Iterable[Any], codec_context: Any) -> str:
    """Why a second decoder refuses what the first one takes; empty where it does not, or there is none.

    An arithmetic decoder makes a picture of any bytes. That bytes are left over only shows at the end of a
    picture: libvpx looks there, libav's own decoder of VP9 does not.

    Args:
        packets: of the stream, from a key packet on.
        codec_context: of the stream.
    """
    if codec_context.name != VP9[0] or VP9[1] not in av.codecs_available:
        return ""
    try:
        other = av.CodecContext.create(VP9[1], "r")
        other.thread_count = 1
        for packet in packets:
            other.decode(packet)
    except LIBAV_ERRORS as error:
        return f"libvpx refuses a picture: {explain(error)}"
    return ""

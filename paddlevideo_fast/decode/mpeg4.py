"""The pictures (VOPs) of MPEG-4 part 2: of which type they are, and packets that hold two of them.

Reference: ISO 14496-2, 6.2.3 (layer) and 6.2.5 (picture).
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import av

from paddlevideo_fast.decode.codecs import START_CODE, Bits

_VOP = START_CODE + b"\xb6"
_START = re.compile(re.escape(_VOP))
_LAYER = re.compile(rb"\0\0\x01[\x20-\x2f]")  # the header of a layer
_SEQUENCE = START_CODE + b"\xb0"

I_VOP, B_VOP = 0, 2
# In place of the type of a picture: there is none, or it is "not coded" and shows nothing.
NO_VOP, NOT_CODED = -1, -2

_SHORT_BYTES = 32  # a longer picture is coded

_Picture = tuple[bytes, int]  # with the headers in front of it, and its type


class Unpacker:
    """Gives packets one picture each.

    Writers of old AVI files put a B picture into the packet of the picture before it. The packets after it
    are then one picture late, up to one that is not coded and only fills a place (n):

        packets     I0   P3+B1  B2  n   P6+B4  B5  n
        unpacked    I0   P3     B1  B2  P6     B4  B5

    As in libav's decoder, a picture whose place does not come is lost: at the end of the file, and where a
    new sequence begins.

    Args:
        header: of the stream.
    """

    def __init__(self, header: bytes) -> None:
        self._num_time_bits, self._waiting = _time_bits(header), deque[_Picture]()

    def __call__(self, packets: Iterable[Any]) -> Iterator[tuple[Any, int]]:
        """A packet for each of the next ones that were demuxed, with one picture, and the picture's type.

        The type is 0 I, 1 P, 2 B, 3 sprite, or as above.
        """
        waiting = self._waiting
        for packet in packets:
            data = bytes(packet)
            starts = [start.start() for start in _START.finditer(data)]
            if starts and starts[0]:
                self._num_time_bits = _time_bits(data[: starts[0]]) or self._num_time_bits
            if waiting and data.startswith(_SEQUENCE):
                waiting.clear()
            is_late = bool(waiting)
            if len(starts) < 2 and not is_late:
                yield packet, _type_of(data, starts[0], len(data), self._num_time_bits) if starts else NO_VOP
                continue
            ends = [data.find(START_CODE, start + 1) for start in starts[:-1]] + [len(data)]
            for begin, start, end in zip([0, *ends], starts, ends):
                kind = _type_of(data, start, end, self._num_time_bits)
                if kind != NOT_CODED or not (is_late or begin):
                    waiting.append((data[begin:end], kind))
            data, kind = waiting.popleft()
            yield _with_data(packet, data, kind), kind


def is_key(data: bytes) -> bool:
    """Whether a packet begins with an I picture that is coded."""
    at = data.find(_VOP)
    return at >= 0 and len(data) - at > _SHORT_BYTES and data[at + len(_VOP)] >> 6 == I_VOP


def _with_data(packet: Any, data: bytes, kind: int) -> Any:
    """A packet with other data at the time of `packet`."""
    copy = av.Packet(len(data))  # with zeros behind it, into which decoders look; a packet of bytes has none
    copy.update(data)
    copy.pts, copy.is_corrupt, copy.is_keyframe = packet.pts, packet.is_corrupt, kind == I_VOP
    return copy


def _type_of(data: bytes, at: int, end: int, num_time_bits: int) -> int:
    """The type of a picture.

    Args:
        data: of its packet.
        at: where its start code is.
        end: where it ends.
        num_time_bits: see `_time_bits`; 0: whether it is coded cannot be read.
    """
    at += len(_VOP)
    if at >= end:
        return NO_VOP
    kind = data[at] >> 6
    if end - at > _SHORT_BYTES:
        return kind
    bits = Bits(data[at:end])
    bits.read(2)
    while bits.read(1):  # whole seconds
        pass
    bits.read(1 + num_time_bits + 1)
    return (kind if bits.read(1) else NOT_CODED) if num_time_bits else NO_VOP


def is_interlaced(header: bytes) -> bool:
    """Whether pictures have fields: B pictures then depend on the first that a decoder has met."""
    return _read_layer(header)[1]


def _time_bits(header: bytes) -> int:
    """Bits of the time in each picture, from the header of a layer; 0: nothing says."""
    return _read_layer(header)[0]


def _read_layer(header: bytes) -> tuple[int, bool]:
    layer = _LAYER.search(header)
    bits = Bits(header[layer.end() :][:64] if layer else b"")
    bits.read(1 + 8)
    if bits.read(1):
        bits.read(4 + 3)
    if bits.read(4) == 15:  # an aspect ratio of its own
        bits.read(8 + 8)
    if bits.read(1):
        bits.read(2 + 1)
        if bits.read(1):  # buffer sizes
            bits.read(79)
    if bits.read(2) != 0 or not bits.read(1):  # not rectangular, or damaged
        return 0, False
    num_time_bits = max((bits.read(16) - 1).bit_length(), 1)
    bits.read(1)
    if bits.read(1):
        bits.read(num_time_bits)
    bits.read(1 + 13 + 1 + 13 + 1)  # width and height
    return num_time_bits, bool(bits.read(1))

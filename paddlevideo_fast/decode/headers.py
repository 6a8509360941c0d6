"""Parameters that come with packets: what a decoder lacks where decoding begins in the middle of a stream.

The header of a file holds parameter sets (H.264, HEVC), a sequence header (AV1, MPEG-1, MPEG-2) or a video
object layer (MPEG-4). In a file that was joined from several encodes, packets bring others, which hold from
there on. libav keeps the last that it has met, also when it is flushed.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from paddlevideo_fast.decode import av1
from paddlevideo_fast.decode.packets import PICTURES, START_CODE, first_bytes, num_length_bytes, starts_of

_HEAD_BYTES = 128  # within these, the picture begins in nearly all packets; parameters come before it
NEW_HEADER = "new_extradata"  # libav's name of a header that MP4 or FLV have for the packets from here on


class _Syntax(NamedTuple):
    """What the byte behind the start code or length of a unit may be.

    Attributes:
        kept: for units that a decoder keeps for the pictures after them.
        pictures: for pictures.
    """

    kept: frozenset[int]
    pictures: frozenset[int]


_AV1 = _Syntax(first_bytes({1}, 3, 15), first_bytes({3, 6}, 3, 15))
_MPEG2 = _Syntax(frozenset({0xB3, 0xB5}), frozenset({0}))
_SYNTAX: dict[str, _Syntax] = {
    "h264": _Syntax(first_bytes({7, 8, 13, 15}, 0, 31), PICTURES["h264"]),
    "hevc": _Syntax(first_bytes({32, 33, 34}, 1, 63), PICTURES["hevc"]),
    "mpeg4": _Syntax(frozenset({*range(0x30), 0xB0, 0xB2, 0xB5}), PICTURES["mpeg4"]),
    "mpeg1video": _MPEG2,
    "mpeg2video": _MPEG2,
    **dict.fromkeys(av1.DECODERS, _AV1),
}

# Each time, these bring all their parameters; others bring one or the other of several.
_WHOLE = ("mpeg1video", "mpeg2video", *av1.DECODERS)

# libav repeats a mistake in 4:4:4 of x264 before version 151, where this text says the version
_H264_SEI, _X264 = first_bytes({6}, 0, 31), b"x264 - core"

# Data of a packet -> for each unit, where its start code or length begins, and where its first byte is.
_Starts = Callable[[bytes], Iterator[tuple[int, int]]]
_Unit = tuple[bytes, bytes]  # as it stands in the packet, and without its start code or length
_Brought = tuple[int, tuple[bytes, ...]]  # place of a packet, and the units in it as they stand there


class HeaderChanges:
    """Where a stream changes its parameters, and what a new decoder lacks in the packets after that.

        packets              0 …  24 …  36 …  48 …      24 and 36 bring the parameters B, 48 brings C
        a new decoder knows  A    A     A     A         what the header of the file says
        `missing_at`         –    –     B     B         goes in front of the packet
        `turns`                   24          48

    Args:
        packets: of the stream, in decoding order.
        codec_context: of the stream, with its header.

    Attributes:
        entries: places of the key packets where decoding can begin: a header that the container brings with a
            packet comes with no other.
        turns: places of the key packets that bring other parameters than held before.
        is_constant: the first packet brings all that any packet brings: a decoder that has met it, and is
            flushed, equals a new one that gets `missing_at`.
    """

    def __init__(self, packets: Sequence[Any], codec_context: Any) -> None:
        keys = [place for place, packet in enumerate(packets) if packet.is_keyframe]
        self._restarts = _new_headers(packets, keys)
        self._brought = _search(packets, codec_context)
        self._places = [place for place, _ in self._brought]
        self._brings_all = codec_context.name in _WHOLE
        first = self._restarts[0] if self._restarts else len(packets)
        self.entries = [place for place in keys if place < first or place in self._restarts]
        changed = set(self._restarts)
        held: frozenset[bytes] = frozenset()
        for place, units in self._brought:
            if held != set(units) if self._brings_all else not held.issuperset(units):
                changed.add(place)
                held = frozenset(units)
        self.is_constant = changed <= {0}
        self.turns = changed.intersection(keys) - {0}

    def __bool__(self) -> bool:
        """Whether packets bring what the header of the file does not say."""
        return bool(self._places or self._restarts)

    def missing_at(self, place: int) -> bytes:
        """What packets before `place` brought, for in front of the packet where decoding begins."""
        restart = bisect_right(self._restarts, place)
        first = bisect_left(self._places, self._restarts[restart - 1]) if restart else 0
        stop = bisect_left(self._places, place)
        if self._brings_all:
            first = stop if place in self._places else max(first, stop - 1)
        brought = [units for _, units in self._brought[first:stop]]
        return b"".join(unit for units, _ in groupby(brought) for unit in units)


def _new_headers(packets: Sequence[Any], keys: Sequence[int]) -> list[int]:
    """Places of the packets with which the container brings a new header; PyAV before 16 does not say."""
    if not hasattr(packets[0], "has_sidedata"):
        return []
    if not any(packets[place].has_sidedata(NEW_HEADER) for place in keys):
        return []
    return [place for place, packet in enumerate(packets) if packet.has_sidedata(NEW_HEADER)]


def _search(packets: Sequence[Any], codec_context: Any) -> list[_Brought]:
    """Which packets bring parameters, from the first on that brings something new."""
    syntax = _SYNTAX.get(codec_context.name)
    if syntax is None:
        return []
    length, pictures = num_length_bytes(codec_context), syntax.pictures
    # nearly all packets begin with their picture: this is quick; a start code has 3 bytes, or 4. No view
    # is kept: hundreds of them at a time would set off the garbage collector
    if length or codec_context.name in av1.DECODERS:
        places = [
            place
            for place, packet in enumerate(packets)
            if packet.size <= length or memoryview(packet)[length] not in pictures
        ]
    else:
        views = enumerate(memoryview(packet) for packet in packets)
        places = [
            place for place, view in views if len(view) < 5 or view[3 if view[2] else 4] not in pictures
        ]
    if not places:
        return []
    find, is_known = _finder(codec_context, syntax), _test_of_header(codec_context)
    found: list[_Brought] = []
    for place in places:
        units = find(packets[place])
        if units and (found or not all(is_known(text) for _, text in units)):
            found.append((place, tuple(framed for framed, _ in units)))
    return found


def _finder(codec_context: Any, syntax: _Syntax) -> Callable[[Any], list[_Unit]]:
    """A function that gives the units of a packet that a decoder keeps."""
    starts = starts_of(codec_context)
    if codec_context.name == "h264" and "444" in str(codec_context.pix_fmt):
        more = syntax._replace(kept=syntax.kept | _H264_SEI)
        return lambda packet: [
            unit for unit in _find(packet, more, starts) if unit[1][0] not in _H264_SEI or _X264 in unit[1]
        ]
    return lambda packet: _find(packet, syntax, starts)


def _find(packet: Any, syntax: _Syntax, starts: _Starts) -> list[_Unit]:
    view = memoryview(packet)
    for num_bytes in (_HEAD_BYTES, len(view)):
        data = bytes(view[:num_bytes])
        found: list[_Unit] = []
        kept: tuple[int, ...] = ()  # begin of the unit before and of its text, if it is one to keep
        for begin, start in starts(data):
            if kept:
                found.append((data[kept[0] : begin], data[kept[1] : begin]))
            if data[start] in syntax.pictures:
                return found
            kept = (begin, start) if data[start] in syntax.kept else ()
    if kept:
        found.append((data[kept[0] :], data[kept[1] :]))
    return found


def _test_of_header(codec_context: Any) -> Callable[[bytes], bool]:
    """A function that says whether a unit stands in the header of the file."""
    header = codec_context.extradata or b""
    if codec_context.name in av1.DECODERS:
        return lambda unit: unit in header
    if num_length_bytes(codec_context):
        return lambda unit: len(unit).to_bytes(2, "big") + unit in header
    units = frozenset(unit.rstrip(b"\0") for unit in header.split(START_CODE))
    return lambda unit: unit.rstrip(b"\0") in units

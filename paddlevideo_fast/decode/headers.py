"""Parameters that come with packets: what a decoder lacks where decoding begins in the middle of a stream.

The header of a file holds parameter sets (H.264, HEVC), a sequence header (AV1, MPEG-1, MPEG-2) or a video
object layer (MPEG-4). In a file that was joined from several encodes, packets bring others, which hold from
there on. libav keeps the last that it has met, also when it is flushed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import groupby
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, NamedTuple, Sequence, Tuple

from paddlevideo_fast.decode.packets import START_CODE, num_length_bytes, unit_starts

_HEAD_BYTES = 128  # within these, the picture begins in nearly all packets; parameters come before it
_NEW_HEADER = "new_extradata"  # libav's name of a header that MP4 or FLV have for the packets from here on


class _Syntax(NamedTuple):
    """The types of units: `byte >> shift & mask`, of the byte behind the start code or length.

    Attributes:
        shift: see above.
        mask: see above.
        kept: types that a decoder keeps for the pictures after them.
        pictures: types of pictures.
    """

    shift: int
    mask: int
    kept: FrozenSet[int]
    pictures: FrozenSet[int]


_AV1_DECODERS = ("libdav1d", "av1")
_AV1 = _Syntax(3, 15, frozenset({1}), frozenset({3, 6}))
_MPEG2 = _Syntax(0, 255, frozenset({0xB3, 0xB5}), frozenset({0}))
_SYNTAX: Dict[str, _Syntax] = {
    "h264": _Syntax(0, 31, frozenset({7, 8, 13, 15}), frozenset(range(1, 6))),
    "hevc": _Syntax(1, 63, frozenset({32, 33, 34}), frozenset(range(32))),
    "mpeg4": _Syntax(0, 255, frozenset({*range(0x30), 0xB0, 0xB2, 0xB5}), frozenset({0xB6})),
    "mpeg1video": _MPEG2,
    "mpeg2video": _MPEG2,
    **dict.fromkeys(_AV1_DECODERS, _AV1),
}

# Each time, these bring all their parameters; others bring one or the other of several.
_WHOLE = ("mpeg1video", "mpeg2video", *_AV1_DECODERS)

# libav repeats a mistake in 4:4:4 of x264 before version 151, where this text says the version
_H264_SEI, _X264 = 6, b"x264 - core"

# Data of a packet -> for each unit, where its start code or length begins, and where its first byte is.
_Starts = Callable[[bytes], Iterator[Tuple[int, int]]]
_Unit = Tuple[bytes, bytes]  # as it stands in the packet, and without its start code or length
_Brought = Tuple[int, Tuple[bytes, ...]]  # place of a packet, and the units in it as they stand there


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
        held: FrozenSet[bytes] = frozenset()
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


def _new_headers(packets: Sequence[Any], keys: Sequence[int]) -> List[int]:
    """Places of the packets with which the container brings a new header; PyAV before 16 does not say."""
    if not hasattr(packets[0], "has_sidedata"):
        return []
    if not any(packets[place].has_sidedata(_NEW_HEADER) for place in keys):
        return []
    return [place for place, packet in enumerate(packets) if packet.has_sidedata(_NEW_HEADER)]


def _search(packets: Sequence[Any], codec_context: Any) -> List[_Brought]:
    """Which packets bring parameters, from the first on that brings something new."""
    syntax = _SYNTAX.get(codec_context.name)
    if syntax is None:
        return []
    find, is_known = _finder(codec_context, syntax), _test_of_header(codec_context)
    shift, mask, pictures = syntax.shift, syntax.mask, syntax.pictures
    length = num_length_bytes(codec_context)
    has_codes = not length and codec_context.name not in _AV1_DECODERS
    found: List[_Brought] = []
    for place, packet in enumerate(packets):
        view = memoryview(packet)
        # nearly all packets begin with their picture: this is quick; a start code has 3 bytes, or 4
        if len(view) > 4 and view[3 + (view[2] == 0) if has_codes else length] >> shift & mask in pictures:
            continue
        units = find(packet)
        if units and (found or not all(is_known(text) for _, text in units)):
            found.append((place, tuple(framed for framed, _ in units)))
    return found


def _finder(codec_context: Any, syntax: _Syntax) -> Callable[[Any], List[_Unit]]:
    """A function that gives the units of a packet that a decoder keeps."""
    if codec_context.name in _AV1_DECODERS:
        return lambda packet: _find(packet, syntax, _av1_starts)
    length = num_length_bytes(codec_context)

    def starts(data: bytes) -> Iterator[Tuple[int, int]]:
        return unit_starts(data, length)

    if codec_context.name == "h264" and "444" in str(codec_context.pix_fmt):
        more = syntax._replace(kept=syntax.kept | {_H264_SEI})
        return lambda packet: [
            unit for unit in _find(packet, more, starts) if unit[1][0] & 31 != _H264_SEI or _X264 in unit[1]
        ]
    return lambda packet: _find(packet, syntax, starts)


def _find(packet: Any, syntax: _Syntax, starts: _Starts) -> List[_Unit]:
    view = memoryview(packet)
    for num_bytes in (_HEAD_BYTES, len(view)):
        data = bytes(view[:num_bytes])
        found: List[_Unit] = []
        kept: Tuple[int, ...] = ()  # begin of the unit before and of its text, if it is one to keep
        for begin, start in starts(data):
            if kept:
                found.append((data[kept[0] : begin], data[kept[1] : begin]))
            kind = data[start] >> syntax.shift & syntax.mask
            if kind in syntax.pictures:
                return found
            kept = (begin, start) if kind in syntax.kept else ()
    if kept:
        found.append((data[kept[0] :], data[kept[1] :]))
    return found


def _av1_starts(data: bytes) -> Iterator[Tuple[int, int]]:
    """Where each unit of AV1 begins: there are no start codes, and the length is inside."""
    at, end = 0, len(data)
    while at < end:
        yield at, at
        has_length, after, length, shift = data[at] & 2, at + 1 + (data[at] >> 2 & 1), 0, 0
        while has_length and after < end:
            length |= (data[after] & 127) << shift
            shift, after = shift + 7, after + 1
            if data[after - 1] < 128:
                break
        at = after + length if has_length else end


def _test_of_header(codec_context: Any) -> Callable[[bytes], bool]:
    """A function that says whether a unit stands in the header of the file."""
    header = codec_context.extradata or b""
    if codec_context.name in _AV1_DECODERS:
        return lambda unit: unit in header
    if num_length_bytes(codec_context):
        return lambda unit: len(unit).to_bytes(2, "big") + unit in header
    units = frozenset(unit.rstrip(b"\0") for unit in header.split(START_CODE))
    return lambda unit: unit.rstrip(b"\0") in units

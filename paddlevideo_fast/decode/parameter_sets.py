"""Where a stream changes its parameter sets, and where a new decoder can begin.

The header of a file holds parameter sets (H.264, HEVC), a sequence header (AV1, MPEG-1, MPEG-2) or a video
object layer (MPEG-4). In a file that was joined from several encodes, packets bring others, which hold from
there on. libav keeps the last that it has met, also when it is flushed.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from paddlevideo_fast.decode.codecs import AV1, MPEG2, START_CODE, SYNTAX, Syntax, num_length_bytes, units_of

_HEAD_BYTES = 128  # within these, the picture begins in nearly all packets; parameter sets come before it
NEW_HEADER = "new_extradata"  # libav's name of a header that MP4 or FLV have for the packets from here on

# Each time, these bring all their parameters.
_ALL_AT_ONCE = (*MPEG2, *AV1)

# libav repeats a mistake in 4:4:4 of x264 before version 151, where this text in a unit says the version.
_H264_SEI, _X264 = 6, re.compile(rb"x264 - core (\d+)")
_FIRST_RIGHT_X264 = 151


class ParameterSetChanges(NamedTuple):
    """Where packets bring parameter sets that the header of the file lacks.

        packets                 0 …  12 …  24 …  36 …  48 …     24 and 36 bring B, the others nothing
        sequential decoding     A    A     B     B     B        A is the header of the file
        a new decoder           A    A     B     B     A
        random_access_points    0    12    24    36
        reset_points                       24

    Attributes:
        random_access_points: the key packets at which a new decoder has all parameter sets that sequential
            decoding has there: from the header, or from the packet.
        reset_points: the random access points whose packet brings other parameter sets than before.
        is_constant: a decoder that has met the first packet, and is flushed, equals a new one anywhere.
        are_any: whether packets bring what the header of the file does not say.
    """

    random_access_points: list[int]
    reset_points: set[int]
    is_constant: bool
    are_any: bool


class ParameterSetSearch:
    """Finds the changes of parameter sets in packets that come by and by.

    Args:
        codec_context: of the stream, with its header.
    """

    def __init__(self, codec_context: Any) -> None:
        self._name, self._num_packets = codec_context.name, 0
        self._keys: set[int] = set()
        self._restarts: set[int] = set()
        self._brought: dict[int, frozenset[bytes]] = {}
        self._syntax, self._length = SYNTAX.get(self._name), num_length_bytes(codec_context)
        self._is_known, self._walk = _test_of_header(codec_context), units_of(codec_context)
        self._has_sei = self._name == "h264" and "444" in str(codec_context.pix_fmt)

    def add(self, packets: Sequence[Any]) -> None:
        """Looks at packets that follow those before."""
        keys = {number for number, packet in enumerate(packets) if packet.is_keyframe}
        restarts = {number for number in keys if packets[number].has_sidedata(NEW_HEADER)}
        if restarts or self._restarts:
            restarts = {number for number, packet in enumerate(packets) if packet.has_sidedata(NEW_HEADER)}
        if self._syntax:
            self._look_into(packets, self._syntax)
        self._keys.update(self._num_packets + number for number in keys)
        self._restarts.update(self._num_packets + number for number in restarts)
        self._num_packets += len(packets)

    def changes(self) -> ParameterSetChanges:
        """What the packets have brought."""
        keys, restarts, brought = set(self._keys), self._restarts, self._brought
        kinds = {tuple(sorted(unit[0] for unit in units)) for units in brought.values()}
        is_whole = self._name in _ALL_AT_ONCE
        brings_all = is_whole or len(kinds) == 1  # the same sets of each kind each time
        points: list[int] = []
        changed, held, met = set(restarts), frozenset[bytes](), set[bytes]()
        has_restarted = False
        for number in sorted(keys | restarts | brought.keys()):
            units = brought.get(number, frozenset())
            if number in restarts:
                has_restarted, met = True, set()
            elif has_restarted:
                keys.discard(number)  # a header comes with one packet, and with no other
            if number in keys and (met <= units or (units and brings_all)):
                points.append(number)
            if units and (units != held if is_whole else not units <= held):
                changed.add(number)
                held = units
            met |= units
        reset_points = changed.intersection(points) - {0}
        return ParameterSetChanges(points, reset_points, changed <= {0}, bool(brought or restarts))

    def _look_into(self, packets: Sequence[Any], syntax: Syntax) -> None:
        """Keeps the parameter sets of packets, from the first packet on that brings something new."""
        length, pictures, has_lengths = self._length, syntax.pictures, self._length or self._name in AV1
        # nearly all packets begin with their picture: this is quick; a start code has 3 bytes, or 4. No view
        # is kept: hundreds of them at a time would set off the garbage collector
        if has_lengths:
            numbers = [
                number
                for number, packet in enumerate(packets)
                if packet.size <= length or memoryview(packet)[length] not in pictures
            ]
        else:
            views = enumerate(memoryview(packet) for packet in packets)
            numbers = [
                number for number, view in views if len(view) < 5 or view[3 if view[2] else 4] not in pictures
            ]
        padding = b"" if has_lengths else b"\0"  # in front of a start code
        for number in numbers:
            units = {
                unit
                for unit in _in_front(packets[number], self._walk, pictures, padding)
                if unit[0] in syntax.kept or (self._has_sei and _is_of_old_x264(unit))
            }
            if units and (self._brought or not all(map(self._is_known, units))):
                self._brought[self._num_packets + number] = frozenset(units)


def _in_front(
    packet: Any, walk: Callable[[bytes], Iterator[tuple[int, int]]], pictures: frozenset[int], padding: bytes
) -> list[bytes]:
    """The units of a packet in front of its picture."""
    view = memoryview(packet)
    units: list[bytes] = []
    for num_bytes in (_HEAD_BYTES, len(view)):
        data, units = bytes(view[:num_bytes]), []
        for start, stop in walk(data):
            if data[start] in pictures:
                return units
            units.append(data[start : start + 1] + data[start + 1 : stop].rstrip(padding))
    return units


def _is_of_old_x264(unit: bytes) -> bool:
    version = _X264.search(unit) if unit[0] & 31 == _H264_SEI else None
    return version is not None and int(version[1]) < _FIRST_RIGHT_X264


def _test_of_header(codec_context: Any) -> Callable[[bytes], bool]:
    """A function that says whether a unit stands in the header of the file."""
    header = codec_context.extradata or b""
    if codec_context.name in AV1:
        return lambda unit: unit in header
    if num_length_bytes(codec_context):
        return lambda unit: len(unit).to_bytes(2, "big") + unit in header
    in_header = {unit[:1] + unit[1:].rstrip(b"\0") for unit in header.split(START_CODE)}
    return lambda unit: unit in in_header

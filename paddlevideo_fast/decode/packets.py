"""Which packet holds which frame, and which packets no other frame needs; read without decoding."""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from paddlevideo_fast.decode import av1

# H.264 unit types (ITU-T H.264, table 7-1).
_SLICE, _SEI, _DELIMITER, _FILLER = 1, 6, 9, 12
_REFERENCES = frozenset(_SLICE | ref_idc << 5 for ref_idc in (1, 2, 3))  # slices that others refer to

# Length and first byte of a unit, as nearly all files write them.
_HEAD = struct.Struct(">IB")
_LENGTH_BYTES = 4

START_CODE = b"\x00\x00\x01"
_VOP_START = b"\x00\x00\x01\xb6"  # MPEG-4 part 2: a picture
_VOPS = re.compile(_VOP_START + b"(?=(.?))", re.DOTALL)
B_VOP = 2


def spare_test(
    codec_context: Any, vops: Sequence[int] = (), first_packet: bytes = b""
) -> Callable[[Any], bool] | None:
    """A function that says whether a packet holds nothing but a non-reference frame.

    Args:
        codec_context: of the stream.
        vops: of its packets, as `vop_types` gives them; the packets carry their place as timestamp.
        first_packet: of a stream that keeps the parameters which this packet brings, in AV1.

    Returns:
        Packet -> bool; None where the bitstream does not say so plainly: HEVC says it together with state
        that a decoder keeps, and in VP9 the next frame takes over the motion of any frame before it.
    """
    if codec_context.name == "h264":
        return partial(_is_spare_h264, num_length_bytes(codec_context))
    if codec_context.name == "mpeg4":
        return lambda packet: vops[packet.pts] == B_VOP
    if codec_context.name in av1.DECODERS:
        return av1.spare_test(codec_context.extradata, first_packet)
    return (lambda packet: False) if codec_context.name in _IN_ORDER else None


def num_length_bytes(codec_context: Any) -> int:
    """Bytes of the length in front of each unit of H.264 or HEVC; 0 where start codes separate units."""
    header, codec = codec_context.extradata or b"", codec_context.name
    if codec == "h264" and len(header) > 6 and header[0] == 1:  # avcC
        return (header[4] & 3) + 1
    if codec == "hevc" and len(header) > 22 and header[:3] not in (START_CODE, b"\0\0\0"):  # hvcC
        return (header[21] & 3) + 1
    return 0


def starts_of(codec_context: Any) -> Callable[[bytes], Iterator[tuple[int, int]]]:
    """A function that finds the units of a packet: where each begins, and where its first byte is."""
    if codec_context.name in av1.DECODERS:
        return av1.unit_starts
    return partial(unit_starts, length=num_length_bytes(codec_context))


def _is_spare_h264(length: int, packet: Any) -> bool:
    """All slices have nal_ref_idc 0, and no parameter set, which outlives the picture, is beside them."""
    if packet.size > _HEAD.size and length == _LENGTH_BYTES:  # most packets hold one unit
        num_bytes, header = _HEAD.unpack_from(packet)
        if header in _REFERENCES:
            return False
        if num_bytes + length == packet.size and header & 31 == _SLICE:
            return True
    data, found = bytes(packet), False
    for _, start in unit_starts(data, length):
        header = data[start]
        kind = header & 31
        if kind == _SLICE and not header & 0x60:
            found = True
        elif kind not in (_SEI, _DELIMITER, _FILLER):
            return False
    return found


def first_bytes(types: Iterable[int], shift: int, mask: int) -> frozenset[int]:
    """The bytes that units of some types may begin with: `byte >> shift & mask` is the type."""
    kinds = set(types)
    return frozenset(byte for byte in range(256) if byte >> shift & mask in kinds)


# What the byte behind the start code or length of a picture may be.
PICTURES = {
    "h264": first_bytes(range(1, 6), 0, 31),
    "hevc": first_bytes(range(32), 1, 63),
    "mpeg4": frozenset({0xB6}),
}


def unit_starts(data: bytes, length: int) -> Iterator[tuple[int, int]]:
    """Where each unit of a packet begins: its length or start code, and its first byte.

    Args:
        data: of the packet.
        length: as `num_length_bytes` gives it.
    """
    at, end = 0, len(data)
    while length and at + length < end:
        start = at + length
        yield at, start
        at = start + int.from_bytes(data[at:start], "big")
    if not length:
        at = data.find(START_CODE)
        while 0 <= at < end - 3:
            yield at, at + 3
            at = data.find(START_CODE, at + 3)


# In place of the type of a picture.
_NONE, TWO_VOPS = -1, -2


def vop_types(packets: Sequence[Any]) -> list[int]:
    """vop_coding_type of the picture in each MPEG-4 packet: 0 I, 1 P, 2 B, 3 sprite.

    Of a packet without a picture the type is -1. From the first packet with several pictures on it is
    `TWO_VOPS`: such packets are taken apart before anybody asks for the others.
    """
    found: list[int] = []
    for packet in packets:
        heads = _VOPS.findall(packet)
        if len(heads) > 1:
            return found + [TWO_VOPS] * (len(packets) - len(found))
        found.append(heads[0][0] >> 6 if heads and heads[0] else _NONE)
    return found


# A longer MPEG-4 packet holds more than the header of a picture that repeats the last one and shows nothing.
_MPEG4_EMPTY_BYTES = 19
_LAYER = re.compile(rb"\0\0\x01[\x20-\x2f]")  # the header of a layer

# A packet of these holds one frame, which VP8 may hide.
_ONE_FRAME_A_PACKET = frozenset(
    {"h264", "hevc", *av1.DECODERS, "vp8", "vp9", "libvpx-vp9", "mpeg4", "mjpeg", "prores"}
)
_VP8_SHOWN = 16  # in the first byte; reference: RFC 6386, 9.1
# Frames of these are shown in the order they are decoded in, whatever the container says.
_IN_ORDER = frozenset({"mjpeg", "prores", "vp8"})
JPEG_START = b"\xff\xd8"


class Timing(NamedTuple):
    """When the frames of a video are shown.

    Attributes:
        ticks: time of each frame in units; the first is 0.
        tick_sec: length of a unit in seconds.
        rate: frames a second, on average.
    """

    ticks: Sequence[int]
    tick_sec: Fraction
    rate: Fraction

    def of(self, first: int, stop: int) -> Timing:
        """The times of frames `first` to `stop` - 1, the first of which is shown at 0."""
        ticks = self.ticks[first:stop]
        return self._replace(ticks=[tick - ticks[0] for tick in ticks] if first else ticks)

    def seconds(self) -> np.ndarray:
        """Time of each frame in seconds, float64."""
        ticks: Any = np.arange(len(self.ticks)) if isinstance(self.ticks, range) else np.asarray(self.ticks)
        return ticks * self.tick_sec.numerator / self.tick_sec.denominator


class Clock(NamedTuple):
    """What a stream tells about time, read while its container is open.

    Attributes:
        timestamps: of its packets, in decoding order; None for one that is not shown or has none.
        tick_sec: unit of the timestamps in seconds; None where nothing says.
        rate: frames a second, on average; None where nothing says.
    """

    timestamps: Sequence[int | None]
    tick_sec: Fraction | None
    rate: Fraction | None

    @classmethod
    def of(cls, stream: Any, packets: Iterable[Any]) -> Clock:
        """The clock of a stream."""
        timestamps = [None if packet.is_discard else packet.pts for packet in packets]
        return cls(timestamps, stream.time_base, stream.average_rate or stream.guessed_rate)


def timing_of(clock: Clock, num_frames: int) -> Timing:
    """The times of a video's frames; distances that differ only by the rounding of the file become equal.

    Args:
        clock: of the stream.
        num_frames: of the video; where there are not as many timestamps, frames have the average distance.
    """
    rate = clock.rate or Fraction(25)
    pts = sorted({value for value in clock.timestamps if value is not None})
    if len(pts) == num_frames and clock.tick_sec:
        step = 1 / (rate * clock.tick_sec)
        error = np.abs(np.asarray(pts, np.float64) - pts[0] - np.arange(num_frames) * float(step))
        if error.max() > min(1.0, step / 4):
            return Timing([value - pts[0] for value in pts], clock.tick_sec, rate)
    return Timing(range(num_frames), 1 / rate, rate)


class FrameIndex:
    """Frame number -> place of its packet in decoding order, and where decoding can begin.

    Args:
        order: places of the packets that hold a picture, in the order the pictures are shown.
        entries: places of the key packets, ascending.
        num_packets: of the stream.
        hidden: places of pictures that are decoded but not shown (cut away by an edit list).

    Attributes:
        order: as given.
        entries: as given, and the first packet.
        shown: `shown[i]` is the place of frame i's packet.
    """

    def __init__(
        self, order: Sequence[int], entries: Sequence[int], num_packets: int, hidden: Iterable[int] = ()
    ) -> None:
        self.order = order
        left_out = set(hidden)
        self.shown = [place for place in order if place not in left_out]
        self._rank = {place: rank for rank, place in enumerate(order)}
        self.entries = list(entries) if entries and entries[0] == 0 else [0, *entries]
        self._ends = [*sorted(order)[1:], num_packets]
        self._num_packets = num_packets

    @property
    def one_to_one(self) -> bool:
        """Each packet holds one picture."""
        return len(self._rank) == self._num_packets

    def is_entry(self, place: int) -> bool:
        """Whether decoding can begin with the packet at `place`."""
        return place == self.entries[bisect_right(self.entries, place) - 1]

    def is_closed(self, place: int) -> bool:
        """Whether no picture that follows the key packet at `place` is shown before it."""
        group = bisect_right(self.entries, place) - 1
        stop = [*self.entries, self._num_packets][group + 1]
        return not any(self._leads(other, group) for other in range(place, stop))

    def spans(self, wanted: Sequence[int]) -> list[tuple[int, int]]:
        """The packet ranges [first, stop) that must pass the decoder for the places `wanted`.

        Each begins at a key packet and ends after the last packet that is wanted. A frame shown before
        the key frame of its group (open GOP) also refers to the group before, which is decoded too:

            decoding order   I0 P4 B2 B1 B3 | I8 B6 B5 B7 P12 …
            wanted: B6                └─ from I0 on, because B6 is shown before I8
        """
        spans = []
        for place in wanted:
            group = bisect_right(self.entries, place) - 1
            if self._leads(place, group):
                group = max(group - 1, 0)
            spans.append((self.entries[group], self._end(place)))
        merged: list[tuple[int, int]] = []
        for first, stop in sorted(spans):
            if merged and first < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((first, stop))
        return merged

    def spoilt(self, place: int, spare: bool) -> Iterable[int]:
        """The places whose pictures cannot be trusted where the packet at `place` does not decode.

        Args:
            place: of the damaged packet.
            spare: no other picture refers to it.
        """
        if spare:
            return (place,)
        group = bisect_right(self.entries, place) - 1
        bounds = [*self.entries, self._num_packets, self._num_packets]
        after = range(bounds[group + 1], bounds[group + 2])
        leading = [other for other in after if self._leads(other, group + 1)]
        return [*range(place, bounds[group + 1]), *leading]

    def _leads(self, place: int, group: int) -> bool:
        """Whether a picture is shown before the key picture of its group; True where that cannot be known."""
        entry = self._rank.get(self.entries[group])
        return entry is None or self._rank.get(place, entry) < entry

    def _end(self, place: int) -> int:
        """Behind the last packet of a picture: where the next picture begins."""
        at = bisect_right(self._ends, place)
        return self._ends[at] if at < len(self._ends) else self._num_packets


def index_packets(
    packets: Sequence[Any], stream: Any, entries: Sequence[int], vops: Sequence[int] = ()
) -> FrameIndex | None:
    """The index of a stream worked out without decoding, or None where only decoding tells.

    That is so where timestamps are missing or repeated, or go back at a key frame, or frames are reordered in
    a container that stores no timestamps (AVI: libav guesses some); where the stream does not begin with a
    key frame that is shown first; and where packets and frames are not one to one. MPEG-4 says the order
    itself, with each picture.

    Args:
        packets: of the stream, in decoding order.
        stream: that they are of.
        entries: places of the packets where decoding can begin.
        vops: of MPEG-4 packets, as `vop_types` gives them.
    """
    codec_context = stream.codec_context
    codec = codec_context.name
    if codec not in _ONE_FRAME_A_PACKET or _is_interlaced(codec_context) or not packets[0].is_keyframe:
        return None
    order: list[int] | None
    if codec in _IN_ORDER:
        order = _in_order(packets, codec)
    elif codec != "mpeg4":
        order = _order_by_time(packets, stream, entries)
    elif _all_coded(packets, (codec_context.extradata or b"") + bytes(packets[0])):
        order = _order_by_type(vops)
    else:
        return None
    if not order or order[0] != 0:
        return None
    hidden = [place for place, packet in enumerate(packets) if packet.is_discard]
    return FrameIndex(order, entries, len(packets), hidden) if len(hidden) < len(order) else None


def _in_order(packets: Sequence[Any], codec: str) -> list[int] | None:
    """The places of the packets that show a frame; None where some packet may hold none."""
    places = range(len(packets))
    if codec == "vp8":
        return [place for place in places if memoryview(packets[place])[0] & _VP8_SHOWN]
    is_whole = codec != "mjpeg" or all(bytes(memoryview(packet)[:2]) == JPEG_START for packet in packets)
    return list(places) if is_whole else None


def _order_by_time(packets: Sequence[Any], stream: Any, entries: Sequence[int]) -> list[int] | None:
    pts = [packet.pts for packet in packets]
    if None in pts or len(set(pts)) != len(pts):
        return None
    order = sorted(range(len(pts)), key=pts.__getitem__)
    is_ascending = order == list(range(len(pts)))
    if stream.codec_context.has_b_frames and len(pts) > 2 and is_ascending:
        return None
    if is_ascending:
        return order
    latest = list(accumulate(pts, max))
    goes_back = any(place and latest[place - 1] > pts[place] for place in entries)  # joined files overlap
    return None if goes_back or stream.container.format.name == "avi" else order


def _order_by_type(vops: Sequence[int]) -> list[int] | None:
    """MPEG-4 shows a B picture at once, and any other when the next that is no B picture comes."""
    order: list[int] = []
    held: list[int] = []
    for place, kind in enumerate(vops):
        if kind < 0 or (kind == B_VOP and not order):
            return None  # two pictures in one packet, or a B picture that lacks what it refers to
        if kind == B_VOP:
            order.append(place)
        else:
            order += held
            held = [place]
    return order + held


def _all_coded(packets: Sequence[Any], header: bytes) -> bool:
    """Whether all MPEG-4 pictures are coded, as far as this is known; others show nothing."""
    short = [bytes(packet) for packet in packets if packet.size <= _MPEG4_EMPTY_BYTES]
    if not short:
        return True
    layer = _LAYER.search(header)
    num_time_bits = _time_bits(av1.Bits(header[layer.end() :][:64])) if layer else 0
    return num_time_bits > 0 and all(_is_coded(data, num_time_bits) for data in short)


def _time_bits(bits: av1.Bits) -> int:
    """Bits of the time in each picture, from the header of a layer; 0: not a rectangular one.

    Reference: ISO 14496-2, 6.2.3.
    """
    bits.read(1 + 8)
    if bits.read(1):
        bits.read(4 + 3)
    if bits.read(4) == 15:  # an aspect ratio of its own
        bits.read(8 + 8)
    if bits.read(1):
        bits.read(2 + 1)
        if bits.read(1):  # buffer sizes
            bits.read(79)
    if bits.read(2) != 0 or not bits.read(1):
        return 0
    return max((bits.read(16) - 1).bit_length(), 1)


def _is_coded(data: bytes, num_time_bits: int) -> bool:
    """The bit vop_coded of the picture in a packet. Reference: ISO 14496-2, 6.2.5."""
    at = data.find(_VOP_START)
    bits = av1.Bits(data[at + len(_VOP_START) :])
    bits.read(2)
    while bits.read(1):  # whole seconds
        pass
    bits.read(1 + num_time_bits + 1)
    return at >= 0 and bool(bits.read(1))


def _is_interlaced(codec_context: Any) -> bool:
    """Two fields of one frame may come in two packets."""
    unknown, progressive = 0, 1
    return int(getattr(codec_context, "field_order", unknown)) not in (unknown, progressive)

"""Which packet holds which frame, and which packets no other frame needs; read without decoding."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import av.format
import numpy as np

from paddlevideo_fast.decode import av1
from paddlevideo_fast.decode.codecs import AV1, JPEG_START, VP9, num_length_bytes, units
from paddlevideo_fast.decode.mpeg4 import B_VOP, NO_VOP, NOT_CODED

# H.264 unit types (ITU-T H.264, table 7-1).
_SLICE, _SEI, _DELIMITER, _FILLER = 1, 6, 9, 12
_REFERENCES = frozenset(_SLICE | ref_idc << 5 for ref_idc in (1, 2, 3))  # slices that others refer to

# Length and first byte of a unit, as nearly all files write them.
_HEAD = struct.Struct(">IB")
_LENGTH_BYTES = 4


def nonref_test(
    codec_context: Any, vops: Sequence[int] = (), first_packet: bytes = b""
) -> Callable[[Any], bool] | None:
    """A function that says whether a packet holds nothing but a non-reference frame.

    Args:
        codec_context: of the stream.
        vops: of its packets, as `mpeg4.unpack` gives them; the packets carry their number as timestamp.
        first_packet: of a stream that keeps the parameters which this packet brings, in AV1.

    Returns:
        Packet -> bool; None where the bitstream does not say so plainly: HEVC says it together with state
        that a decoder keeps, and in VP9 the next frame takes over the motion of any frame before it.
    """
    if codec_context.name == "h264":
        return partial(_is_nonref_h264, num_length_bytes(codec_context))
    if codec_context.name == "mpeg4":
        return lambda packet: vops[packet.pts] == B_VOP
    if codec_context.name in AV1:
        return av1.nonref_test(codec_context.extradata, first_packet)
    return (lambda packet: False) if codec_context.name in _IN_ORDER else None


def _is_nonref_h264(length: int, packet: Any) -> bool:
    """All slices have nal_ref_idc 0, and no parameter set, which outlives the picture, is beside them."""
    if packet.size > _HEAD.size and length == _LENGTH_BYTES:  # most packets hold one unit
        num_bytes, header = _HEAD.unpack_from(packet)
        if header in _REFERENCES:
            return False
        if num_bytes + length == packet.size and header & 31 == _SLICE:
            return True
    data, has_nonref_slice = bytes(packet), False
    for start, _ in units(data, length):
        header = data[start]
        kind = header & 31
        if kind == _SLICE and not header & 0x60:
            has_nonref_slice = True
        elif kind not in (_SEI, _DELIMITER, _FILLER):
            return False
    return has_nonref_slice


# A packet of these holds one frame, which VP8 may hide.
_ONE_FRAME_A_PACKET = frozenset({"h264", "hevc", *AV1, "vp8", *VP9, "mpeg4", "mjpeg", "prores"})
_VP8_SHOWN = 16  # in the first byte; reference: RFC 6386, 9.1
# Frames of these are shown in the order they are decoded in, whatever the container says.
_IN_ORDER = frozenset({"mjpeg", "prores", "vp8"})


@dataclass(slots=True)
class PacketHead:
    """What stays in memory of a packet of a large file; its content is read again where it is needed.

    Attributes:
        data: first bytes of the packet.
        others: as of a packet of PyAV.
    """

    pts: int | None
    dts: int | None
    size: int
    duration: int | None
    pos: int | None
    is_keyframe: bool
    is_discard: bool
    is_corrupt: bool
    data: bytes

    @classmethod
    def of(cls, packet: Any, num_bytes: int) -> PacketHead:
        """The head of a packet of PyAV, with its first `num_bytes`."""
        times, flags = (packet.pts, packet.dts), (packet.is_keyframe, packet.is_discard, packet.is_corrupt)
        data = bytes(memoryview(packet)[:num_bytes])
        return cls(*times, packet.size, packet.duration, packet.pos, *flags, data)

    def __bytes__(self) -> bytes:
        return self.data


def first_bytes(packet: Any, num_bytes: int) -> bytes:
    """The first bytes of a packet of PyAV, or of a head as far as it has them."""
    data = packet.data if isinstance(packet, PacketHead) else memoryview(packet)
    return bytes(data[:num_bytes])


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
    def of(cls, stream: Any, packets: Iterable[Any], hidden: Container[int]) -> Clock:
        """The clock of a stream; `hidden` are the numbers of the packets that are not shown."""
        times = [packet.pts if has_pts(stream) else packet.dts for packet in packets]
        shown = [None if packet_no in hidden else time for packet_no, time in enumerate(times)]
        return cls(shown, stream.time_base, rate_of(stream))

    def since(self, first: int | None) -> Clock:
        """The clock of a stream that times decoding: a picture is shown when the decoder gives it.

        Args:
            first: timestamp of the packet with which the decoder gives the first picture.
        """
        times = [time for time in self.timestamps if time is not None]
        late = times.index(first) if first in times else 0
        gap = times[-1] - times[-2] if late else 0
        return self._replace(timestamps=[*times[late:], *(times[-1] + n * gap for n in range(1, late + 1))])


def has_pts(stream: Any) -> bool:
    """Whether a container stores when pictures are shown.

    AVI and ASF store when packets are decoded, and libav guesses the rest.
    """
    return stream.container.format.name not in ("asf", "avi")


def rate_of(stream: Any) -> Fraction | None:
    """Frames a second of a stream, on average; None where nothing says.

    Of a bare stream FFmpeg calls 25 the average; what the pictures say is its guess.
    """
    rates = (stream.average_rate, stream.guessed_rate)
    return next(filter(None, reversed(rates) if is_bare(stream) else rates), None)


def is_bare(stream: Any) -> bool:
    """Whether a stream, such as .h264, has no container that says when its pictures are shown."""
    return bool(stream.container.format.flags & av.format.Flags.no_timestamps.value)


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


_NO_PICTURE = -1  # in place of a rank


class FrameIndex:
    """Frame number -> number of its packet in decoding order, and where decoding can begin.

    Args:
        order: numbers of the packets that hold a picture, in the order the pictures are shown.
        access_points: numbers of the packets at which a new decoder may begin, ascending.
        num_packets: of the stream.
        hidden: packets with pictures that are decoded but not shown.

    Attributes:
        order: as given, int64 [num_pictures].
        access_points: as given, and the first packet.
        shown: int64 [num_frames], `shown[i]` is the number of frame i's packet.
    """

    def __init__(
        self,
        order: Sequence[int] | np.ndarray,
        access_points: Sequence[int],
        num_packets: int,
        hidden: Collection[int] = (),
    ) -> None:
        self.order = np.asarray(order, np.int64)
        self.shown = self.order[~np.isin(self.order, list(hidden))] if hidden else self.order
        self._rank = np.full(num_packets, _NO_PICTURE)
        self._rank[self.order] = np.arange(len(self.order))
        self.access_points = sorted({0, *access_points})
        self._num_packets = num_packets

    @property
    def one_to_one(self) -> bool:
        """Each packet holds one picture."""
        return len(self.order) == self._num_packets

    def is_access_point(self, packet_no: int) -> bool:
        """Whether decoding can begin with this packet."""
        return packet_no == self.access_points[self._group(packet_no)]

    def is_closed(self, packet_no: int) -> bool:
        """Whether no picture that follows the key packet `packet_no` is shown before it."""
        group = self._group(packet_no)
        stop = [*self.access_points, self._num_packets][group + 1]
        return not any(self._leads(other, group) for other in range(packet_no, stop))

    def spans(self, wanted: Sequence[int]) -> list[tuple[int, int]]:
        """The packet ranges [first, stop) that must pass the decoder for the packets `wanted`.

        Each begins at a random access point and ends after the last packet that is wanted. A frame shown
        before the key frame of its group (open GOP) also refers to the group before, which is decoded too:

            decoding order   I0 P4 B2 B1 B3 | I8 B6 B5 B7 P12 …
            wanted: B6                └─ from I0 on, because B6 is shown before I8
        """
        spans: list[tuple[int, int]] = []
        for packet_no in sorted(wanted):
            group = self._group(packet_no)
            if self._leads(packet_no, group):
                group = max(group - 1, 0)
            first, stop = self.access_points[group], self._end(packet_no)
            while spans and first < spans[-1][1]:
                before = spans.pop()
                first, stop = min(first, before[0]), max(stop, before[1])
            spans.append((first, stop))
        return spans

    def groups_of(self, wanted: Sequence[int], most_beyond: int) -> set[int]:
        """The packets `wanted`, and all others of their groups that can be decoded from the same key frames.

        Args:
            wanted: numbers of packets.
            most_beyond: how many packets a range may have after the last that is wanted.
        """
        members = set(wanted)
        bounds = [*self.access_points, self._num_packets]
        for first, stop in self.spans(wanted):
            last = min(bounds[self._group(stop - 1) + 1], stop + most_beyond)
            group = self._group(first)
            members.update(other for other in range(first, last) if not self._leads(other, group))
        return members

    def undecodable(self, packet_no: int, is_nonref: bool = False) -> Iterable[int]:
        """The packets whose pictures cannot be trusted where a packet does not decode.

        Args:
            packet_no: the damaged packet.
            is_nonref: no other picture refers to it.
        """
        if is_nonref:
            return (packet_no,)
        group = self._group(packet_no)
        bounds = [*self.access_points, self._num_packets, self._num_packets]
        after = range(bounds[group + 1], bounds[group + 2])
        leading = [other for other in after if self._leads(other, group + 1)]
        return [*range(packet_no, bounds[group + 1]), *leading]

    def _group(self, packet_no: int) -> int:
        """Which access point is the last one up to a packet."""
        return bisect_right(self.access_points, packet_no) - 1

    def _leads(self, packet_no: int, group: int) -> bool:
        """Whether a picture is shown before the key picture of its group; True where that cannot be known."""
        first, rank = self._rank[self.access_points[group]], self._rank[packet_no]
        return bool(first == _NO_PICTURE or _NO_PICTURE < rank < first)

    def _end(self, packet_no: int) -> int:
        """Behind the last packet of a picture: where the next picture begins."""
        after = range(packet_no + 1, self._num_packets)
        return next((other for other in after if self._rank[other] != _NO_PICTURE), self._num_packets)


def hidden_packets(packets: Iterable[Any]) -> set[int]:
    """The numbers of the packets that an edit list cuts away."""
    return {packet_no for packet_no, packet in enumerate(packets) if packet.is_discard}


def index_packets(
    packets: Sequence[Any],
    stream: Any,
    access_points: Sequence[int],
    hidden: Collection[int],
    vops: Sequence[int] = (),
) -> FrameIndex | None:
    """The index of a stream worked out without decoding, or None where only decoding tells.

    That is so where timestamps are missing or repeated, or go back at a key frame, or frames are reordered in
    a container that stores no timestamps (AVI: libav guesses some); where the stream does not begin with a
    key frame that is shown first; and where packets and frames are not one to one. MPEG-4 says the order
    itself, with each picture.

    Args:
        packets: of the stream, in decoding order.
        stream: that they are of.
        access_points: numbers of the packets at which a new decoder may begin.
        hidden: numbers of the packets that are not shown.
        vops: of MPEG-4 packets, as `mpeg4.unpack` gives them.
    """
    codec_context = stream.codec_context
    codec = codec_context.name
    if codec not in _ONE_FRAME_A_PACKET or _is_interlaced(codec_context) or not packets[0].is_keyframe:
        return None
    order: list[int] | None
    if codec in _IN_ORDER:
        order = _in_order(packets, codec)
    else:
        order = _order_by_type(vops) if codec == "mpeg4" else _order_by_time(packets, stream)
    if not order or order[0] != 0:
        return None
    return FrameIndex(order, access_points, len(packets), hidden) if len(hidden) < len(order) else None


def _in_order(packets: Sequence[Any], codec: str) -> list[int] | None:
    """The numbers of the packets that show a frame; None where some packet may hold none."""
    if codec == "vp8":
        shown = (first_bytes(packet, 1)[0] & _VP8_SHOWN for packet in packets)
        return [packet_no for packet_no, is_shown in enumerate(shown) if is_shown]
    is_whole = codec != "mjpeg" or all(first_bytes(packet, 2) == JPEG_START for packet in packets)
    return list(range(len(packets))) if is_whole else None


def _order_by_time(packets: Sequence[Any], stream: Any) -> list[int] | None:
    pts = [packet.pts for packet in packets]
    if None in pts or len(set(pts)) != len(pts):
        return None
    order = sorted(range(len(pts)), key=pts.__getitem__)
    is_ascending = order == list(range(len(pts)))
    if stream.codec_context.has_b_frames and len(pts) > 2 and is_ascending:
        return None
    if is_ascending:
        return order
    latest = [pts[0], *accumulate(pts, max)]  # of the packets before
    goes_back = any(  # joined files overlap
        packet.is_keyframe and before > packet.pts for packet, before in zip(packets, latest)
    )
    return None if goes_back or stream.container.format.name == "avi" else order


def _order_by_type(vops: Sequence[int]) -> list[int] | None:
    """MPEG-4 shows a B picture at once, and any other when the next that is no B picture comes."""
    order: list[int] = []
    held: list[int] = []
    if vops[-1] == NOT_CODED:
        return None  # at the end, libav shows another picture in its place
    for packet_no, kind in enumerate(vops):
        if kind == NO_VOP or (kind == B_VOP and not order):
            return None  # or a B picture that lacks what it refers to
        if kind == B_VOP:
            order.append(packet_no)
        elif kind == NOT_CODED:
            held.append(packet_no)
        else:
            order += held
            held = [packet_no]
    return order + held


def _is_interlaced(codec_context: Any) -> bool:
    """Two fields of one frame may come in two packets."""
    unknown, progressive = 0, 1
    return int(getattr(codec_context, "field_order", unknown)) not in (unknown, progressive)

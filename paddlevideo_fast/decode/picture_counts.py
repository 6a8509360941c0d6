"""Whether pictures are missing between two packets, by the numbers that pictures carry themselves.

A recording that paused and one that lost packets have the same hole in time. Pictures of H.264, HEVC, MPEG-1
and MPEG-2 are numbered in the order they are shown, anew from some key pictures on. H.264 also numbers the
pictures that others refer to.

    pause    time 0 1 2 3 . . . 7 8     number 0 1 2 3 4 5
    lost     time 0 1 2 3 . . . 7 8     number 0 1 2 3 7 8

Reference: ITU-T H.264, 7.3; ITU-T H.265, 7.3; ISO 13818-2, 6.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from statistics import median
from typing import Any, NamedTuple

from paddlevideo_fast.decode.codecs import MPEG2, START_CODE, Bits, num_length_bytes, units
from paddlevideo_fast.decode.packets import first_bytes

_HEAD_BYTES = 256  # of a packet; its first picture nearly always begins within these
_NEAR = 32  # packets on both sides; fewer are decoded before one that is shown earlier

_Read = Callable[[bytes], "Numbers | None"]


class Numbers(NamedTuple):
    """What a picture says about its place.

    Attributes:
        shown: in the order of showing, modulo `modulo`; None where it does not say.
        modulo: of `shown`.
        begins: numbers begin anew here.
        frame_num: of H.264, modulo `frame_modulo`.
        frame_modulo: of `frame_num`; 0 in other codecs.
        is_reference: the next picture has the next `frame_num`.
        group: of a picture of H.264 at which numbers begin: another than the one before has.
    """

    shown: int | None
    modulo: int
    begins: bool
    frame_num: int = 0
    frame_modulo: int = 0
    is_reference: bool = False
    group: int | None = None


def are_consecutive(packets: Sequence[Any], codec_context: Any, packet_no: int) -> bool | None:
    """Whether no picture is missing before a packet; None where the pictures do not say.

    Args:
        packets: of the stream, in decoding order.
        codec_context: of the stream.
        packet_no: of a packet, not the first.
    """
    near = range(max(packet_no - _NEAR, 0), min(packet_no + _NEAR, len(packets)))
    numbers = numbers_of(packets, codec_context, near)
    if numbers is None or numbers[packet_no - near[0]].begins:
        return None
    before, after = numbers[: packet_no - near[0]], numbers[packet_no - near[0] :]
    earlier, later = before[-1], after[0]
    if later.frame_modulo:
        step = (later.frame_num - earlier.frame_num) % later.frame_modulo
        if step not in (0, int(earlier.is_reference)):  # 0: the second field of a picture
            return False
    begins = [index for index, each in enumerate(before) if each.begins]
    until = list(takewhile(lambda each: not each.begins, after))
    since = before[max(begins, default=0) :]
    return not later.modulo or _is_dense(since, until, bool(begins), len(until) < len(after))


def numbers_of(packets: Sequence[Any], codec_context: Any, packet_nos: Sequence[int]) -> list[Numbers] | None:
    """What the pictures of some packets say about their places; None where they do not.

    Args:
        packets: of the stream, in decoding order.
        codec_context: of the stream.
        packet_nos: numbers of packets.
    """
    make = _READERS.get(codec_context.name)
    read = make(codec_context, bytes(packets[0])) if make else None
    if read is None:
        return None
    numbers = []
    for number in packet_nos:
        head = first_bytes(packets[number], _HEAD_BYTES)
        each = read(head) or read(bytes(packets[number]))  # an encoder's name may stand in front
        if each is None:
            return None
        numbers.append(each)
    return numbers


def _is_dense(
    before: Sequence[Numbers], after: Sequence[Numbers], is_from_begin: bool, is_to_end: bool
) -> bool:
    """Whether the order of showing has no hole around a place; at the ends of what is looked at it may."""
    modulo, last, unwrapped = before[0].modulo, 0, list[int]()
    for each in [*before, *after]:
        last += ((each.shown or 0) - last + modulo // 2) % modulo - modulo // 2
        unwrapped.append(last)
    earlier, later = unwrapped[: len(before)], unwrapped[len(before) :]
    lowest = min(earlier) if is_from_begin else median(earlier)
    highest = max(later) if is_to_end else median(later)
    numbers = sorted(unwrapped)
    steps = [(number, after - number) for number, after in zip(numbers, numbers[1:])]
    usual = median(step for _, step in steps)
    return all(0 < step <= 1.5 * usual for number, step in steps if lowest <= number < highest)


def _parameter_sets(codec_context: Any, first_packet: bytes, kind: Callable[[int], int]) -> dict[int, bytes]:
    """The first unit of each type in the header of a stream, or in its first packet."""
    header, length = codec_context.extradata or b"", num_length_bytes(codec_context)
    if not length:
        spans = units(header + first_packet, 0)
        sets = [(header + first_packet)[start:stop] for start, stop in spans]
    else:  # avcC and hvcC have lengths of two bytes, in front of which stand counts
        at, sets = (6, []) if codec_context.name == "h264" else (26, [])
        while at + 2 < len(header):
            size = int.from_bytes(header[at : at + 2], "big")
            sets.append(header[at + 2 : at + 2 + size])
            at += 2 + size + (1 if codec_context.name == "h264" else 3)
    return {kind(each[0]): _raw(each) for each in reversed(sets) if each}


def _raw(unit: bytes) -> bytes:
    """The content of a unit of H.264 or HEVC, without the bytes that keep start codes out of it."""
    return unit.replace(b"\0\0\3", b"\0\0")


def _pictures(length: int, kind: Callable[[int], int], coded: range) -> Callable[[bytes], bytes]:
    """A function that gives the first picture of a packet of H.264 or HEVC; empty where there is none."""

    def first(data: bytes) -> bytes:
        pictures = (data[start:stop] for start, stop in units(data, length) if kind(data[start]) in coded)
        return _raw(next(pictures, b"")[:64])

    return first


def _h264_type(byte: int) -> int:
    return byte & 31


def _hevc_type(byte: int) -> int:
    return byte >> 1 & 63


_HIGH_PROFILES = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)


def _h264(codec_context: Any, first_packet: bytes) -> _Read | None:
    sequence = _parameter_sets(codec_context, first_packet, _h264_type).get(7)
    if sequence is None:
        return None
    bits = Bits(sequence[4:])
    bits.golomb()
    has_planes = False
    if sequence[1] in _HIGH_PROFILES:
        chroma = bits.golomb()
        has_planes = chroma == 3 and bool(bits.read(1))
        bits.golomb()
        bits.golomb()
        if bits.read(2) & 1:
            return None  # matrices
    num_frame_bits = bits.golomb() + 4
    num_bits = bits.golomb() + 4 if (order := bits.golomb()) == 0 else 0
    if order == 1:
        return None
    bits.golomb()
    bits.read(1)
    bits.golomb()
    bits.golomb()
    is_progressive = bool(bits.read(1))
    picture_of = _pictures(num_length_bytes(codec_context), _h264_type, range(1, 6))

    def read(data: bytes) -> Numbers | None:
        picture = picture_of(data)
        if not picture:
            return None
        bits, begins = Bits(picture[1:]), _h264_type(picture[0]) == 5
        for _ in range(3):
            bits.golomb()
        bits.read(2 * has_planes)
        frame_num = bits.read(num_frame_bits)
        if not is_progressive and bits.read(1):
            bits.read(1)
        group = bits.golomb() if begins else None
        is_reference = bool(picture[0] & 0x60)
        shown = bits.read(num_bits) if num_bits else None
        modulo = 1 << num_bits if num_bits else 0
        return Numbers(shown, modulo, begins, frame_num, 1 << num_frame_bits, is_reference, group)

    return read


def _hevc(codec_context: Any, first_packet: bytes) -> _Read | None:
    sets = _parameter_sets(codec_context, first_packet, _hevc_type)
    if not {33, 34} <= sets.keys():
        return None
    bits = Bits(sets[33][2:])
    bits.read(4)
    num_layers = bits.read(3)
    bits.read(1 + 96)
    has = [(bits.read(1), bits.read(1)) for _ in range(num_layers)]
    bits.read(2 * (8 - num_layers) if num_layers else 0)
    for has_profile, has_level in has:
        bits.read(88 * has_profile + 8 * has_level)
    bits.golomb()
    has_planes = bits.golomb() == 3 and bool(bits.read(1))
    bits.golomb()
    bits.golomb()
    if bits.read(1):
        for _ in range(4):
            bits.golomb()
    bits.golomb()
    bits.golomb()
    num_bits = bits.golomb() + 4
    bits = Bits(sets[34][2:])
    bits.golomb()
    bits.golomb()
    bits.read(1)
    says_output, num_extra = bits.read(1), bits.read(3)
    picture_of = _pictures(num_length_bytes(codec_context), _hevc_type, range(32))

    def read(data: bytes) -> Numbers | None:
        picture = picture_of(data)
        if not picture:
            return None
        bits, kind = Bits(picture[2:]), _hevc_type(picture[0])
        bits.read(2 if 16 <= kind < 24 else 1)
        bits.golomb()
        bits.read(num_extra)
        bits.golomb()
        bits.read(says_output + 2 * has_planes)
        begins = kind in (16, 17, 18, 19, 20)
        return Numbers(0 if kind in (19, 20) else bits.read(num_bits), 1 << num_bits, begins)

    return read


def _mpeg2(codec_context: Any, first_packet: bytes) -> _Read:
    def read(data: bytes) -> Numbers | None:
        at = data.find(START_CODE + b"\0")
        number = int.from_bytes(data[at + 4 : at + 6], "big") >> 6
        return Numbers(number, 1024, START_CODE + b"\xb8" in data[:at]) if at >= 0 else None

    return read


_READERS: dict[str, Callable[[Any, bytes], _Read | None]] = {
    "h264": _h264,
    "hevc": _hevc,
    **dict.fromkeys(MPEG2, _mpeg2),
}

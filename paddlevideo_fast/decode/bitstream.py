"""The few bits of a packet that tell whether other pictures need it, read without decoding."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional

# H.264 unit types (ITU-T H.264, table 7-1).
_SLICE, _SEI, _DELIMITER, _FILLER = 1, 6, 9, 12

_START_CODE = b"\x00\x00\x01"
_VOP_START = b"\x00\x00\x01\xb6"  # MPEG-4 part 2: a picture
B_VOP = 2


def spare_test(codec_context: Any) -> Optional[Callable[[Any], bool]]:
    """A function that tells whether a packet can be left out without changing any other picture.

    Returns:
        Packet -> bool; None where the bitstream does not say so plainly (HEVC, VP9 and AV1 say it together
        with state that a decoder keeps).
    """
    if codec_context.name == "h264":
        extradata = codec_context.extradata or b""
        # avcC begins with version 1 and holds the size of the length in front of each unit; else: start codes
        num_length_bytes = (extradata[4] & 3) + 1 if len(extradata) > 6 and extradata[0] == 1 else 0
        return lambda packet: _is_spare_h264(bytes(packet), num_length_bytes)
    if codec_context.name == "mpeg4":
        return lambda packet: vop_type(packet) == B_VOP
    return None


def _is_spare_h264(data: bytes, num_length_bytes: int) -> bool:
    """All slices have nal_ref_idc 0, and no parameter set, which outlives the picture, is beside them."""
    found = False
    for header in _unit_headers(data, num_length_bytes):
        kind = header & 31
        if kind == _SLICE and not header & 0x60:
            found = True
        elif kind not in (_SEI, _DELIMITER, _FILLER):
            return False
    return found


def _unit_headers(data: bytes, num_length_bytes: int) -> Iterator[int]:
    at, end = 0, len(data)
    while num_length_bytes and at + num_length_bytes < end:
        start = at + num_length_bytes
        yield data[start]
        at = start + int.from_bytes(data[at:start], "big")
    if not num_length_bytes:
        at = data.find(_START_CODE)
        while 0 <= at < end - 3:
            yield data[at + 3]
            at = data.find(_START_CODE, at + 3)


def holds_two_pictures(packet: Any) -> bool:
    """Whether more than one picture begins in an MPEG-4 packet."""
    data = bytes(packet)
    return data.find(_VOP_START, data.find(_VOP_START) + 1) > 0


def vop_type(packet: Any) -> Optional[int]:
    """vop_coding_type of the picture in an MPEG-4 packet: 0 I, 1 P, 2 B, 3 sprite; None: not one picture."""
    data = bytes(packet)
    at = data.find(_VOP_START)
    if at < 0 or at + 4 >= len(data) or data.find(_VOP_START, at + 4) >= 0:
        return None
    return data[at + 4] >> 6

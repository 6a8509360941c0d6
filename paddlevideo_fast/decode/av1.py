"""Which packets of AV1 hold nothing but a frame that no other refers to, read from the headers of frames.

AV1 keeps all that outlives a frame (pictures, probabilities, motion, filter deltas, segments) in eight slots,
and each frame says into which of them it goes. A frame that goes into none changes nothing for the others.

Reference: AV1 Bitstream & Decoding Process Specification, 5.5 (sequence header) and 5.9 (frame header).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from paddlevideo_fast.decode.codecs import Bits, av1_content, av1_units

_SEQUENCE, _DELIMITER, _HEADER, _TILES, _METADATA, _FRAME, _AGAIN, _PADDING = 1, 2, 3, 4, 5, 6, 7, 15
_BESIDE = frozenset({_DELIMITER, _TILES, _METADATA, _AGAIN, _PADDING})
_INTER = 1
_SHOWN_KEY = 1  # the first four bits: not another frame again, of type 0, shown
_EACH_FRAME_SAYS = 2
_CONFIG_BYTES, _CONFIG_MARK = 4, b"\x81"  # in front of the units in the header of a file

# The slots are told within the first bytes of a frame's header, and begin before the last of these.
_HEAD_BYTES, _SLOT_BYTES = 8, 3
# Zeroed bytes must not pass for "into no slot": a coded frame has no such run from there on.
_CODED_BYTES = 16


class _Sequence(NamedTuple):
    """What a sequence header says about the headers of its frames.

    Attributes:
        screen: whether they say if they show a screen (2), or all do (1), or none (0).
        integer: whether those that do say if their motion is in whole pixels: 2.
        num_order_bits: bits of the place in presentation order.
    """

    screen: int
    integer: int
    num_order_bits: int


def nonref_test(header: bytes | None, first_packet: bytes = b"") -> Callable[[Any], bool] | None:
    """A function that says whether a packet holds nothing but a non-reference frame.

    Args:
        header: of the file (`av1C`).
        first_packet: of the stream; its sequence header comes before the file's and holds for all packets.

    Returns:
        Packet -> bool; None for a stream in layers, or with a model of the decoder's buffers, and where there
        is no sequence header.
    """
    header = header or b""
    for units in (first_packet, header[_CONFIG_BYTES:] if header[:1] == _CONFIG_MARK else b""):
        for start, _ in av1_units(units):
            if _kind(units[start]) == _SEQUENCE:
                sequence = _read_sequence(Bits(units[av1_content(units, start)[0] :]))
                return sequence and partial(_is_nonref_packet, sequence)
    return None


def is_key(data: bytes) -> bool:
    """Whether the first frame of a packet is a keyframe that is shown."""
    frame = next((at for at, _ in av1_units(data) if _kind(data[at]) in (_FRAME, _HEADER)), len(data))
    content = av1_content(data, frame)[0] if frame < len(data) else frame
    return data[content : content + 1] != b"" and data[content] >> 4 == _SHOWN_KEY


def _kind(first_byte: int) -> int:
    return first_byte >> 3 & 15


def _read_sequence(bits: Bits) -> _Sequence | None:
    bits.read(3)  # profile
    is_still, is_reduced, has_timing = bits.read(1), bits.read(1), bits.read(1)
    has_delays, num_other_layers = bits.read(1), bits.read(5)
    if is_still or is_reduced or has_timing or num_other_layers:
        return None
    bits.read(12)  # layers
    if bits.read(5) > 7:  # level
        bits.read(1)
    if has_delays and bits.read(1):
        bits.read(4)
    num_width_bits, num_height_bits = bits.read(4) + 1, bits.read(4) + 1
    bits.read(num_width_bits + num_height_bits)
    if bits.read(1):  # frames have numbers
        return None
    bits.read(3 + 4)  # tools of blocks, tools of prediction
    has_order = bits.read(1)
    if has_order:
        bits.read(2)
    screen = _EACH_FRAME_SAYS if bits.read(1) else bits.read(1)
    integer = _EACH_FRAME_SAYS
    if screen and not bits.read(1):
        integer = bits.read(1)
    return _Sequence(screen, integer, bits.read(3) + 1 if has_order else 0)


def _is_nonref_packet(sequence: _Sequence, packet: Any) -> bool:
    data, has_frame = bytes(packet), False
    for start, _ in av1_units(data):
        kind = _kind(data[start])
        if kind in (_FRAME, _HEADER):
            if has_frame or data[start] & 4:  # a second frame, or layers
                return False
            has_frame = True
            content, _ = av1_content(data, start)
            coded = data[content + _SLOT_BYTES : content + _SLOT_BYTES + _CODED_BYTES]
            if not any(coded) or not _goes_nowhere(sequence, Bits(data[content : content + _HEAD_BYTES])):
                return False
        elif kind not in _BESIDE:
            return False
    return has_frame


def _goes_nowhere(sequence: _Sequence, bits: Bits) -> bool:
    """Whether the header of a frame says that it is shown, and stored in no slot."""
    shows_another, kind, is_shown = bits.read(1), bits.read(2), bits.read(1)
    if shows_another or kind != _INTER or not is_shown:
        return False
    is_resilient = bits.read(1)
    bits.read(1)  # whether probabilities stay as they are
    shows_screen = bits.read(1) if sequence.screen == _EACH_FRAME_SAYS else sequence.screen
    if shows_screen and sequence.integer == _EACH_FRAME_SAYS:
        bits.read(1)
    bits.read(1 + sequence.num_order_bits)  # whether it says its size; its place in presentation order
    if not is_resilient:
        bits.read(3)
    return bits.read(8) == 0

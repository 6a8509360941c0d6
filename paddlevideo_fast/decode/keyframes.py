"""Where decoding may begin, as the pictures say themselves.

Containers call packets keyframes that are none: all packets of H.263 in AVI, and of an MP4 without a table of
keyframes. So a packet is a keyframe here only where the header of its picture says so too. A video of a codec
whose headers are not read here is decoded from its beginning.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from paddlevideo_fast.decode import av1, mpeg4
from paddlevideo_fast.decode.codecs import AV1, MPEG2, VP9, Bits, sei_messages, units_of

# Each picture stands for itself.
_INTRA = frozenset(
    {"dnxhd", "dvvideo", "ffvhuff", "huffyuv", "jpeg2000", "magicyuv", "png", "prores", "rawvideo", "utvideo"}
)
_PALETTE = "pal8"  # it comes with some packets and holds for those after them

_HEAD_BYTES = 16384  # the header of a picture is within these, behind all that may come before it
_H264_IDR, _H264_SEI, _RECOVERY_POINT = 5, 6, 6
_HEVC_PICTURES, _HEVC_RANDOM_ACCESS = range(32), range(16, 22)
_MPEG2_PICTURE, _MPEG2_INTRA = b"\0\0\x01\0", 1
_JPEG_SCAN, _JPEG_QUANTIZATION, _JPEG_HUFFMAN = b"\xff\xda", b"\xff\xdb", b"\xff\xc4"
_FFV1_KEY = 0x7F80  # half of the range coder's first range: the first bit is 1 from here on


def keyframe_test(codec_context: Any, first_packet: bytes = b"") -> Callable[[bytes], bool] | None:
    """A function that says whether the picture of a packet refers to no other; None of an unknown codec.

    Args:
        codec_context: of the stream.
        first_packet: of the stream.

    Returns:
        First bytes of a packet -> bool.
    """
    name = codec_context.name
    if name in _INTRA and codec_context.pix_fmt != _PALETTE:
        return lambda data: True
    if name in ("h264", "hevc"):
        return partial(_is_h264_key if name == "h264" else _is_hevc_key, units_of(codec_context))
    if name == "mjpeg":  # tables hold for later pictures, too
        tables = [mark for mark in (_JPEG_QUANTIZATION, _JPEG_HUFFMAN) if mark in _jpeg_head(first_packet)]
        return lambda data: all(mark in _jpeg_head(data) for mark in tables)
    if name == "mpeg4" and codec_context.has_b_frames:
        header = (codec_context.extradata or b"") + first_packet
        return None if mpeg4.is_interlaced(header) else mpeg4.is_key
    return _TESTS.get(name)


def correct_keyframes(packets: Sequence[Any], is_key: Callable[[bytes], bool]) -> None:
    """Takes the mark of a keyframe from packets whose picture is none, as `keyframe_test` says."""
    for packet in packets:
        if packet.is_keyframe and not is_key(bytes(memoryview(packet)[:_HEAD_BYTES])):
            packet.is_keyframe = False


def _is_h264_key(units: Callable[[bytes], Iterator[tuple[int, int]]], data: bytes) -> bool:
    """An IDR picture, or one with a recovery point. Reference: ITU-T H.264, 7.4.1.2.4 and D.2.8."""
    for start, stop in units(data):
        kind = data[start] & 31
        if kind == _H264_SEI and any(map(_recovers, sei_messages(data[start + 1 : stop]))):
            return True
        if kind <= _H264_IDR:
            return kind == _H264_IDR
    return False


def _recovers(message: tuple[int, bytes]) -> bool:
    """Whether pictures are right from this one on, or are exactly right some pictures later."""
    kind, content = message
    bits = Bits(content)
    return kind == _RECOVERY_POINT and (not bits.golomb() or bool(bits.read(1)))


def recovers_late(first_packet: Any, codec_context: Any) -> bool:
    """Whether the first pictures of H.264 are not whole: libav shows none before the point that they name.

    Else the first one is of type IDR, or names itself. Reference: ITU-T H.264, D.2.8.
    """
    if codec_context.name != "h264":
        return False
    data = bytes(first_packet)
    for start, stop in units_of(codec_context)(data):
        kind = data[start] & 31
        for message, content in sei_messages(data[start + 1 : stop]) if kind == _H264_SEI else ():
            if message == _RECOVERY_POINT:
                return Bits(content).golomb() > 0
        if kind <= _H264_IDR:
            return kind < _H264_IDR
    return True


def _is_hevc_key(units: Callable[[bytes], Iterator[tuple[int, int]]], data: bytes) -> bool:
    kinds = (data[start] >> 1 & 63 for start, _ in units(data))
    return next((kind for kind in kinds if kind in _HEVC_PICTURES), None) in _HEVC_RANDOM_ACCESS


def _is_mpeg2_key(data: bytes) -> bool:
    at = data.find(_MPEG2_PICTURE) + len(_MPEG2_PICTURE) + 1
    return at < len(data) and data[at] >> 3 & 7 == _MPEG2_INTRA


def _is_vp9_key(data: bytes) -> bool:
    """Neither another picture again, nor one that refers to others. In profile 3 a bit comes before."""
    return not data[0] >> (1 if data[0] & 0x30 == 0x30 else 2) & 3


def _jpeg_head(data: bytes) -> bytes:
    return data[: data.find(_JPEG_SCAN)]


_TESTS: dict[str, Callable[[bytes], bool]] = {
    **dict.fromkeys(MPEG2, _is_mpeg2_key),
    **dict.fromkeys(AV1, av1.is_key),
    **dict.fromkeys(VP9, _is_vp9_key),
    "mpeg4": mpeg4.is_key,
    "vp8": lambda data: not data[0] & 1,
    "theora": lambda data: not data[0] & 0xC0,
    "ffv1": lambda data: int.from_bytes(data[:2], "big") >= _FFV1_KEY,
}

"""Numbered clips joined, without encoding anew, from parts that were encoded with different parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av

from tests.support.exact_corpus import Clip
from tests.support.numbered_clips import QUIET, draw, usual_scheduling

PART_FRAMES = 24
_FPS = 25
_START_CODE = b"\x00\x00\x01"
_PARAMETERS = {"libx264": ({7, 8}, 0), "libx265": ({32, 33, 34}, 1)}  # types of units, and how they are read
_GLOBAL_HEADER = 1 << 22  # AV_CODEC_FLAG_GLOBAL_HEADER: the encoder puts its parameters into no packet
_NEW_EXTRADATA = 1  # AV_PKT_DATA_NEW_EXTRADATA


class Part(NamedTuple):
    """Encoder options of one part, and its size."""

    options: dict[str, str]
    size: tuple[int, int] = (80, 48)


class _Packet(NamedTuple):
    """What an encoder gave, with times in frames, and the number that the frame carries."""

    data: bytes
    pts: float
    dts: float
    is_key: bool
    number: int


Arrange = Callable[[list[list[_Packet]]], list[_Packet]]


def one_after_the_other(parts: list[list[_Packet]]) -> list[_Packet]:
    """Each part begins where the one before ends."""
    return _in_order(parts, [sum(map(len, parts[:place])) for place in range(len(parts))])


def overlapping(parts: list[list[_Packet]]) -> list[_Packet]:
    """Each part begins between the last two frames of the one before."""
    return _in_order(parts, [place * (len(parts[0]) - 1.5) for place in range(len(parts))])


def in_turn(parts: list[list[_Packet]]) -> list[_Packet]:
    """The first group of pictures of each part, then the second of each: all say their parameters."""
    groups = [group for several in zip(*map(_groups, parts)) for group in several]
    starts = [sum(map(len, groups[:place])) for place in range(len(groups))]
    return _in_order(groups, [start - group[0].pts for start, group in zip(starts, groups)])


def _groups(packets: list[_Packet]) -> list[list[_Packet]]:
    found: list[list[_Packet]] = []
    for packet in packets:
        if packet.is_key:
            found.append([])
        found[-1].append(packet)
    return found


def _in_order(pieces: Sequence[list[_Packet]], starts: Sequence[float]) -> list[_Packet]:
    packets: list[_Packet] = []
    for piece, start in zip(pieces, starts):
        for packet in piece:
            least = packets[-1].dts + 0.03 if packets else packet.dts  # decoding times must ascend
            dts = max(packet.dts + start, least)
            packets.append(packet._replace(pts=packet.pts + start, dts=dts))
    return packets


class Join(NamedTuple):
    """How a clip is joined.

    Attributes:
        codec: an encoder of libav.
        parts: what is joined, of 24 frames each.
        bframes: B-frames between the others, at most.
        arrange: gives the packets of the file out of those of the parts.
        says: where parts after the first say their parameters: in "each" key packet, in their "first" packet,
            or in a "header" that the container brings with their first packet.
    """

    codec: str
    parts: tuple[Part, ...]
    bframes: int = 2
    arrange: Arrange = one_after_the_other
    says: str = "each"


def _x264(text: str, **more: Any) -> Part:
    return Part({"x264-params": f"scenecut=0:b-adapt=0:{text}"}, **more)


def _x265(text: str, **more: Any) -> Part:
    return Part({"x265-params": f"log-level=error:b-adapt=0:scenecut=0:{text}"}, **more)


# Parts differ in what a decoder with the other's parameters decodes to other pixels, without an error.
_H264 = (_x264("cqm=flat"), _x264("cqm=jvt:chroma-qp-offset=6"))
_HEVC_1, _HEVC_2 = "cbqpoffs=0", "cbqpoffs=10:crqpoffs=-10:scaling-list=default:strong-intra-smoothing=0"
_HEVC = (_x265(f"open-gop=0:{_HEVC_1}"), _x265(f"open-gop=0:{_HEVC_2}"))
_HEVC_OPEN = (_x265(f"open-gop=1:{_HEVC_1}"), _x265(f"open-gop=1:{_HEVC_2}"))
_MPEG4 = (Part({}), Part({"mpeg_quant": "1", "flags": "+qpel"}))
_MPEG2 = (Part({}), Part({"intra_matrix": ",".join(["8"] + ["40"] * 63)}))
_VP9 = (Part({"lag-in-frames": "0"}), Part({"lag-in-frames": "0", "aq-mode": "1"}))
_AV1 = tuple(
    Part({"svtav1-params": text}, size=(160, 96)) for text in ("enable-cdef=1", "enable-cdef=0:film-grain=8")
)

# file name -> how it is joined
_JOINS: dict[str, Join] = {
    "h264_joined.mp4": Join("libx264", _H264),
    "h264_joined.mkv": Join("libx264", _H264),
    "h264_joined.ts": Join("libx264", _H264),
    "h264_joined.flv": Join("libx264", _H264),
    "h264_joined_said_once.mp4": Join("libx264", _H264, says="first"),
    "h264_joined_back.mkv": Join("libx264", (*_H264, *_H264)),
    "h264_joined_other_ids.mp4": Join("libx264", (_H264[0], _x264("sps-id=3:cqm=jvt:chroma-qp-offset=6"))),
    "h264_joined_overlapping.mkv": Join("libx264", _H264, arrange=overlapping),
    "h264_spliced.mp4": Join("libx264", _H264, arrange=in_turn),
    "h264_spliced.ts": Join("libx264", _H264, arrange=in_turn),
    "hevc_joined.mp4": Join("libx265", _HEVC),
    "hevc_joined.mkv": Join("libx265", _HEVC),
    "hevc_joined.ts": Join("libx265", _HEVC),
    "hevc_joined_said_once.mkv": Join("libx265", _HEVC, says="first"),
    "hevc_joined_open_gop.mp4": Join("libx265", _HEVC_OPEN),
    "hevc_joined_open_gop.mkv": Join("libx265", _HEVC_OPEN),
    "hevc_spliced.mkv": Join("libx265", _HEVC, arrange=in_turn),
    "mpeg4_joined.avi": Join("mpeg4", _MPEG4),
    "mpeg4_joined.mp4": Join("mpeg4", _MPEG4),
    "mpeg4_joined.mkv": Join("mpeg4", _MPEG4),
    "mpeg2_joined.mkv": Join("mpeg2video", _MPEG2),
    "mpeg2_joined.mpg": Join("mpeg2video", _MPEG2),
    "mpeg2_joined.ts": Join("mpeg2video", _MPEG2),
    "vp9_joined.webm": Join("libvpx-vp9", _VP9, bframes=0),
    "av1_joined.mp4": Join("libsvtav1", _AV1, bframes=0),
    "av1_joined.mkv": Join("libsvtav1", _AV1, bframes=0),
}
# PyAV cannot write these before 16.1, and before 16 it does not tell the reader of them
if hasattr(av.Packet, "set_sidedata") and tuple(map(int, av.__version__.split(".")[:2])) >= (16, 1):
    _JOINS["h264_joined_header.mp4"] = Join("libx264", _H264, says="header")
    _JOINS["h264_joined_header.flv"] = Join("libx264", _H264, says="header")
    _JOINS["hevc_joined_header.mp4"] = Join("libx265", _HEVC, says="header")
    _JOINS["hevc_joined_header_back.flv"] = Join("libx265", (*_HEVC, *_HEVC), says="header")
JOINED: tuple[str, ...] = tuple(_JOINS)

# Parts differ in matrix and range. Plain decoding gives the last frames of a part the colours of the
# next, and a part that says no colours those of the part before.
_SAYS = "colormatrix=bt709:"
_COLOURED: dict[str, Join] = {
    "h264_joined_colours.mkv": Join("libx264", (_x264(""), _x264(f"{_SAYS}fullrange=on")) * 2),
    "h264_joined_colours.ts": Join("libx264", (_x264(f"{_SAYS}fullrange=on"), _x264("")) * 2),
    "hevc_joined_colours.mkv": Join(
        "libx265", (_x265("open-gop=0"), _x265(f"open-gop=0:{_SAYS}range=full")) * 2
    ),
    "mpeg2_joined_colours.mkv": Join("mpeg2video", (Part({}), Part({"colorspace": "bt709"})) * 2),
}
COLOURED: tuple[str, ...] = tuple(_COLOURED)

# from frame 24 on, of another size
_RESIZED: dict[str, Join] = {
    "h264_resized.mkv": Join("libx264", (_H264[0], _x264("cqm=flat", size=(112, 64)))),
    "hevc_resized.mp4": Join("libx265", (_HEVC[0], _x265("open-gop=0", size=(112, 64)))),
    "vp9_resized.webm": Join("libvpx-vp9", (_VP9[0], Part(_VP9[0].options, (112, 64))), bframes=0),
    "mpeg4_resized.mkv": Join("mpeg4", (Part({}), Part({}, (112, 64)))),
}
RESIZED: tuple[str, ...] = tuple(_RESIZED)


@usual_scheduling()
def write_joined_clip(folder: Path, name: str) -> Clip:
    """Writes the file `name`, one of `JOINED`, `COLOURED` or `RESIZED`, into `folder`."""
    path, join = Path(folder) / name, {**_JOINS, **_COLOURED, **_RESIZED}[name]
    with av.open(str(path), "w") as container:
        stream = container.add_stream(join.codec, rate=_FPS)
        stream.width, stream.height = join.parts[0].size
        parts = []
        for place, part in enumerate(join.parts):
            # what goes through the encoder of the stream leaves its parameters to the header of the file
            is_alone = place > 0 or join.arrange is in_turn
            encoder = av.CodecContext.create(join.codec, "w") if is_alone else stream.codec_context
            encoder.options = {**QUIET.get(join.codec, {}), **part.options}
            encoder.width, encoder.height = part.size
            encoder.pix_fmt, encoder.time_base, encoder.framerate = "yuv420p", Fraction(1, _FPS), _FPS
            encoder.gop_size, encoder.max_b_frames, encoder.thread_count = 12, join.bframes, 1
            has_own_header = place and join.says == "header"
            if has_own_header:
                encoder.flags |= _GLOBAL_HEADER
            packets = _encode(encoder, part.size, place * PART_FRAMES)
            if place and join.says == "first":
                packets[1:] = [_without_parameters(join.codec, packet) for packet in packets[1:]]
            parts.append((packets, encoder.extradata if has_own_header else None))
        arranged = join.arrange([packets for packets, _ in parts])
        headers = {packets[0].number: header for packets, header in parts if header}
        for packet in arranged:
            container.mux(_written(packet, stream, headers.get(packet.number)))
    by_group = [sorted(group, key=lambda packet: packet.pts) for group in _groups(arranged)]
    return Clip(path, [packet.number for group in by_group for packet in group], 0)


def _encode(encoder: Any, size: tuple[int, int], first: int) -> list[_Packet]:
    packets: list[Any] = []
    for place in range(PART_FRAMES):
        frame = av.VideoFrame.from_ndarray(draw(first + place, *size), format="rgb24").reformat(
            format="yuv420p"
        )
        frame.pts, frame.time_base = place, Fraction(1, _FPS)
        packets += encoder.encode(frame)
    packets += encoder.encode()
    found = []
    for packet in packets:
        dts = packet.pts if packet.dts is None else packet.dts
        found.append(_Packet(bytes(packet), packet.pts, dts, packet.is_keyframe, first + packet.pts))
    return found


def _without_parameters(codec: str, packet: _Packet) -> _Packet:
    kinds, shift = _PARAMETERS[codec]
    units = packet.data.split(_START_CODE)[1:]
    kept = [_START_CODE + unit for unit in units if unit[0] >> shift & (31 << shift | 31) not in kinds]
    return packet._replace(data=b"".join(kept))


def _written(packet: _Packet, stream: Any, header: bytes | None) -> Any:
    written = av.Packet(packet.data)
    written.time_base, written.is_keyframe, written.stream = Fraction(1, _FPS * 100), packet.is_key, stream
    written.pts, written.dts = round(packet.pts * 100), round(packet.dts * 100)
    if header is not None:
        side_data = av.packet.PacketSideData.__new__(av.packet.PacketSideData, _NEW_EXTRADATA, len(header))
        memoryview(side_data)[:] = header
        written.set_sidedata(side_data)
    return written

"""Numbered clips in the codecs, containers and oddities that readers of frames get wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np

from paddlevideo_fast.decode.colour import RgbConverter
from tests.support.numbered_clips import write_clip

_START_CODE = b"\x00\x00\x01"
_VOP = _START_CODE + b"\xb6"


class Clip(NamedTuple):
    """A file of the corpus.

    Attributes:
        path: where it was written.
        numbers: what its frames carry, in the order they are shown; from how it was written.
        rotation: degrees clockwise that a frame is turned when it is shown.
    """

    path: Path
    numbers: list[int]
    rotation: int


def in_sequence(path: Path) -> list[np.ndarray]:
    """All frames by plain decoding, from the first packet to the last; the conversion has its own tests."""
    to_rgb = RgbConverter()
    with av.open(str(path)) as container:
        return [to_rgb(frame, round(frame.rotation / 90) % 4).copy() for frame in container.decode(video=0)]


class Edit(NamedTuple):
    """An entry of an MP4's edit list: the frames that are shown, or for `first` None a pause before them."""

    first: int | None
    num_frames: int


def lose_last(num_packets: int) -> Callable[[list[Any]], list[Any]]:
    """For `write_clip`: the last packets are not written, as by a recorder that was stopped."""
    return lambda packets: packets[:-num_packets]


def hide_vp8_frames(packets: list[Any]) -> list[Any]:
    """For `write_clip`: every sixth frame is decoded and not shown, as the reference frames of VP8.

    As the encoder does, it gives a hidden frame the time of the next.
    """
    arranged = list(packets)
    for place in range(5, len(packets) - 1, 6):
        data = bytearray(bytes(packets[place]))
        if data[0] & 1:  # no key frame
            data[0] &= ~(1 << 4)
            hidden = arranged[place] = with_data(packets[place], bytes(data))
            hidden.pts = hidden.dts = packets[place + 1].pts
    return arranged


def pack_b_frames(packets: list[Any]) -> list[Any]:
    """For `write_clip`: each B-frame shares the packet of the frame before, as DivX wrote MPEG-4 into AVI.

    A packet with an empty picture stands in the B-frame's place.
    """
    arranged: list[Any] = []
    for packet in packets:
        data = bytes(packet)
        if not arranged:  # tells the decoder that B-frames are packed
            data = data.replace(_VOP, _START_CODE + b"\xb2DivX503b1393p" + _VOP, 1)
        if vop_type(data) == 2:
            arranged[-1] = with_data(arranged[-1], bytes(arranged[-1]) + data)
            data = uncoded_vop(bytes(arranged[-1]))
        arranged.append(with_data(packet, data))
    return arranged


def pack_as_xvid(packets: list[Any]) -> list[Any]:
    """For `write_clip`: the first B-frame of a row shares the packet of the frame before, as XviD wrote it.

    The others come one packet late. A picture that is not coded, of the type of that frame, ends the row.
    """
    rows: list[list[bytes]] = []
    for data in map(bytes, packets):
        if vop_type(data) == 2:
            rows[-1].append(data)
        else:
            rows.append([data])
    arranged = []
    for row in rows:
        if not vop_type(row[0]):
            row[0] = row[0].replace(_VOP, _START_CODE + b"\xb2DivX503b1393p" + _VOP, 1)
        if len(row) > 1:
            row[:2] = [row[0] + row[1]]
            row.append(uncoded_vop(row[0]))
        arranged += row
    return [with_data(packet, data) for packet, data in zip(packets, arranged)]


def uncoded_vop(packet: bytes) -> bytes:
    """A picture of MPEG-4 that shows nothing, with type and time of the first in a packet of `write_clip`."""
    at = packet.index(_VOP) + len(_VOP)
    header = f"{int.from_bytes(packet[at : at + 4], 'big'):032b}"
    num_bits = header.index("0", 2) + 1 + 1 + 5 + 1  # type, seconds, a marker, 25ths of a second, a marker
    bits = header[:num_bits] + "00"  # not coded, and filled up to a whole byte
    bits += "1" * (-len(bits) % 8)
    return _VOP + int(bits, 2).to_bytes(len(bits) // 8, "big")


def vop_type(data: bytes) -> int:
    """Type of the first picture in a packet of MPEG-4: 0 I, 1 P, 2 B."""
    return data[data.index(_VOP) + 4] >> 6


def call_all_keyframes(packets: list[Any]) -> list[Any]:
    """For `write_clip`: the container calls every packet a keyframe."""
    for packet in packets:
        packet.is_keyframe = True
    return packets


def with_data(packet: Any, data: bytes) -> Any:
    """A packet with the times of another."""
    copy = av.Packet(data)
    copy.pts, copy.dts, copy.time_base = packet.pts, packet.dts, packet.time_base
    copy.stream, copy.is_keyframe = packet.stream, packet.is_keyframe
    return copy


def set_edit_list(path: Path, edits: Sequence[Edit], fps: int = 25) -> None:
    """Replaces the edit list of an MP4's first track; its index must stand at the end of the file."""
    data = bytearray(path.read_bytes())
    at = data.index(b"elst") - 4
    size = int.from_bytes(data[at : at + 4], "big")
    shown_at = int.from_bytes(data[at + size - 8 : at + size - 4], "big")  # of frame 0, after its B-frames
    ticks = {name: _timescale(data, name) // fps for name in (b"mvhd", b"mdhd")}
    body = len(edits).to_bytes(4, "big")
    for edit in edits:
        start = -1 if edit.first is None else shown_at + edit.first * ticks[b"mdhd"]
        body += (edit.num_frames * ticks[b"mvhd"]).to_bytes(4, "big")
        body += start.to_bytes(4, "big", signed=True) + (1 << 16).to_bytes(4, "big")
    box = (len(body) + 12).to_bytes(4, "big") + b"elst" + bytes(4) + body
    data[at : at + size] = box
    for parent in (b"edts", b"trak", b"moov"):
        place = data.rindex(parent, 0, at) - 4
        grown = int.from_bytes(data[place : place + 4], "big") + len(box) - size
        data[place : place + 4] = grown.to_bytes(4, "big")
    path.write_bytes(data)


def _timescale(data: bytearray, header: bytes) -> int:
    at = data.index(header) + 16
    return int.from_bytes(data[at : at + 4], "big")


OPEN_GOP = {"x264-params": "open-gop=1:bframes=3:b-adapt=0:scenecut=0"}
_X265 = "log-level=error:bframes=3:b-adapt=0"
_INTERLACED = {"flags": "+ildct+ilme"}
_HIDDEN_VP9 = {"lag-in-frames": "25", "auto-alt-ref": "1", "b": "60000"}
_CLOCK_WRAPS = {"output_ts_offset": "95442.7"}  # the 33 bits of MPEG-TS end soon after the first frame
_FRAGMENTS = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}


def _pyramid(kind: str) -> dict[str, str]:
    return {"x264-params": f"b-pyramid={kind}:bframes=7:b-adapt=0:scenecut=0:ref=4"}


# file name -> arguments of `write_clip`
_WRITTEN: dict[str, dict[str, Any]] = {
    "h264.mp4": {},
    "h264_gop_1.mp4": {"gop": 1},
    "h264_gop_250.mp4": {"gop": 250, "num_frames": 300, "bframes": 3},
    "h264_b_frames.mp4": {"bframes": 3},
    "h264_b_pyramid_none.mp4": {"bframes": 7, "gop": 30, "options": _pyramid("none")},
    "h264_b_pyramid_normal.mp4": {"bframes": 7, "gop": 30, "options": _pyramid("normal")},
    "h264_b_pyramid_strict.mp4": {"bframes": 7, "gop": 30, "options": _pyramid("strict")},
    "h264_open_gop.mp4": {"bframes": 3, "options": OPEN_GOP},
    "h264_open_gop.mkv": {"bframes": 3, "options": OPEN_GOP},
    "h264_open_gop.ts": {"bframes": 3, "options": OPEN_GOP},
    "h264_open_gop.flv": {"bframes": 3, "options": OPEN_GOP},
    "h264_b_frames.avi": {"bframes": 3},
    "h264_b_pyramid.avi": {"bframes": 7, "options": _pyramid("normal")},
    "h264_intra_refresh.mp4": {"gop": 15, "options": {"x264-params": "intra-refresh=1"}},
    "h264_slices.mp4": {"bframes": 2, "options": {"x264-params": "slices=3"}},
    "h264_interlaced.mp4": {"bframes": 2, "options": {**_INTERLACED, "x264-params": "tff=1"}},
    "h264_interlaced.ts": {"bframes": 2, "options": {**_INTERLACED, "x264-params": "bff=1"}},
    "h264_10_bit.mkv": {"bframes": 2, "pix_fmt": "yuv420p10le"},
    "h264_444.mp4": {"bframes": 2, "pix_fmt": "yuv444p"},
    "h264_full_range.mp4": {"bframes": 2, "pix_fmt": "yuvj420p"},
    "h264_bt709.mp4": {"bframes": 2, "matrix": "ITU709"},
    "h264_odd_size.mkv": {"bframes": 2, "pix_fmt": "yuv444p", "size": (83, 51)},
    "h264_variable_rate.mp4": {"bframes": 2, "variable_rate": True},
    "h264_variable_rate.mkv": {"bframes": 2, "variable_rate": True},
    "h264_turned_90.mov": {"bframes": 2, "rotation": 90},
    "h264_turned_180.mp4": {"rotation": 180},
    "h264_turned_270.mp4": {"rotation": 270},
    "h264_fragments.mp4": {"bframes": 3, "container_options": _FRAGMENTS},
    "h264_late_start.mkv": {"bframes": 2, "first_tick": 90},
    "h264_negative_start.ts": {"bframes": 2, "container_options": _CLOCK_WRAPS},
    "h264_short_audio.mp4": {"bframes": 2, "audio": 0.3},
    "h264_long_audio.mp4": {"bframes": 2, "audio": 9.0},
    "h264_long_audio.ts": {"bframes": 2, "audio": 9.0},
    "h264_cover.mp4": {"bframes": 2, "cover": True},
    "h264_two_streams.mkv": {"bframes": 2, "cover": True},
    "h264_one_frame.mp4": {"num_frames": 1},
    "h264_last_packets_lost.mp4": {"bframes": 3, "arrange": lose_last(2)},
    "h264_last_packets_lost.mkv": {"bframes": 3, "arrange": lose_last(2)},
    "h264_last_packets_lost.ts": {"bframes": 3, "arrange": lose_last(2)},
    "h264_last_packets_lost.avi": {"bframes": 3, "arrange": lose_last(2)},
    "hevc.mp4": {"codec": "libx265", "options": {"x265-params": f"{_X265}:open-gop=0"}},
    "hevc_open_gop.mp4": {"codec": "libx265", "options": {"x265-params": f"{_X265}:open-gop=1"}},
    "hevc_open_gop.mkv": {"codec": "libx265", "options": {"x265-params": f"{_X265}:open-gop=1"}},
    "hevc_open_gop.ts": {"codec": "libx265", "options": {"x265-params": f"{_X265}:open-gop=1"}},
    "hevc_10_bit.mp4": {"codec": "libx265", "pix_fmt": "yuv420p10le"},
    "hevc_last_packets_lost.mkv": {"codec": "libx265", "bframes": 3, "arrange": lose_last(2)},
    "vp8.webm": {"codec": "libvpx"},
    "vp8_hidden.webm": {"codec": "libvpx", "arrange": hide_vp8_frames},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"lag-in-frames": "0"}},
    "vp9_hidden.webm": {"codec": "libvpx-vp9", "gop": 120, "num_frames": 120, "options": _HIDDEN_VP9},
    "vp9_hidden.mp4": {"codec": "libvpx-vp9", "gop": 120, "num_frames": 120, "options": _HIDDEN_VP9},
    "vp9_odd_size.webm": {"codec": "libvpx-vp9", "size": (83, 51)},
    "av1_hidden.mp4": {"codec": "libsvtav1", "size": (160, 96), "gop": 20},
    "av1_hidden.mkv": {"codec": "libsvtav1", "size": (160, 96), "gop": 20},
    "mpeg4.avi": {"codec": "mpeg4"},
    "mpeg4_b_frames.avi": {"codec": "mpeg4", "bframes": 2},
    "mpeg4_packed_b_frames.avi": {"codec": "mpeg4", "bframes": 1, "arrange": pack_b_frames},
    "mpeg4_b_frames.mp4": {"codec": "mpeg4", "bframes": 2},
    "mpeg4_variable_rate.avi": {"codec": "mpeg4", "variable_rate": True, "num_frames": 30},
    "mpeg4_odd_size.avi": {"codec": "mpeg4", "size": (83, 51)},
    "mpeg4_last_packets_lost.avi": {"codec": "mpeg4", "bframes": 2, "arrange": lose_last(2)},
    "mpeg1.mpg": {"codec": "mpeg1video", "bframes": 2},
    "mpeg2.mpg": {"codec": "mpeg2video", "bframes": 2},
    "mpeg2_interlaced.vob": {"codec": "mpeg2video", "bframes": 2, "options": _INTERLACED},
    "mpeg2.ts": {"codec": "mpeg2video", "bframes": 2},
    "mpeg2_last_packets_lost.ts": {"codec": "mpeg2video", "bframes": 2, "arrange": lose_last(2)},
    "mjpeg.avi": {"codec": "mjpeg", "pix_fmt": "yuvj420p"},
    "mjpeg.mov": {"codec": "mjpeg", "pix_fmt": "yuvj422p"},
    "prores.mov": {"codec": "prores", "pix_fmt": "yuv422p10le"},
    "wmv2.wmv": {"codec": "wmv2"},
}
# what stands in the edit list of an H.264 clip of 60 frames with B-frames and key frames 12 apart
_EDITED: dict[str, tuple[Edit, ...]] = {
    "edit_list_start.mp4": (Edit(17, 43),),
    "edit_list_both_ends.mp4": (Edit(7, 31),),
    "edit_list_pause.mp4": (Edit(None, 10), Edit(0, 60)),
    "edit_list_two_parts.mp4": (Edit(5, 10), Edit(29, 20)),
    "edit_list_part_again.mp4": (Edit(5, 10), Edit(5, 10)),
    "edit_list_backwards.mp4": (Edit(40, 10), Edit(3, 10)),
}
CORPUS: tuple[str, ...] = (*_WRITTEN, *_EDITED)


def write_corpus_clip(folder: Path, name: str, num_frames: int = 60) -> Clip:
    """Writes the file `name`, one of `CORPUS`, into `folder`; `num_frames` where the name asks for none.

    An edit list means what ISO 14496-12 says: the frames shown are those its entries name, in their order.
    A packet that was not written is a frame that is not there; all others decode, since no frame refers to
    one that follows it in decoding order.
    """
    path = Path(folder) / name
    if name in _EDITED:
        write_clip(path, 60, bframes=3)
        set_edit_list(path, _EDITED[name])
        parts = [(edit.first, edit.num_frames) for edit in _EDITED[name] if edit.first is not None]
        return Clip(path, [first + place for first, count in parts for place in range(count)], 0)
    arguments = {"num_frames": num_frames, **_WRITTEN[name]}
    return Clip(path, write_clip(path, **arguments), arguments.get("rotation", 0))

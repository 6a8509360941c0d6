"""Several hundred numbered clips: codecs × containers × what an encoder, a muxer or a cut may do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import av

from tests.support.exact_corpus import (
    OPEN_GOP,
    Edit,
    call_all_keyframes,
    hide_vp8_frames,
    pack_as_xvid,
    pack_b_frames,
    set_edit_list,
)
from tests.support.numbered_clips import write_clip

NUM_FRAMES = 32
_GOP = 9


class Recipe(NamedTuple):
    """How a clip is made.

    Attributes:
        arguments: of `write_clip`.
        change: what is done with the file; it returns the numbers of the frames that the file then shows.
    """

    arguments: dict[str, Any]
    change: Callable[[Path, list[int]], list[int]] | None = None


def _each(
    containers: str, stem: str, change: Callable[[Path, list[int]], list[int]] | None = None, **arguments: Any
) -> dict[str, Recipe]:
    return {f"{stem}.{container}": Recipe(arguments, change) for container in containers.split()}


def cut(path: Path, numbers: list[int]) -> list[int]:
    """Leaves the packets from the second keyframe on, without encoding anew."""
    whole = path.replace(path.with_stem("whole"))
    with av.open(str(whole)) as source, av.open(str(path), "w") as target:
        stream = source.streams.video[0]
        copy = target.add_stream_from_template(stream)
        packets = [packet for packet in source.demux(stream) if packet.size]
        first = [place for place, packet in enumerate(packets) if packet.is_keyframe][1]
        times = [packet.pts if packet.pts is not None else packet.dts for packet in packets]
        shown = sorted(range(len(packets)), key=times.__getitem__)
        begin = packets[first].dts
        for packet in packets[first:]:
            packet.dts -= begin
            if packet.pts is not None:
                packet.pts -= begin
            packet.stream = copy
            target.mux(packet)
    whole.unlink()
    # pictures that lead the keyframe lack what they refer to
    return [
        numbers[rank] for rank, place in enumerate(shown) if place >= first and times[place] >= times[first]
    ]


def from_second_keyframe(packets: list[Any]) -> list[Any]:
    """For `write_clip`: the packets before it are not written."""
    return packets[[place for place, packet in enumerate(packets) if packet.is_keyframe][1] :]


def edit(*edits: Edit) -> Callable[[Path, list[int]], list[int]]:
    """Lets an edit list show parts of an MP4."""

    def change(path: Path, numbers: list[int]) -> list[int]:
        set_edit_list(path, edits)
        return [
            n for part in edits if part.first is not None for n in numbers[part.first :][: part.num_frames]
        ]

    return change


_X265 = "log-level=error:bframes=3:b-adapt=0"
_HEVC: dict[str, dict[str, Any]] = {
    "hevc_closed_gop": {"codec": "libx265", "options": {"x265-params": f"{_X265}:open-gop=0"}},
    "hevc_open_gop": {"codec": "libx265", "options": {"x265-params": f"{_X265}:open-gop=1"}},
}
_INTERLACED = {"flags": "+ildct+ilme"}
_HIDDEN_VP9 = {"lag-in-frames": "25", "auto-alt-ref": "1", "b": "60000"}
_PYRAMID = {"x264-params": "b-pyramid=normal:bframes=7:b-adapt=0:scenecut=0:ref=4"}
_REFRESH = {"x264-params": "intra-refresh=1"}
_FRAGMENTS = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
_QCIF = {"size": (176, 144)}
_AV1: dict[str, Any] = {"codec": "libsvtav1", "size": (160, 96)}
_ALL = {"arrange": call_all_keyframes}

_H264_IN = "mp4 mov mkv ts avi flv nut wmv mpg"
_HEVC_IN = "mp4 mov mkv ts flv nut mpg"
_MPEG_IN = "mpg ts mkv avi nut mp4 mov wmv"

MANY: dict[str, Recipe] = {
    **_each(_H264_IN + " 3gp", "h264"),
    **_each(_H264_IN, "h264_b_frames", bframes=3),
    **_each(_H264_IN, "h264_open_gop", bframes=3, options=OPEN_GOP),
    **_each(_H264_IN, "h264_all_keyframes", bframes=3, options=OPEN_GOP, **_ALL),
    **_each("mp4 mkv ts avi", "h264_pyramid", bframes=7, options=_PYRAMID),
    **_each("mp4 mkv ts nut", "h264_intra_refresh", options=_REFRESH),
    **_each("mp4 mkv ts avi", "h264_interlaced", bframes=2, options=_INTERLACED),
    **_each("mp4 mkv ts flv", "h264_cut", cut, bframes=2),
    **_each("mp4 mkv ts flv", "h264_open_gop_cut", cut, bframes=3, options=OPEN_GOP),
    **_each("mp4 mkv flv nut", "h264_variable_rate", bframes=2, variable_rate=True),
    **_each("mp4 mov", "h264_fragments", bframes=2, container_options=_FRAGMENTS),
    **_each("mp4", "h264_edit_start", edit(Edit(11, 21)), bframes=3),
    **_each("mp4", "h264_edit_parts", edit(Edit(3, 8), Edit(20, 9)), bframes=3),
    **_each("mp4", "h264_edit_pause", edit(Edit(None, 7), Edit(0, 32)), bframes=3),
    **{
        name: recipe
        for stem, arguments in _HEVC.items()
        for name, recipe in (
            _each(_HEVC_IN, stem, **arguments)
            | _each("mp4 mkv nut", f"{stem}_all_keyframes", **arguments, **_ALL)
            | _each("mp4 mkv ts", f"{stem}_cut", cut, **arguments)
        ).items()
    },
    **_each("mp4", "hevc_edit_start", edit(Edit(11, 21)), **_HEVC["hevc_open_gop"]),
    **_each("mp4 mkv", "hevc_variable_rate", variable_rate=True, **_HEVC["hevc_closed_gop"]),
    **_each("webm mkv avi nut ogg wmv ivf", "vp8", codec="libvpx"),
    **_each("webm mkv", "vp8_hidden", codec="libvpx", arrange=hide_vp8_frames),
    **_each("nut wmv", "vp8_all_keyframes", codec="libvpx", **_ALL),
    **_each("webm mkv mp4 avi flv nut wmv ivf", "vp9", codec="libvpx-vp9"),
    **_each("webm mkv mp4 nut", "vp9_hidden", codec="libvpx-vp9", options=_HIDDEN_VP9),
    **_each("mkv nut wmv", "vp9_all_keyframes", codec="libvpx-vp9", **_ALL),
    **_each("webm mkv", "vp9_variable_rate", codec="libvpx-vp9", variable_rate=True),
    **_each("webm mp4", "vp9_cut", cut, codec="libvpx-vp9"),
    **_each("mp4 mkv webm avi flv nut wmv ivf obu", "av1", **_AV1),
    **_each("mkv nut wmv", "av1_all_keyframes", **_AV1, **_ALL),
    **_each("mp4 mkv", "av1_late", **_AV1, arrange=from_second_keyframe),
    **_each("avi mp4 mov 3gp mkv ts nut wmv mpg", "mpeg4", codec="mpeg4"),
    **_each("avi mp4 mov 3gp mkv ts nut wmv mpg", "mpeg4_b_frames", codec="mpeg4", bframes=2),
    **_each("avi mp4 mov 3gp mkv nut", "mpeg4_all_keyframes", codec="mpeg4", bframes=2, **_ALL),
    **_each("avi mkv", "mpeg4_divx_packed", codec="mpeg4", bframes=1, arrange=pack_b_frames),
    **{
        name: recipe
        for bframes in (1, 2, 3)
        for hold in (1, 8)
        for name, recipe in _each(
            "avi mkv nut mp4 wmv ts",
            f"mpeg4_xvid_packed_{bframes}_hold_{hold}",
            codec="mpeg4",
            bframes=bframes,
            hold=hold,
            arrange=pack_as_xvid,
        ).items()
    },
    **_each("avi mp4 mkv ts", "mpeg4_interlaced", codec="mpeg4", bframes=2, options=_INTERLACED),
    **_each("avi mp4", "mpeg4_quarter_pixels", codec="mpeg4", bframes=2, options={"flags": "+qpel"}),
    **_each("avi mp4 mkv", "mpeg4_hold", codec="mpeg4", bframes=2, hold=8),
    **_each("avi mp4 mkv ts", "mpeg4_cut", cut, codec="mpeg4"),
    **_each("avi mkv", "mpeg4_variable_rate", codec="mpeg4", variable_rate=True),
    **{
        name: recipe
        for codec in ("mpeg1video", "mpeg2video")
        for name, recipe in (
            _each(_MPEG_IN, codec, codec=codec)
            | _each(_MPEG_IN, f"{codec}_b_frames", codec=codec, bframes=2)
            | _each("mp4 nut wmv", f"{codec}_all_keyframes", codec=codec, bframes=2, **_ALL)
            | _each("ts mpg mkv", f"{codec}_cut", cut, codec=codec)
        ).items()
    },
    **_each("vob ts mkv", "mpeg2_interlaced", codec="mpeg2video", bframes=2, options=_INTERLACED),
    # codecs of which no keyframe is known
    **_each("avi 3gp mov nut wmv", "h263", codec="h263", **_QCIF, **_ALL),
    **_each("avi nut wmv", "h263p", codec="h263p", **_QCIF, **_ALL),
    **_each("avi nut wmv", "h261", codec="h261", **_QCIF, **_ALL),
    **_each("flv avi nut", "flv1", codec="flv", **_ALL),
    **_each("wmv avi nut", "wmv1", codec="wmv1", **_ALL),
    **_each("wmv avi nut", "wmv2", codec="wmv2", **_ALL),
    **_each("avi wmv nut", "msmpeg4v2", codec="msmpeg4v2", **_ALL),
    **_each("avi wmv nut mkv mov", "msmpeg4v3", codec="msmpeg4", **_ALL),
    **_each("avi mov nut", "cinepak", codec="cinepak", pix_fmt="rgb24", **_ALL),
    **_each("mov avi", "svq1", codec="svq1", pix_fmt="yuv410p", **_ALL),
    **_each("rm", "rv10", codec="rv10", **_QCIF, **_ALL),
    **_each("rm", "rv20", codec="rv20", **_QCIF, **_ALL),
    **_each("mov", "qtrle", codec="qtrle", pix_fmt="rgb24", **_ALL),
    **_each("mov avi", "rpza", codec="rpza", pix_fmt="rgb555le", **_ALL),
    **_each("avi", "msvideo1", codec="msvideo1", pix_fmt="rgb555le", **_ALL),
    **_each("flv avi", "flashsv", codec="flashsv", pix_fmt="bgr24", **_ALL),
    **_each("flv", "flashsv2", codec="flashsv2", size=(176, 144), pix_fmt="bgr24"),
    **_each("avi", "zmbv", codec="zmbv", pix_fmt="bgr0", **_ALL),
    **_each("gif", "gif", codec="gif", pix_fmt="rgb8"),
    # each picture for itself
    **_each("avi mov mp4 mkv nut wmv", "mjpeg", codec="mjpeg", pix_fmt="yuvj420p"),
    **_each("mov mkv", "prores", codec="prores", pix_fmt="yuv422p10le"),
    **_each("mkv avi nut mp4", "ffv1", codec="ffv1", gop=1),
    **_each("mkv avi nut mp4", "ffv1_all_keyframes", codec="ffv1", **_ALL),
    **_each("avi nut", "huffyuv", codec="huffyuv", pix_fmt="yuv422p"),
    **_each("avi", "ffvhuff", codec="ffvhuff"),
    **_each("avi nut", "utvideo", codec="utvideo"),
    **_each("mov avi", "png", codec="png", pix_fmt="rgb24"),
    **_each("mov mkv", "jpeg2000", codec="jpeg2000", pix_fmt="rgb24"),
    **_each("avi mkv", "rawvideo", codec="rawvideo"),
    **_each(
        "mov mxf", "dnxhd", codec="dnxhd", size=(256, 120), pix_fmt="yuv422p", options={"profile": "dnxhr_lb"}
    ),
    **_each("avi dv", "dv", codec="dvvideo", size=(720, 576), num_frames=8),
}


def write_one_of_many(folder: Path, name: str) -> tuple[Path, list[int]]:
    """Writes the file `name`, one of `MANY`, and returns it with the numbers of the frames that it shows."""
    recipe, path = MANY[name], Path(folder) / name
    arguments = {"num_frames": NUM_FRAMES, "gop": _GOP, **recipe.arguments}
    numbers = write_clip(path, **arguments)
    return path, recipe.change(path, numbers) if recipe.change else numbers

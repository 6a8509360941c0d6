"""Opens a file with libav: its packets, what its headers tell, and one readable cause where that fails."""

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import av

from paddlevideo_fast.decode.gaps import announced_bytes, find_gaps, num_lost_at_end
from paddlevideo_fast.decode.keyframes import correct_keyframes
from paddlevideo_fast.decode.mpeg4 import NOT_CODED, unpack
from paddlevideo_fast.decode.packets import hidden_packets
from paddlevideo_fast.decode.source import VideoSource
from paddlevideo_fast.decode.transport_stream import TransportStream
from paddlevideo_fast.errors import VideoDecodeError

# libav prints every oddity of a file to stderr; what matters is raised, with the path. Errors are heard, not
# printed; PyAV would keep one to itself that is the same as the last one, of another file or reading.
av.logging.set_level(av.logging.ERROR)
av.logging.set_skip_repeated(False)
logging.getLogger("libav").setLevel(logging.CRITICAL + 1)

# What PyAV raises where a file is damaged; IndexError where a stream appears in its middle.
LIBAV_ERRORS = (av.FFmpegError, ValueError, OSError, IndexError)

# Formats of one file with pictures and times. Others are refused, also because some name further files and
# addresses for libav to open: concat, HLS, DASH, SDP, numbered images.
_FORMATS = """
    3dostr 4xm anm apng apv asf asf_o av1 avi avs avs2 avs3 bethsoftvid bfi bink bmv c93 cavsvideo cdg cdxl
    cine dfa dhav dirac dnxhd dsicin dv dxa ea evc film_cpk filmstrip flic flv frm gdv gif gxf h261 h263
    h264 hevc hnm hxvs idcin ifv ingenient ipmovie ipu iv8 ivf ivr jpegxl_anim jv kux live_flv lmlm4 luodat
    lvf lxf m4v matroska mgsts mjpeg mjpeg_2000 mlv mm mods moflex mov mpeg mpegts mpegtsraw mpegvideo
    mpjpeg mtv mv mvi mxf mxg nc nsv nut nuv obu ogg paf pdv pmp psxstr pva r3d rl2 rm roq rpl sdr2 ser sga
    siff simbiosis_imx smjpeg smk smush swf thp tiertexseq tmv ty usm vc1 vc1test vividas vivo vmd vvc
    wc3movie webp wsvqa wtv xmv yop yuv4mpegpipe
"""
VIDEOS_ONLY = {"format_whitelist": ",".join(_FORMATS.split()), "protocol_whitelist": "file"}
_STILL_FORMATS = ("image2", "_pipe", "ico")
_ANIMATED_WEBP = 2  # in the flags of its header

# Encoders of a constant bit rate write zeros behind a picture (ISO 13818-2, 5.2.3); libav's test "bitstream"
# takes them for damage. Without it, a rest that is not zero is still an error.
_ZERO_STUFFED = ("mpeg1video", "mpeg2video")

# Some writers count padding that they do not write.
_SLACK_BYTES = 64

# Times and counts may be damaged, too.
_MOST_FRAMES_A_PACKET = 20

_PYAV = int(av.__version__.split(".")[0])

# PyAV 19 took the argument away: titles and the like that are no UTF-8 stop it no longer.
LENIENT: dict[str, Any] = {"metadata_errors": "replace"} if _PYAV < 19 else {}

# libav decodes the first pictures of some streams to learn about their order; nobody looks at them. PyAV
# before 18 crashes when it has options and the container names its streams late, as MPEG program streams do.
_PROBE = {"skip_loop_filter": "all"} if _PYAV >= 18 else {}


def explain(error: BaseException) -> str:
    """One line for an exception of PyAV: what libav says, and its last log line where it has one."""
    text = str(getattr(error, "strerror", None) or error) or type(error).__name__
    log = getattr(error, "log", None)
    if log:
        text = f"{text} ({log[1]}: {log[2].strip()})"
    return " ".join(text.split())


def open_container(source: VideoSource, allow_cut: bool = False) -> tuple[Any, Any]:
    """Opens a video. The source keeps the handle for its headers open until it is released.

    Args:
        source: where it is read from.
        allow_cut: take a file that is shorter than its header says.

    Returns:
        The PyAV container and its first video stream, which decodes on one thread and stops at damage.

    Raises:
        VideoDecodeError: the file is missing, empty, not a video, cut off, or has no video stream.
    """
    container = None
    try:
        present = source.check()
        announced = None if allow_cut else announced_bytes(source.head())
        if announced is not None and present + _SLACK_BYTES < announced:
            cause = f"cut off: has {present} of the {announced} bytes its header announces"
            raise VideoDecodeError(source.name, cause)
        opened = source.open()
        if hasattr(opened, "read"):
            opened = FileForLibav(opened, source.name)
        container = av.open(opened, options=_PROBE, container_options=VIDEOS_ONLY, **LENIENT)
        return container, _video_stream(source, container)
    except BaseException as error:
        source.release()
        if container is not None:
            container.close()
        elif isinstance(error, LIBAV_ERRORS):
            raise VideoDecodeError(source.name, _why_closed(source, error)) from error
        raise


def _why_closed(source: VideoSource, error: BaseException) -> str:
    _, name, text = getattr(error, "log", None) or (0, "", "")
    if not text.startswith("Format not on whitelist"):
        return f"not a video, or cut off: {explain(error)}"
    if source.head()[8:16] == b"WEBPVP8X" and source.head()[20] & _ANIMATED_WEBP:
        return "is an animated WebP, which is not read; convert it, for example to MP4 or GIF"
    if name.endswith(_STILL_FORMATS):
        return f"is a still image, not a video ({name})"
    return f"not a video, or of a format that is not read ({name})"


class FileForLibav:
    """A file object that is at its end after its first error.

    libav asks on after an error. PyAV raises the first one, and prints the others with their tracebacks.

    Args:
        file: to read from.
        name: of the video; libav guesses the format by its ending, too.

    Attributes:
        has_failed: whether there was an error.
    """

    def __init__(self, file: Any, name: str) -> None:
        self._file = file
        self.name = name
        self.has_failed = False

    def read(self, num_bytes: int) -> bytes:
        return b"" if self.has_failed else self._tried(self._file.read, num_bytes)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return -1 if self.has_failed else self._tried(self._file.seek, offset, whence)

    def tell(self) -> int:
        return -1 if self.has_failed else self._tried(self._file.tell)

    def _tried(self, ask: Callable[..., Any], *given: int) -> Any:
        try:
            return ask(*given)
        except BaseException:
            self.has_failed = True
            raise


def _video_stream(source: VideoSource, container: Any) -> Any:
    streams = [stream for stream in container.streams.video if stream.codec_context is not None]
    if not streams:
        raise VideoDecodeError(source.name, "has no video stream, or one of an unknown codec")
    codec = streams[0].codec_context
    codec.thread_count = 1  # more threads a worker only cost CPU time
    # Else libav paints over damage it sees, with what lies near it, and says nothing.
    checks = "buffer+explode" if codec.name in _ZERO_STUFFED else "bitstream+buffer+explode"
    codec.options = {**codec.options, "err_detect": checks}
    return streams[0]


class Demuxed(NamedTuple):
    """An open video and all its packets.

    Attributes:
        container: of PyAV.
        stream: the first video stream.
        packets: in decoding order; packets of MPEG-4 have one picture each.
        cut: how it shows that the file is cut off; empty where it is not.
        num_lost: frames behind the cut, as far as the file says.
        hidden: numbers of the packets that are not shown.
        vops: of MPEG-4 packets, as `mpeg4.unpack` gives them.
        incomplete: numbers of the packets that lack a part.
        joins: numbers of the packets with which another recording begins.
        notes: what is unusual about the file and no damage.
    """

    container: Any
    stream: Any
    packets: list[Any]
    cut: str
    num_lost: int
    hidden: set[int]
    vops: list[int]
    incomplete: list[int]
    joins: list[int]
    notes: list[str]


def open_packets(source: VideoSource, allow_cut: bool = False) -> Demuxed:
    """Opens a video, see `open_container`, and reads all its packets.

    Raises:
        VideoDecodeError: as `open_container`; the file has no packets, or is damaged between packets; or it
            ends early, unless `allow_cut`.
    """
    with av.logging.Capture() as log:
        container, stream = open_container(source, allow_cut)
        try:
            name = container.format.name
            listed = [entry.pos for entry in stream.index_entries] if name == "avi" else []
            packets = _demux(source, container, stream, allow_cut)
            complaints = [text for _, speaker, text in log if speaker == name]
            transport = TransportStream.read(source, stream.id) if name == "mpegts" else None
            joins, is_counted = transport.recordings(stream.id, packets) if transport else ([], False)
            incomplete = [number for number, packet in enumerate(packets) if packet.is_corrupt]
            if joins and is_counted:  # libav takes the ends of recordings for incomplete
                incomplete = []
            cut, num_lost, notes = "", 0, []
            for gap in find_gaps(source, stream, packets, listed, complaints, incomplete, joins, transport):
                if gap.is_note:
                    notes.append(gap.cause)
                    continue
                if not (allow_cut and gap.is_end):
                    raise VideoDecodeError(source.name, f"damaged or cut off: {gap.cause}")
                cut = cut or gap.cause
            if cut:
                num_lost = num_lost_at_end(stream, packets)
                if num_lost > _MOST_FRAMES_A_PACKET * len(packets):
                    cause = f"{num_lost} frames would be lost behind {len(packets)} packets"
                    raise VideoDecodeError(source.name, f"damaged: {cut}; {cause}")
            for join in joins:
                _append(packets[:join], packets[join:])
            hidden, vops = hidden_packets(packets), list[int]()
            if stream.codec_context.name == "mpeg4":
                packets, vops = unpack(packets, stream.codec_context.extradata or b"")
                hidden.update(number for number, kind in enumerate(vops[:-1]) if kind == NOT_CODED)
            correct_keyframes(packets, stream.codec_context)
            if incomplete:  # packets may have been taken apart
                incomplete = [number for number, packet in enumerate(packets) if packet.is_corrupt]
            return Demuxed(container, stream, packets, cut, num_lost, hidden, vops, incomplete, joins, notes)
        except BaseException:
            source.release()
            container.close()
            raise


def _append(earlier: Sequence[Any], later: Sequence[Any]) -> None:
    """Lets the times of packets begin where those before end."""
    times = [packet.pts for packet in earlier if packet.pts is not None]
    begin = min((packet.pts for packet in later if packet.pts is not None), default=0)
    delay = max(times, default=0) + (earlier[-1].duration or 1) - begin
    for packet in later:
        packet.pts = None if packet.pts is None else packet.pts + delay


def _demux(source: VideoSource, container: Any, stream: Any, allow_cut: bool) -> list[Any]:
    packets = []
    try:
        for packet in container.demux(stream):
            if packet.size:
                packets.append(packet)
    except LIBAV_ERRORS as error:
        if not (allow_cut and packets):
            cause = f"damaged or cut off after {len(packets)} packets: {explain(error)}"
            raise VideoDecodeError(source.name, cause) from error
    if not packets:
        raise VideoDecodeError(source.name, "the video stream is empty")
    return packets

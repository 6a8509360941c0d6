"""Opens a file with libav, with one readable cause where that fails."""

import logging
import os
from collections.abc import Callable
from typing import Any

import av

from paddlevideo_fast.decode.gaps import announced_bytes
from paddlevideo_fast.decode.source import VideoSource
from paddlevideo_fast.errors import ObjectError, VideoDecodeError

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

PYAV = int(av.__version__.split(".")[0])

# PyAV 19 took the argument away: titles and the like that are no UTF-8 stop it no longer.
LENIENT: dict[str, Any] = {"metadata_errors": "replace"} if PYAV < 19 else {}

# libav decodes the first pictures of some streams to learn about their order; nobody looks at them. PyAV
# before 18 crashes when it has options and the container names its streams late, as MPEG program streams do.
_PROBE = {"skip_loop_filter": "all"} if PYAV >= 18 else {}


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
        return container, video_stream(source, container)
    except BaseException as error:
        source.release()
        if container is not None:
            container.close()
        elif isinstance(error, LIBAV_ERRORS):
            raise VideoDecodeError(source.name, _why_closed(source, error)) from error
        raise


def unread_format(error: BaseException) -> str:
    """The name that libav has for a format which is none of `VIDEOS_ONLY`; empty for other errors."""
    _, name, text = getattr(error, "log", None) or (0, "", "")
    return name if text.startswith("Format not on whitelist") else ""


def _why_closed(source: VideoSource, error: BaseException) -> str:
    name = unread_format(error)
    if not name:
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
        except BaseException as error:
            self.has_failed = True
            if isinstance(error, ObjectError):
                raise VideoDecodeError(self.name, error.cause) from None
            raise


def video_stream(source: VideoSource, container: Any) -> Any:
    """The first video stream of a container, whose decoder works on one thread and stops at damage."""
    streams = [stream for stream in container.streams.video if stream.codec_context is not None]
    if not streams:
        raise VideoDecodeError(source.name, "has no video stream, or one of an unknown codec")
    codec = streams[0].codec_context
    codec.thread_count = 1  # more threads a worker only cost CPU time
    # Else libav paints over damage it sees, with what lies near it, and says nothing.
    checks = "buffer+explode" if codec.name in _ZERO_STUFFED else "bitstream+buffer+explode"
    codec.options = {**codec.options, "err_detect": checks}
    return streams[0]

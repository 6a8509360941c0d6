"""Opens a file with libav and turns what can go wrong into one readable cause."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple

import av

from paddlevideo_fast.errors import VideoDecodeError

# libav prints every oddity of a file to stderr; what matters is raised, with the path.
av.logging.set_level(av.logging.PANIC)

# A still image opens in libav as a video of one frame.
_STILL_FORMATS = ("image2", "_pipe", "gif_pipe", "ico")

# Some writers count padding that they do not write.
_SLACK_BYTES = 64


def explain(error: BaseException) -> str:
    """One line for an exception of PyAV: what libav says, and its last log line where it has one."""
    text = str(getattr(error, "strerror", None) or error) or type(error).__name__
    log = getattr(error, "log", None)
    if log:
        text = f"{text} ({log[1]}: {log[2].strip()})"
    return " ".join(text.split())


# PyAV 19 took the argument away: titles and the like that are no UTF-8 stop it no longer.
_LENIENT: Dict[str, Any] = {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}


def open_container(path: str) -> Tuple[Any, Any]:
    """Opens a video file.

    Returns:
        The PyAV container and its first video stream, which decodes on one thread.

    Raises:
        VideoDecodeError: the file is missing, empty, not a video, or has no video stream.
    """
    path = str(path)
    check_file(path)
    try:
        container = av.open(path, **_LENIENT)
    except (av.FFmpegError, ValueError, OSError) as error:
        raise VideoDecodeError(path, f"not a video, or cut off: {explain(error)}") from error
    announced, present = announced_bytes(path), os.path.getsize(path)
    if announced is not None and present + _SLACK_BYTES < announced:
        container.close()
        raise VideoDecodeError(path, f"cut off: has {present} of the {announced} bytes its header announces")
    streams = [stream for stream in container.streams.video if stream.codec_context is not None]
    if not streams:
        container.close()
        raise VideoDecodeError(path, "has no video stream, or one of an unknown codec")
    if container.format.name.endswith(_STILL_FORMATS):
        container.close()
        raise VideoDecodeError(path, f"is a still image, not a video ({container.format.name})")
    stream = streams[0]
    stream.codec_context.thread_count = 1  # more threads a worker only cost CPU time
    return container, stream


def check_file(path: str) -> None:
    """Raises `VideoDecodeError` where `path` is not a readable file with something in it."""
    if not os.path.exists(path):
        raise VideoDecodeError(path, "no such file")
    if os.path.isdir(path):
        raise VideoDecodeError(path, "is a folder, not a video file")
    if not os.path.isfile(path):
        raise VideoDecodeError(path, "is not a regular file")
    if not os.access(path, os.R_OK):
        raise VideoDecodeError(path, "no permission to read it")
    if os.path.getsize(path) == 0:
        raise VideoDecodeError(path, "the file is empty (0 bytes)")


def announced_bytes(path: str) -> Optional[int]:
    """How long an AVI or Matroska file says it is; None for other formats and where it does not say.

    libav reads a shortened one without complaint. MP4 needs no such check: its index does not fit then.
    """
    with open(path, "rb") as file:
        head = file.read(4096)
    if head[:4] == b"RIFF":
        size = int.from_bytes(head[4:8], "little")
        return size + 8 if 0 < size < 0xFFFFFFFF else None
    if head[:4] == b"\x1a\x45\xdf\xa3":
        at = head.find(b"\x18\x53\x80\x67") + 4  # the Segment element, which holds all the rest
        length = 9 - head[at].bit_length() if at >= 4 and at < len(head) and head[at] else 0
        value = int.from_bytes(head[at : at + length], "big") & ((1 << 7 * length) - 1)
        known = length > 0 and value != (1 << 7 * length) - 1
        return at + length + value if known else None
    return None


def demux(path: str, container: Any, stream: Any) -> List[Any]:
    """All packets of one stream, in decoding order.

    Raises:
        VideoDecodeError: the file ends early or is damaged between packets, or has none.
    """
    packets = []
    try:
        for packet in container.demux(stream):
            if packet.size:
                packets.append(packet)
    except (av.FFmpegError, ValueError, OSError) as error:
        cause = f"damaged or cut off after {len(packets)} packets: {explain(error)}"
        raise VideoDecodeError(path, cause) from error
    if not packets:
        raise VideoDecodeError(path, "the video stream is empty")
    return packets

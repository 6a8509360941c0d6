"""Which inputs of a prediction are live: pipes, devices and the addresses of streams."""

import os
import re
import stat

PIPE = "-"  # the standard input, where a file is asked for
# Protocols of FFmpeg that carry streams. Objects of stores have other schemes, and over HTTP these endings.
_STREAMS = re.compile(
    r"(rtsps?|rtmp\w*|s?rtp|udp|udplite|tcp|tls|srt|rist|sctp|mms\w*|hls|icecast|unix|https?|[a-z]+\+\w+)://"
)
_FILE_OVER_HTTP = re.compile(r"https?://[^?#]+\.(mp4|m4v|mov|mkv|avi|webm|wmv)([;?#].*)?", re.IGNORECASE)


def is_live(address: str) -> bool:
    """Whether an input is a pipe (`-` or a named one), the address of a stream, or a device (a camera).

    Over HTTP, what ends like a file of a fixed length (`.mp4`, `.mkv`, ...) is a file, and all else a stream:
    `.m3u8`, `.ts`, `.flv`, or no ending. A URL of a store (`s3://`, ...) is a file.
    """
    if address == PIPE:
        return True
    mode = _mode_of(address)
    if not mode:
        return bool(_STREAMS.match(address)) and not _FILE_OVER_HTTP.fullmatch(address)
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def is_pipe(address: str) -> bool:
    """Whether a live input is a pipe, which ends for good: `-` or a named one."""
    return address == PIPE or stat.S_ISFIFO(_mode_of(address))


def _mode_of(path: str) -> int:
    """The kind and permissions of what lies at a path; 0: nothing."""
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError):
        return 0

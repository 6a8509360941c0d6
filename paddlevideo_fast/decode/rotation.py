"""Whether the header of a file asks for its frames to be turned, found without decoding one."""

from __future__ import annotations

from typing import Any

from paddlevideo_fast.decode.source import VideoSource

# 16.16 and 2.30 fixed point, as an MP4 header writes the matrix of a picture that stays as it is.
_UPRIGHT = bytes.fromhex("00010000 00000000 00000000 00000000 00010000 00000000 00000000 00000000 40000000")

# Supplemental information "display orientation" (payload 47) in H.264 and HEVC.
_ORIENTATION = {"h264": b"\x06\x2f", "hevc": b"\x4e\x01\x2f"}

# Matroska's elements around the angle.
_PROJECTION = b"\x76\x70"

_HEAD_BYTES = 16384


def may_be_rotated(source: VideoSource, stream: Any, first_packet: Any) -> bool:
    """False only where frames are surely shown as they are stored; PyAV tells the angle with a frame only."""
    mark = _ORIENTATION.get(stream.codec_context.name)
    if mark is not None and mark in bytes(first_packet):
        return True
    format_name = stream.container.format.name
    if "mp4" in format_name:
        header = _movie_header(source)
        return header.count(_UPRIGHT) < header.count(b"tkhd") + header.count(b"mvhd") or not header
    return "matroska" in format_name and _PROJECTION in source.read_at(0, _HEAD_BYTES)


def _movie_header(source: VideoSource) -> bytes:
    """The box 'moov' of an MP4 file; empty where it has none."""
    at = 0
    while True:
        head = source.read_at(at, 16)
        if len(head) < 8:
            return b""
        size = int.from_bytes(head[:4], "big")
        if size == 1:
            size = int.from_bytes(head[8:16], "big")
        if head[4:8] == b"moov":
            return source.read_at(at, size) if size >= 8 else b""
        if size < 8:
            return b""
        at += size

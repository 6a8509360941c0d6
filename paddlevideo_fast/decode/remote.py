"""Videos by URL: a file object that reads ranges, and an index that is made without reading the pictures.

    ftyp │ moov: time, size and place of every packet │ mdat: packets ........................
    read │ read                                       │ zeros, but for the heads of key packets

libav gets zeros in place of the content of `mdat`, so demuxing costs no transfer and gives the index that a
local reading gives. The heads of the key packets are read, because parameters in them would change how others
decode. Then only the groups of pictures that hold wanted frames are read, as with a stored index
(`index_cache`).
"""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import av

from paddlevideo_fast import storage
from paddlevideo_fast.decode.container import LENIENT, LIBAV_ERRORS, may_be_rotated, open_container
from paddlevideo_fast.decode.headers import HeaderChanges
from paddlevideo_fast.decode.holes import boxes, has_table
from paddlevideo_fast.decode.index_cache import SeekingPackets, StoredIndex
from paddlevideo_fast.decode.packets import Clock, index_packets, num_length_bytes, timing_of
from paddlevideo_fast.decode.source import VideoSource
from paddlevideo_fast.errors import ObjectError, VideoDecodeError

_LEAST_BYTES = 2**22  # a smaller file is read whole: that takes fewer requests
_HEAD_BYTES = 1024  # of a key packet; parameters come before its picture
_NUM_THREADS = 8
_CODECS = ("h264", "hevc")
_NEW_HEADER = "new_extradata"
_TABLE_ALONE = {"fflags": "+noparse+nofillin"}  # what is a key packet: else libav looks into the packets


class _Packet(NamedTuple):
    """What the table of a file says about a packet."""

    pts: Optional[int]
    dts: Optional[int]
    size: int
    duration: Optional[int]
    pos: Optional[int]
    is_keyframe: bool
    is_discard: bool


class _Hollow(io.RawIOBase):
    """A file object of a video in which some ranges read as zeros.

    Args:
        source: the video.
        size: in bytes.
        hidden: ranges [first, stop), ascending, that are not read.
    """

    def __init__(self, source: VideoSource, size: int, hidden: Sequence[Tuple[int, int]]) -> None:
        super().__init__()
        self._source, self._size, self._hidden, self._at = source, size, hidden, 0
        self.name = source.name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        stop = min(self._at + len(buffer), self._size)
        number = next((last for first, last in self._hidden if first <= self._at < last), 0)
        stop = min(
            stop, number or min((first for first, _ in self._hidden if first > self._at), default=stop)
        )
        count = max(stop - self._at, 0)
        buffer[:count] = bytes(count) if number else self._source.read_at(self._at, count)
        self._at += count
        return count


def index_by_ranges(source: VideoSource) -> Optional[StoredIndex]:
    """The index of a remote MP4 or MOV file, from its table of packets; None where all of it must be read.

    Raises:
        VideoDecodeError: the file cannot be read.
    """
    size = source.check()
    if source.url is None or size < _LEAST_BYTES or source.head()[4:8] != b"ftyp":
        return None
    container, stream = open_container(source, allow_cut=True)
    try:
        if stream.codec_context.name not in _CODECS or not has_table(stream):
            return None
        if not num_length_bytes(stream.codec_context):
            return None
        hidden = [(at + 16, at + length) for at, length, kind in boxes(source) if kind == b"mdat"]
        packets = _listed(source, stream.index, size, hidden)
        if packets is None or len(packets) != stream.frames:
            return None
        keys = [packet for packet in packets if packet.is_keyframe]
        if not keys or any(packet.pos is None for packet in keys):
            return None
        with ThreadPoolExecutor(_NUM_THREADS) as threads:
            heads = list(threads.map(lambda packet: _head(source, packet), keys))
        if HeaderChanges(heads, stream.codec_context):
            return None
        entries = [place for place, packet in enumerate(packets) if packet.is_keyframe]
        index = index_packets(packets, stream, entries)
        if index is None:
            return None
        first = next(packet for packet in container.demux(stream) if packet.size)
        timing = timing_of(Clock.of(stream, packets), len(index.shown))
        may_turn = may_be_rotated(source, stream, first)
        stored = StoredIndex.of(index, timing, packets, [packet.pts for packet in packets], may_turn)
    except LIBAV_ERRORS:
        return None  # the reading of the whole file says what is wrong with it
    finally:
        container.close()
    hollow: Any = _Hollow(source, size, hidden)
    probe = SeekingPackets(VideoSource(hollow), stored)
    try:
        return stored if probe.lands_right() else None
    finally:
        probe.close()
        source.release()


def _listed(
    source: VideoSource, stream: int, size: int, hidden: Sequence[Tuple[int, int]]
) -> Optional[List[_Packet]]:
    """The packets of a stream, by number, as the file's table lists them; None where one has a header."""
    found = []
    hollow: Any = _Hollow(source, size, hidden)
    with av.open(hollow, options=_TABLE_ALONE, **LENIENT) as container:
        for packet in container.demux(container.streams[stream]):
            if not packet.size:
                continue
            if packet.is_keyframe and hasattr(packet, "has_sidedata") and packet.has_sidedata(_NEW_HEADER):
                return None
            found.append(
                _Packet(
                    packet.pts,
                    packet.dts,
                    packet.size,
                    packet.duration,
                    packet.pos,
                    packet.is_keyframe,
                    packet.is_discard,
                )
            )
    return found


def _head(source: VideoSource, packet: _Packet) -> Any:
    assert packet.pos is not None
    assert source.url is not None
    version = source.open().version
    try:  # not by blocks, which would bring all that lies around them
        data = storage.read_range(source.url, packet.pos, min(packet.size, _HEAD_BYTES), version)
    except ObjectError as error:
        raise VideoDecodeError(source.name, error.cause) from None
    head = av.Packet(data)
    head.is_keyframe = True
    return head

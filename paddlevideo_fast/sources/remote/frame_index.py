"""The index of an MP4 or MOV at a URL, made without reading the pictures.

    ftyp │ moov: time, size and place of every packet │ mdat: packets ........................
    read │ read                                       │ zeros, but for the heads of key packets

libav gets zeros in place of the content of `mdat`, so demuxing costs no transfer and gives the index that a
local reading gives. The heads of the key packets are read, because parameters in them would change how others
decode. Then only the groups of pictures that hold wanted frames are read, as with a stored index.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import av

from paddlevideo_fast.decode.codecs import num_length_bytes
from paddlevideo_fast.decode.container import LENIENT, LIBAV_ERRORS, VIDEOS_ONLY, open_container
from paddlevideo_fast.decode.gaps import boxes, has_table
from paddlevideo_fast.decode.keyframes import keyframe_test, recovers_late
from paddlevideo_fast.decode.orientation import stored_orientation
from paddlevideo_fast.decode.packets import Clock, PacketHead, hidden_packets, index_packets, timing_of
from paddlevideo_fast.decode.parameter_sets import NEW_HEADER, ParameterSetSearch
from paddlevideo_fast.decode.source import SourceFile, VideoSource
from paddlevideo_fast.decode.stored_index import StoredIndex
from paddlevideo_fast.errors import ObjectError, VideoDecodeError

_LEAST_BYTES = 2**22  # a smaller file is read whole: that takes fewer requests
_HEAD_BYTES = 1024  # of a key packet; parameters come before its picture
_NUM_THREADS = 8
_CODECS = ("h264", "hevc")
_TABLE_ALONE = {"fflags": "+noparse+nofillin"}  # what is a key packet: else libav looks into the packets


def index_by_ranges(source: VideoSource) -> StoredIndex | None:
    """The index of a remote MP4 or MOV file, from its table of packets; None where all of it must be read.

    Raises:
        VideoDecodeError: the file cannot be read.
    """
    size = source.check()
    if size < _LEAST_BYTES or source.head()[4:8] != b"ftyp":
        return None
    container, stream = open_container(source, allow_cut=True)
    try:
        codec = stream.codec_context
        if codec.name not in _CODECS or not (has_table(stream) and num_length_bytes(codec)):
            return None
        hidden = [(at + 16, at + length) for at, length, kind in boxes(source) if kind == b"mdat"]
        packets = _listed(source, stream.index, size, hidden)
        if packets is None or len(packets) != stream.frames:
            return None
        numbers = [number for number, packet in enumerate(packets) if packet.is_keyframe]
        if not numbers or any(packets[number].pos is None for number in numbers):
            return None
        with ThreadPoolExecutor(_NUM_THREADS) as threads:
            heads = list(threads.map(lambda number: _head(source, packets[number]), numbers))
        is_key, parameters = keyframe_test(codec), ParameterSetSearch(codec)
        parameters.add(heads)
        is_plain = is_key and all(map(is_key, map(bytes, heads))) and not parameters.changes().are_any
        if not is_plain or recovers_late(heads[0], codec):
            return None
        first = next(packet for packet in container.demux(stream) if packet.size)
        cut_away = hidden_packets(packets)
        index = index_packets(packets, stream, numbers, cut_away)
        if index is None:
            return None
        timing = timing_of(Clock.of(stream, packets, cut_away), len(index.shown))
        pts = [packet.pts for packet in packets]
        stored = StoredIndex.of(index, timing, packets, pts, stored_orientation(source, stream, first))
    except LIBAV_ERRORS:
        return None  # the reading of the whole file says what is wrong with it
    finally:
        container.close()
    hollow: Any = SourceFile(source, size, hidden)
    try:
        return stored if stored.is_right(VideoSource(hollow)) else None
    finally:
        source.release()


def _listed(
    source: VideoSource, stream: int, size: int, hidden: Sequence[tuple[int, int]]
) -> list[PacketHead] | None:
    """The packets of a stream, by number, as the file's table lists them; None where one has a header."""
    hollow: Any = SourceFile(source, size, hidden)
    with av.open(hollow, options=_TABLE_ALONE, container_options=VIDEOS_ONLY, **LENIENT) as container:
        packets = [packet for packet in container.demux(container.streams[stream]) if packet.size]
    if any(packet.is_keyframe and packet.has_sidedata(NEW_HEADER) for packet in packets):
        return None
    return [PacketHead.of(packet, 0) for packet in packets]


def _head(source: VideoSource, packet: PacketHead) -> Any:
    assert packet.pos is not None
    try:  # not by blocks, which would bring all that lies around them
        data = source.remote_file().read_alone(packet.pos, min(packet.size, _HEAD_BYTES))
    except ObjectError as error:
        raise VideoDecodeError(source.name, error.cause) from None
    head = av.Packet(data)
    head.is_keyframe = True
    return head

"""What the packets of a file are: one pass over all of them, which keeps those of a small file.

    small file    packets → one batch                  → kept as they are
    large file    packets → batches of a few megabytes → their heads are kept, and packets are read again

Whatever needs the content of a packet looks at it while its batch is in memory.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import av

from paddlevideo_fast.decode.bitstream import Misplaced
from paddlevideo_fast.decode.container import LIBAV_ERRORS, explain, open_container
from paddlevideo_fast.decode.gaps import find_gaps, num_lost_at_end
from paddlevideo_fast.decode.keyframes import correct_keyframes, keyframe_test
from paddlevideo_fast.decode.mpeg4 import NOT_CODED, Unpacker
from paddlevideo_fast.decode.packets import PacketHead, hidden_packets
from paddlevideo_fast.decode.parameter_sets import ParameterSetChanges, ParameterSetSearch
from paddlevideo_fast.decode.source import VideoSource
from paddlevideo_fast.decode.transport_stream import TransportStream
from paddlevideo_fast.errors import VideoDecodeError

BATCH_BYTES = 2**23  # of a large file in memory at a time
_HEAD_BYTES, _KEY_HEAD_BYTES = 256, 4096  # of a packet of a large file: parameters, numbers of its picture

# Times and counts may be damaged, too.
_MOST_FRAMES_A_PACKET = 20


class Demuxed(NamedTuple):
    """An open video and what its packets are.

    Attributes:
        container: of PyAV.
        stream: the first video stream.
        packets: in decoding order; packets of MPEG-4 have one picture each. Of a large file: their heads.
        as_read: time and size of each packet of a large file; empty of other files.
        cut: how it shows that the file is cut off; empty where it is not.
        num_lost: frames behind the cut, as far as the file says.
        hidden: numbers of the packets that are not shown.
        vops: of MPEG-4 packets, as `mpeg4.Unpacker` gives them.
        incomplete: numbers of the packets that lack a part.
        joins: numbers of the packets with which another recording begins.
        notes: what is unusual about the file and no damage.
        is_known: the headers of the pictures say which are keyframes.
        changes: of parameter sets.
        misplaced: numbers of the packets that do not begin and end where pictures do.
    """

    container: Any
    stream: Any
    packets: list[Any]
    as_read: list[tuple[int | None, int]]
    cut: str
    num_lost: int
    hidden: set[int]
    vops: list[int]
    incomplete: list[int]
    joins: list[int]
    notes: list[str]
    is_known: bool
    changes: ParameterSetChanges
    misplaced: list[int]


class _Packets:
    """The packets of a stream, read a few megabytes at a time. Those of a large file are not kept.

    Args:
        stream: of an open video.
        is_large: keep no more than the heads.

    Attributes:
        demuxed: as libav gives them.
        packets: the same, with one picture each, and the marks of keyframes that the pictures confirm.
        vops: as of `Demuxed`.
        is_known: as of `Demuxed`.
    """

    def __init__(self, stream: Any, is_large: bool) -> None:
        self._codec, self._is_large = stream.codec_context, is_large
        self.changes, self.misplaced = ParameterSetSearch(self._codec), Misplaced(self._codec)
        self._unpack = unpacker_of(self._codec)
        self._is_key: Callable[[bytes], bool] | None = None
        self.demuxed: list[Any] = []
        self.packets: list[Any] = [] if self._unpack else self.demuxed
        self.vops: list[int] = []
        self.is_known = False

    def add(self, demuxed: list[Any]) -> None:
        """Looks at packets that follow those before."""
        packets = demuxed
        if self._unpack:
            pairs = [self._unpack(packet) for packet in demuxed]
            packets = [packet for packet, _ in pairs]
            self.vops += [kind for _, kind in pairs]
        if not self.demuxed:
            self._is_key = keyframe_test(self._codec, bytes(packets[0]))
            self.is_known = self._is_key is not None
        if self._is_key:
            correct_keyframes(packets, self._is_key)
        self.changes.add(packets)
        self.misplaced.add(packets)
        if packets is not demuxed:
            self.packets += self._kept(packets)
        self.demuxed += self._kept(demuxed)

    def _kept(self, packets: list[Any]) -> list[Any]:
        if not self._is_large:
            return packets
        return [
            PacketHead.of(packet, _KEY_HEAD_BYTES if packet.is_keyframe else _HEAD_BYTES)
            for packet in packets
        ]


def unpacker_of(codec_context: Any) -> Unpacker | None:
    """What gives packets of MPEG-4 one picture each."""
    is_packed = codec_context.name == "mpeg4"
    return Unpacker(codec_context.extradata or b"") if is_packed else None


def open_packets(source: VideoSource, allow_cut: bool = False) -> Demuxed:
    """Opens a video, see `open_container`, and reads all its packets.

    Raises:
        VideoDecodeError: as `open_container`; the file has no packets, or is damaged between packets; or it
            ends early, unless `allow_cut`.
    """
    with av.logging.Capture() as log:
        container, stream = open_container(source, allow_cut)
        try:
            name, is_large = container.format.name, source.is_large
            listed = [entry.pos for entry in stream.index_entries] if name == "avi" else []
            read = _Packets(stream, is_large)
            for batch in _batches(source, container.demux(stream), is_large, allow_cut):
                read.add(batch)
            demuxed, packets = read.demuxed, read.packets
            complaints = [text for _, speaker, text in log if speaker == name]
            transport = TransportStream.read(source, stream.id) if name == "mpegts" else None
            joins, is_counted = transport.recordings(stream.id, demuxed) if transport else ([], False)
            incomplete = [number for number, packet in enumerate(demuxed) if packet.is_corrupt]
            if joins and is_counted:  # libav takes the ends of recordings for incomplete
                incomplete = []
            cut, num_lost, notes = "", 0, []
            for gap in find_gaps(source, stream, demuxed, listed, complaints, incomplete, joins, transport):
                if gap.is_note:
                    notes.append(gap.cause)
                    continue
                if not (allow_cut and gap.is_end):
                    raise VideoDecodeError(source.name, f"damaged or cut off: {gap.cause}")
                cut = cut or gap.cause
            if cut:
                num_lost = num_lost_at_end(stream, demuxed)
                if num_lost > _MOST_FRAMES_A_PACKET * len(demuxed):
                    cause = f"{num_lost} frames would be lost behind {len(demuxed)} packets"
                    raise VideoDecodeError(source.name, f"damaged: {cut}; {cause}")
            as_read = [(packet.pts, packet.size) for packet in packets] if is_large else []
            for join in joins:
                _append(demuxed[:join], demuxed[join:])
                for packet, other in zip(packets[join:], demuxed[join:]):
                    packet.pts = other.pts
            hidden = hidden_packets(demuxed)
            hidden.update(number for number, kind in enumerate(read.vops[:-1]) if kind == NOT_CODED)
            signs = (cut, num_lost, hidden, read.vops, incomplete, joins, notes, read.is_known)
            found = (*signs, read.changes.changes(), read.misplaced.numbers())
            return Demuxed(container, stream, packets, as_read, *found)
        except BaseException:
            source.release()
            container.close()
            raise


def _batches(
    source: VideoSource, packets: Iterator[Any], is_large: bool, allow_cut: bool
) -> Iterator[list[Any]]:
    """The packets of a stream: of a large file a few megabytes at a time, of another all at once."""
    batch, num_bytes, most_bytes, num_packets = list[Any](), 0, BATCH_BYTES if is_large else math.inf, 0
    try:
        for packet in packets:
            if packet.size:
                batch.append(packet)
                num_bytes += packet.size
                if num_bytes >= most_bytes:
                    num_packets += len(batch)
                    yield batch
                    batch, num_bytes = [], 0
    except LIBAV_ERRORS as error:
        num_packets += len(batch)
        if not (allow_cut and num_packets):
            cause = f"damaged or cut off after {num_packets} packets: {explain(error)}"
            raise VideoDecodeError(source.name, cause) from error
    if batch:
        yield batch
    elif not num_packets:
        raise VideoDecodeError(source.name, "the video stream is empty")


def _append(earlier: Sequence[Any], later: Sequence[Any]) -> None:
    """Lets the times of packets begin where those before end."""
    times = [packet.pts for packet in earlier if packet.pts is not None]
    begin = min((packet.pts for packet in later if packet.pts is not None), default=0)
    delay = max(times, default=0) + (earlier[-1].duration or 1) - begin
    for packet in later:
        packet.pts = None if packet.pts is None else packet.pts + delay

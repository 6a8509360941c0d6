"""What the packets of a file are: one pass over all of them, which keeps those of a small file.

    small file    packets → one batch                  → kept as they are
    large file    packets → batches of a few megabytes → their heads are kept, and packets are read again

Whatever needs the content of a packet looks at it while its batch is in memory.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import av

from paddlevideo_fast.decode.bitstream import Misplaced
from paddlevideo_fast.decode.container import LIBAV_ERRORS, explain, open_container
from paddlevideo_fast.decode.gaps import find_gaps, num_lost_at_end
from paddlevideo_fast.decode.keyframes import correct_keyframes, keyframe_test
from paddlevideo_fast.decode.mpeg4 import NOT_CODED, Unpacker
from paddlevideo_fast.decode.packets import PacketHead, hidden_packets
from paddlevideo_fast.decode.parameter_sets import ParameterSetSearch
from paddlevideo_fast.decode.source import VideoSource
from paddlevideo_fast.decode.transport_stream import TransportStream
from paddlevideo_fast.errors import VideoDecodeError

BATCH_BYTES = 2**23  # of a large file in memory at a time
_HEAD_BYTES, _KEY_HEAD_BYTES = 256, 4096  # of a packet of a large file: parameters, numbers of its picture

# Times and counts may be damaged, too.
_MOST_FRAMES_A_PACKET = 20


class Demuxed:
    """An open video and what its packets are.

    Args:
        source: of the video.
        allow_cut: take a file that ends early.

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

    Raises:
        VideoDecodeError: as `open_container`; the file has no packets, or is damaged between packets; or it
            ends early, unless `allow_cut`.
    """

    def __init__(self, source: VideoSource, allow_cut: bool = False) -> None:
        self._source, self._allow_cut, self._is_large = source, allow_cut, source.is_large
        self.cut, self.num_lost, self.is_known = "", 0, False
        self.vops, self.notes = list[int](), list[str]()
        with av.logging.Capture() as log:
            self.container, self.stream = open_container(source, allow_cut)
            try:
                name = self.container.format.name
                listed = [entry.pos for entry in self.stream.index_entries] if name == "avi" else []
                demuxed = self._read()
                self._find_damage(demuxed, listed, [text for _, speaker, text in log if speaker == name])
            except BaseException:
                source.release()
                self.container.close()
                raise
        self.as_read = [(packet.pts, packet.size) for packet in self.packets] if self._is_large else []
        for join in self.joins:
            _append(demuxed[:join], demuxed[join:])
            for packet, other in zip(self.packets[join:], demuxed[join:]):
                packet.pts = other.pts
        self.hidden = hidden_packets(demuxed)
        self.hidden.update(number for number, kind in enumerate(self.vops[:-1]) if kind == NOT_CODED)

    def _read(self) -> list[Any]:
        """The packets as libav gives them, also those of MPEG-4. Looks into them batch by batch."""
        codec, demuxed = self.stream.codec_context, list[Any]()
        unpack, changes, misplaced = unpacker_of(codec), ParameterSetSearch(codec), Misplaced(codec)
        self.packets = list[Any]() if unpack else demuxed
        for batch in _batches(
            self._source, self.container.demux(self.stream), self._is_large, self._allow_cut
        ):
            packets = batch
            if unpack:
                packets, kinds = map(list, zip(*unpack(batch)))
                self.vops += kinds
            if not demuxed:
                is_key = keyframe_test(codec, bytes(packets[0]))
                self.is_known = is_key is not None
            if is_key:
                correct_keyframes(packets, is_key)
            changes.add(packets)
            misplaced.add(packets)
            if unpack:
                self.packets += self._kept(packets)
            demuxed += self._kept(batch)
        self.changes, self.misplaced = changes.changes(), misplaced.numbers()
        return demuxed

    def _kept(self, packets: list[Any]) -> list[Any]:
        sizes = {False: _HEAD_BYTES, True: _KEY_HEAD_BYTES}
        return (
            [PacketHead.of(each, sizes[each.is_keyframe]) for each in packets] if self._is_large else packets
        )

    def _find_damage(self, packets: list[Any], listed: list[int], complaints: list[str]) -> None:
        source, stream = self._source, self.stream
        transport = None
        if stream.container.format.name == "mpegts":
            transport = TransportStream.read(source, stream.id)
        self.joins, is_counted = transport.recordings(stream.id, packets) if transport else ([], False)
        self.incomplete = [number for number, packet in enumerate(packets) if packet.is_corrupt]
        if self.joins and is_counted:  # libav takes the ends of recordings for incomplete
            self.incomplete = []
        signs = (listed, complaints, self.incomplete, self.joins, transport)
        for gap in find_gaps(source, stream, packets, *signs):
            if gap.is_note:
                self.notes.append(gap.cause)
            elif self._allow_cut and gap.is_end:
                self.cut = self.cut or gap.cause
            else:
                raise VideoDecodeError(source.name, f"damaged or cut off: {gap.cause}")
        self.num_lost = num_lost_at_end(stream, packets) if self.cut else 0
        if self.num_lost > _MOST_FRAMES_A_PACKET * len(packets):
            cause = f"{self.num_lost} frames would be lost behind {len(packets)} packets"
            raise VideoDecodeError(source.name, f"damaged: {self.cut}; {cause}")


def unpacker_of(codec_context: Any) -> Unpacker | None:
    """What gives packets of MPEG-4 one picture each."""
    is_packed = codec_context.name == "mpeg4"
    return Unpacker(codec_context.extradata or b"") if is_packed else None


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

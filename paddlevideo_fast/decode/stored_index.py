"""Indexes of videos that were opened before: at a later opening, not all packets are read.

    first opening    all packets are read  →  FrameIndex  →  StoredIndex, in an `IndexStore`
    later openings   the index is loaded, and packets are read where they are asked for

In MP4, MOV, Matroska and WebM, a seek to a key frame gives the same packets as reading from the start, which
is tried for each key frame before an index is stored. Other containers are read from the start. A process
keeps the indexes that took it a decoding of the whole video, also without a store. It also keeps the
containers that it used last open, since opening an MP4 of an hour alone takes libav about 20 ms.
"""

from __future__ import annotations

import itertools
import os
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from paddlevideo_fast.decode.container import LIBAV_ERRORS, explain, open_container
from paddlevideo_fast.decode.demux import Demuxed, unpacker_of
from paddlevideo_fast.decode.packets import FrameIndex, Timing, hidden_packets
from paddlevideo_fast.decode.source import SplicedFile, VideoSource
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.io.lru import LRUCache

_UNKNOWN = -1  # orientation
_NO_PTS = -(2**63)
SEEKABLE = ("mov", "matroska")
_SPLICED = ("mpegts", "flv", "matroska,webm")
_CUES = b"\x1c\x53\xbb\x6b"  # the name of Matroska's index, also where the beginning says its place
_NEAR_SEEKING, _NEAR_OPENING = 4, 256  # packets
_MAX_POOLED = 4
_MAX_LEARNED = 1024  # indexes of a few kilobytes
State = tuple[int, int]  # see `VideoSource.state`


class StoredIndex(NamedTuple):
    """What reading all packets of a video told.

    Attributes:
        order: int32, numbers of the packets with a picture, in the order the pictures are shown.
        access_points: int32, numbers of the packets where decoding can begin.
        hidden: int32, numbers of the packets with pictures that are not shown.
        pts: int64 [num_packets]; `_NO_PTS` for a packet without a time.
        sizes: int32 [num_packets], bytes.
        ticks: int64 [num_frames], when frames are shown; empty where they have the average distance.
        numbers: int64 [5]: the length of a tick and the frame rate as fractions, and the orientation, -1
            where a decoded picture has to say it.
        offsets: int64, see `offsets_of`.
    """

    order: np.ndarray
    access_points: np.ndarray
    hidden: np.ndarray
    pts: np.ndarray
    sizes: np.ndarray
    ticks: np.ndarray
    numbers: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(
        cls,
        index: FrameIndex,
        timing: Timing,
        packets: Sequence[Any],
        pts: Any,
        orientation: int | None,
        offsets: Sequence[int] = (),
    ) -> StoredIndex:
        """The index of a video whose packets are all in memory."""
        is_regular = isinstance(timing.ticks, range)
        numbers = [part for one in timing[1:] for part in (one.numerator, one.denominator)]
        return cls(
            index.order.astype(np.int32),
            np.array(index.access_points, np.int32),
            np.array(sorted(hidden_packets(packets)), np.int32),
            np.array([_NO_PTS if time is None else time for time in pts], np.int64),
            np.array([packet.size for packet in packets], np.int32),
            np.array([] if is_regular else timing.ticks, np.int64),
            np.array([*numbers, _UNKNOWN if orientation is None else orientation], np.int64),
            np.array(offsets, np.int64),
        )

    @property
    def orientation(self) -> int | None:
        """How the frames are shown, see `stored_orientation`."""
        orientation = int(self.numbers[4])
        return None if orientation == _UNKNOWN else orientation

    def frame_index(self) -> FrameIndex:
        """The index of the frames."""
        return FrameIndex(self.order, self.access_points.tolist(), len(self.pts), self.hidden.tolist())

    def is_right(self, source: VideoSource) -> bool:
        """Whether seeks in the file give what the index says."""
        packets = SeekingPackets.of(source, self)
        try:
            return packets.lands_right()
        finally:
            packets.close()

    def timing(self) -> Timing:
        """When the frames are shown."""
        tick, per_tick, rate, per_rate = self.numbers[:4].tolist()
        num_frames = len(self.order) - len(self.hidden)
        ticks: Any = self.ticks.tolist() if len(self.ticks) else range(num_frames)
        return Timing(ticks, Fraction(tick, per_tick), Fraction(rate, per_rate))


class SeekingPackets:
    """The packets of a container, read where they are asked for. Each has its number as timestamp.

    libav seeks in MP4, MOV and Matroska with an index. Of MPEG-TS, FLV and other Matroska it gets the
    beginning of the file and what follows from a key packet on. Where neither arrives, and where packets of
    MPEG-4 are split, the file is read from its beginning. A forked process opens a container of its own: it
    shares the position in the file with its parent.

    Args:
        source: where the video is read from.
        access_points: numbers of the key packets that seeks may aim at.
        pts: times of the packets, as libav gives them.
        sizes: of the packets, in bytes.
        offsets: from which byte on each access point is read; empty where libav seeks.
        keys: numbers of the keyframes; None: as the container says.

    Attributes:
        container: of PyAV.
        stream: the first video stream.
    """

    def __init__(
        self,
        source: VideoSource,
        access_points: Sequence[int],
        pts: Sequence[int | None] | np.ndarray,
        sizes: Sequence[int] | np.ndarray,
        offsets: Sequence[int] = (),
        keys: Collection[int] | None = None,
    ) -> None:
        self._source, self._access_points = source, access_points
        self._pts, self._sizes, self._offsets, self._keys = pts, sizes, offsets, keys
        self._may_seek = True
        self._open()

    @classmethod
    def of(cls, source: VideoSource, stored: StoredIndex) -> SeekingPackets:
        """The packets of a video with an index, which was tried before."""
        points, offsets = stored.access_points.tolist(), stored.offsets.tolist()
        return cls(source, points, stored.pts, stored.sizes, offsets)

    @classmethod
    def of_large(cls, source: VideoSource, demuxed: Demuxed) -> SeekingPackets:
        """The packets of a large file; whether seeks arrive is tried."""
        keys = {number for number, packet in enumerate(demuxed.packets) if packet.is_keyframe}
        points = sorted({0, *demuxed.changes.random_access_points})
        pts, sizes = zip(*demuxed.as_read)
        is_plain = not (demuxed.vops or demuxed.changes.are_any or None in pts)
        offsets = offsets_of(source, demuxed.stream, demuxed.packets, points) if is_plain else ()
        packets = cls(source, points, pts, sizes, offsets, keys)
        packets._may_seek = is_plain and packets.lands_right()
        packets._seeks &= packets._may_seek
        return packets

    def _open(self) -> None:
        self._num_forks = _num_forks
        self.container, self.stream = open_container(self._source, allow_cut=True)
        self._source.release()
        self._again: Any = None  # where seeks do not arrive: a container that is read from its beginning
        is_seekable = bool(self._offsets) or self.container.format.name.startswith(SEEKABLE)
        self._seeks = self._may_seek and is_seekable
        self._next = -1  # number of the first of `_packets`
        self._packets: Iterator[Any] = iter(())
        self._last: tuple[int, Any] = (-1, None)

    def __len__(self) -> int:
        return len(self._pts)

    def __getitem__(self, packet_no: int) -> Any:
        if self._last[0] == packet_no:
            return self._last[1]
        try:
            packet = self._advance(packet_no)
        except VideoDecodeError:
            if not self._offsets:
                raise
            self._offsets, self._may_seek, self._seeks, self._next = (), False, False, -1
            packet = self._advance(packet_no)
        packet.pts = packet_no
        if self._keys is not None:
            packet.is_keyframe = packet_no in self._keys
        self._last = packet_no, packet
        return packet

    def _advance(self, packet_no: int) -> Any:
        try:
            is_ahead = 0 <= self._next <= packet_no
            # packets up to here are read in the time of a seek; where libav has none, a file is opened anew
            near = self._next + (_NEAR_OPENING if self._offsets and not self._source.url else _NEAR_SEEKING)
            if not is_ahead or (self._seeks and self._access_points[self._group(packet_no)] > near):
                self._seek(packet_no)
            packet = self._read()
            while self._next <= packet_no:
                packet = self._read()
        except LIBAV_ERRORS as error:
            raise VideoDecodeError(self._source.name, f"damaged: {explain(error)}") from error
        return packet

    def close(self) -> None:
        """Frees the file."""
        self._last, self._packets = (-1, None), iter(())
        self.container.close()
        if self._again is not None:
            self._again.close()

    def opens_own(self) -> bool:
        """Opens the file again in a process that was forked; whether that was so."""
        is_copy = self._num_forks != _num_forks
        if is_copy:
            self._open()
        return is_copy

    def lands_right(self) -> bool:
        """Whether seeks to all key frames arrive there or before, at packets that the index knows."""
        if not self._seeks or self._offsets:  # there each packet that is read is compared
            return True
        try:
            for point in self._access_points:
                self._seek(point)
                self._read()
                if self._next - 1 > point:
                    return False
        except (*LIBAV_ERRORS, VideoDecodeError):
            return False
        return True

    def _group(self, packet_no: int) -> int:
        return bisect_right(self._access_points, packet_no) - 1

    def _read(self) -> Any:
        """The packet at `_next`, which moves on."""
        packet = next(self._packets, None)
        if not self._is(packet, self._next):
            raise VideoDecodeError(self._source.name, "has changed since its index was made; open it again")
        self._next += 1
        return packet

    def _seek(self, packet_no: int) -> None:
        """Lets reading begin at the key packet before a packet, or at an earlier one, or at the beginning."""
        group, source = self._group(packet_no), self._source
        if self._seeks and not self._offsets:
            self.container.seek(int(self._pts[self._access_points[group]] or 0), stream=self.stream)
            packets = (packet for packet in self.container.demux(self.stream) if packet.size)
            first, points = next(packets, None), reversed(self._access_points[: group + 1])
            self._next = next((point for point in points if self._is(first, point)), len(self))
            self._packets = itertools.chain([first], packets)
            return
        if self._again is not None:
            self._again.close()
        if self._offsets and group:
            file: Any = SplicedFile(source, self._offsets[0], self._offsets[group])
            source = VideoSource(file)
        self._again, stream = open_container(source, allow_cut=True)
        source.release()
        self._next, unpack = (
            self._access_points[group] if self._offsets else 0,
            unpacker_of(stream.codec_context),
        )
        packets = (packet for packet in self._again.demux(stream) if packet.size)
        self._packets = (packet for packet, _ in unpack(packets)) if unpack else packets

    def _is(self, packet: Any, number: int) -> bool:
        """Whether a packet is the one with a number, as far as the index says."""
        if packet is None or number >= len(self) or packet.size != self._sizes[number]:
            return False
        expected = self._pts[number]
        return packet.pts == (None if expected == _NO_PTS else expected)


def offsets_of(
    source: VideoSource, stream: Any, packets: Sequence[Any], access_points: Sequence[int]
) -> list[int]:
    """Where each access point can be read from, behind the beginning of the file; empty where libav seeks.

    Args:
        source: of the file.
        stream: whose packets were all demuxed.
        packets: of the stream.
        access_points: numbers of packets.
    """
    name, positions = stream.container.format.name, [packets[point].pos for point in access_points]
    if None in positions or name not in _SPLICED or _CUES in source.head():
        return []
    if name in ("mpegts", "flv"):
        return positions
    clusters = sorted({entry.pos for entry in stream.index_entries})
    return [clusters[bisect_right(clusters, position) - 1] for position in positions]


class IndexStore(Protocol):
    """Keeps the indexes of videos, such as a folder of files.

    Attributes:
        folder: where it keeps them.
    """

    folder: Path

    def load(self, source: VideoSource, state: State) -> StoredIndex | None:
        """The index of a file in this state; None where there is none."""

    def keep(self, source: VideoSource, stored: StoredIndex, state: State) -> None:
        """Stores the index of a file in this state."""


_num_forks = 0
# The indexes that took a decoding of the whole video, by its path and state.
learned_indexes: LRUCache[StoredIndex] = LRUCache(_MAX_LEARNED)
# The decoders that this process used last, each waiting for the next opening of its file.
decoder_pool: LRUCache[Any] = LRUCache(_MAX_POOLED, lambda decoder: decoder.close())


def _forked() -> None:
    """Decoders of the process that this one was forked from share their position in the file."""
    global _num_forks
    _num_forks += 1
    decoder_pool.clear()


os.register_at_fork(after_in_child=_forked)

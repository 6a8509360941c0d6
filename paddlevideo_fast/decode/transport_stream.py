"""What the packets of an MPEG transport stream tell about damage, and where another recording was appended.

A file is a row of packets of 188 bytes; some formats have 4 bytes in front of each, others 16 behind it. The
packets of one stream are counted from 0 to 15, and again from 0.

    mark │ "begins a frame", stream │ flags, counter │ length of padding │ content …
       1 │                        2 │              1 │ 1, where flags say│

Reference: ISO 13818-1, 2.4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from paddlevideo_fast.decode.codecs import START_CODE
from paddlevideo_fast.decode.source import VideoSource

_PACKET_BYTES = 188
_MARK = ord("G")
_LAYOUTS = ((0, _PACKET_BYTES), (4, _PACKET_BYTES + 4), (0, _PACKET_BYTES + 16))  # begin, and bytes a packet
_SURE = 5  # so many marks in a row are no accident
_HEAD_BYTES = 6
_BLOCK_PACKETS = 2**15  # read at a time
_ERROR, _START, _STREAM = 0x80, 0x40, 0x1FFF
_PADDING, _PAYLOAD, _COUNTER = 0x20, 0x10, 15
_NEW_COUNT = 0x80  # in the first byte of what pads
_TABLE = 0  # the stream of the table with which a recording begins


class TransportStream(NamedTuple):
    """The packets of a file.

    Attributes:
        heads: uint8 [num_packets, 6], the first bytes of each.
        first: where the first packet begins.
        size: from one packet to the next, in bytes.
        broken: why the file is no row of packets; empty where it is one.
        is_cut: it ends within a packet.
        lost_start: the place of a packet that should begin a frame and does not; -1: there is none.
    """

    heads: np.ndarray
    first: int
    size: int
    broken: str
    is_cut: bool
    lost_start: int

    @classmethod
    def read(cls, source: VideoSource, stream_id: int) -> TransportStream:
        """Reads a file, of which no more than a block is in memory at a time."""
        num_bytes, begin = source.check(), source.read_at(0, _SURE * _LAYOUTS[-1][1])
        layout = next((each for each in _LAYOUTS if set(begin[each[0] :: each[1]][:_SURE]) == {_MARK}), None)
        heads, broken, lost_start = [np.empty((0, _HEAD_BYTES), np.uint8)], "", -1
        if layout is None:
            return cls(heads[0], 0, 1, "no packets of MPEG-TS are at its beginning", False, -1)
        first, size = layout
        for at in range(0, num_bytes, size * _BLOCK_PACKETS):
            block = source.read_at(at, size * _BLOCK_PACKETS)
            wrong = np.flatnonzero(np.frombuffer(block, np.uint8)[first::size] != _MARK)
            if len(wrong):
                broken = f"no packet of MPEG-TS begins at byte {at + int(wrong[0]) * size + first}"
                break
            rows = np.frombuffer(block[: len(block) // size * size], np.uint8).reshape(-1, size)[:, first:]
            heads.append(rows[:, :_HEAD_BYTES].copy())
            if lost_start < 0 and (row := _lost_start(rows, stream_id)) >= 0:
                lost_start = at + row * size + first
        is_cut = first < num_bytes % size < first + _PACKET_BYTES
        return cls(np.concatenate(heads), first, size, broken, is_cut, lost_start)

    def recordings(self, stream_id: int, packets: Sequence[Any]) -> tuple[list[int], bool]:
        """Where other recordings were appended, of which nothing is missing.

        Args:
            stream_id: of the video.
            packets: of the video, in decoding order.

        Returns:
            The packets of the video with which recordings begin; whether the counter of its packets is
            right everywhere else.
        """
        streams = (self.heads[:, 1].astype(np.uint16) << 8 | self.heads[:, 2]) & _STREAM
        video, tables = np.flatnonzero(streams == stream_id), np.flatnonzero(streams == _TABLE)
        heads = self.heads[video]
        expected = (heads[:-1, 3] + (heads[1:, 3] & _PAYLOAD > 0)) & _COUNTER
        says_new = (heads[1:, 3] & _PADDING > 0) & (heads[1:, 4] > 0) & (heads[1:, 5] & _NEW_COUNT > 0)
        is_wrong = (expected != heads[1:, 3] & _COUNTER) & ~says_new | (heads[1:, 1] & _ERROR > 0)
        breaks = set(video[1:][is_wrong].tolist())
        begins = []
        for number, (earlier, later) in enumerate(pairwise(packets), 1):
            if later.is_keyframe and None not in (earlier.dts, later.dts, later.pos):
                row = (later.pos - self.first) // self.size
                if (later.dts < earlier.dts or row in breaks) and self._begins(video, tables, row):
                    begins.append(number)
                    breaks.discard(row)
        return begins, not breaks

    def _begins(self, video: np.ndarray, tables: np.ndarray, row: int) -> bool:
        """Whether a recording begins with a frame.

        In front of it there is a table, and the frame before ends with padding: nothing of it is lost. Its
        counters begin with the numbers with which the counters of the file begin.

        Args:
            video: the rows of the video.
            tables: the rows of tables.
            row: with which the frame begins.
        """
        index = int(np.searchsorted(video, row))
        if index == 0 or index == len(video) or video[index] != row:
            return False
        last = video[index - 1]
        between = tables[(tables > last) & (tables < row)]
        counters = self.heads[:, 3] & _COUNTER
        is_new = counters[row] == counters[video[0]] and (counters[between] == counters[tables[:1]]).any()
        return bool(is_new and self.heads[last, 3] & _PADDING)


def _lost_start(rows: np.ndarray, stream_id: int) -> int:
    """The first row that should begin a frame, and does not, so libav leaves it out; -1: there is none."""
    high, low = _START | stream_id >> 8, stream_id & 255  # without error and priority
    is_start = (rows[:, 1] == high) & (rows[:, 2] == low) & (rows[:, 3] & _PAYLOAD > 0)
    at = np.flatnonzero(is_start)
    begin = 4 + np.where(rows[at, 3] & _PADDING, 1 + rows[at, 4].astype(int), 0)
    at, begin = at[begin + 3 <= _PACKET_BYTES], begin[begin + 3 <= _PACKET_BYTES]
    heads = np.stack([rows[at, begin + offset] for offset in range(3)], 1)
    wrong = np.flatnonzero((heads != np.frombuffer(START_CODE, np.uint8)).any(1))
    return int(at[wrong[0]]) if len(wrong) else -1

"""Which packets hold which frame, worked out without decoding."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

# libav itself takes an MPEG-4 packet this short for one that repeats the last picture and shows nothing.
_MPEG4_EMPTY_BYTES = 19

# One packet is one shown frame in these. VP8 hides reference frames in packets of their own.
_ONE_FRAME_A_PACKET = frozenset({"h264", "hevc", "av1", "libdav1d", "vp9", "libvpx-vp9", "mpeg4"})


@dataclass(frozen=True)
class PacketIndex:
    """Frame number -> timestamp -> packet, and where decoding can begin.

    Attributes:
        pts: timestamps of the shown frames, ascending: `pts[i]` is frame i's.
        position: timestamp -> place of its packet in decoding order.
        starts: places of the key packets, ascending; the first is 0.
        start_pts: the timestamps of the key packets.
    """

    pts: List[int]
    position: Dict[int, int]
    starts: List[int]
    start_pts: List[int]

    def spans(self, wanted: Sequence[int]) -> List[Tuple[int, int]]:
        """The packet ranges [first, stop) that must pass the decoder for the timestamps `wanted`.

        Each begins at a key packet and ends after the last packet that is wanted. A frame shown before
        the key frame of its group (open GOP) also refers to the group before, which is decoded too:

            decoding order   I0 P4 B2 B1 B3 | I8 B6 B5 B7 P12 …
            wanted: B6                └─ from I0 on, because B6 is shown before I8
        """
        spans = []
        for value in wanted:
            place = self.position[value]
            group = bisect_right(self.starts, place) - 1
            if value < self.start_pts[group]:
                group = max(group - 1, 0)
            spans.append((self.starts[group], place + 1))
        merged: List[Tuple[int, int]] = []
        for first, stop in sorted(spans):
            if merged and first < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((first, stop))
        return merged


def build_index(packets: Sequence[Any], codec_context: Any) -> Optional[PacketIndex]:
    """The index of a stream, or None where timestamps do not tell the frames apart.

    Then only decoding in sequence and counting gives exact frames. That is so where timestamps are missing
    or repeated, or ascend in decoding order although frames are reordered (AVI); where the stream does not
    begin with a key frame that is shown first; and where packets and frames are not one to one.
    """
    if codec_context.name not in _ONE_FRAME_A_PACKET or _is_interlaced(codec_context):
        return None
    pts = [packet.pts for packet in packets]
    if None in pts or len(set(pts)) != len(pts):
        return None
    if codec_context.has_b_frames and len(pts) > 2 and all(a < b for a, b in zip(pts, pts[1:])):
        return None
    if not packets[0].is_keyframe or min(pts) < pts[0]:
        return None
    if codec_context.name == "mpeg4" and min(packet.size for packet in packets) <= _MPEG4_EMPTY_BYTES:
        return None
    starts = [place for place, packet in enumerate(packets) if packet.is_keyframe]
    shown = sorted(packet.pts for packet in packets if not packet.is_discard)
    if not shown:
        return None
    position = {value: place for place, value in enumerate(pts)}
    return PacketIndex(shown, position, starts, [pts[place] for place in starts])


def _is_interlaced(codec_context: Any) -> bool:
    """Two fields of one frame may come in two packets."""
    unknown, progressive = 0, 1
    return int(getattr(codec_context, "field_order", unknown)) not in (unknown, progressive)

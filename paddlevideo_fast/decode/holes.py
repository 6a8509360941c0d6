"""Holes: packets that a file has lost, doubled or moved, and the numbers of the frames that are left.

libav reads on behind a hole as if nothing was missing, and the frames behind it would get other numbers. What
tells a hole is one of these, from the cheapest on:

- the demuxer complains: it met bytes that are no part of the format, and looked for the next that are
- a packet is marked as incomplete (MPEG-TS counts its packets)
- an index, a count or a size in the file does not fit the packets
- the time goes back, or jumps in a file of a constant frame rate whose structure has no sizes to check
"""

from __future__ import annotations

import re
from itertools import accumulate
from statistics import median
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from paddlevideo_fast.decode.packets import FrameIndex
from paddlevideo_fast.decode.source import VideoSource

# libav's index of an AVI points at the header of a chunk, its packet at the content.
_CHUNK_HEADER_BYTES = 8

_TS_PACKET_BYTES = 188

# The EBML header, and what comes before the size of the Segment, are within these.
_HEAD_BYTES = 4096

# Pictures that are decoded before another and shown after it, at most (H.264 and HEVC).
MOST_REORDERED = 16

# Where a message says that no part of the file begins.
_POSITION = re.compile(r"(?:at|pos\.?|\d) \(?0x(\w+)|byte (\d+)")

# Of a file that is only cut off, the frames before the cut keep their numbers.
_ENDS = ("File ended prematurely",)

# Their first frame is shown at zero.
_FROM_ZERO = ("matroska,webm", "flv")

# Distances of this share of the usual one, and beyond, are gaps.
_GAP = 1.5

# Recorders drop a frame now and then; a jump is a sign of damage from so many frames' time on.
_BIG_JUMP = 3

# Times and counts may be damaged, too; nothing is believed that makes more frames of the packets than this.
_MOST_FRAMES_A_PACKET = 20


class Hole(NamedTuple):
    """Packets of a file are missing, or are where they do not belong.

    Attributes:
        cause: how it shows; empty where nothing is missing.
        numbers: of each packet's frame; in an AVI, in decoding order, else in the order they are shown. None
            where nothing tells them.
        num_frames: that the whole file had, as far as the file tells.
        overrun: places of packets in which a hole may begin.
    """

    cause: str
    numbers: Optional[List[int]] = None
    num_frames: int = 0
    overrun: Sequence[int] = ()


def find_hole(
    source: VideoSource,
    stream: Any,
    packets: Sequence[Any],
    listed: Sequence[int],
    complaints: Sequence[str],
    announced: Optional[int],
) -> str:
    """How a hole of a file shows; empty where it has none.

    Args:
        source: the file.
        stream: its video stream.
        packets: of the stream, in decoding order, as they were demuxed.
        listed: positions of the packets in an AVI's own index, before packets were demuxed.
        complaints: of the demuxer.
        announced: the length of the file in bytes, as its header says; None where nothing says.
    """
    name = stream.container.format.name
    if not source.read_at(0, 16).strip(b"\0"):
        return "no video begins at byte 0"
    if complaints:
        return " ".join(complaints[0].split())
    if any(packet.is_corrupt for packet in packets):
        return "a packet is incomplete"
    if name == "avi":
        return _differs_from_index(stream, packets, listed)
    if has_table(stream):
        return "" if len(packets) == stream.frames else _ends_early(stream, packets)
    last = packets[-1].pos
    if announced and last is not None:
        if last >= announced:
            return f"has frames behind the {announced} bytes its header announces"
        return _lost_clusters(source, announced) or _ends_early(stream, packets)
    cause = _CHECKS[name](source) if name in _CHECKS else ""
    return cause or _time_goes_back(packets) or _time_jumps(packets)


def has_table(stream: Any) -> bool:
    """Whether the file's header has the time and place of every frame: an MP4 without fragments."""
    return "mp4" in stream.container.format.name and stream.frames > 0


def begins_with_key(stream: Any, first_packet: Any) -> bool:
    """Whether the file says that the video begins with a key frame: in its index, or beside the packet."""
    entries: Any = getattr(stream, "index_entries", ())  # PyAV 15 has none
    if not len(entries) or not entries[0].is_keyframe:
        return False
    name = stream.container.format.name
    is_marked = name in _FROM_ZERO and entries[0].pos <= (first_packet.pos or 0)
    return name == "avi" or "mp4" in name or is_marked


def _ends_early(stream: Any, packets: Sequence[Any]) -> str:
    """Whether a file says that its video lasts longer than its frames do. An edit list may leave some out."""
    missing_sec, num_frames = _missing_at_end(stream, packets, _end_sec(stream))
    return f"its header shows {missing_sec:.2f} s more than it has frames for" if num_frames > 1 else ""


def _missing_at_end(stream: Any, packets: Sequence[Any], end_sec: float) -> Tuple[float, int]:
    """From the end of the last frame to `end_sec`: seconds, and frames as long as the last."""
    if not end_sec or None in (packet.pts for packet in packets):
        return 0.0, 0
    last = max(packets, key=lambda packet: (not packet.is_discard, packet.pts))
    step_sec = float((last.duration or 0) * stream.time_base)
    missing_sec = end_sec - float(last.pts * stream.time_base) - step_sec
    return missing_sec, max(round(missing_sec / step_sec), 0) if step_sec else 0


# Segment's children: Cluster, Cues, Tags, SeekHead, Info, Tracks, Attachments, Chapters, Void, CRC-32.
_CLUSTER = 0x1F43B675
_MATROSKA = {
    _CLUSTER,
    0x1C53BB6B,
    0x1254C367,
    0x114D9B74,
    0x1549A966,
    0x1654AE6B,
    0x1941A469,
    0x1043A770,
    0xEC,
    0xBF,
}


def _lost_clusters(source: VideoSource, announced: int) -> str:
    """Whether the Segment of a Matroska file is more than a row of its parts; libav passes over unknown ones.

    Reference: RFC 8794 and RFC 9559.
    """
    at = source.read_at(0, _HEAD_BYTES).find(b"\x18\x53\x80\x67") + 4
    at += 9 - (source.read_at(at, 1) or b"\1")[0].bit_length()
    while at < announced:
        head = source.read_at(at, 12)
        if not head or not head[0] or head[0] < 16:
            return f"no part of Matroska begins at byte {at}"
        num_id = 9 - head[0].bit_length()
        if int.from_bytes(head[:num_id], "big") not in _MATROSKA or num_id >= len(head) or not head[num_id]:
            return f"no part of Matroska begins at byte {at}"
        num_size = 9 - head[num_id].bit_length()
        size = int.from_bytes(head[num_id : num_id + num_size], "big") & ((1 << 7 * num_size) - 1)
        if size == (1 << 7 * num_size) - 1:
            return ""  # a cluster that does not say its size
        at += num_id + num_size + size
    return ""


def _differs_from_index(stream: Any, packets: Sequence[Any], listed: Sequence[int]) -> str:
    """Compares the chunks of an AVI with its index; without a whole one, with the number in its header.

    Without an index libav lists the first chunks itself.
    """
    chunks, found = _chunks(listed), [packet.pos for packet in packets]
    if chunks == found:
        return ""
    lost = len(set(chunks) - set(found))
    if lost:
        return f"{lost} of the {len(chunks)} frames in its index are not where it says"
    if len(chunks) == len(packets):
        return ""
    num_frames, last = stream.frames, packets[-1].dts
    if not num_frames or last is None or last + 1 == num_frames:
        return ""
    return f"its header counts {num_frames} frames, and {last + 1} are there"


def _chunks(listed: Sequence[int]) -> List[int]:
    return [position + _CHUNK_HEADER_BYTES for position in listed]


def _loose_boxes(source: VideoSource) -> str:
    """Whether a fragmented MP4 is more than a row of boxes, or its fragments are not in order."""
    at, last = 0, -1
    size_of_file = source.check()
    for at, size, kind in boxes(source):
        if size < 8 or at + size > size_of_file or not kind.isalnum():
            return f"no box of MP4 begins at byte {at}"
        if kind == b"moof":
            number = int.from_bytes(source.read_at(at + 20, 4), "big")
            if number <= last:
                return f"fragment {number} comes after fragment {last}"
            last = number
    return ""


def boxes(source: VideoSource) -> Iterator[Tuple[int, int, bytes]]:
    """Position, size in bytes and type of each box on the top level of an MP4 file.

    The last one may be none, with a size below 8.
    """
    at = 0
    while True:
        head = source.read_at(at, 16)
        if not head:
            return
        size = int.from_bytes(head[:4], "big") if len(head) >= 8 else 0
        if size == 1 and len(head) == 16:
            size = int.from_bytes(head[8:], "big")
        yield at, size, head[4:8]
        if size < 8:
            return
        at += size


def _lost_sync(source: VideoSource) -> str:
    """Whether a packet of MPEG-TS does not begin as all do."""
    data = source.read_at(0, source.check())
    for size in (_TS_PACKET_BYTES, _TS_PACKET_BYTES + 4, _TS_PACKET_BYTES + 16):
        first = size - _TS_PACKET_BYTES if size == _TS_PACKET_BYTES + 4 else 0
        marks = data[first::size]
        if 2 * marks.count(b"G") > len(marks):
            wrong = len(marks) - len(marks.lstrip(b"G"))
            return f"no packet of MPEG-TS begins at byte {first + wrong * size}" if wrong < len(marks) else ""
    return ""


def _lost_packs(source: VideoSource) -> str:
    """Whether an MPEG program stream is more than a row of packs and packets.

    Reference: ISO 13818-1, 2.5.3; ISO 11172-1, 2.4.3.
    """
    data, at = source.read_at(0, source.check()), 0
    while at < len(data):
        if data[at : at + 3] != b"\0\0\1" or at + 6 > len(data):
            is_end = data[at : at + 4] == b"\0\0\1\xb9" or not data[at:].strip(b"\0")
            return "" if is_end and at else f"no pack of MPEG begins at byte {at}"
        kind = data[at + 3]
        if kind == 0xBA:
            at += 14 + (data[at + 13 : at + 14] or b"\0")[0] % 8 if data[at + 4] >> 6 == 1 else 12
        elif kind == 0xB9:
            at += 4
        else:
            at += 6 + int.from_bytes(data[at + 4 : at + 6], "big")
    return ""


_CHECKS: Dict[str, Callable[[VideoSource], str]] = {
    "mpegts": _lost_sync,
    "mpeg": _lost_packs,
    "mov,mp4,m4a,3gp,3g2,mj2": _loose_boxes,
}


def _time_goes_back(packets: Sequence[Any]) -> str:
    timed = [packet for packet in packets if packet.dts is not None]
    for earlier, later in zip(timed, timed[1:]):
        if later.dts < earlier.dts:
            return "its frames are not in the order of time"
        if later.dts == earlier.dts and bytes(later) == bytes(earlier):
            return "a frame of it stands there twice"
    return ""


def _time_jumps(packets: Sequence[Any]) -> str:
    """Whether a few frames of a constant rate are missing. A file of a variable rate has many distances."""
    # of decoding: those of showing also jump where a recorder began or stopped between B-frames
    times = [packet.dts for packet in packets if packet.dts is not None]
    steps = _steps(times)
    if steps is None:
        return ""
    jumps = [place for place, step in enumerate(steps) if step > 1]
    if not jumps or len(jumps) > max(2, len(steps) // 50) or max(steps) < _BIG_JUMP:
        return ""
    longest = max(jumps, key=steps.__getitem__)
    at_sec = float(times[longest] * packets[0].time_base)
    return f"no frame for {steps[longest]} frames' time after {at_sec:.2f} s, at a constant frame rate"


def _steps(times: Sequence[int], exact: bool = False) -> Optional[List[int]]:
    """How many frames each time lies after the one before, at a constant frame rate; None of another rate.

    Args:
        times: ascending.
        exact: a time between those of two frames makes it another rate.
    """
    distances = [later - earlier for earlier, later in zip(times, times[1:])]
    if len(distances) < 4:
        return None
    usual = median(distances)
    tolerance = 0.05 * usual + 1
    near = [distance for distance in distances if abs(distance - usual) <= tolerance]
    small = [distance for distance in distances if distance <= _GAP * usual + 1]
    if usual <= 0 or len(near) < 0.95 * len(small) or len(small) < 0.8 * len(distances):
        return None
    mean = sum(near) / len(near)
    if exact and any(
        abs(distance - mean * round(distance / mean)) > 0.05 * mean + 1 for distance in distances
    ):
        return None
    return [max(round(distance / mean), 1) for distance in distances]


def number_packets(
    source: VideoSource,
    stream: Any,
    packets: Sequence[Any],
    listed: Sequence[int],
    complaints: Sequence[str],
    cause: str,
) -> Hole:
    """The numbers of the packets that damage has left; arguments as for `find_hole`, and what it returned."""
    if stream.container.format.name == "avi":
        hole = _numbered_by_index(cause, source, stream, packets, listed)
    else:
        hole = _numbered_by_time(cause, stream, packets, complaints)
    is_likely = hole.num_frames <= _MOST_FRAMES_A_PACKET * len(packets) + 100
    return hole if is_likely else Hole(cause)


def _numbered_by_index(
    cause: str, source: VideoSource, stream: Any, packets: Sequence[Any], listed: Sequence[int]
) -> Hole:
    chunks = _chunks(listed)
    has_no_pauses = packets[-1].dts == len(packets) - 1
    counted = stream.frames if has_no_pauses else 0
    is_listed = not cause and len(chunks) == len(packets)
    if is_listed or (len(chunks) < len(packets) and _is_cut_short(source, packets)):
        return Hole(cause, list(range(len(packets))), max(len(packets), counted))
    number_at = {position: number for number, position in enumerate(chunks)}
    in_file = [number_at.get(packet.pos, -1) for packet in packets]
    is_known = -1 not in in_file and in_file == sorted(in_file)
    num_frames = max(len(chunks), counted)
    overrun = [place for place, (one, other) in enumerate(zip(in_file, in_file[1:])) if other > one + 1]
    return Hole(cause, in_file if is_known else None, num_frames, overrun)


def _is_cut_short(source: VideoSource, packets: Sequence[Any]) -> bool:
    """Whether the chunks of an AVI are all there, one after the other, up to the end of the file."""
    ahead = {packet.pos - _CHUNK_HEADER_BYTES for packet in packets}
    at = min(ahead)
    while True:
        head = source.read_at(at, 12)
        ahead.discard(at)
        if len(head) < 12:
            return not ahead
        if not head[:4].isalnum() or head[:4] == b"idx1":
            return False
        length = int.from_bytes(head[4:8], "little")
        at += 12 if head[8:] == b"rec " else _CHUNK_HEADER_BYTES + length + length % 2


def _numbered_by_time(cause: str, stream: Any, packets: Sequence[Any], complaints: Sequence[str]) -> Hole:
    pts = [packet.pts for packet in packets]
    overrun = _overrun(packets, [cause, *complaints])
    is_in_order = has_table(stream) or not _time_goes_back(packets)
    if None in pts or overrun is None or not is_in_order or stream.container.format.name == "mpeg":
        return Hole(cause)  # libav makes up most times of an MPEG program stream
    times = sorted(set(pts))
    num_frames = len(times)
    steps: Optional[List[int]] = [1] * (num_frames - 1)
    if cause and has_table(stream):
        num_frames += _missing_at_end(stream, packets, _end_sec(stream))[1]
    elif cause:
        steps = _steps(times, exact=True)
        if steps:
            step_sec = float((times[-1] - times[0]) * stream.time_base) / sum(steps)
            if stream.container.format.name in _FROM_ZERO and _first_sec(packets) > step_sec / 2:
                return Hole(cause)  # frames are lost at the beginning, or it begins late
            num_lost_at_end = _missing_at_end(stream, packets, _end_sec(stream, may_guess=True))[1]
            num_frames = sum(steps) + 1 + num_lost_at_end
        elif _is_only_cut(packets, complaints):
            steps = [1] * (num_frames - 1)
    if steps is None:
        return Hole(cause)
    if cause and len(steps) == sum(steps) and pts != times:
        # those lost at the end may include some shown before the last that are left
        overrun.append(max(len(packets) - MOST_REORDERED, 0))
    number_at = dict(zip(times, accumulate(steps, initial=0)))
    return Hole(cause, [number_at[time] for time in pts], num_frames, overrun)


def _is_only_cut(packets: Sequence[Any], complaints: Sequence[str]) -> bool:
    """Whether a file ends early, and is whole up to there as far as the demuxer knows."""
    is_incomplete = packets[-1].is_corrupt and not any(packet.is_corrupt for packet in packets[:-1])
    heard = all(any(text in complaint for text in _ENDS) for complaint in complaints)
    return heard and (bool(complaints) or is_incomplete)


def _overrun(packets: Sequence[Any], complaints: Sequence[str]) -> Optional[List[int]]:
    """The packets before the bytes at which the demuxer stumbled; None where that was before all of them."""
    begins = [packet.pos or 0 for packet in packets]
    found = []
    for text in complaints:
        position = _POSITION.search(text)
        if position:
            stumbled = int(position[2]) if position[2] else int(position[1], 16)
            before = [place for place, begin in enumerate(begins) if begin < stumbled]
            if before:
                found.append(max(before, key=begins.__getitem__))
            elif position[2]:  # libav also counts inside of parts
                return None
    return found


def _first_sec(packets: Sequence[Any]) -> float:
    first = packets[0].pts if packets[0].dts is None else packets[0].dts
    return float(first * packets[0].time_base)


def _end_sec(stream: Any, may_guess: bool = False) -> float:
    """When the last frame ends, as the file says; 0 where it does not.

    Args:
        stream: the only one, or not.
        may_guess: take the end of the file for that of its only stream.
    """
    if has_table(stream):
        return float(((stream.start_time or 0) + (stream.duration or 0)) * stream.time_base)
    tag = stream.metadata.get("DURATION", "").split(":")  # Matroska, for each stream
    if len(tag) == 3:
        try:
            return (int(tag[0]) * 60 + int(tag[1])) * 60 + float(tag[2])
        except ValueError:
            return 0.0
    container = stream.container
    is_alone = len(container.streams) == 1 and container.format.name in _FROM_ZERO
    return (container.duration or 0) / 1e6 if is_alone and may_guess else 0.0


def without_doubles(packets: List[Any]) -> List[Any]:
    """The packets without those that stand in the file twice."""
    seen: Dict[Tuple[Any, ...], Any] = {}
    kept = []
    for packet in packets:
        key = packet.pts, packet.dts, packet.size
        if key in seen and bytes(seen[key]) == bytes(packet):
            continue
        seen.setdefault(key, packet)
        kept.append(packet)
    return kept


def number_frames(
    numbers: Sequence[int],
    num_frames: int,
    index: FrameIndex,
    depth: Optional[int],
    overrun: Sequence[int] = (),
) -> Tuple[List[Optional[int]], Set[int]]:
    """What stands where in the file as it was whole.

    Args:
        numbers: of the packets that are left, as `Hole` has them.
        num_frames: of the whole file.
        index: of the packets that are left, and decode.
        depth: None where `numbers` are in the order shown; else they are in decoding order, and a picture is
            shown after at most so many that are decoded later.
        overrun: places of packets that cannot be trusted.

    Returns:
        For each frame of the whole file the place of its packet, None where it is lost or cannot be trusted;
        and the places of the packets that cannot be.
    """
    behind: List[int] = []
    orphans = {place for begin in overrun for place in index.spoilt(begin, spare=False)}
    number_of = {place: numbers[place] for place in index.shown}
    if depth is not None:
        num_lost = 0
        holes = []
        for rank, place in enumerate(sorted(index.shown)):
            if number_of[place] - rank > num_lost:
                behind.append(place)
                holes.append(rank)
            number_of[place] = num_lost = number_of[place] - rank  # lost before it
        for rank, place in enumerate(index.shown):
            number_of[place] += rank
            # one that is lost may have been shown before it
            orphans.update(
                place for entry, hole in zip(behind, holes) if place < entry and hole <= rank + depth
            )
    else:
        first = len(numbers)
        for later, place in zip(index.shown[:0:-1], index.shown[-2::-1]):
            first = min(first, later)
            if number_of[later] - number_of[place] > 1:
                behind.append(first)
    for place in behind:
        orphans.update(index.orphans(place))
    shown: List[Optional[int]] = [None] * num_frames
    for place, number in number_of.items():
        if place not in orphans and number < num_frames:
            shown[number] = place
    return shown, orphans

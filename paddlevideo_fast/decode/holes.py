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

# Of a file that is only cut off, the frames before the cut keep their numbers.
_ENDS = ("File ended prematurely",)

# Their first frame is shown at zero.
_FROM_ZERO = ("matroska,webm", "flv")

UNTRUSTED = -1

# Distances of this share of the usual one, and beyond, are gaps.
_GAP = 1.5


class Hole(NamedTuple):
    """Packets of a file are missing, or are where they do not belong.

    Attributes:
        cause: how it shows; empty where nothing is missing.
        numbers: of each packet's frame; in an AVI, in decoding order, else in the order they are shown;
            `UNTRUSTED` where the packet may hold bytes of others. None where nothing tells them.
        num_frames: that the whole file had, as far as the file tells.
    """

    cause: str
    numbers: Optional[List[int]] = None
    num_frames: int = 0


def find_hole(
    source: VideoSource,
    stream: Any,
    packets: Sequence[Any],
    listed: Sequence[Tuple[int, int]],
    complaints: Sequence[str],
    announced: Optional[int],
) -> str:
    """How a hole of a file shows; empty where it has none.

    Args:
        source: the file.
        stream: its video stream.
        packets: of the stream, in decoding order, as they were demuxed.
        listed: position and size of the packets in an AVI's own index, before packets were demuxed.
        complaints: of the demuxer.
        announced: the length of the file in bytes, as its header says; None where nothing says.
    """
    name = stream.container.format.name
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
        return "" if last < announced else f"has frames behind the {announced} bytes its header announces"
    cause = _CHECKS[name](source) if name in _CHECKS else ""
    return cause or _time_goes_back(packets) or _time_jumps(packets)


def has_table(stream: Any) -> bool:
    """Whether the file's header has the time and place of every frame: an MP4 without fragments."""
    return "mp4" in stream.container.format.name and stream.frames > 0


def begins_with_key(stream: Any) -> bool:
    """Whether the file's own index says that the video begins with a key frame."""
    entries: Any = getattr(stream, "index_entries", ())  # PyAV 15 has none
    is_own = has_table(stream) or stream.container.format.name == "avi"
    return is_own and len(entries) > 0 and bool(entries[0].is_keyframe)


def _ends_early(stream: Any, packets: Sequence[Any]) -> str:
    """Whether frames that the header of an MP4 shows are not in its table.

    An edit list may leave some out.
    """
    if stream.duration is None or None in (packet.pts for packet in packets):
        return ""
    last = max(packets, key=lambda packet: (not packet.is_discard, packet.pts))
    missing = (stream.start_time or 0) + stream.duration - last.pts - (last.duration or 0)
    if missing <= _GAP * (last.duration or missing):
        return ""
    return f"its header shows {float(missing * stream.time_base):.2f} s more than it has frames for"


def _differs_from_index(stream: Any, packets: Sequence[Any], listed: Sequence[Tuple[int, int]]) -> str:
    """Compares the chunks of an AVI with its index; without a whole one, with the number in its header.

    Without an index libav lists the first chunks itself.
    """
    chunks = _chunks(listed)
    lost = len(set(chunks) - {packet.pos for packet in packets})
    if lost:
        return f"{lost} of the {len(chunks)} frames in its index are not where it says"
    if len(chunks) == len(packets):
        return ""
    num_frames, last = stream.frames, packets[-1].dts
    if not num_frames or last is None or last + 1 == num_frames:
        return ""
    return f"its header counts {num_frames} frames, and {last + 1} are there"


def _chunks(listed: Sequence[Tuple[int, int]]) -> List[int]:
    return [position + _CHUNK_HEADER_BYTES for position, size in listed if size]


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
        if marks[:5] == b"G" * 5:
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
    if not jumps or len(jumps) > max(2, len(steps) // 50):
        return ""
    at = times[jumps[0]] * packets[0].time_base
    return f"no frame for {steps[jumps[0]]} frames' time after {float(at):.2f} s, at a constant frame rate"


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
    listed: Sequence[Tuple[int, int]],
    complaints: Sequence[str],
    cause: str,
) -> Hole:
    """The numbers of the packets that damage has left; arguments as for `find_hole`, and what it returned."""
    chunks = _chunks(listed)
    if stream.container.format.name != "avi":
        numbers, num_frames = _numbers_by_time(stream, packets, complaints, bool(cause))
        return Hole(cause, numbers, num_frames)
    is_listed = not cause and len(chunks) == len(packets)
    if is_listed or (len(chunks) < len(packets) and _is_cut_short(source, packets)):
        return Hole(cause, list(range(len(packets))), len(packets))
    number_at = {position: number for number, position in enumerate(chunks)}
    in_file = [number_at.get(packet.pos, -1) for packet in packets]
    is_known = -1 not in in_file and in_file == sorted(in_file)
    has_no_pauses = packets[-1].dts == len(packets) - 1
    num_frames = max(len(chunks), stream.frames) if has_no_pauses else len(chunks)
    return Hole(cause, in_file if is_known else None, num_frames)


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


def _numbers_by_time(
    stream: Any, packets: Sequence[Any], complaints: Sequence[str], has_hole: bool
) -> Tuple[Optional[List[int]], int]:
    """The numbers of the frames, and how many there were; None where their times do not tell."""
    pts = [packet.pts for packet in packets]
    is_in_order = has_table(stream) or not _time_goes_back(packets)
    if None in pts or not is_in_order or stream.container.format.name == "mpeg":
        return None, 0  # libav makes up most times of an MPEG program stream
    times = sorted(set(pts))
    steps = [1] * (len(times) - 1)
    num_lost_at_end = 0
    if has_hole and not has_table(stream):
        counted = _steps(times, exact=True)
        if counted:
            steps = counted
            step_sec = float((times[-1] - times[0]) * stream.time_base) / sum(steps)
            missing = (_end_sec(stream) - float(times[-1] * stream.time_base)) / step_sec - 1
            num_lost_at_end = max(round(missing), 0)
            if stream.container.format.name in _FROM_ZERO and _first_sec(packets) > step_sec / 2:
                return None, 0  # frames are lost at the beginning, or it begins late
        elif not all(any(text in complaint for text in _ENDS) for complaint in complaints):
            return None, 0
    number_at = dict(zip(times, accumulate(steps, initial=0)))
    numbers = [number_at[time] for time in pts]
    for place in _overrun(packets, complaints):
        numbers[place] = UNTRUSTED
    return numbers, number_at[times[-1]] + 1 + num_lost_at_end


def _overrun(packets: Sequence[Any], complaints: Sequence[str]) -> Iterator[int]:
    """The packets before the bytes at which the demuxer stumbled: a hole may begin inside of them."""
    stumbled = {
        int(found, 16) for text in complaints for found in re.findall(r"\b(?:at|pos\.?|\d) \(?0x(\w+)", text)
    }
    begins = [packet.pos or 0 for packet in packets]
    for position in stumbled:
        before = [place for place, begin in enumerate(begins) if begin < position]
        if before:
            yield max(before, key=begins.__getitem__)


def _first_sec(packets: Sequence[Any]) -> float:
    first = packets[0].pts if packets[0].dts is None else packets[0].dts
    return float(first * packets[0].time_base)


def _end_sec(stream: Any) -> float:
    """When the last frame ends, as the file says; 0 where it does not."""
    tag = stream.metadata.get("DURATION", "").split(":")  # Matroska, for each stream
    if len(tag) == 3:
        try:
            return (int(tag[0]) * 60 + int(tag[1])) * 60 + float(tag[2])
        except ValueError:
            return 0.0
    container = stream.container
    is_alone = len(container.streams) == 1 and container.format.name in _FROM_ZERO
    return (container.duration or 0) / 1e6 if is_alone else 0.0


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
    numbers: Sequence[int], num_frames: int, index: FrameIndex, depth: Optional[int]
) -> Tuple[List[Optional[int]], Set[int]]:
    """What stands where in the file as it was whole.

    Args:
        numbers: of the packets that are left, as `Hole` has them.
        num_frames: of the whole file.
        index: of the packets that are left, and decode.
        depth: None where `numbers` are in the order shown; else they are in decoding order, and a picture is
            shown after at most so many that are decoded later.

    Returns:
        For each frame of the whole file the place of its packet, None where it is lost or cannot be trusted;
        and the places of the packets that cannot be.
    """
    behind = [place for place, number in enumerate(numbers) if number == UNTRUSTED]
    orphans = {place for entry in behind for place in (entry, *index.orphans(entry))}
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

"""The numbers of the frames that damage has left."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from paddlevideo_fast.decode.holes import (
    CHUNK_HEADER_BYTES,
    FROM_ZERO,
    chunks,
    chunks_of,
    end_sec,
    frame_steps,
    has_table,
    missing_at_end,
    time_goes_back,
)
from paddlevideo_fast.decode.packets import FrameIndex
from paddlevideo_fast.decode.source import VideoSource

# Pictures that are decoded before another and shown after it, at most (H.264 and HEVC).
MOST_REORDERED = 16

# Where a message says that no part of the file begins.
_POSITION = re.compile(r"(?:at|pos\.?|\d) \(?0x(\w+)|byte (\d+)")

# Of a file that is only cut off, the frames before the cut keep their numbers.
_ENDS = ("File ended prematurely",)

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
    indexed = chunks_of(listed)
    has_no_pauses = packets[-1].dts == len(packets) - 1
    counted = stream.frames if has_no_pauses else 0
    is_listed = not cause and len(indexed) == len(packets)
    if is_listed or (len(indexed) < len(packets) and _is_cut_short(source, packets)):
        return Hole(cause, list(range(len(packets))), max(len(packets), counted))
    number_at = {position: number for number, position in enumerate(indexed)}
    in_file = [number_at.get(packet.pos, -1) for packet in packets]
    is_known = -1 not in in_file and in_file == sorted(in_file)
    num_frames = max(len(indexed), counted)
    overrun = [place for place, (one, other) in enumerate(zip(in_file, in_file[1:])) if other > one + 1]
    return Hole(cause, in_file if is_known else None, num_frames, overrun)


def _is_cut_short(source: VideoSource, packets: Sequence[Any]) -> bool:
    """Whether the chunks of an AVI are all there, one after the other, up to the end of the file."""
    ahead = {packet.pos - CHUNK_HEADER_BYTES for packet in packets}
    for at, kind in chunks(source, min(ahead)):
        ahead.discard(at)
        if not kind.isalnum() or kind == b"idx1":
            return False
    return not ahead


def _numbered_by_time(cause: str, stream: Any, packets: Sequence[Any], complaints: Sequence[str]) -> Hole:
    pts = [packet.pts for packet in packets]
    overrun = _overrun(packets, [cause, *complaints])
    is_in_order = has_table(stream) or not time_goes_back(packets)
    if None in pts or overrun is None or not is_in_order or stream.container.format.name == "mpeg":
        return Hole(cause)  # libav makes up most times of an MPEG program stream
    times = sorted(set(pts))
    num_frames = len(times)
    steps: Optional[List[int]] = [1] * (num_frames - 1)
    if cause and has_table(stream):
        num_frames += missing_at_end(stream, packets, end_sec(stream))[1]
    elif cause:
        steps = frame_steps(times, exact=True)
        if steps:
            step_sec = float((times[-1] - times[0]) * stream.time_base) / sum(steps)
            if stream.container.format.name in FROM_ZERO and _first_sec(packets) > step_sec / 2:
                return Hole(cause)  # frames are lost at the beginning, or it begins late
            num_lost_at_end = missing_at_end(stream, packets, end_sec(stream, may_guess=True))[1]
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


def _first_sec(packets: Sequence[Any]) -> float:
    first = packets[0].pts if packets[0].dts is None else packets[0].dts
    return float(first * packets[0].time_base)


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

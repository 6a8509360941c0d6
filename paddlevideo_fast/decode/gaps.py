"""Gaps: packets that a file has lost, doubled or moved.

libav reads on behind a gap as if nothing was missing, and the frames behind it would get other numbers. What
shows a gap is one of these, from the cheapest on:

- the demuxer complains: it met bytes that are no part of the format, and looked for the next that are
- a packet is marked as incomplete (MPEG-TS counts its packets)
- an index, a count or a size in the file does not fit the packets
- the time goes back, and no other recording begins there
- the time jumps in a file of a constant frame rate, and nothing shows that the recording has only paused:
  neither the structure of the file nor the numbers of its pictures
"""

import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import Any, NamedTuple

from paddlevideo_fast.decode.codecs import START_CODE
from paddlevideo_fast.decode.picture_counts import are_consecutive, numbers_of
from paddlevideo_fast.decode.source import VideoSource
from paddlevideo_fast.decode.transport_stream import TransportStream

# libav's index of an AVI points at the header of a chunk, its packet at the content.
_CHUNK_HEADER_BYTES = 8
_AVI_LISTS = (b"rec ", b"movi", b"AVIX")

# libav's complaints of a Matroska, an MP4 and an FLV file that are cut off.
_ENDS_EARLY = ("File ended prematurely", "partial file", "next track in single-track mode")

# Their first frame is shown at zero.
_FROM_ZERO = ("matroska,webm", "flv")

# Distances of this share of the usual one, and beyond, are gaps.
_GAP = 1.5

# Recorders drop a frame now and then; a jump is a sign of damage from so many frames' time on.
_BIG_JUMP = 3
_NEAR = 8  # packets from where a jump is to where it shows: libav guesses times that a file leaves out
_ZEROS_AT_ONCE = 2**20
_LONGEST_PAUSE_SEC = 24 * 3600  # a longer one is a damaged time


class Gap(NamedTuple):
    """Packets of a file are missing, or are where they do not belong; or there is a gap in time only.

    Attributes:
        cause: how it shows.
        is_end: the end of the file is missing, and nothing else as far as this sign says.
        is_note: nothing is missing.
    """

    cause: str
    is_end: bool = False
    is_note: bool = False


def find_gaps(
    source: VideoSource,
    stream: Any,
    packets: Sequence[Any],
    listed: Sequence[int],
    complaints: Sequence[str],
    incomplete: Sequence[int],
    joins: Sequence[int],
    transport: TransportStream | None,
) -> Iterator[Gap]:
    """The signs of gaps in a file; none where it has none.

    Args:
        source: the file.
        stream: its video stream.
        packets: of the stream, in decoding order, as they were demuxed.
        listed: positions of the packets in an AVI's own index, before packets were demuxed.
        complaints: of the demuxer.
        incomplete: numbers of the packets that lack a part.
        joins: numbers of the packets with which another recording begins.
        transport: of a file in MPEG-TS.
    """
    if not source.head()[:16].strip(b"\0"):
        yield Gap("no video begins at byte 0")
    for text in complaints:
        yield Gap(" ".join(text.split()), is_end=any(end in text for end in _ENDS_EARLY))
    if incomplete:
        yield Gap("a packet is incomplete", is_end=list(incomplete) == [len(packets) - 1])
    name = stream.container.format.name
    if name == "avi":
        yield from _avi_gap(source, stream, packets, listed)
        return
    if has_table(stream):
        num_listed = len(stream.index_entries)
        if len(packets) < num_listed:
            num_listed = sum(entry.size > 0 for entry in stream.index_entries)
        if len(packets) < num_listed:
            yield Gap(f"its table lists {num_listed} frames, and {len(packets)} are there", is_end=True)
        return
    announced = announced_bytes(source.head())
    last = packets[-1].pos
    if name.startswith("matroska"):
        if announced and last is not None and last >= announced:
            yield Gap(f"has frames behind the {announced} bytes its header announces")
        lost = list(_lost_clusters(source, announced or source.check()))
        yield from lost
        if announced and (cause := _ends_early(stream, packets)):
            yield Gap(cause, is_end=True)
        if announced and not lost:
            return  # the sizes of all parts prove that none is missing
    elif name in _CHECKS:
        yield from _CHECKS[name](source)
    elif transport:
        yield from _lost_in_transport(transport)
    for first, stop in pairwise([0, *joins, len(packets)]):
        part = packets[first:stop]
        if first:
            yield Gap(f"another recording begins at frame {first}", is_note=True)
        # in a program stream, libav guesses the times of pictures with which no packet begins
        timed = [packet for packet in part if name != "mpeg" or packet.pos is not None]
        if cause := _time_goes_back(timed):
            yield Gap(cause)
        yield from _time_jumps(source, stream, part)


def announced_bytes(head: bytes) -> int | None:
    """How long an AVI or Matroska file that begins with `head` says it is; None where nothing says.

    libav reads a shortened one without complaint. MP4 needs no such check: its index does not fit then.
    """
    if head[:4] == b"RIFF":
        size = int.from_bytes(head[4:8], "little")
        return size + 8 if 0 < size < 0xFFFFFFFF else None
    if head[:4] == b"\x1a\x45\xdf\xa3":
        at = head.find(b"\x18\x53\x80\x67") + 4  # the Segment element, which holds all the rest
        length = 9 - head[at].bit_length() if at >= 4 and at < len(head) and head[at] else 0
        value = int.from_bytes(head[at : at + length], "big") & ((1 << 7 * length) - 1)
        is_announced = length > 0 and value != (1 << 7 * length) - 1
        return at + length + value if is_announced else None
    return None


def num_lost_at_end(stream: Any, packets: Sequence[Any]) -> int:
    """Frames that a file which is cut off had behind `packets`, as far as it says."""
    if stream.container.format.name == "avi":
        has_pauses = packets[-1].dts != len(packets) - 1
        return 0 if has_pauses else max(stream.frames - len(packets), 0)
    if has_table(stream):
        return sum(
            entry.size > 0 and not entry.is_discard for entry in list(stream.index_entries)[len(packets) :]
        )
    return _missing_at_end(stream, packets, _end_sec(stream, may_guess=True))[1]


def has_table(stream: Any) -> bool:
    """Whether the file's header has the time and place of every frame: an MP4 without fragments."""
    return "mp4" in stream.container.format.name and stream.frames > 0


def begins_with_key(stream: Any, first_packet: Any) -> bool:
    """Whether the file says that the video begins with a key frame: in its index, or beside the packet."""
    indexed = stream.index_entries
    if not len(indexed) or not indexed[0].is_keyframe:
        return False
    name = stream.container.format.name
    is_marked = name in _FROM_ZERO and indexed[0].pos <= (first_packet.pos or 0)
    return name == "avi" or "mp4" in name or is_marked


def _ends_early(stream: Any, packets: Sequence[Any]) -> str:
    """Whether a file says that its video lasts longer than its frames do."""
    missing_sec, num_frames = _missing_at_end(stream, packets, _end_sec(stream))
    return f"its header shows {missing_sec:.2f} s more than it has frames for" if num_frames > 1 else ""


def _missing_at_end(stream: Any, packets: Sequence[Any], end_sec: float) -> tuple[float, int]:
    """From the end of the last frame to `end_sec`: seconds, and frames as long as the last."""
    times = [packet.pts for packet in packets]
    if not end_sec or None in times:
        return 0.0, 0
    last = packets[max(range(len(times)), key=times.__getitem__)]
    if last.is_discard:
        last = max(packets, key=lambda packet: (not packet.is_discard, packet.pts))
    step_sec = float((last.duration or 0) * stream.time_base)
    missing_sec = end_sec - float(last.pts * stream.time_base) - step_sec
    return missing_sec, max(round(missing_sec / step_sec), 0) if step_sec else 0


# Segment's children: Cluster, Cues, Tags, SeekHead, Info, Tracks, Attachments, Chapters, Void, CRC-32.
_CLUSTER = 0x1F43B675
_PART_IDS = "1F43B675 1C53BB6B 1254C367 114D9B74 1549A966 1654AE6B 1941A469 1043A770 EC BF"
_MATROSKA = {int(part, 16) for part in _PART_IDS.split()}


def _lost_clusters(source: VideoSource, announced: int) -> Iterator[Gap]:
    """Whether a Matroska file's Segment is more than a row of its parts; libav passes over unknown ones."""
    for part in matroska_parts(source, announced):
        if part.kind not in _MATROSKA:
            yield Gap(f"no part of Matroska begins at byte {part.at}", part.at >= source.check())


class _Part(NamedTuple):
    """A part of a Matroska file's Segment, such as a cluster.

    Attributes:
        at: where it begins.
        kind: its EBML ID; 0: no part begins here.
        first: where its content begins.
        stop: where it ends; None: it does not say.
    """

    at: int
    kind: int
    first: int
    stop: int | None


def matroska_parts(source: VideoSource, announced: int) -> Iterator[_Part]:
    """The parts up to `announced`, or to the first that has no size. Reference: RFC 8794 and RFC 9559."""
    at = source.head().find(b"\x18\x53\x80\x67") + 4
    at += 9 - (source.read_at(at, 1) or b"\1")[0].bit_length()
    while at < announced:
        head = source.read_at(at, 12)
        num_id = 9 - head[0].bit_length() if head else 0
        if not 0 < num_id < 5 or num_id >= len(head) or not head[num_id]:
            yield _Part(at, 0, at, None)
            return
        num_size = 9 - head[num_id].bit_length()
        unknown = (1 << 7 * num_size) - 1
        size = int.from_bytes(head[num_id : num_id + num_size], "big") & unknown
        first = at + num_id + num_size
        stop = first + size if size != unknown else None
        yield _Part(at, int.from_bytes(head[:num_id], "big"), first, stop)
        if stop is None:
            return
        at = stop


# At the beginning of a part: the element CRC-32 with 4 bytes, of all that follows.
_CHECKSUM = b"\xbf\x84"


def wrong_checksum(source: VideoSource, announced: int) -> str:
    """Which cluster of a Matroska file has other bytes than its checksum says; empty where none has.

    FFmpeg writes checksums into Matroska, and none into WebM.
    """
    for part in matroska_parts(source, announced):
        if part.kind == _CLUSTER and part.stop and source.read_at(part.first, 2) == _CHECKSUM:
            begin = part.first + len(_CHECKSUM)
            content = source.read_at(begin, part.stop - begin)
            if zlib.crc32(content[4:]) != int.from_bytes(content[:4], "little"):
                return f"the checksum of the cluster at byte {part.at} is wrong"
    return ""


def _avi_gap(
    source: VideoSource, stream: Any, packets: Sequence[Any], listed: Sequence[int]
) -> Iterator[Gap]:
    """Compares the chunks of an AVI with its index; without a whole one, with the number in its header.

    Without an index libav lists the first chunks itself.
    """
    indexed = [position + _CHUNK_HEADER_BYTES for position in listed]
    positions = [packet.pos for packet in packets]
    if indexed == positions:
        return
    ahead, at, kind, has_index = {pos - _CHUNK_HEADER_BYTES for pos in positions}, 0, b"", False
    for at, kind in _chunks(source, min(ahead)):
        ahead.discard(at)
        has_index |= kind == b"idx1"
        if not kind.isalnum():
            break
    is_end = len(indexed) <= len(packets) and not ahead and kind.isalnum() and not has_index
    num_frames, last, lost = stream.frames, packets[-1].dts, len(set(indexed) - set(positions))
    if lost:
        yield Gap(f"{lost} of the {len(indexed)} frames in its index are not where it says", is_end)
    elif len(indexed) != len(packets):
        if num_frames and last is not None and last + 1 != num_frames:
            yield Gap(f"its header counts {num_frames} frames, and {last + 1} are there", is_end)
        elif ahead:
            yield Gap(f"no chunk of AVI begins at byte {at}")


def _chunks(source: VideoSource, at: int) -> Iterator[tuple[int, bytes]]:
    """Position and name of each chunk of an AVI, and of the lists that hold chunks.

    Args:
        source: the file.
        at: where the first chunk is.
    """
    while True:
        head = source.read_at(at, 12)
        if len(head) < 12:
            return
        yield at, head[:4]
        length = int.from_bytes(head[4:8], "little")
        at += 12 if head[8:] in _AVI_LISTS else _CHUNK_HEADER_BYTES + length + length % 2


def _loose_boxes(source: VideoSource) -> Iterator[Gap]:
    """Whether a fragmented MP4 is more than a row of boxes, or its fragments are not in order."""
    size_of_file = source.check()
    for at, size, kind in boxes(source):
        if size < 8 or not kind.isalnum():
            yield Gap(f"no box of MP4 begins at byte {at}")
        elif at + size > size_of_file:
            yield Gap(f"ends within the box of MP4 at byte {at}", is_end=True)
    for earlier, later in pairwise(_fragments(source)):
        if later <= earlier:
            yield Gap(f"fragment {later} comes after fragment {earlier}")


def _fragments(source: VideoSource) -> list[int]:
    """The numbers of the fragments of an MP4."""
    positions = [at for at, _, kind in boxes(source) if kind == b"moof"]
    return [int.from_bytes(source.read_at(at + 20, 4), "big") for at in positions]


def boxes(source: VideoSource) -> Iterator[tuple[int, int, bytes]]:
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


def _lost_in_transport(transport: TransportStream) -> Iterator[Gap]:
    """Whether MPEG-TS is more than a row of packets, or ends within one, or a frame has no beginning."""
    if transport.broken:
        yield Gap(transport.broken)
        return
    if transport.is_cut:
        yield Gap("ends within a packet of MPEG-TS", is_end=True)
    if transport.lost_start >= 0:
        yield Gap(f"no frame begins in the packet of MPEG-TS at byte {transport.lost_start}")


def _lost_packs(source: VideoSource) -> Iterator[Gap]:
    """Whether an MPEG program stream is more than a row of packs and packets, or ends within a pack.

    Reference: ISO 13818-1, 2.5.3; ISO 11172-1, 2.4.3.
    """
    size, at, kind = source.check(), 0, 0
    while at < size:
        head = source.read_at(at, 14)
        if head[:3] != START_CODE or len(head) < 6:
            rest = (source.read_at(begin, _ZEROS_AT_ONCE) for begin in range(at, size, _ZEROS_AT_ONCE))
            is_end = head[:4] == START_CODE + b"\xb9" or not any(map(any, rest))
            if not is_end or not at:
                yield Gap(f"no pack of MPEG begins at byte {at}")
            return
        kind = head[3]
        if kind == 0xBA:
            at += 14 + (head[13:] or b"\0")[0] % 8 if head[4] >> 6 == 1 else 12
        elif kind == 0xB9:
            at += 4
        else:
            at += 6 + int.from_bytes(head[4:6], "big")
    if at > size or kind == 0xBA:
        yield Gap("ends within a pack", is_end=True)


_CHECKS: dict[str, Callable[[VideoSource], Iterator[Gap]]] = {
    "mpeg": _lost_packs,
    "mov,mp4,m4a,3gp,3g2,mj2": _loose_boxes,
}


def _time_goes_back(packets: Sequence[Any]) -> str:
    """How it shows that packets are not in the order of decoding, or twice there; empty where they are."""
    timed = [packet for packet in packets if packet.dts is not None]
    for earlier, later in zip(timed, timed[1:]):
        if later.dts < earlier.dts:
            return "its frames are not in the order of time"
        if later.dts == earlier.dts and later.size == earlier.size and bytes(later) == bytes(earlier):
            return "a frame of it stands there twice"
    return ""


def _time_jumps(source: VideoSource, stream: Any, packets: Sequence[Any]) -> Iterator[Gap]:
    """Whether a few frames of a constant rate are missing. A file of a variable rate has many distances."""
    # of decoding: those of showing also jump where a recorder began or stopped between B-frames
    timed = [packet for packet in packets if packet.dts is not None]
    times = [packet.dts for packet in timed]
    for number, packet in enumerate(timed if stream.container.format.name == "mpeg" else ()):
        if packet.pos is None and number:  # guessed
            times[number] = times[number - 1] + packet.duration
    steps = _frame_steps(times)
    jumps = [number for number, step in enumerate(steps, 1) if step > 1]
    if len(jumps) > max(2, len(steps) // 50):
        return
    for number in jumps:
        num_frames = steps[number - 1]
        if num_frames >= _BIG_JUMP:
            at_sec = float(timed[number - 1].dts * stream.time_base)
            pause_sec = (timed[number].dts - timed[number - 1].dts) * stream.time_base
            is_pause = pause_sec < _LONGEST_PAUSE_SEC and _is_pause(source, stream, timed, steps, number)
            kind = "a pause: " if is_pause else ""
            cause = f"no frame for {num_frames} frames' time after {at_sec:.2f} s, at a constant frame rate"
            yield Gap(kind + cause, is_note=is_pause)


def _is_pause(
    source: VideoSource, stream: Any, packets: Sequence[Any], steps: Sequence[int], number: int
) -> bool:
    """Whether a recording has only paused before a packet, which no sign of lost packets contradicts.

    Args:
        source: the file.
        stream: its video stream.
        packets: those with a time.
        steps: frames from each packet to the next.
        number: of the packet behind the jump.
    """
    name, codec = stream.container.format.name, stream.codec_context
    if name == "mpeg":  # a program stream leaves out most times: where it jumps is a guess
        return False
    near = range(max(number - _NEAR, 1), min(number + _NEAR + 1, len(packets)))
    counted = {packet_no: are_consecutive(packets, codec, packet_no) for packet_no in near}
    if False in counted.values():
        return False
    is_counted = counted[number]
    if _is_whole_between(source, name, packets[number - 1].pos, packets[number].pos):
        return True
    is_row = name == "mpegts" or _is_row_of_clusters(source, name)
    times = [0, *accumulate(steps)]
    keys = [packet_no for packet_no, packet in enumerate(packets) if packet.is_keyframe]
    distances = [times[later] - times[earlier] for earlier, later in pairwise(keys)]
    group = bisect_left(keys, number) - 1
    others = distances[:group] + distances[group + 1 :]
    usual, count = Counter(others).most_common(1)[0] if others else (0, 0)
    if 0 <= group < len(distances) and usual > 0 and count >= 0.8 * len(others):  # keys come at regular times
        if distances[group] % usual:
            return True
        groups = numbers_of(packets, codec, keys) or []
        if is_counted and not groups[group + 1].begins:
            return True
        is_inside = usual == 1 or not packets[number].is_keyframe
        numbers = [each.group for each in groups if each.group is not None]
        is_next = len(numbers) == len(keys) and _is_next_group(numbers, group, distances[group] // usual)
        return is_next or (is_row and is_inside)
    return packets[number].is_keyframe or is_row or bool(is_counted)


def _is_next_group(groups: Sequence[int], group: int, num_groups: int) -> bool:
    """Whether the group behind a jump that is as long as whole groups is the next one, by their numbers.

    Args:
        groups: numbers of the groups of pictures, each another than the one before.
        group: of the group in front of the jump.
        num_groups: how many groups later the next would be, if some were lost.
    """
    after = {earlier: later for at, (earlier, later) in enumerate(pairwise(groups)) if at != group}
    if after.get(groups[group]) != groups[group + 1]:
        return False
    cycle = [groups[group]]
    while (following := after.get(cycle[-1])) is not None and following not in cycle:
        cycle.append(following)
    return following != groups[group] or (num_groups - 1) % len(cycle) != 0


def _is_whole_between(source: VideoSource, name: str, earlier: int | None, later: int | None) -> bool:
    """Whether the structure of a file proves that no packet is missing between two positions."""
    if "mp4" in name:
        fragments = _fragments(source)
        return bool(fragments) and fragments == list(range(fragments[0], fragments[0] + len(fragments)))
    if name.startswith("matroska") and earlier is not None and later is not None:
        clusters = (part for part in matroska_parts(source, source.check()) if part.kind == _CLUSTER)
        return any(part.first <= earlier and later < (part.stop or 0) for part in clusters)
    return False


def _is_row_of_clusters(source: VideoSource, name: str) -> bool:
    """Whether a Matroska file states the size of all its parts."""
    return name.startswith("matroska") and all(part.stop for part in matroska_parts(source, source.check()))


def _frame_steps(times: Sequence[int]) -> list[int]:
    """How many frames each time lies after the one before, at a constant frame rate; empty of another rate.

    Args:
        times: ascending.
    """
    distances = [later - earlier for earlier, later in zip(times, times[1:])]
    if len(distances) < 4:
        return []
    usual = median(distances)
    tolerance = 0.05 * usual + 1
    near = [distance for distance in distances if abs(distance - usual) <= tolerance]
    small = [distance for distance in distances if distance <= _GAP * usual + 1]
    if usual <= 0 or len(near) < 0.95 * len(small) or len(small) < 0.8 * len(distances):
        return []
    mean = sum(near) / len(near)
    return [max(round(distance / mean), 1) for distance in distances]


def _end_sec(stream: Any, may_guess: bool = False) -> float:
    """When the last frame ends, as the file says; 0 where it does not.

    Args:
        stream: the only one, or not.
        may_guess: take the end of the file for that of its only stream.
    """
    tag = stream.metadata.get("DURATION", "").split(":")  # Matroska, for each stream
    if len(tag) == 3:
        try:
            return (int(tag[0]) * 60 + int(tag[1])) * 60 + float(tag[2])
        except ValueError:
            return 0.0
    container = stream.container
    is_alone = len(container.streams) == 1 and container.format.name in _FROM_ZERO
    return (container.duration or 0) / 1e6 if is_alone and may_guess else 0.0

"""Decodes ranges of the packets of a video, no more of them than the wanted frames need.

All packets are demuxed once (cheap), which gives the frame index. For the frames asked for, only the groups
of pictures that hold them are decoded, each up to the last frame wanted, and within them packets that are
neither wanted nor referred to never reach the decoder.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import av
import numpy as np

from paddlevideo_fast.decode.bitstream import damage_test, refused_by_another
from paddlevideo_fast.decode.codecs import AV1, units_of
from paddlevideo_fast.decode.container import LIBAV_ERRORS, FileForLibav, explain, open_container
from paddlevideo_fast.decode.demux import Demuxed
from paddlevideo_fast.decode.gaps import begins_with_key, wrong_checksum
from paddlevideo_fast.decode.keyframes import recovers_late
from paddlevideo_fast.decode.orientation import orientation_of, stored_orientation
from paddlevideo_fast.decode.packets import (
    Clock,
    FrameIndex,
    Timing,
    has_pts,
    index_packets,
    nonref_test,
    rate_of,
    timing_of,
)
from paddlevideo_fast.decode.source import VideoSource
from paddlevideo_fast.decode.stored_index import (
    SEEKABLE,
    IndexStore,
    SeekingPackets,
    StoredIndex,
    learned_indexes,
    offsets_of,
)
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.io.paths import file_system

# Pictures that are decoded before another and shown after it, at most (H.264 and HEVC).
_MOST_REORDERED = 16
_MIN_STORED = 1000  # a video of fewer packets is read from end to end in milliseconds
_MOST_BEYOND = 256  # packets that are decoded after the last wanted one, because they are of its group


# What libav says where a picture of H.264 releases a reference that it has not.
_RELEASE = "mmco: unref short failure"


class _ReferenceIsGone(Exception):
    """A picture releases a reference from before the place where decoding began."""


class PictureDecoder:
    """Decodes ranges of the packets of a video.

    Each packet carries its number in decoding order instead of its timestamp. The decoder passes this number
    on to the picture.

    Args:
        source: where the video is read from.
        allow_cut: take a file that is cut off.
        cache: of indexes, for files that are intact; None: all packets are read.

    Attributes:
        shown: the packet of each frame, in the order they are shown; None for a frame that the file has lost.
        avg_fps: frames a second; 0.0 where nothing says.
        stored_orientation: what the headers say about it; None: only a decoded frame says it.
        stored_size: (width, height) of a frame before it is turned, as the file announces it.
        pixel_aspect: width of a pixel over its height, before the frame is turned.
        codec: FFmpeg's name of the compression, such as "h264".
        damage: why the first packet that did not decode did not; empty while all did.
        notes: see `VideoReader`.

    Raises:
        VideoDecodeError: it is not a video, or has no packets, or is cut off and must not.
    """

    def __init__(self, source: VideoSource, allow_cut: bool, cache: IndexStore | None = None) -> None:
        self._source = source
        self.damage = ""
        self.notes: Sequence[str] = ()
        self._rotation: int | None = None  # in degrees, of the first key picture
        self.times_sec: np.ndarray | None = None
        self._num_runs = 0
        self._first_key = 0  # a recorded stream may begin anywhere: packets before it are left out
        self._is_constant = True  # a flushed decoder equals a new one
        self._is_counted = self._is_tainted = self._is_recovered = self._goes_on = False
        self._leading: set[int] = set()  # pictures that may refer to those which were cut away before them
        self._num_counted = 0
        self._is_nonref_packet: Callable[[Any], bool] | None = None
        self._reset_points: set[int] = set()
        self._missing_reference: set[int] = set()  # pictures that refer to lost ones, or are no pictures
        may_store = cache is not None or (source.path is not None and not allow_cut)
        state = self._state = source.state() if may_store else None
        self._cache = cache
        stored = learned_indexes.get((source.path, state)) if state else None
        if stored is None and cache and state:
            stored = cache.load(source, state)
        if stored is None and source.url and not allow_cut:
            stored = file_system(source.url).frame_index(source)
            if stored and cache and state:
                cache.keep(source, stored, state)
        self._packets: list[Any] | SeekingPackets = []
        if stored is not None:
            self._packets = SeekingPackets.of(source, stored)
            self._describe(self._packets.container, self._packets.stream)
            self.timing = stored.timing()
            self._use_index(stored.frame_index(), stored.orientation)
            return
        source.hold()
        demuxed = Demuxed(source, allow_cut)
        self.notes = demuxed.notes
        self._describe(demuxed.container, demuxed.stream)
        try:
            self._packets = SeekingPackets.of_large(source, demuxed) if demuxed.as_read else demuxed.packets
            self._index_packets(demuxed, allow_cut)
        except BaseException:
            self.close()
            raise
        finally:
            source.release()

    def _describe(self, container: Any, stream: Any) -> None:
        self._container, self._codec = container, stream.codec_context
        self.codec = self._codec.codec.canonical_name
        self.avg_fps = float(rate_of(stream) or 0.0)
        self.stored_size = (self._codec.width, self._codec.height)
        aspect = stream.sample_aspect_ratio
        self.pixel_aspect = float(aspect or 1)
        # a container's holds for all pictures, the bitstream's may change
        self._coded_aspect = aspect if aspect == self._codec.sample_aspect_ratio else None
        self._is_damaged = damage_test(self._codec)

    def _use_index(self, index: FrameIndex, orientation: int | None) -> None:
        self._index, self.stored_orientation = index, orientation
        self.shown: Sequence[Any] | np.ndarray = index.shown
        self._may_skip = index.one_to_one
        self._is_nonref_packet = nonref_test(self._codec) if self._may_skip else None

    def _index_packets(self, demuxed: Demuxed, allow_cut: bool) -> None:
        """Works out which packet holds which frame, and what of the file is damaged."""
        stream, packets, codec, changes = demuxed.stream, demuxed.packets, self._codec, demuxed.changes
        # of an unknown codec, nobody knows what a flush leaves, and what a picture left out would have left
        self._is_constant = changes.is_constant and demuxed.is_known
        if not self._is_constant:
            self._source.keep()  # decoders will be replaced, see `_reset`
        access_points = changes.random_access_points if demuxed.is_known else []
        index = None
        if not demuxed.joins and not recovers_late(self._packets[0], codec):
            index = index_packets(packets, stream, access_points, demuxed.hidden, demuxed.vops)
        self._clock = Clock.of(stream, packets, demuxed.hidden)
        pts = [packet.pts for packet in packets]
        for packet_no, packet in enumerate(packets):
            packet.pts = packet_no
        first = self._packets[access_points[0] if access_points else 0]
        orientation = stored_orientation(self._source, stream, first)
        self._use_index(index or self._learn_index(stream, access_points, demuxed.hidden, pts), orientation)
        self._may_skip &= demuxed.is_known
        if index and not has_pts(stream):  # MPEG-4 and what is shown in the order of decoding
            late = int((index.order - np.arange(len(index.order))).max())
            self._clock = self._clock.since(packets[late].dts)
        if self._is_counted:
            self._may_skip, self.shown = False, [*range(self._num_counted)]
        elif demuxed.is_known:
            self._reset_points = set(filter(self._index.is_closed, changes.reset_points))
        if self._may_skip and (self._is_constant or codec.name not in AV1):
            self._is_nonref_packet = nonref_test(codec, demuxed.vops, bytes(self._packets[0]))
        for packet_no in [*demuxed.incomplete, *demuxed.misplaced]:
            self._missing_reference.update(self._index.undecodable(packet_no))
        if index is None and self.damage and allow_cut:
            cause = f"damaged, and nothing tells the numbers of its frames: {self.damage}"
            raise VideoDecodeError(self._source.name, cause)
        if demuxed.cut:
            self._end_at_cut(demuxed.cut, demuxed.num_lost, pts)
        if not (changes.are_any or demuxed.vops or self._missing_reference):
            self._store_index(demuxed, pts, is_learned=index is None)

    def _store_index(self, demuxed: Demuxed, pts: Sequence[int | None], is_learned: bool) -> None:
        """Keeps the index for later openings, where it saves them time, and is all that they need."""
        source, packets, cache, state = self._source, demuxed.packets, self._cache, self._state
        if is_learned:
            state_of_decoding = (self._is_counted, self._first_key, self._leading, self.damage)
            is_kept = self._is_constant and not (demuxed.joins or any(state_of_decoding))
        else:
            is_seekable = demuxed.stream.container.format.name.startswith(SEEKABLE)
            is_long = source.is_large or (len(packets) >= _MIN_STORED and is_seekable)
            is_kept = cache is not None and is_long and None not in pts
        if state is None or not is_kept:
            return
        points = [] if is_learned and not source.is_large else self._index.access_points
        offsets = offsets_of(source, demuxed.stream, packets, points)
        parts = (self._index, self.timing, packets, pts, self.stored_orientation, offsets)
        stored = StoredIndex.of(*parts)
        if stored.is_right(source) and source.state() == state:
            if is_learned:
                learned_indexes.put((source.path, state), stored)
            if cache:
                cache.keep(source, stored, state)

    @property
    def may_be_kept(self) -> bool:
        """Whether it can serve the next opening of its file."""
        file = self._container.file
        is_sound = not self.damage and not (isinstance(file, FileForLibav) and file.has_failed)
        return self.is_from_cache and is_sound

    @property
    def is_from_cache(self) -> bool:
        """Whether its index was loaded, and packets are read where they are asked for."""
        return isinstance(self._packets, SeekingPackets)

    def _require_own(self) -> None:
        """Opens the file again in a process that was forked, where packets are still read from it."""
        if isinstance(self._packets, SeekingPackets) and self._packets.opens_own():
            self._container, stream = self._packets.container, self._packets.stream
            self._codec, self._is_tainted, self._goes_on = stream.codec_context, False, False

    @cached_property
    def timing(self) -> Timing:
        """When the frames are shown; most readers are never asked."""
        return timing_of(self._clock, len(self.shown))

    def _end_at_cut(self, cut: str, num_lost: int, pts: Sequence[int | None]) -> None:
        """Leaves out the frames whose numbers the end of a file that is cut off leaves open."""
        self.damage = self.damage or cut
        times = [time for time in pts if time is not None]
        is_reordered = self._codec.has_b_frames or len(times) < len(pts) or times != sorted(times)
        num_open = _MOST_REORDERED if is_reordered else 1  # the last packet may be incomplete
        first = max(len(self._packets) - num_open, 0)
        self._missing_reference.update(range(first, len(self._packets)))
        if self._is_counted:
            raise VideoDecodeError(self._source.name, f"damaged or cut off: {cut}")
        decodable = [None if packet_no in self._missing_reference else packet_no for packet_no in self.shown]
        self.shown = decodable + [None] * num_lost

    def close(self) -> None:
        """Frees the file."""
        if isinstance(self._packets, SeekingPackets):
            self._packets.close()
        self._packets = []
        self._container.close()

    def _learn_index(
        self, stream: Any, access_points: list[int], hidden: set[int], pts: Sequence[int | None]
    ) -> FrameIndex:
        """Learns the presentation order by decoding everything once, if the packets alone do not give it.

        If packet numbers do not give it either (two pictures in one packet), pictures are counted, and
        decoding always starts at the first packet.
        """
        num_packets = len(self._packets)
        if access_points and not begins_with_key(stream, self._packets[0]):
            self._first_key = access_points[0]
        first, stop = self._first_key, next((at for at in access_points if at > self._first_key), num_packets)
        key_time = pts[first]
        self._leading = {
            number
            for number in range(first + 1, stop)
            if key_time is not None and (time := pts[number]) is not None and time < key_time
        }
        self._index = FrameIndex(range(num_packets), access_points, num_packets)
        order: list[Any] = []
        for picture in self._pictures():
            if not order and not has_pts(stream):
                self._clock = self._clock.since(picture.dts)
            order.append(picture.pts)
        if None in order or len(set(order)) < len(order):
            self._is_counted, self._num_counted = True, len(order)
            return self._index
        return FrameIndex(order, access_points, num_packets, hidden)

    def frames_around(self, wanted: Sequence[int]) -> Sequence[int]:
        """These frames, and all others that one pass over their groups of pictures gives."""
        if self._is_counted:
            return range(max(wanted) + 1)
        packets = [packet_no for index in wanted if (packet_no := self.shown[index]) is not None]
        in_groups = self._index.groups_of(packets, _MOST_BEYOND)
        return [index for index, packet_no in enumerate(self.shown) if packet_no in in_groups]

    @cached_property
    def orientation(self) -> int:
        """How the frames are shown, see `orientation_of`.

        Where no header says it, the first key frame that decodes says it for all. Supplemental information
        holds for what follows, and decoders give it with one picture.

        Raises:
            VideoDecodeError: at an odd angle.
        """
        if self.stored_orientation is not None:
            return self.stored_orientation
        for picture in (picture for picture in self._pictures() if picture.key_frame):
            self._rotation = picture.rotation
            packet = self._packets[0 if self._is_counted else picture.pts]
            return orientation_of(picture, self._source.name, packet)
        return 0

    def pictures(self, wanted: set[int] | None = None) -> Iterator[Any]:
        """Decodes the wanted pictures and those they refer to.

        Args:
            wanted: packet numbers; packets that are not among them and that no other refers to are left out.
                None decodes everything from the beginning.

        Yields:
            Sound pictures in the order they are shown, with their packet number as `pts`; also such as nobody
            wanted. What does not decode is missing, and with it what refers to it.

        Raises:
            VideoDecodeError: the orientation or the shape of pixels changes.
        """
        name, is_turned = self._source.name, bool(self.orientation)
        for picture in self._pictures(wanted):
            if picture.key_frame:
                if self._rotation is None:
                    self._rotation = picture.rotation
                if picture.rotation not in (0, is_turned and self._rotation):
                    raise VideoDecodeError(name, "its pictures are not all turned in the same way")
                first, aspect = self._coded_aspect, self._codec.sample_aspect_ratio
                if first and aspect and first != aspect:
                    shapes = f"{first} to {aspect} times as wide as high"
                    raise VideoDecodeError(name, f"the shape of its pixels changes from {shapes}")
            yield picture

    def _pictures(self, wanted: set[int] | None = None) -> Iterator[Any]:
        self._num_runs += 1
        self._require_own()
        undecodable = set(self._missing_reference)
        if undecodable:
            self.damage = self.damage or "packets begin or end in the middle of pictures"
        run, num_sound = self._num_runs, 0
        spans = [(0, len(self._packets))]
        if wanted is not None and not self._is_counted:
            spans = self._index.spans(sorted(wanted))
        self._is_tainted |= bool(self.damage)  # of this pass or of an earlier one: start from nothing
        for span in spans:
            for picture in self._decode(span, wanted, undecodable):
                if picture.is_corrupt:
                    if picture.pts not in self._leading:
                        self._note(ValueError("a picture lacks what it refers to"))
                    if picture.pts is not None and not self._is_recovering(picture.pts):
                        undecodable.update(self._index.undecodable(picture.pts))
                    continue
                self._is_recovered = True
                if picture.pts not in undecodable and not (picture.pts is None and undecodable):
                    if self._is_counted:
                        picture.pts = num_sound
                    num_sound += 1
                    yield picture
                    if run != self._num_runs:
                        raise RuntimeError("a reader that is being iterated was read from")

    def hidden_damage(self) -> str:
        """What shows damage that the decoder passes over; empty where nothing does."""
        cause = ""
        if "matroska" in self._container.format.name:
            cause = wrong_checksum(self._source, self._source.check())
            self._source.release()
        packets = (self._packets[number] for number in range(self._first_key, len(self._packets)))
        return cause or refused_by_another(packets, self._codec)

    def _is_recovering(self, packet_no: int) -> bool:
        """Whether a corrupt picture may be one before the point from which on a stream can be decoded.

        H.264 calls those pictures corrupt, too. No other picture is one that follows a sound one, or that
        refers to no other (type 5).
        """
        return self._codec.name == "h264" and not self._is_recovered and not self._is_idr(packet_no)

    def _is_idr(self, packet_no: int) -> bool:
        """Whether a packet of H.264 holds a picture that refers to no other, and lets none refer past it."""
        data = bytes(self._packets[packet_no])
        return any(data[start] & 31 == 5 for start, _ in units_of(self._codec)(data))

    @property
    def keyframe_gap(self) -> float:
        """Packets from one access point to the next, on average."""
        return len(self._index.order) / len(self._index.access_points)

    def num_decoded(self, frames: Sequence[int]) -> int:
        """Packets that pass the decoder for these frames, with those that it may leave out."""
        packets = [packet for frame in frames if (packet := self.shown[frame]) is not None]
        return sum(stop - first for first, stop in self._index.spans(packets))

    def _needed(self, span: tuple[int, int], wanted: set[int] | None) -> Iterator[int]:
        """Numbers of the packets to decode, without non-reference frames that nobody wants.

        Where a packet does not say so plainly (HEVC), it reaches libavcodec, which then leaves such a frame
        out by itself.
        """
        if wanted is None or not self._may_skip:
            yield from range(*span)
            return
        skipped = "DEFAULT"  # since `_reset`, or the packet before
        for packet_no in range(*span):
            is_needed = packet_no in wanted or self._packets[packet_no].is_keyframe
            if self._is_nonref_packet is None:
                skip = "DEFAULT" if is_needed else "NONREF"
                if skip != skipped:
                    self._codec.skip_frame = skipped = skip
            elif not is_needed and self._is_nonref_packet(self._packets[packet_no]):
                continue
            yield packet_no

    def _decode(self, span: tuple[int, int], wanted: set[int] | None, undecodable: set[int]) -> Iterator[Any]:
        """All pictures of a range of packets, decoded anew; adds what is not sound to `undecodable`.

        At a picture that releases a reference from before the key picture where decoding begins, a strict
        decoder stops, and keeps the picture that is due. The range is then decoded by one that goes on.
        """
        num_given = 0
        while True:
            try:
                pictures = self._decode_once(self._needed(span, wanted), undecodable)
                for picture in islice(pictures, num_given, None):
                    num_given += 1
                    yield picture
                return
            except _ReferenceIsGone:
                self._goes_on = self._is_tainted = True

    def _decode_once(self, packet_nos: Iterable[int], undecodable: set[int]) -> Iterator[Any]:
        """See `_decode`."""
        self._reset()
        begin: int | None = None  # where the decoder as it is now began
        is_broken = False  # the packet before was left out, or should have been
        for packet_no in packet_nos:
            if packet_no < self._first_key:
                continue
            if packet_no in undecodable:
                is_broken = True
                continue
            must_reset = packet_no in self._reset_points and begin is not None
            if must_reset or (is_broken and self._index.is_access_point(packet_no)):
                yield from self._drain()
                self._reset()
                begin = None
            begin, is_broken = packet_no if begin is None else begin, False
            packet = self._packets[packet_no]
            try:
                if self._is_damaged and self._is_damaged(packet):
                    raise ValueError("a part of a packet is zero")
                pictures = self._decode_packet(packet, begin)
            except LIBAV_ERRORS as error:
                if packet_no in self._leading:
                    continue
                self._note(error)
                is_nonref = self._is_nonref_packet is not None and self._is_nonref_packet(packet)
                undecodable.update(self._index.undecodable(packet_no, is_nonref))
                is_broken = not is_nonref
                continue
            yield from pictures
        yield from self._drain()

    def _decode_packet(self, packet: Any, begin: int) -> list[Any]:
        """The pictures that a packet brings out of the decoder, which began with the packet `begin`."""
        if self._goes_on:
            with av.logging.Capture() as log:
                pictures = self._codec.decode(packet)
            for _, _, text in log:
                if not self._is_release(text, packet.pts, begin):
                    raise ValueError(text.strip())
            return pictures
        try:
            return self._codec.decode(packet)
        except LIBAV_ERRORS as error:
            if packet.pts not in self._leading and self._is_release(explain(error), packet.pts, begin):
                raise _ReferenceIsGone from None
            raise

    def _is_release(self, complaint: str, packet_no: int, begin: int) -> bool:
        """Whether a picture only releases one from before the key picture with which decoding began."""
        is_first_group = not any(map(self._index.is_access_point, range(begin + 1, packet_no + 1)))
        return _RELEASE in complaint and is_first_group and not self._is_idr(begin)

    def _drain(self) -> Iterator[Any]:
        try:
            yield from self._codec.decode(None)
        except LIBAV_ERRORS as error:
            self._note(error)

    def _note(self, error: BaseException) -> None:
        self.damage = self.damage or explain(error)
        self._is_tainted = True

    def _reset(self) -> None:
        """Puts the decoder into the state of a new one.

        It is replaced after damage and where parameter sets change in the stream: a flush leaves some state.
        """
        if self._is_tainted:
            packets = self._packets
            if not isinstance(packets, SeekingPackets) or self._container is not packets.container:
                self._container.close()
            self._container, stream = open_container(self._source, allow_cut=True)
            self._source.release()
            self._codec = stream.codec_context
            if self._goes_on:
                self._codec.options = {**self._codec.options, "err_detect": "bitstream+buffer"}
        self._is_tainted = not self._is_constant
        self._is_recovered = False
        self._codec.flush_buffers()
        self._codec.skip_frame = "DEFAULT"

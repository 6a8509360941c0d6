"""The default backend: exact frames through PyAV, decoding no more than they need.

All packets are demuxed once (cheap), which gives the frame index. For the frames asked for, only the groups
of pictures that hold them are decoded, each up to the last frame wanted, and within them packets that are
neither wanted nor referred to never reach the decoder.
"""

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import av
import numpy as np

from paddlevideo_fast.decode.bitstream import damage_test, refused_by_another
from paddlevideo_fast.decode.codecs import AV1, units_of
from paddlevideo_fast.decode.colour import RgbConverter
from paddlevideo_fast.decode.container import LIBAV_ERRORS, FileForLibav, explain, open_container
from paddlevideo_fast.decode.demux import Demuxed
from paddlevideo_fast.decode.gaps import begins_with_key, wrong_checksum
from paddlevideo_fast.decode.index_cache import (
    IndexCache,
    SeekingPackets,
    State,
    StoredIndex,
    decoder_pool,
    index_by_ranges,
    places_of,
)
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
from paddlevideo_fast.decode.reader import OnCorrupt, VideoReader
from paddlevideo_fast.decode.source import Source, VideoSource
from paddlevideo_fast.errors import VideoDecodeError

# Pictures that are decoded before another and shown after it, at most (H.264 and HEVC).
_MOST_REORDERED = 16
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

    def __init__(self, source: VideoSource, allow_cut: bool, cache: IndexCache | None = None) -> None:
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
        state = source.state() if cache else None
        stored = cache.load(source, state) if cache and state else None
        if stored is None and source.url and not allow_cut:
            stored = index_by_ranges(source)
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
        found = Demuxed(source, allow_cut)
        self.notes = found.notes
        self._describe(found.container, found.stream)
        try:
            self._packets = SeekingPackets.of_large(source, found) if found.as_read else found.packets
            self._index_packets(found, allow_cut, cache if state else None, state)
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
        self.shown: list[int | None] = [*index.shown]
        self._may_skip = index.one_to_one
        self._is_nonref_packet = nonref_test(self._codec) if self._may_skip else None

    def _index_packets(
        self, found: Demuxed, allow_cut: bool, cache: IndexCache | None, state: State | None
    ) -> None:
        """Works out which packet holds which frame, and what of the file is damaged."""
        stream, packets, codec, changes = found.stream, found.packets, self._codec, found.changes
        # of an unknown codec, nobody knows what a flush leaves, and what a picture left out would have left
        self._is_constant = changes.is_constant and found.is_known
        if not self._is_constant:
            self._source.keep()  # decoders will be replaced, see `_reset`
        access_points = changes.random_access_points if found.is_known else []
        index = None
        if not found.joins and not recovers_late(self._packets[0], codec):
            index = index_packets(packets, stream, access_points, found.hidden, found.vops)
        self._clock = Clock.of(stream, packets, found.hidden)
        pts = [packet.pts for packet in packets]
        for packet_no, packet in enumerate(packets):
            packet.pts = packet_no
        first = self._packets[access_points[0] if access_points else 0]
        orientation = stored_orientation(self._source, stream, first)
        self._use_index(index or self._learn_index(stream, access_points, found.hidden, pts), orientation)
        self._may_skip &= found.is_known
        if index and not has_pts(stream):  # MPEG-4 and what is shown in the order of decoding
            late = max(packet_no - rank for rank, packet_no in enumerate(index.order))
            self._clock = self._clock.since(packets[late].dts)
        if self._is_counted:
            self._may_skip, self.shown = False, [*range(self._num_counted)]
        elif found.is_known:
            self._reset_points = set(filter(self._index.is_closed, changes.reset_points))
        if self._may_skip and (self._is_constant or codec.name not in AV1):
            self._is_nonref_packet = nonref_test(codec, found.vops, bytes(self._packets[0]))
        for packet_no in [*found.incomplete, *found.misplaced]:
            self._missing_reference.update(self._index.undecodable(packet_no))
        if index is None and self.damage and allow_cut:
            cause = f"damaged, and nothing tells the numbers of its frames: {self.damage}"
            raise VideoDecodeError(self._source.name, cause)
        if found.cut:
            self._end_at_cut(found.cut, found.num_lost, pts)
        is_plain = not (changes.are_any or found.vops or self._missing_reference or None in pts)
        if cache and state and index and is_plain:
            places = places_of(self._source, stream, packets, index.access_points)
            stored = StoredIndex.of(index, self.timing, packets, pts, orientation, places)
            cache.save(self._source, stored, stream.container.format.name, state)

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
        kept = [None if packet_no in self._missing_reference else packet_no for packet_no in self.shown]
        self.shown = kept + [None] * num_lost

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
        found = self._index.groups_of(packets, _MOST_BEYOND)
        return [index for index, packet_no in enumerate(self.shown) if packet_no in found]

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


class PyAVReader(VideoReader):
    """Reads frames exactly as decoding the whole file in sequence would give them.

    Args:
        source: a path, a URL, bytes, or a binary file object that can seek.
        on_corrupt: "raise", or "nearest": a frame that does not decode is replaced by the nearest that does,
            and counted in `num_replaced`; of a file that is cut off, what is there is read.
        cache: of indexes, for files on disk and in stores with `on_corrupt` "raise".

    Raises:
        VideoDecodeError: it is not a video, or cut off, or it must be decoded in sequence and that fails.
    """

    def __init__(
        self, source: Source, on_corrupt: OnCorrupt = "raise", cache: IndexCache | None = None
    ) -> None:
        opened = VideoSource(source)
        self.path = opened.name
        self._is_strict = on_corrupt == "raise"
        self._to_rgb = RgbConverter(opened.name)
        self._sound: list[int] | None = None  # the frames that decode, where some do not
        self._pool_key: Any = None  # in the pool
        state = opened.state() if cache is not None and self._is_strict else None
        if cache is not None and opened.key and state:
            name = opened.url or os.path.abspath(opened.key)
            self._pool_key = (str(cache.folder), name, state)
        else:
            cache = None
        pooled = decoder_pool.pop(self._pool_key) if self._pool_key else None
        self._decoder = pooled or PictureDecoder(opened, not self._is_strict, cache)
        self.num_frames, self.avg_fps = len(self._decoder.shown), self._decoder.avg_fps
        self.codec, self.notes = self._decoder.codec, self._decoder.notes
        if self._decoder.stored_orientation is not None:
            self._shown_size()
        damage = self._decoder.damage
        if not self.num_frames or (damage and self._is_strict):
            self.close()
            raise VideoDecodeError(self.path, f"damaged or cut off: {damage or 'no frame of it decodes'}")

    @property
    def timing(self) -> Timing:
        """When the frames are shown."""
        return self._decoder.timing

    def times_sec(self) -> np.ndarray:
        """See `VideoReader`."""
        if not self.avg_fps and isinstance(self.timing.ticks, range):
            return super().times_sec()
        if self._decoder.times_sec is None:  # spans ask again and again
            self._decoder.times_sec = self.timing.seconds()
        return self._decoder.times_sec

    @property
    def orientation(self) -> int:
        """See `VideoReader`."""
        return self._decoder.orientation

    def _shown_size(self) -> tuple[int, int]:
        self._require_open()
        if self._size is None:
            self._size = self._decoder.stored_size[:: -1 if self.orientation % 2 else 1]
        return self._size

    @property
    def keyframe_gap(self) -> float:
        """See `VideoReader`."""
        return self._decoder.keyframe_gap

    def num_decoded(self, indices: Sequence[int]) -> int:
        """See `VideoReader`."""
        return self._decoder.num_decoded(indices)

    @property
    def pixel_aspect(self) -> float:
        """See `VideoReader`."""
        aspect = self._decoder.pixel_aspect
        return 1 / aspect if self.orientation % 2 else aspect

    def close(self) -> None:
        """See `VideoReader`."""
        is_first = not self._closed
        super().close()
        if is_first and self._pool_key and self._decoder.may_be_kept:
            decoder_pool.put(self._pool_key, self._decoder)
        elif is_first:
            self._decoder.close()

    def pictures(self, first: int = 0, stop: int | None = None) -> Iterator[Any]:
        """Frames in order as libav gives them: in the colours of the file, and not turned.

        Their timestamps are labels of this reader.

        Args:
            first: number of the first.
            stop: number of the frame after the last; None: all that follow.

        Raises:
            VideoDecodeError: a frame does not decode; none is replaced.
            RuntimeError: frames were read from this reader meanwhile.
        """
        self._require_open()
        expected, stop = first, self.num_frames if stop is None else stop
        is_part = (first, stop) != (0, self.num_frames)
        for skips in (True, False) if is_part else (False,):
            for index, picture in self._search(range(expected, stop), skips):
                if index != expected:
                    break
                yield picture
                expected += 1
        if expected < stop:
            cause = self._decoder.damage or "the decoder does not give it"
            raise VideoDecodeError(self.path, f"frame {expected} is damaged or missing: {cause}")

    def groups(self, wanted: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Number and picture, as libav gives it, of these frames and all others of their groups of pictures.

        Frames that do not decode are left out, and others than the wanted ones also where their size differs.
        """
        self._require_open()
        for index, picture in self._search(self._decoder.frames_around(wanted), skips=True):
            if index in wanted or (picture.width, picture.height) == self._decoder.stored_size:
                yield index, picture

    def verify(self) -> None:
        """See `VideoReader`."""
        super().verify()
        cause = self._decoder.hidden_damage()
        if cause:
            raise VideoDecodeError(self.path, f"damaged: {cause}")

    def _iterate(self, first: int, stop: int) -> Iterator[np.ndarray]:
        """See `VideoReader`; raises RuntimeError where frames were read from this reader meanwhile."""
        expected = first
        is_part = (first, stop) != (0, self.num_frames)
        for index, picture in self._search(range(first, stop), skips=is_part):
            if index != expected:
                break  # damage
            yield self.convert(index, picture)
            expected += 1
        if expected < stop:
            yield from (frame for _, frame in self._from_the_beginning(range(expected, stop)))

    def _decode(self, wanted: list[int]) -> Iterator[tuple[int, np.ndarray]]:
        missing = set(wanted)
        for index, picture in self._search(wanted, skips=True):
            missing.discard(index)
            yield index, self.convert(index, picture)
        if missing:  # there is damage, or a key frame was no clean point to enter (intra refresh)
            yield from self._from_the_beginning(sorted(missing))

    def _from_the_beginning(self, wanted: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Frames, or the nearest that decode, in their order, out of decoding everything in sequence."""
        if self._sound is None:
            self._sound = sorted(index for index, _ in self._search(range(self.num_frames), skips=False))
        stands_for: dict[int, list[int]] = {}
        missing: int | None = None
        for index in wanted:
            nearest = _nearest(self._sound, index)
            if nearest is None or (self._is_strict and nearest != index):
                missing = index
                break
            stands_for.setdefault(nearest, []).append(index)
        for nearest, picture in self._search(list(stands_for), skips=False):
            for index in stands_for.pop(nearest):
                self.num_replaced += index != nearest
                yield index, self.convert(nearest, picture)
        if missing is not None:
            cause = self._decoder.damage or "the decoder does not give it"
            raise VideoDecodeError(self.path, f"frame {missing} is damaged or missing: {cause}")
        if stands_for:
            raise VideoDecodeError(self.path, "damaged, so that it decodes differently each time")

    def convert(self, index: int, picture: Any) -> np.ndarray:
        """A picture that libav gave, as RGB: uint8 [H, W, 3].

        Raises:
            VideoDecodeError: it has another size than the file announces.
        """
        found, expected = (picture.width, picture.height), self._decoder.stored_size
        if found != expected:
            sizes = "frame {} has {}×{} pixels, the file announces {}×{}".format(index, *found, *expected)
            raise VideoDecodeError(self.path, f"the frame size changes within the video: {sizes}")
        return self._to_rgb(picture, self._decoder.orientation)

    def _search(self, wanted: Iterable[int], skips: bool) -> Iterator[tuple[int, Any]]:
        """Number and picture of those frames of `wanted` that decode.

        Args:
            wanted: frame numbers.
            skips: decode no more than these need; else everything from the beginning up to the last of them.
        """
        shown = self._decoder.shown
        numbers = {packet_no: index for index in wanted if (packet_no := shown[index]) is not None}
        for picture in self._decoder.pictures(set(numbers) if skips else None):
            index = numbers.pop(picture.pts, None)
            if index is not None:
                yield index, picture
                if not numbers:
                    return
                self._require_open()


def _nearest(ascending: list[int], number: int) -> int | None:
    """The member nearest to a number, of two the smaller; None of an empty list."""
    at = bisect_left(ascending, number)
    return min(ascending[max(at - 1, 0) : at + 1], key=lambda member: abs(member - number), default=None)

"""From packets to pictures: which to decode, and which of the results to trust."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, Optional, Set, Tuple

from paddlevideo_fast.decode.bitstream import spare_test
from paddlevideo_fast.decode.container import LIBAV_ERRORS, demux, explain, open_container
from paddlevideo_fast.decode.packets import FrameIndex, entries_of, index_packets
from paddlevideo_fast.decode.rotation import may_be_rotated
from paddlevideo_fast.decode.source import VideoSource


class PictureDecoder:
    """Decodes ranges of the packets of a video.

    Each packet is labelled with its place in decoding order, in the stead of its timestamp; the decoder hands
    the label on with the picture.

    Args:
        source: where the video is read from.
        allow_cut: take a file that is cut off, or damaged between packets.

    Attributes:
        shown: the labels of the frames, in the order they are shown.
        avg_fps: frames a second; 0.0 where nothing says.
        size: (width, height) of a frame as it is shown; None where only a decoded frame tells.
        pixel_aspect: width of a pixel over its height, before the frame is turned.
        codec: FFmpeg's name of the compression, such as "h264".
        damage: why the first packet that did not decode did not; empty while all did.

    Raises:
        VideoDecodeError: it is not a video, or has no packets, or is cut off and must not.
    """

    def __init__(self, source: VideoSource, allow_cut: bool) -> None:
        self._source = source
        self._num_runs = 0
        self._is_counted = self._is_tainted = False
        self._is_spare: Optional[Callable[[Any], bool]] = None
        # H.264 calls a picture corrupt that comes before a point of recovery; others, one with errors in it
        self._recovers = False
        self._first_key = 0  # what a stream has before, where it was joined late, is no damage
        self.damage = ""
        self._container, stream = open_container(source, allow_cut)
        try:
            self._codec = stream.codec_context
            self.codec = self._codec.codec.canonical_name
            self._recovers = self._codec.name == "h264"
            self.avg_fps = float(stream.average_rate or stream.guessed_rate or 0.0)
            self.pixel_aspect = float(stream.sample_aspect_ratio or 1)
            self._packets = demux(source, self._container, stream, allow_cut)
            index = index_packets(self._packets, stream)
            for place, packet in enumerate(self._packets):
                packet.pts = place
            self._index = self._learn_index() if index is None else index
            may_turn = may_be_rotated(source, stream, self._packets[0])
            self.size = None if may_turn else (self._codec.width, self._codec.height)
            if not self._is_counted:
                self.shown = self._index.shown
                self._is_spare = spare_test(self._codec) if self._index.one_to_one else None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Frees the file."""
        self._packets = []
        self._container.close()

    def _learn_index(self) -> FrameIndex:
        """The index where packets alone do not tell which frames they give in which order.

        Where labels do not tell it either (two pictures in one packet), pictures are labelled by counting
        them, and decoding always begins with the first packet.
        """
        num_packets, entries = len(self._packets), entries_of(self._packets)
        self._first_key = entries[0] if entries else 0
        self._index = FrameIndex(range(num_packets), entries, num_packets)
        order = [picture.pts for picture in self.pictures()]
        if None in order or len(set(order)) < len(order):
            self._is_counted = True
            self.shown = list(range(len(order)))
            return self._index
        return FrameIndex(order, entries, num_packets)

    def pictures(self, wanted: Optional[Set[int]] = None) -> Iterator[Any]:
        """Decodes what the pictures `wanted` need.

        Args:
            wanted: labels; packets that are not among them and that no other refers to are left out. None
                decodes everything from the beginning.

        Yields:
            Sound pictures in the order they are shown, with their label as `pts`; also such as nobody wanted.
            What does not decode is missing, and with it what refers to it.
        """
        self._num_runs += 1
        spoilt: Set[int] = set()
        run, num_sound = self._num_runs, 0
        spans = [(0, len(self._packets))]
        if wanted is not None and not self._is_counted:
            spans = self._index.spans(sorted(wanted))
        self._is_tainted = bool(self.damage)  # of this pass or of an earlier one: start from nothing
        for span in spans:
            for picture in self._decode(self._needed(span, wanted), spoilt):
                if picture.is_corrupt:
                    if picture.pts is None or picture.pts >= self._first_key:
                        self._note(ValueError("a picture lacks what it refers to"))
                    if picture.pts is not None and not self._recovers:
                        spoilt.update(self._index.spoilt(picture.pts, spare=False))
                elif picture.pts not in spoilt and not (picture.pts is None and spoilt):
                    if self._is_counted:
                        picture.pts = num_sound
                    num_sound += 1
                    yield picture
                    if run != self._num_runs:
                        raise RuntimeError("a reader that is being iterated was read from")

    def _needed(self, span: Tuple[int, int], wanted: Optional[Set[int]]) -> Iterator[int]:
        is_spare = self._is_spare
        if wanted is None or is_spare is None:
            return iter(range(*span))
        packets = self._packets
        return (place for place in range(*span) if place in wanted or not is_spare(packets[place]))

    def _decode(self, places: Iterable[int], spoilt: Set[int]) -> Iterator[Any]:
        """All pictures of packets, decoded from a clean state; adds to `spoilt` what cannot be trusted."""
        self._reset()
        is_broken = False  # the packet before was left out, or should have been
        for place in places:
            if place in spoilt:
                is_broken = True
                continue
            if is_broken and self._index.is_entry(place):
                yield from self._drain()
                self._reset()
            is_broken = False
            packet = self._packets[place]
            try:
                if packet.is_corrupt:
                    raise ValueError("a packet is incomplete: the file is cut off, or damaged")
                pictures = self._codec.decode(packet)
            except LIBAV_ERRORS as error:
                if place < self._first_key:
                    continue
                self._note(error)
                is_spare = self._is_spare is not None and self._is_spare(packet)
                spoilt.update(self._index.spoilt(place, is_spare))
                is_broken = not is_spare
                continue
            yield from pictures
        yield from self._drain()

    def _drain(self) -> Iterator[Any]:
        try:
            yield from self._codec.decode(None)
        except LIBAV_ERRORS as error:
            self._note(error)

    def _note(self, error: BaseException) -> None:
        self.damage = self.damage or explain(error)
        self._is_tainted = True

    def _reset(self) -> None:
        """A clean state to decode from; after damage that is another decoder, for some keep what it left."""
        if self._is_tainted:
            self._container.close()
            self._container, stream = open_container(self._source, allow_cut=True)
            self._codec, self._is_tainted = stream.codec_context, False
        self._codec.flush_buffers()

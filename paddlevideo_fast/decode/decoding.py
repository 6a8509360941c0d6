"""From packets to pictures: which to decode, and which of the results to trust."""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, Optional, Set, Tuple

from paddlevideo_fast.decode.bitstream import spare_test
from paddlevideo_fast.decode.container import LIBAV_ERRORS, explain
from paddlevideo_fast.decode.packets import FrameIndex, entries_of, index_packets


class PictureDecoder:
    """Decodes ranges of the packets of one stream.

    Each packet is labelled with its place in decoding order, in the stead of its timestamp; the decoder hands
    the label on with the picture.

    Args:
        packets: all of the stream, in decoding order.
        stream: PyAV's; its codec context decodes for this object alone.

    Attributes:
        shown: the labels of the frames, in the order they are shown.
        was_decoded: everything has been decoded once, to learn that order.
        damage: why the first packet that did not decode did not; empty while all did.
    """

    def __init__(self, packets: List[Any], stream: Any) -> None:
        self._packets = packets
        self._codec = stream.codec_context
        self._num_runs = 0
        self._is_counted = False
        self._first_key = 0  # what a stream has before, where it was joined late, is no damage
        self._is_spare: Optional[Callable[[Any], bool]] = None
        self.damage = ""
        index = index_packets(packets, stream)
        for place, packet in enumerate(packets):
            packet.pts = place
        self.was_decoded = index is None
        self._index = self._learn_index() if index is None else index
        if not self._is_counted:
            self.shown = self._index.shown
            self._is_spare = spare_test(self._codec) if self._index.one_to_one else None

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
        for span in spans:
            for picture in self._decode(self._needed(span, wanted), spoilt):
                if picture.is_corrupt:
                    self.damage = self.damage or "a picture lacks what it refers to"
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

    def _decode(self, places: Iterator[int], spoilt: Set[int]) -> Iterator[Any]:
        """All pictures of packets, decoded from a clean state; adds to `spoilt` what cannot be trusted."""
        self._codec.flush_buffers()
        decode, packets = self._codec.decode, self._packets
        for place in places:
            packet = packets[place]
            try:
                if packet.is_corrupt:
                    raise ValueError("a packet is incomplete: the file is cut off, or damaged")
                pictures = decode(packet)
            except LIBAV_ERRORS as error:
                if place >= self._first_key:
                    self.damage = self.damage or explain(error)
                is_spare = self._is_spare is not None and self._is_spare(packet)
                spoilt.update(self._index.spoilt(place, is_spare))
                continue
            yield from pictures
        try:
            yield from decode(None)
        except LIBAV_ERRORS as error:
            self.damage = self.damage or explain(error)

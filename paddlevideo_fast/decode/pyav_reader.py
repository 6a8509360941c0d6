"""The default backend: exact frames through PyAV, decoding no more than they need.

All packets are demuxed once (cheap), which gives the frame index. For the frames asked for, only the groups
of pictures that hold them are decoded, each up to the last frame wanted, and within them packets that are
neither wanted nor referred to never reach the decoder.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

import numpy as np

from paddlevideo_fast.decode.colour import RgbConverter
from paddlevideo_fast.decode.decoding import PictureDecoder
from paddlevideo_fast.decode.reader import OnCorrupt, VideoReader
from paddlevideo_fast.decode.source import Source, VideoSource
from paddlevideo_fast.errors import VideoDecodeError


class PyAVReader(VideoReader):
    """Reads frames exactly as decoding the whole file in sequence would give them.

    Args:
        source: a path, bytes, or a binary file object that can seek.
        on_corrupt: "raise", or "nearest": a frame that does not decode is replaced by the nearest that does,
            and counted in `num_replaced`; of a file that is cut off, what is there is read.

    Raises:
        VideoDecodeError: it is not a video, or cut off, or it must be decoded in sequence and that fails.
    """

    def __init__(self, source: Source, on_corrupt: OnCorrupt = "raise") -> None:
        opened = VideoSource(source)
        self.path = opened.name
        self._is_strict = on_corrupt == "raise"
        self._to_rgb = RgbConverter()
        self._sound: Optional[List[int]] = None  # the frames that decode, where some do not
        self._decoder = PictureDecoder(opened, allow_cut=not self._is_strict)
        self.num_frames, self.avg_fps = len(self._decoder.shown), self._decoder.avg_fps
        self._size = self._decoder.size
        self.codec = self._decoder.codec
        damage = self._decoder.damage
        if not self.num_frames or (damage and self._is_strict):
            self.close()
            raise VideoDecodeError(self.path, f"damaged or cut off: {damage or 'no frame of it decodes'}")

    @property
    def quarter_turns(self) -> int:
        """See `VideoReader`."""
        self._shown_size()  # decodes a frame where the header hints at a rotation
        return self._to_rgb.quarter_turns

    @property
    def pixel_aspect(self) -> float:
        """See `VideoReader`."""
        aspect = self._decoder.pixel_aspect
        return 1 / aspect if self.quarter_turns % 2 else aspect

    def close(self) -> None:
        """See `VideoReader`."""
        super().close()
        self._decoder.close()

    def __iter__(self) -> Iterator[np.ndarray]:
        """See `VideoReader`.

        Raises:
            RuntimeError: frames were read from this reader meanwhile.
        """
        self._require_open()
        return self._iterate()

    def pictures(self) -> Iterator[Any]:
        """All frames in order as libav gives them: in the colours of the file, and not turned.

        Their timestamps are labels of this reader.

        Raises:
            VideoDecodeError: a frame does not decode; none is replaced.
            RuntimeError: frames were read from this reader meanwhile.
        """
        self._require_open()
        expected = 0
        for index, picture in self._search(range(self.num_frames), skips=False):
            if index != expected:
                break
            yield picture
            expected += 1
        if expected < self.num_frames:
            cause = self._decoder.damage or "the decoder does not give it"
            raise VideoDecodeError(self.path, f"frame {expected} is damaged or missing: {cause}")

    def _iterate(self) -> Iterator[np.ndarray]:
        expected = 0
        for index, picture in self._search(range(self.num_frames), skips=False):
            if index != expected:
                break  # damage
            yield self._to_rgb(picture)
            expected += 1
        yield from self._read_from(expected)

    def _decode(self, wanted: List[int]) -> Iterator[Tuple[int, np.ndarray]]:
        missing = set(wanted)
        for index, picture in self._search(wanted, skips=True):
            missing.discard(index)
            yield index, self._to_rgb(picture)
        if missing:  # there is damage, or a key frame was no clean point to enter (intra refresh)
            yield from self._from_the_beginning(sorted(missing))

    def _from_the_beginning(self, wanted: List[int]) -> Iterator[Tuple[int, np.ndarray]]:
        """Frames, or the nearest that decode, out of decoding everything in sequence."""
        if self._sound is None:
            self._sound = sorted(index for index, _ in self._search(range(self.num_frames), skips=False))
        stands_for: Dict[int, List[int]] = {}
        for index in wanted:
            nearest = _nearest(self._sound, index)
            if nearest is None or (self._is_strict and nearest != index):
                cause = self._decoder.damage or "the decoder does not give it"
                raise VideoDecodeError(self.path, f"frame {index} is damaged or missing: {cause}")
            stands_for.setdefault(nearest, []).append(index)
        for nearest, picture in self._search(list(stands_for), skips=False):
            for index in stands_for.pop(nearest):
                self.num_replaced += index != nearest
                yield index, self._to_rgb(picture)
        if stands_for:
            raise VideoDecodeError(self.path, "damaged, so that it decodes differently each time")

    def _search(self, wanted: Iterable[int], skips: bool) -> Iterator[Tuple[int, Any]]:
        """Number and picture of those frames of `wanted` that decode.

        Args:
            wanted: frame numbers.
            skips: decode no more than these need; else everything from the beginning up to the last of them.
        """
        numbers = {self._decoder.shown[index]: index for index in wanted}
        for picture in self._decoder.pictures(set(numbers) if skips else None):
            index = numbers.pop(picture.pts, None)
            if index is not None:
                yield index, picture
                if not numbers:
                    return
                self._require_open()


def _nearest(ascending: List[int], number: int) -> Optional[int]:
    """The member nearest to a number, of two the smaller; None of an empty list."""
    return min(ascending, key=lambda member: abs(member - number), default=None)

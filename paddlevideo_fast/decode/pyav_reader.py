"""The default backend: exact frames through PyAV, decoding no more than they need."""

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from paddlevideo_fast.decode.colour import Picture, RgbConverter
from paddlevideo_fast.decode.packets import Timing
from paddlevideo_fast.decode.picture_decoder import PictureDecoder
from paddlevideo_fast.decode.reader import OnCorrupt, VideoReader
from paddlevideo_fast.decode.source import Source, VideoSource
from paddlevideo_fast.decode.stored_index import IndexStore, decoder_pool
from paddlevideo_fast.errors import VideoDecodeError


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
        self, source: Source, on_corrupt: OnCorrupt = "raise", cache: IndexStore | None = None
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
        for skips in (False,) if (first, stop) == (0, self.num_frames) else (True, False):
            for index, picture in self._search(range(expected, stop), skips):
                if index != expected:
                    break
                yield picture
                expected += 1
            if expected == stop:
                return
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
            yield np.asarray(self.convert(index, picture))
            expected += 1
        if expected < stop:
            yield from (np.asarray(frame) for _, frame in self._from_the_beginning(range(expected, stop)))

    def _decode(self, wanted: list[int]) -> Iterator[tuple[int, Any]]:
        missing = set(wanted)
        for index, picture in self._search(wanted, skips=True):
            missing.discard(index)
            yield index, self.convert(index, picture)
        if missing:  # there is damage, or a key frame was no clean point to enter (intra refresh)
            yield from self._from_the_beginning(sorted(missing))

    def _from_the_beginning(self, wanted: Sequence[int]) -> Iterator[tuple[int, Any]]:
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

    def convert(self, index: int, picture: Any) -> Any:
        """A picture that libav gave, as RGB: a `Picture`.

        Raises:
            VideoDecodeError: it has another size than the file announces.
        """
        size, expected = (picture.width, picture.height), self._decoder.stored_size
        if size != expected:
            sizes = "frame {} has {}×{} pixels, the file announces {}×{}".format(index, *size, *expected)
            raise VideoDecodeError(self.path, f"the frame size changes within the video: {sizes}")
        return Picture(picture, self._to_rgb, self._decoder.orientation)

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

"""The default backend: exact frames through PyAV, decoding no more than they need.

All packets are demuxed once (cheap), which gives the frame index. For the frames asked for, only the groups
of pictures that hold them are decoded, each up to the last frame wanted, and within them packets that are
neither wanted nor referred to never reach the decoder.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from paddlevideo_fast.decode.colour import RgbConverter
from paddlevideo_fast.decode.container import demux, open_container
from paddlevideo_fast.decode.decoding import PictureDecoder
from paddlevideo_fast.decode.reader import OnCorrupt, VideoReader
from paddlevideo_fast.decode.rotation import may_be_rotated
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
        self._container, stream = open_container(opened, allow_cut=not self._is_strict)
        self._to_rgb = RgbConverter()
        try:
            self.avg_fps = float(stream.average_rate or stream.guessed_rate or 0.0)
            packets = demux(opened, self._container, stream, allow_cut=not self._is_strict)
            self._decoder: Optional[PictureDecoder] = PictureDecoder(packets, stream)
            self.num_frames = len(self._decoder.shown)
            damage = self._decoder.damage
            if damage and (self._is_strict or not self.num_frames):
                raise VideoDecodeError(self.path, f"damaged or cut off: {damage}")
            if not self.num_frames:
                raise VideoDecodeError(self.path, "no frame of it decodes")
            if not may_be_rotated(opened, stream, packets[0]):
                self._size = (stream.codec_context.width, stream.codec_context.height)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """See `VideoReader`."""
        super().close()
        self._decoder = None
        self._container.close()

    def __iter__(self) -> Iterator[np.ndarray]:
        """See `VideoReader`.

        Raises:
            RuntimeError: frames were read from this reader meanwhile.
        """
        self._require_open()
        return (picture for _, picture in self._in_order(range(self.num_frames)))

    def _decode(self, wanted: List[int]) -> Iterator[Tuple[int, np.ndarray]]:
        assert self._decoder is not None
        numbers = {self._decoder.shown[index]: index for index in wanted}
        for picture in self._decoder.pictures(set(numbers)):
            index = numbers.pop(picture.pts, None)
            if index is not None:
                yield index, self._to_rgb(picture)
                if not numbers:
                    return
        # There is damage, or a key frame was no clean point to enter (intra refresh): from the beginning.
        yield from self._in_order(sorted(numbers.values()))

    def _in_order(self, wanted: Sequence[int]) -> Iterator[Tuple[int, np.ndarray]]:
        """Frames `wanted` (ascending) out of decoding everything in sequence.

        Raises:
            VideoDecodeError: one of them does not decode, and must; or none at all does.
        """
        assert self._decoder is not None
        numbers = {label: index for index, label in enumerate(self._decoder.shown)}
        pending = deque(wanted)
        before: Tuple[Optional[int], Any] = (None, None)
        for picture in self._decoder.pictures():
            index = numbers.get(picture.pts)
            if index is None:
                continue  # cut away by an edit list
            while pending and pending[0] <= index:
                target = pending.popleft()
                is_nearer = before[0] is not None and target - before[0] <= index - target
                yield self._exact_or_nearest(target, *(before if is_nearer else (index, picture)))
            if not pending:
                return
            before = (index, picture)
        for target in pending:
            yield self._exact_or_nearest(target, *before)

    def _exact_or_nearest(self, target: int, index: Optional[int], picture: Any) -> Tuple[int, np.ndarray]:
        if target != index:
            if self._is_strict or picture is None:
                assert self._decoder is not None
                cause = self._decoder.damage or "the decoder does not give it"
                raise VideoDecodeError(self.path, f"frame {target} is damaged or missing: {cause}")
            self.num_replaced += 1
        return target, self._to_rgb(picture)

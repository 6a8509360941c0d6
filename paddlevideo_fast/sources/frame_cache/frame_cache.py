"""Decoded frames in a folder, which all runs of a machine share: what one has decoded, others need not.

    a frame is here       block  →  planes  →  RGB, by the same conversion as after decoding
    a frame is missing    its whole group of pictures is decoded, and each frame of it becomes a block

Runs with other seeds want other frames of a video. Nearly all of the work for one frame goes into those that
lead to it, so the whole group is kept. A frame is kept as the decoder gives it, 1.5 bytes a pixel in 4:2:0:
to compress it without loss costs several times more than to decode it.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import av
import numpy as np

from paddlevideo_fast.decode.colour import RgbConverter
from paddlevideo_fast.decode.pyav_reader import PyAVReader
from paddlevideo_fast.decode.reader import VideoReader
from paddlevideo_fast.decode.source import Source, VideoSource
from paddlevideo_fast.sources.remote.block_folder import BlockFolder

_VERSION = 2
_UNIT_BYTES = 2**14
_HEADER = struct.Struct("<12s5i")  # pixel format; width, height, colour space, colour range, orientation
_PLANAR = ("yuv420p", "yuvj420p")  # rebuilt from planes, these give the same RGB; others are kept as RGB
_RGB = "rgb24"
_FACTS = ("num_frames", "avg_fps", "codec", "width", "height", "orientation", "pixel_aspect")


class FrameCache:
    """A folder of decoded frames. Several processes and runs may use it.

    Args:
        folder: it is made where it is missing.
        max_gb: its largest size in 10^9 bytes; what was used least recently goes first.
    """

    def __init__(self, folder: str | Path, max_gb: float) -> None:
        self.blocks = BlockFolder(
            str(folder),
            int(max_gb * 1e9),
            _UNIT_BYTES,
            *("frames", "decoded", "STORAGE.frames_cache"),
            when_full="frames are decoded again and again, which may take longer than without a cache; raise "
            f"STORAGE.frames_cache_gb ({max_gb:g}), or leave out frames_cache",
        )

    def reader(self, source: Source, open_file: Callable[[], PyAVReader]) -> VideoReader:
        """A reader of a video that gives the frames and the errors of `open_file()`.

        Args:
            source: of the video; bytes and file objects are read without the cache.
            open_file: opens it, where frames are missing.

        Raises:
            VideoDecodeError: it does not open.
        """
        state = VideoSource(source).state()
        return open_file() if state is None else CachedReader(self.blocks, source, state, open_file)


class CachedReader(VideoReader):
    """Reads frames from the cache; the video is opened where something of it is missing.

    Args:
        blocks: the cache.
        source: of the video.
        state: of its file, see `VideoSource.state`.
        open_file: opens it.

    Raises:
        VideoDecodeError: it does not open.
    """

    def __init__(
        self, blocks: BlockFolder, source: Source, state: tuple[int, int], open_file: Callable[[], PyAVReader]
    ) -> None:
        self._blocks, self._source, self._state, self._open_file = blocks, source, state, open_file
        opened = VideoSource(source)
        where = opened.url or os.path.realpath(opened.path or "")
        self._identity = f"{where}\0{state}\0{av.__version__}\0{av.library_versions}\0{_VERSION}"
        self._file: PyAVReader | None = None
        self._may_keep = False
        self._to_rgb = RgbConverter(VideoSource(source).name)
        kept = blocks.find(self._digest("facts"))
        self._facts: dict[str, Any] | None = None if kept is None else json.loads(bytes(kept))
        self.path = opened.name
        self.num_frames, self.avg_fps = self._fact("num_frames"), self._fact("avg_fps")
        self.codec = self._fact("codec")

    @property
    def orientation(self) -> int:
        """See `VideoReader`."""
        return int(self._fact("orientation"))

    @property
    def pixel_aspect(self) -> float:
        """See `VideoReader`."""
        return float(self._fact("pixel_aspect"))

    def times_sec(self) -> np.ndarray:
        """See `VideoReader`."""
        digest = self._digest("times")
        kept = self._blocks.find(digest)
        if kept is not None:
            return np.frombuffer(kept, np.float64)
        times = np.asarray(self._opened().times_sec(), np.float64)
        if self._may_keep:
            self._blocks.keep(digest, times.tobytes())
        return times

    def verify(self) -> None:
        """See `VideoReader`; reads the file."""
        self._require_open()
        self._opened().verify()

    def close(self) -> None:
        """See `VideoReader`."""
        super().close()
        if self._file is None:
            return
        if self._facts is None and self._may_keep and self._file._size is not None:
            facts = {name: self._fact(name) for name in _FACTS}
            self._blocks.keep(self._digest("facts"), json.dumps(facts).encode())
        self._file.close()
        self._file = None

    def _shown_size(self) -> tuple[int, int]:
        self._require_open()
        return self._fact("width"), self._fact("height")

    def _fact(self, name: str) -> Any:
        return getattr(self._opened(), name) if self._facts is None else self._facts[name]

    def _opened(self) -> PyAVReader:
        if self._file is None:
            self._file = self._open_file()
            # else a file that changes now would be kept as the one that it was
            self._may_keep = VideoSource(self._source).state() == self._state
        return self._file

    def _digest(self, what: str | int) -> str:
        named = f"{self._identity}\0{what}".encode("utf-8", "surrogateescape")
        return hashlib.blake2b(named, digest_size=16).hexdigest()

    def _decode(self, wanted: list[int]) -> Iterator[tuple[int, np.ndarray]]:
        missing = []
        for index in wanted:
            kept = self._blocks.find(self._digest(index))
            if kept is None:
                missing.append(index)
            else:
                yield index, _unpacked(kept, self._to_rgb)
        if missing:
            file = self._opened()
            keeps = self._may_keep and self._blocks.is_writable
            yield from (self._decode_groups(file, missing) if keeps else file._decode(missing))

    def _decode_groups(self, file: PyAVReader, missing: list[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Decodes frames and keeps them with all others of their groups of pictures."""
        left = set(missing)
        for index, picture in file.groups(missing):
            rgb = file.convert(index, picture) if index in left else None
            digest = self._digest(index)
            if not self._blocks.touch(digest):
                self._blocks.keep(digest, _packed(picture, self._to_rgb, file.orientation))
            if rgb is not None:
                left.remove(index)
                yield index, rgb
        if left:  # as without a cache, to the word that says what is damaged
            with self._open_file() as plain:
                for index, rgb in plain._decode(missing):
                    if index in left:
                        self._blocks.keep(self._digest(index), _rgb_block(np.asarray(rgb)))
                        yield index, rgb


def _packed(frame: Any, to_rgb: RgbConverter, orientation: int) -> bytes:
    """The block of a frame that libav gave."""
    name, size = frame.format.name, (frame.width, frame.height)
    # swscale converts interlaced frames and odd sizes by other ways, which depend on more than the planes
    is_plain = name in _PLANAR and not (size[0] % 2 or size[1] % 2 or frame.interlaced_frame)
    if not is_plain or min(plane.line_size for plane in frame.planes) <= 0:
        return _rgb_block(to_rgb(frame, orientation))
    header = _HEADER.pack(name.encode(), *size, int(frame.colorspace), int(frame.color_range), orientation)
    return b"".join([header, *map(_fitted, frame.planes, _line_sizes(*size, name))])


def _rgb_block(picture: np.ndarray) -> bytes:
    height, width, _ = picture.shape
    return _HEADER.pack(_RGB.encode(), width, height, 0, 0, 0) + picture.tobytes()


@lru_cache(maxsize=64)
def _line_sizes(width: int, height: int, name: str) -> tuple[int, ...]:
    """Bytes of a row of each plane of a new frame, with what pads it."""
    return tuple(plane.line_size for plane in av.VideoFrame(width, height, name).planes)


def _fitted(plane: Any, line_size: int) -> bytes:
    """The bytes of a plane, with other padding, none of which is seen."""
    if plane.line_size == line_size:
        return bytes(plane)
    rows: np.ndarray = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
    missing = line_size - plane.line_size
    return rows[:, :line_size].tobytes() if missing < 0 else np.pad(rows, ((0, 0), (0, missing))).tobytes()


def _unpacked(block: memoryview, to_rgb: RgbConverter) -> np.ndarray:
    """The picture of a block: uint8 [H, W, 3], RGB, as it is shown."""
    encoded, width, height, space, colour_range, orientation = _HEADER.unpack_from(block)
    name, at = encoded.rstrip(b"\0").decode(), _HEADER.size
    if name == _RGB:
        return np.frombuffer(block, np.uint8, offset=at).reshape(height, width, 3)
    frame: Any = av.VideoFrame(width, height, name)
    for plane in frame.planes:
        plane.update(block[at : at + plane.buffer_size])
        at += plane.buffer_size
    frame.colorspace, frame.color_range = space, colour_range
    return to_rgb(frame, orientation)

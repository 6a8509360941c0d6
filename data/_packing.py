"""From a video or a folder of frames to JPEG files in a shard: what the processes of pack_frames.py do."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional, Tuple

import cv2
import numpy as np
from _common import disk_error

from paddlevideo_fast.decode import FrameFolderReader, PackedShard, VideoReader, open_frames, open_video
from paddlevideo_fast.decode.frames import DEFAULT_SUFFIX, read_image
from paddlevideo_fast.decode.images import decode_image, is_jpeg
from paddlevideo_fast.decode.packed import data_path
from paddlevideo_fast.decode.packed_format import PackSettings
from paddlevideo_fast.decode.packed_writer import ShardWriter
from paddlevideo_fast.errors import ShardError, VideoDecodeError


class Source(NamedTuple):
    """A video to pack; `num_frames` and `suffix` are None unless it is a folder of frames."""

    name: str
    path: str
    label: int
    num_frames: Optional[int]
    suffix: Optional[str]


class Task(NamedTuple):
    """A shard to pack."""

    folder: str
    settings: PackSettings
    sources: List[Source]


class Packed(NamedTuple):
    """What a shard holds."""

    num_videos: int
    num_frames: int
    num_bytes: int
    failures: List[Tuple[str, str]]


class Trial(NamedTuple):
    """What a video would take; all 0 where it does not decode."""

    num_bytes: int
    num_frames: int
    source_bytes: int
    cpu_sec: float


def contents(shard: PackedShard) -> Packed:
    """What a complete shard holds."""
    directory = shard.directory
    return Packed(len(shard), directory.num_frames, directory.data_size, directory.failures)


def pack(task: Task) -> Packed:
    """Writes one shard.

    Raises:
        ScriptError: the folder cannot be written to.
    """
    try:
        with ShardWriter(task.folder, task.settings) as writer:
            for source in task.sources:
                _add(source, writer, task.settings)
    except OSError as error:
        raise disk_error(Path(data_path(task.folder, task.settings.shard)), error) or error from error
    return contents(PackedShard(task.folder, task.settings.shard))


def _add(source: Source, writer: ShardWriter, settings: PackSettings) -> None:
    try:
        with open_source(source) as reader:
            size = stored_size(reader.width, reader.height, settings.short_side)
            images = encoded(reader, size, settings.quality)
            writer.add(source.name, source.label, reader.avg_fps, size, images)
    except VideoDecodeError as error:
        writer.add_failure(source.name, cause_of(error, source))


def open_source(source: Source) -> VideoReader:
    """A reader of a video or of a folder of frames; raises `VideoDecodeError`."""
    if source.num_frames is None:
        return open_video(source.path)
    return open_frames(source.path, source.suffix or DEFAULT_SUFFIX, source.num_frames)


def cause_of(error: VideoDecodeError, source: Source) -> str:
    """Why a video does not decode, in one line; names the image where it is one of a folder."""
    inside = "" if error.path == source.path else f"{error.path}: "
    return " ".join((inside + error.cause).split())


def stored_size(width: int, height: int, short_side: int) -> Tuple[int, int]:
    """(width, height) of the stored frames of a video in pixels."""
    short = min(width, height)
    if not short_side or short <= short_side:
        return width, height
    return round(width * short_side / short), round(height * short_side / short)


def encoded(reader: VideoReader, size: Tuple[int, int], quality: int) -> Iterator[bytes]:
    """The JPEG file of each frame.

    Raises:
        VideoDecodeError: a frame does not decode, or their size changes.
    """
    source_size = (reader.width, reader.height)
    for frame, original in frames_and_files(reader):
        if frame.shape[1::-1] != source_size:
            sizes = f"{reader.width}×{reader.height} to {frame.shape[1]}×{frame.shape[0]}"
            raise VideoDecodeError(reader.path, f"the frame size changes from {sizes}")
        yield original if original and size == source_size else encode(frame, size, quality, reader.path)


def frames_and_files(reader: VideoReader) -> Iterator[Tuple[np.ndarray, bytes]]:
    """Each frame, uint8 [H, W, 3] RGB, with its file where that is a JPEG, else with nothing."""
    if not isinstance(reader, FrameFolderReader):
        yield from ((frame, b"") for frame in reader)
        return
    for index in range(reader.num_frames):
        file = reader.image_file(index)
        data = read_image(file)
        yield decode_image(data, file), data if is_jpeg(data) else b""


def encode(frame: np.ndarray, size: Tuple[int, int], quality: int, path: str) -> bytes:
    """The JPEG file of a frame, uint8 [H, W, 3] RGB, at `size` (width, height)."""
    if frame.shape[1::-1] != size:
        frame = cv2.resize(frame, size, interpolation=cv2.INTER_AREA)
    # optimised Huffman tables: 4 % fewer bytes for good, for 0.5 ms a frame once
    options = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_OPTIMIZE, 1]
    done, data = cv2.imencode(".jpg", cv2.cvtColor(frame, cv2.COLOR_RGB2BGR), options)
    if not done:
        raise VideoDecodeError(path, f"a frame of {size[0]}×{size[1]} cannot be stored as JPEG")
    return data.tobytes()


def attempt(task: Tuple[Source, int, int]) -> Trial:
    """Packs one video without storing it."""
    source, short_side, quality = task
    start = time.process_time()
    try:
        with open_source(source) as reader:
            size = stored_size(reader.width, reader.height, short_side)
            sizes = [len(image) for image in encoded(reader, size, quality)]
            files = [source.path]
            if isinstance(reader, FrameFolderReader):
                files = [reader.image_file(index) for index in range(reader.num_frames)]
    except VideoDecodeError:
        return Trial(0, 0, 0, 0.0)
    source_bytes = sum(os.path.getsize(file) for file in files)
    return Trial(sum(sizes), len(sizes), source_bytes, time.process_time() - start)


def find_faults(task: Tuple[str, int]) -> List[str]:
    """What is wrong with a shard; nothing for an intact one."""
    try:
        return [str(error) for error in PackedShard(*task).faults()]
    except ShardError as error:
        return [str(error)]

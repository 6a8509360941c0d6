"""What every decoding backend offers, and the index checks they share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import index as as_integer
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from paddlevideo_fast.errors import VideoDecodeError

OnCorrupt = Literal["raise", "nearest"]

TOLERANCE_SEC = 0.0005  # of times that are compared: lists and containers round to milliseconds
_SLACK_SEC = 0.25
_MOST_ASPECT = 64  # a larger one is damage, and its pictures would fill the memory


class Crops(Protocol):
    """A part of each frame of a clip, all of one size.

    Attributes:
        width: in pixels.
        height: likewise.
        square_size: (width, height) as it is shown, in square pixels.
    """

    width: int
    height: int
    square_size: tuple[int, int]

    def cut(self, frame: np.ndarray, slot: int) -> np.ndarray:
        """The part of a whole frame, uint8 [height, width, 3], for the frame of this number in the clip."""


class VideoReader(ABC):
    """An open video; frames are counted from 0 in the order they are shown.

    Use it as a context manager, and in one thread at a time: decoders crash where two use one of them. A
    forked process may use its copy. All problems of the file are raised as `VideoDecodeError`.

    Attributes:
        path: of the video; a name in brackets for bytes and file objects.
        num_frames: how many frames can be asked for.
        avg_fps: frames a second, on average; 0.0 where nothing says.
        num_replaced: frames that were read, did not decode and had another in their place.
        codec: FFmpeg's name of the compression, such as "h264"; "" where the backend does not say.
        notes: what is unusual about the file and no damage, such as a pause of the recording.
    """

    path: str
    num_frames: int
    avg_fps: float
    num_replaced: int = 0
    codec: str = ""
    notes: Sequence[str] = ()
    _closed = False
    _size: tuple[int, int] | None = None

    @property
    def width(self) -> int:
        """Width of a frame as it is read, in pixels."""
        return self._shown_size()[0]

    @property
    def orientation(self) -> int:
        """How stored frames are turned and mirrored when they are read, see `orientation_of`."""
        return 0

    @property
    def pixel_aspect(self) -> float:
        """Width of a pixel over its height, as it is shown; frames are read as they are, whatever it is."""
        return 1.0

    @property
    def square_size(self) -> tuple[int, int]:
        """(width, height) of a frame as it is shown, in square pixels.

        Raises:
            VideoDecodeError: as for the first frame, or it would be far too narrow or wide.
        """
        if not 1 / _MOST_ASPECT <= self.pixel_aspect <= _MOST_ASPECT:
            cause = f"its pixels are said to be {self.pixel_aspect:.6g} times as wide as high"
            raise VideoDecodeError(self.path, f"damaged: {cause}")
        return max(round(self.width * self.pixel_aspect), 1), self.height

    @property
    def height(self) -> int:
        """Height of a frame as it is read and as it is shown, in pixels."""
        return self._shown_size()[1]

    @property
    def keyframe_gap(self) -> float:
        """Frames from one place where decoding can begin to the next, on average; 0 where nothing says."""
        return 0.0

    def num_decoded(self, indices: Sequence[int]) -> int:
        """At most how many frames are decoded to read these; 0 where nothing says."""
        return 0

    def times_sec(self) -> np.ndarray:
        """When each frame is shown: float64 [num_frames], seconds after the first frame, ascending.

        Raises:
            VideoDecodeError: nothing says.
        """
        if not self.avg_fps:
            cause = "says no frame rate, so nothing says when its frames are shown; give spans in frames"
            raise VideoDecodeError(self.path, cause)
        return np.arange(self.num_frames) / self.avg_fps

    def end_sec(self) -> float:
        """When the last frame ends, in seconds after the first frame; see `end_of`.

        Raises:
            VideoDecodeError: nothing says.
        """
        return end_of(self.times_sec(), self.avg_fps)

    def frames_of(self, span: Span) -> tuple[int, int]:
        """The frames [first, stop) of a span.

        For a span of seconds see `frames_between`. It may end a quarter of a second after the last frame,
        because annotated lengths are often those of the sound.

        Raises:
            VideoDecodeError: the span reaches over the video, or times are unknown.
        """
        if span.unit == "frames":
            length, unit, slack = float(self.num_frames), "frames", 0.0
            first, stop = round(span.start), self.num_frames if span.end is None else round(span.end)
        else:
            times, unit, slack = self.times_sec(), "s", _SLACK_SEC
            length = self.end_sec()
            first, stop = frames_between(times, span.start, math.inf if span.end is None else span.end)
        if span.start < 0 or span.start >= length or (span.end is not None and span.end > length + slack):
            raise VideoDecodeError(
                self.path, f"the span {span} is not inside the video, which lasts {length:.10g} {unit}"
            )
        return first, stop

    def part(self, span: Span, margin: int = 0) -> VideoPart:
        """The frames of a span, and `margin` more on both sides where the video has them, as a video.

        Closing it leaves this reader open. Raises as `frames_of`.
        """
        first, stop = self.frames_of(span)
        return VideoPart(self, max(first - margin, 0), min(stop + margin, self.num_frames))

    def crops(self, frames: np.ndarray) -> Crops | None:
        """What a clip of these frames, int64 [T], shows of each of them; None: all.

        Raises:
            VideoDecodeError: nothing of them can be shown.
        """
        return None

    @abstractmethod
    def _decode(self, wanted: list[int]) -> Iterable[tuple[int, Any]]:
        """Number and picture, uint8 [H, W, 3] RGB, of each frame in `wanted` (ascending, distinct, in range).

        A picture is an array, or a `colour.Picture`, which is converted where parts are cut from it. They may
        come in any order; a picture need last until the next only.
        """

    def fetch(self, indices: Sequence[int]) -> int:
        """Brings the bytes that these frames are read from into the cache of remote files.

        Returns:
            How many bytes came from a store; 0 where all of them were here.

        Raises:
            VideoDecodeError: they are not to be had.
            StoreAwayError: the store does not answer.
        """
        return 0

    def close(self) -> None:
        """Frees the file; the reader cannot be used afterwards."""
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise VideoDecodeError(self.path, "the reader is closed")

    def _shown_size(self) -> tuple[int, int]:
        """(width, height) of the first frame."""
        self._require_open()
        if self._size is None:
            num_replaced = self.num_replaced
            ((_, picture),) = self._decode([0])
            self.num_replaced = num_replaced  # nobody read that frame
            self._size = (picture.shape[1], picture.shape[0])
        return self._size

    def read(self, indices: Sequence[int]) -> np.ndarray:
        """Decodes frames.

        Args:
            indices: frame numbers from 0, in any order; repeats are allowed.

        Returns:
            uint8 [T, H, W, 3], RGB, one frame for each index.

        Raises:
            VideoDecodeError: an index is out of range, or a frame does not decode, or the reader is closed.
            TypeError: an index is no integer.
        """
        self._require_open()
        slots: dict[int, list[int]] = {}
        for slot, index in enumerate(indices):
            slots.setdefault(_integer(index), []).append(slot)
        if not slots:
            return np.empty((0, self.height, self.width, 3), np.uint8)
        clip = np.empty(0, np.uint8)
        for index, picture in self.frames(slots):
            if not clip.size:
                clip = np.empty((len(indices), *picture.shape), np.uint8)
            clip[slots[index]] = picture
        return clip

    def frames(
        self, indices: Iterable[int], size: tuple[int, int] | None = None, whole: bool = True
    ) -> Iterator[tuple[int, Any]]:
        """Decodes frames one by one, each once.

        Args:
            indices: frame numbers from 0, in any order; repeats make no difference.
            size: (width, height) that all frames must have; None: the first frame's.
            whole: convert whole frames; else parts are converted where they are cut from frames.

        Yields:
            The number of a frame, and the frame: uint8 [H, W, 3], RGB, which lasts until the next one. It may
            be a `colour.Picture` without `whole`: two slices cut it like an array. The frames come in the
            order in which the decoder gives them.

        Raises:
            VideoDecodeError: an index is out of range, a frame does not decode or has another size, or the
                reader is closed.
            TypeError: an index is no integer.
        """
        self._require_open()
        missing = set(map(_integer, indices))
        wanted = sorted(missing)
        if wanted and (wanted[0] < 0 or wanted[-1] >= self.num_frames):
            bad = wanted[0] if wanted[0] < 0 else wanted[-1]
            raise VideoDecodeError(
                self.path, f"frame {bad} is out of range: the video has frames 0 to {self.num_frames - 1}"
            )
        shape: tuple[int, ...] | None = None if size is None else (size[1], size[0], 3)
        for index, picture in self._decode(wanted) if wanted else ():
            shape = shape or picture.shape
            if picture.shape != shape:
                sizes = sorted([shape, picture.shape])
                raise VideoDecodeError(self.path, f"the frame size changes within the video: {sizes}")
            missing.remove(index)
            yield index, np.asarray(picture) if whole else picture
        if missing:
            raise VideoDecodeError(
                self.path, f"frame {min(missing)} is missing: the decoder does not give it"
            )

    def __iter__(self) -> Iterator[np.ndarray]:
        """All frames in order, each uint8 [H, W, 3]; few are held at a time.

        Raises:
            VideoDecodeError: a frame does not decode.
        """
        self._require_open()
        return self._iterate(0, self.num_frames)

    def _iterate(self, first: int, stop: int) -> Iterator[np.ndarray]:
        """Frames `first` to `stop` - 1, in order."""
        for start in range(first, stop, 16):
            yield from self.read(range(start, min(start + 16, stop)))

    def verify(self) -> None:
        """Decodes all frames, and looks for damage that reading cannot see.

        Raises:
            VideoDecodeError: a frame does not decode, or other bytes were written than those in the file.
        """
        deque(self, maxlen=0)

    def __enter__(self) -> VideoReader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def frames_between(times_sec: np.ndarray, start_sec: float, end_sec: float) -> tuple[int, int]:
    """The frames [first, stop) whose time t has start ≤ t < end; where there is none, the one on display."""
    first, stop = map(int, np.searchsorted(times_sec, np.array([start_sec, end_sec]) - TOLERANCE_SEC))
    return (first, stop) if first < stop else (max(stop - 1, 0), max(stop, 1))


def end_of(times_sec: np.ndarray, avg_fps: float) -> float:
    """When the last of some frames ends: it is taken to last as long as the few before it.

    Args:
        times_sec: when they are shown, at least one.
        avg_fps: frames a second, for a single frame; 0.0 where nothing says.
    """
    lasts_sec = float(np.median(np.diff(times_sec[-6:]))) if len(times_sec) > 1 else 1 / (avg_fps or math.inf)
    return float(times_sec[-1]) + lasts_sec


def _integer(frame: Any) -> int:
    try:
        return as_integer(frame)
    except TypeError:
        raise TypeError(f"frame numbers are integers, found {frame!r}") from None


class Span(NamedTuple):
    """A part of a video, from `start` up to before `end`.

    Attributes:
        start: number of the first frame, from 0; or seconds after the first frame of the video is shown.
        end: number of the frame after the last, or seconds; None: the end of the video.
        unit: of both.
    """

    start: float
    end: float | None
    unit: Literal["frames", "sec"] = "frames"

    def __str__(self) -> str:
        end = "the end" if self.end is None else f"{self.end:.10g}"
        return f"{self.start:.10g} to {end} {'s' if self.unit == 'sec' else 'frames'}"


class VideoPart(VideoReader):
    """Frames `first` to `stop` - 1 of a video, counted from 0. Closing it leaves the video open.

    Args:
        video: an open reader.
        first: number of the first frame.
        stop: number of the frame after the last, at most the video's number of frames.

    Attributes:
        video: as given.
        first: as given.
    """

    def __init__(self, video: VideoReader, first: int, stop: int) -> None:
        if not 0 <= first < stop <= video.num_frames:
            raise ValueError(f"[{first}, {stop}) is no part of {video.num_frames} frames")
        self.video, self.first = video, first
        self.path, self.codec, self.avg_fps = video.path, video.codec, video.avg_fps
        self.num_frames = stop - first

    @property
    def orientation(self) -> int:
        """See `VideoReader`."""
        return self.video.orientation

    @property
    def pixel_aspect(self) -> float:
        """See `VideoReader`."""
        return self.video.pixel_aspect

    def times_sec(self) -> np.ndarray:
        """See `VideoReader`; the first frame of the part is at 0."""
        times = self.video.times_sec()[self.first : self.first + self.num_frames]
        return times - times[0]

    def end_sec(self) -> float:
        """See `VideoReader`: the part ends where the frame after it is shown."""
        stop, times = self.first + self.num_frames, self.video.times_sec()
        return float((times[stop] if stop < len(times) else self.video.end_sec()) - times[self.first])

    @property
    def keyframe_gap(self) -> float:
        """See `VideoReader`."""
        return self.video.keyframe_gap

    def num_decoded(self, indices: Sequence[int]) -> int:
        """See `VideoReader`."""
        return self.video.num_decoded([self.first + index for index in indices])

    def fetch(self, indices: Sequence[int]) -> int:
        """See `VideoReader`."""
        return self.video.fetch([self.first + index for index in indices])

    def _shown_size(self) -> tuple[int, int]:
        self._require_open()
        return self.video.width, self.video.height

    def _iterate(self, first: int, stop: int) -> Iterator[np.ndarray]:
        replaced_before = self.video.num_replaced - self.num_replaced
        for picture in self.video._iterate(self.first + first, self.first + stop):
            self.num_replaced = self.video.num_replaced - replaced_before
            yield picture

    def _decode(self, wanted: list[int]) -> Iterator[tuple[int, np.ndarray]]:
        replaced_before = self.video.num_replaced - self.num_replaced
        for index, picture in self.video._decode([self.first + index for index in wanted]):
            self.num_replaced = self.video.num_replaced - replaced_before
            yield index - self.first, picture

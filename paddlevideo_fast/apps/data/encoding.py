"""One video, re-encoded for training; `videos` does it to a list.

The copy has the reader's frames, upright, scaled, in 8 bit 4:2:0. Pictures go from the decoder to the encoder
without a detour through RGB; those that are 8 bit, 4:2:0, upright and of the size to store are not touched.

A preset has one constant quality. The copy is read back: it must have as many frames as the source, at
the same times.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from paddlevideo_fast.apps.data.frames import stored_size
from paddlevideo_fast.apps.data.spans import Part, open_part
from paddlevideo_fast.decode.colour import (
    BT601_LIMITED,
    FULL,
    LIMITED,
    ONE_THREAD,
    Colours,
    RgbConverter,
    colours_of,
)
from paddlevideo_fast.decode.orientation import turned
from paddlevideo_fast.decode.packets import Timing
from paddlevideo_fast.decode.pyav_reader import PyAVReader
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.io.files import as_path, atomic_write

_COLOUR_TAGS = ("color_range", "colorspace", "color_primaries", "color_trc")
_UNSPECIFIED, _SMPTE170M = 2, 6
_NO_MATRIX = (0, 3)  # RGB, and what is reserved
_MIN_SIDE_PX = 16


class PrepareError(PaddleVideoFastError):
    """A video that cannot be prepared, although it may decode."""


class Source:
    """The pictures to store for a video. Use it as a context manager.

    Args:
        path: a video file.
        short_side_px: a longer short side is scaled down to this even number.
        part: what of it to store; None: all.

    Attributes:
        size: width and height to store, in pixels, even.
        first: number of the first frame to store.
        num_frames: number of frames to store.
        inner: the frames [first, stop) of the span, among those that are stored.
        share: of the frames of the video that are stored.
        times: when each frame is shown; distances that differ only by the rounding of the file become equal.

    Raises:
        VideoDecodeError: the video does not decode.
        PrepareError: `path` is a folder, or the frames are too small.
    """

    def __init__(self, path: str, short_side_px: int, part: Part | None = None) -> None:
        if os.path.isdir(path):
            raise PrepareError(
                "is a folder, not a video; paddlevideo-fast data pack  packs folders of frames"
            )
        self._reader = PyAVReader(path)
        stored, self.inner = open_part(self._reader, part)
        self.first, self.num_frames = stored.first, stored.num_frames
        self.share = self.num_frames / self._reader.num_frames
        width, height = self._reader.square_size
        self.size = stored_size(width, height, short_side_px, even=True)
        if min(self.size) < _MIN_SIDE_PX:
            raise PrepareError(f"its frames of {width}×{height} are too small")
        self.times = self._reader.timing.of(self.first, self.first + self.num_frames)
        self._path = path
        self._to_rgb = RgbConverter(path)

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._reader.close()

    def __iter__(self) -> Iterator[av.VideoFrame]:
        """The pictures in order, 4:2:0, of `size`.

        Raises:
            VideoDecodeError: a frame does not decode.
            PrepareError: the frames of the source differ in size.
        """
        decoded_size = look = None
        for frame in self._reader.pictures(self.first, self.first + self.num_frames):
            if decoded_size not in (None, (frame.width, frame.height)):
                raise PrepareError("the frame size changes within the video")
            decoded_size = frame.width, frame.height
            look = look or _Look.of(frame, self._path)
            yield self._store(frame, look)

    def _store(self, frame: av.VideoFrame, look: _Look) -> av.VideoFrame:
        """Scales, turns and mirrors a decoded frame where it needs it, and gives it the colours to store."""
        orientation, is_interlaced = self._reader.orientation, frame.interlaced_frame
        width, height = self.size[::-1] if orientation % 2 else self.size
        picture, colours = frame, colours_of(frame, self._path)
        if colours != look.colours:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(self._to_rgb(frame)), "rgb24")
            colours = Colours(None, is_full=True)
        if (picture.width, picture.height, picture.format.name) != (width, height, look.kind):
            options = {
                "src_color_range": FULL if colours.is_full else LIMITED,
                "dst_color_range": FULL if look.colours.is_full else LIMITED,
                "src_colorspace": colours.matrix,
                "dst_colorspace": look.colours.matrix,
                **ONE_THREAD,
            }
            reformat = VideoReformatter().reformat
            picture = reformat(picture, width, height, look.kind, interpolation="AREA", **options)
        if orientation or is_interlaced:  # the copy is progressive, like what is encoded
            picture = _turn(picture, orientation)
        for tag, value in look.tags.items():
            setattr(picture, tag, value)
        return picture


class _Look(NamedTuple):
    """The form and the colours of all pictures of a copy.

    Attributes:
        kind: libav's name of the pixel format.
        colours: of the first picture, where 4:2:0 can have them; else BT.601 with limited range.
        tags: that tell a decoder so.
    """

    kind: str
    colours: Colours
    tags: dict[str, int]

    @classmethod
    def of(cls, first: Any, path: str) -> _Look:
        """The look of a copy, from the first picture of its source."""
        colours = colours_of(first, path)
        if colours.matrix is None:
            return cls("yuv420p", BT601_LIMITED, {"color_range": LIMITED, "colorspace": _SMPTE170M})
        kind = "yuvj420p" if first.format.name.startswith("yuvj") else "yuv420p"
        tags = {tag: int(getattr(first, tag)) for tag in _COLOUR_TAGS}
        if tags["colorspace"] in _NO_MATRIX:
            tags["colorspace"] = _UNSPECIFIED
        return cls(kind, colours, tags)


def _turn(picture: av.VideoFrame, orientation: int) -> av.VideoFrame:
    """A 4:2:0 picture of even sides in this orientation, see `orientation_of`."""
    width, height = picture.width, picture.height
    luma, *chroma = np.split(picture.to_ndarray().ravel(), [width * height, width * height * 5 // 4])
    planes = [luma.reshape(height, width), *(plane.reshape(height // 2, width // 2) for plane in chroma)]
    planes = [turned(plane, orientation) for plane in planes]
    data = np.concatenate([plane.ravel() for plane in planes]).reshape(-1, planes[0].shape[1])
    return av.VideoFrame.from_ndarray(data, format=picture.format.name)


# --- encoding


class Preset(NamedTuple):
    """How the pictures of a video depend on one another, and how good they are.

    Attributes:
        gop: frames from one keyframe to the next.
        bframes: most non-reference frames in a row; the reader can skip them.
        crf: rate factor of x264.
    """

    gop: int
    bframes: int
    crf: int


# rate factors at which three clips have a PSNR of about 37 dB, in the mean
PRESETS = {"sparse": Preset(8, 7, 26), "dense": Preset(32, 7, 27), "intra": Preset(1, 0, 20)}


class Settings(NamedTuple):
    """What a prepared video is made with.

    Attributes:
        preset: a key of `PRESETS`.
        short_side_px: a longer short side is scaled down to this even number.
    """

    preset: str
    short_side_px: int


class Prepared(NamedTuple):
    """A prepared video in numbers.

    Attributes:
        num_frames: frames of the source, and of the result.
        bytes_before: size of the source file, or of the part's share of its frames.
        bytes_after: size of the result.
        inner_first: number in the result of the first frame of the span; 0 where all of it was asked for.
        inner_stop: number of the frame after the span's last.
    """

    num_frames: int
    bytes_before: int
    bytes_after: int
    inner_first: int
    inner_stop: int


# Groups begin at fixed frames and depend on no other; no picture depends on a B-picture. The rest makes
# decoding faster (one reference; `fastdecode`: no CABAC, deblocking or weighted prediction) or takes fewer
# bytes for the same PSNR (`psnr`: none go into what only looks sharper; b-adapt 2). `cpu-independent` has
# x264 compute its macroblock tree in C: the AVX-512 code reads past the rows of frames whose width is no
# multiple of 128, so that the bytes of the result depend on what was in memory before.
_X264 = {
    "preset": "medium",
    "tune": "psnr+fastdecode",
    "x264-params": "scenecut=0:open-gop=0:b-pyramid=none:b-adapt=2:ref=1:cpu-independent=1",
    "a53cc": "0",
}
_MOST_SHIFT_SEC = 0.001  # an MP4 file counts time in units of its own


def write_h264(
    target: Path,
    pictures: Iterable[av.VideoFrame],
    rate: Fraction,
    x264: dict[str, str],
    codec: dict[str, int] | None = None,
    muxer: dict[str, str] | None = None,
    times: Timing | None = None,
) -> None:
    """Writes an MP4 file without sound, with one thread.

    Args:
        target: the file to write.
        pictures: one or more, 4:2:0 or RGB, of one even size; tags of the first hold for all,
            if it is not RGB.
        rate: frames a second, on average.
        x264: options of the encoder.
        codec: attributes of the codec context, such as `gop_size`.
        muxer: options of the container; None: its index comes first.
        times: when each picture is shown; None: at even distances.

    Raises:
        av.FFmpegError: writing or encoding fails.
    """
    pictures = iter(pictures)
    first = next(pictures)
    # libav takes "a:b.mp4" for an address, an absolute path never
    with av.open(
        str(target.absolute()), "w", format="mp4", options=muxer or {"movflags": "faststart"}
    ) as output:
        stream: Any = output.add_stream("libx264", rate=rate, options=x264)
        stream.width, stream.height = first.width, first.height
        stream.pix_fmt = "yuv420p" if first.format.is_rgb else first.format.name
        if not first.format.is_rgb:
            for tag in _COLOUR_TAGS:
                setattr(stream.codec_context, tag, int(getattr(first, tag)))
        if times is not None:
            stream.codec_context.time_base = times.tick_sec
        for name, value in {"thread_count": 1, **(codec or {})}.items():
            setattr(stream.codec_context, name, value)
        for number, picture in enumerate(chain([first], pictures)):
            if times is not None:
                picture.pts, picture.time_base = times.ticks[number], times.tick_sec
            picture.pict_type = 0  # the encoder decides the kind of picture, not the source
            output.mux(stream.encode(picture))
        output.mux(stream.encode())


def prepare(path: str, target: Path, settings: Settings, part: Part | None = None) -> Prepared:
    """Writes the prepared video `target`, completely or not at all.

    Args:
        path: the source.
        target: an MP4 file.
        settings: see `Settings`.
        part: what of the source to store; None: all.

    Raises:
        VideoDecodeError: the source does not decode.
        PrepareError: the result has not the frames of the source, or shows them at other times.
        av.FFmpegError: writing or encoding fails.
    """
    with atomic_write(target) as partial, Source(path, settings.short_side_px, part) as source:
        preset = PRESETS[settings.preset]
        codec = {"gop_size": preset.gop, "max_b_frames": preset.bframes}
        x264 = {**_X264, "crf": str(preset.crf)}
        write_h264(partial, source, source.times.rate, x264, codec, times=source.times)
        _check(partial, source.times)
        sizes = round(as_path(path).stat().st_size * source.share), os.path.getsize(partial)
        return Prepared(source.num_frames, *sizes, *source.inner)


def _check(path: Path, times: Timing) -> None:
    """Raises `PrepareError` where a video has not one frame for each of `times`."""
    reader = PyAVReader(str(path))
    with reader:
        if reader.num_frames != len(times.ticks):
            raise PrepareError(
                f"has {len(times.ticks)} frames, of which {reader.num_frames} can be read back"
            )
        if np.abs(reader.timing.seconds() - times.seconds()).max() > _MOST_SHIFT_SEC:
            raise PrepareError("its frames would be shown at other times")

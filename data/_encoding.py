"""Re-encodes one video for training; `prepare_videos.py` does it to a list.

Pictures go from the decoder to the encoder without a detour through RGB; those that are 8 bit, 4:2:0, upright
and of the size to store are not touched. That they are as many as the reader counts is checked.

The rate factor is searched for each video: a few groups of pictures are encoded until their PSNR is the one
asked for, then all of it, and frames read back from the result are compared with what was stored.
"""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain, islice
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

import av
import cv2
import numpy as np
from av.video.reformatter import VideoReformatter

from paddlevideo_fast.decode import VideoReader, open_video
from paddlevideo_fast.errors import PaddleVideoFastError, VideoDecodeError


class Preset(NamedTuple):
    """How the pictures of a video depend on one another.

    Attributes:
        gop: frames from one key picture to the next.
        bframes: most pictures in a row that no other refers to, which the reader can leave out.
    """

    gop: int
    bframes: int


PRESETS = {"sparse": Preset(8, 7), "dense": Preset(32, 7), "intra": Preset(1, 0)}


class Settings(NamedTuple):
    """What a prepared video is made with.

    Attributes:
        preset: a key of `PRESETS`.
        short_side_px: longer short sides are scaled down to it; even.
        target_psnr_db: what the result is to have.
    """

    preset: str
    short_side_px: int
    target_psnr_db: float


class Prepared(NamedTuple):
    """What came of one video.

    Attributes:
        num_frames: frames of the source, and of the result.
        bytes_before: size of the source file.
        bytes_after: size of the result.
        psnr_db: of the compared frames together, RGB.
        min_psnr_db: of the worst of them.
        crf: the rate factor found.
    """

    num_frames: int
    bytes_before: int
    bytes_after: int
    psnr_db: float
    min_psnr_db: float
    crf: float


class PrepareError(PaddleVideoFastError):
    """A video that decodes but cannot be prepared."""


# Groups begin at fixed frames and depend on no other; no picture depends on a B-picture. The rest makes
# decoding faster (one reference; `fastdecode`: no CABAC, deblocking or weighted prediction) or takes fewer
# bytes for the same PSNR (`psnr`: none go into what only looks sharper; b-adapt 2).
_X264 = {
    "preset": "medium",
    "tune": "psnr+fastdecode",
    "x264-params": "scenecut=0:open-gop=0:b-pyramid=none:b-adapt=2:ref=1",
    "a53cc": "0",
}
_CRF_RANGE = (2.0, 38.0)
_FIRST_CRF = 25.0
_DB_PER_CRF = -0.6  # about what one step changes; measured steps replace it
_CLOSE_DB = 0.15
_TOLERANCE_DB = 0.25
_NUM_TRIALS = 3
_NUM_TRIAL_FRAMES = 72
_NUM_COMPARED_FRAMES = 16
_LOSSLESS_DB = 99.0

_FULL_RANGE = 2
_COLOUR_TAGS = ("color_range", "colorspace", "color_primaries", "color_trc")
_BT601_LIMITED = {"color_range": 1, "colorspace": 6}
_FROM_RGB = {"dst_color_range": "MPEG", "dst_colorspace": "ITU601"}  # the same, in words of PyAV
_ONE_THREAD: Dict[str, Any] = {"threads": 1} if int(av.__version__.split(".")[0]) >= 17 else {}


class Source:
    """A video as it is to be stored: upright, scaled, with even sides. Use it as a context manager.

    Attributes:
        size: width and height to store, in pixels.
        num_frames: how many frames the reader counts.
        colour: tags that say how the stored pictures are to be read.

    Raises:
        VideoDecodeError: it does not decode.
        PrepareError: it is a folder.
    """

    def __init__(self, path: str, short_side_px: int) -> None:
        if os.path.isdir(path):
            raise PrepareError("is a folder; this prepares video files; folders of frames can be packed")
        self.path = path
        self._reader: VideoReader = open_video(path, "pyav")
        self.num_frames = self._reader.num_frames
        self.size = stored_size(self._reader.width, self._reader.height, short_side_px)
        with _libav(path) as (container, stream):
            codec = stream.codec_context
            self._is_rgb = next(container.decode(stream)).format.is_rgb
            tags = {tag: int(getattr(codec, tag)) for tag in _COLOUR_TAGS}
            self.colour = _BT601_LIMITED if self._is_rgb else tags

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._reader.close()

    def __iter__(self) -> Iterator[av.VideoFrame]:
        """All pictures in order, 4:2:0, of `size`.

        Raises:
            VideoDecodeError: one does not decode, or they do not have one size.
        """
        decoded_size = None
        with _libav(self.path) as (container, stream):
            for frame in container.decode(stream):
                if frame.is_corrupt:
                    raise VideoDecodeError(self.path, f"the picture at timestamp {frame.pts} is damaged")
                if decoded_size not in (None, (frame.width, frame.height)):
                    raise VideoDecodeError(self.path, "the frame size changes within the video")
                decoded_size = frame.width, frame.height
                yield self._store(frame)

    def trial_pictures(self, indices: Sequence[int]) -> List[av.VideoFrame]:
        """About what storing the frames `indices` gives, without decoding all that is before them."""
        pictures = (
            cv2.resize(rgb, self.size, interpolation=cv2.INTER_AREA) for rgb in self._reader.read(indices)
        )
        return [
            reformat(av.VideoFrame.from_ndarray(rgb, format="rgb24"), format="yuv420p") for rgb in pictures
        ]

    def times(self) -> Tuple[List[int], Fraction, Fraction]:
        """When the frames are shown: a timestamp each, from 0; their unit in seconds; frames a second.

        Equal distances, but for what rounding to the unit of the file did, become exactly equal.
        """
        with _libav(self.path) as (container, stream):
            unit, rate = stream.time_base, stream.average_rate or stream.guessed_rate or Fraction(25)
            shown = [packet for packet in container.demux(stream) if packet.size and not packet.is_discard]
        pts = sorted({packet.pts for packet in shown if packet.pts is not None})
        step = 1 / (rate * unit)
        known = len(pts) == self.num_frames
        if not known or all(abs(value - pts[0] - place * step) <= 1 for place, value in enumerate(pts)):
            return list(range(self.num_frames)), 1 / rate, rate
        return [value - pts[0] for value in pts], unit, rate

    def _store(self, frame: av.VideoFrame) -> av.VideoFrame:
        """Scales and turns a decoded frame; one that needs neither stays what it is."""
        quarter_turns = round(frame.rotation / 90) % 4
        width, height = self.size[::-1] if quarter_turns % 2 else self.size
        kind = "yuvj420p" if self.colour["color_range"] == _FULL_RANGE else "yuv420p"
        options = _FROM_RGB if self._is_rgb else {}
        picture = reformat(frame, width, height, kind, interpolation="AREA", **options)
        if quarter_turns:
            picture = turn(picture, quarter_turns)
        picture.colorspace, picture.color_range = self.colour["colorspace"], self.colour["color_range"]
        return picture


@contextmanager
def _libav(path: str) -> Iterator[Tuple[Any, Any]]:
    """The container and the video stream that the reader takes; problems are `VideoDecodeError`s."""
    try:
        with av.open(path) as container:
            stream = next(stream for stream in container.streams.video if stream.codec_context is not None)
            stream.codec_context.thread_count = 1
            yield container, stream
    except (av.FFmpegError, ValueError, StopIteration) as error:
        raise VideoDecodeError(path, f"damaged or cut off: {error}") from error


def reformat(frame: av.VideoFrame, *args: Any, **options: Any) -> av.VideoFrame:
    """`VideoReformatter.reformat` on this thread alone."""
    return VideoReformatter().reformat(frame, *args, **options, **_ONE_THREAD)


def turn(picture: av.VideoFrame, quarter_turns: int) -> av.VideoFrame:
    """A 4:2:0 picture of even sides, turned counter-clockwise."""
    width, height = picture.width, picture.height
    luma, *chroma = np.split(picture.to_ndarray().ravel(), [width * height, width * height * 5 // 4])
    planes = [luma.reshape(height, width), *(plane.reshape(height // 2, width // 2) for plane in chroma)]
    turned = [np.rot90(plane, quarter_turns) for plane in planes]
    data = np.concatenate([plane.ravel() for plane in turned]).reshape(-1, turned[0].shape[1])
    return av.VideoFrame.from_ndarray(data, format=picture.format.name)


def stored_size(width: int, height: int, short_side_px: int) -> Tuple[int, int]:
    """The even width and height to store a frame with, in pixels; never larger than the frame."""
    scale = short_side_px / min(width, height)
    if scale >= 1:
        return width - width % 2, height - height % 2
    return 2 * round(width * scale / 2), 2 * round(height * scale / 2)


def to_rgb(picture: av.VideoFrame) -> np.ndarray:
    """A picture as the reader would return it from a lossless file, uint8 [h, w, 3]."""
    return reformat(picture, format="rgb24").to_ndarray()


def encode(
    pictures: Iterable[av.VideoFrame],
    path: Path,
    preset: Preset,
    crf: float,
    times: Tuple[Sequence[int], Fraction, Fraction],
    colour: Dict[str, int],
) -> int:
    """Writes an MP4 file without sound whose index comes first.

    Args:
        pictures: 4:2:0, of one even size.
        path: the file to write.
        preset: how pictures depend on one another.
        crf: rate factor of x264.
        times: see `Source.times`; there is one for each picture.
        colour: tags of the encoder.

    Returns:
        How many pictures there were.

    Raises:
        av.FFmpegError: writing or encoding fails.
    """
    timestamps, unit, rate = times
    pictures = iter(pictures)
    first = next(pictures)
    count = 0
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as output:
        stream = output.add_stream("libx264", rate=rate, options={**_X264, "crf": f"{crf:.2f}"})
        stream.width, stream.height, stream.pix_fmt = first.width, first.height, first.format.name
        codec = stream.codec_context
        codec.time_base = unit
        codec.gop_size, codec.max_b_frames, codec.thread_count = preset.gop, preset.bframes, 1
        for tag, value in colour.items():
            setattr(codec, tag, value)
        for count, picture in enumerate(islice(chain([first], pictures), len(timestamps)), 1):
            picture.pts, picture.time_base = timestamps[count - 1], unit
            picture.pict_type = 0  # the source's kind of picture is not to be kept
            output.mux(stream.encode(picture))
        output.mux(stream.encode())
    return count + sum(1 for _ in pictures)


def prepare(path: str, target: Path, settings: Settings) -> Prepared:
    """Writes the prepared video `target`, completely or not at all.

    Args:
        path: the source.
        target: an MP4 file; its folder exists.
        settings: see `Settings`.

    Raises:
        VideoDecodeError: the source does not decode.
        PrepareError: the result is not as good as asked for, or not whole.
        av.FFmpegError: writing or encoding fails.
    """
    partial = target.with_name(f".partial-{target.name}")
    preset, wanted_db = PRESETS[settings.preset], settings.target_psnr_db
    try:
        with Source(path, settings.short_side_px) as source:
            if min(source.size) < 16:
                raise PrepareError(f"its frames of {source.size[0]}×{source.size[1]} are too small")
            times = source.times()
            crf = _find_crf(source, partial, preset, wanted_db)
            for _ in range(_NUM_TRIALS):
                kept: Dict[int, np.ndarray] = {}
                count = encode(_keeping(source, kept), partial, preset, crf, times, source.colour)
                if count != source.num_frames:
                    raise PrepareError(f"decodes to {count} frames in sequence, not {source.num_frames}")
                psnr_db, min_psnr_db = _compare(partial, count, kept)
                if psnr_db >= wanted_db - _TOLERANCE_DB:
                    break
                crf = _next_crf([(crf, psnr_db)], wanted_db)
            else:
                raise PrepareError(
                    f"reaches a PSNR of {psnr_db:.1f} dB, not {wanted_db:.1f}; lower --target_psnr"
                )
        result = Prepared(
            count, os.path.getsize(path), os.path.getsize(partial), psnr_db, min_psnr_db, round(crf, 2)
        )
        os.replace(partial, target)
        return result
    finally:
        partial.unlink(missing_ok=True)


def _find_crf(source: Source, scratch: Path, preset: Preset, wanted_db: float) -> float:
    """The rate factor that gives groups of pictures from all over the source the PSNR wanted."""
    pictures = list(
        chain.from_iterable(map(source.trial_pictures, trial_groups(source.num_frames, preset.gop)))
    )
    references = [to_rgb(picture) for picture in pictures]
    times = list(range(len(pictures))), Fraction(1, 25), Fraction(25)
    crf, trials = _FIRST_CRF, []
    for _ in range(_NUM_TRIALS):
        encode(pictures, scratch, preset, crf, times, _BT601_LIMITED)
        with open_video(str(scratch)) as reader:
            reached_db = psnr([squared_error(one, other) for one, other in zip(references, reader)])
        trials.append((crf, reached_db))
        crf = _next_crf(trials, wanted_db)
        if abs(reached_db - wanted_db) <= _CLOSE_DB:
            break
    return crf


def trial_groups(num_frames: int, gop: int) -> List[range]:
    """Frame numbers of groups of pictures, evenly spread; all of them in a short video."""
    starts = range(0, num_frames, gop)
    count = min(len(starts), max(2, min(12, _NUM_TRIAL_FRAMES // gop)))
    chosen = [starts[place * len(starts) // count] for place in range(count)]
    return [range(start, min(start + gop, num_frames)) for start in chosen]


def _next_crf(trials: Sequence[Tuple[float, float]], wanted_db: float) -> float:
    """By the line through the last two of `trials`, each a rate factor and what it reached in dB."""
    crf, reached_db = trials[-1]
    slope = _DB_PER_CRF
    if len(trials) > 1 and trials[-2][0] != crf:
        slope = (reached_db - trials[-2][1]) / (crf - trials[-2][0])
    slope = min(max(slope, -1.2), -0.3)
    low, high = _CRF_RANGE
    return min(max(crf + (wanted_db - reached_db) / slope, low), high)


def _keeping(source: Source, kept: Dict[int, np.ndarray]) -> Iterator[av.VideoFrame]:
    """The pictures of `source`; those to be compared are put into `kept`, by frame number, in RGB."""
    last = source.num_frames - 1
    chosen = {round(place * last / (_NUM_COMPARED_FRAMES - 1)) for place in range(_NUM_COMPARED_FRAMES)}
    for index, picture in enumerate(source):
        if index in chosen:
            kept[index] = to_rgb(picture)
        yield picture


def _compare(path: Path, num_frames: int, kept: Dict[int, np.ndarray]) -> Tuple[float, float]:
    """PSNR in dB of the frames `kept`, by number, against those read from `path`: together, and of the worst.

    Raises:
        PrepareError: the reader does not count `num_frames`.
    """
    with open_video(str(path)) as reader:
        if reader.num_frames != num_frames:
            raise PrepareError(f"has {num_frames} frames, of which {reader.num_frames} can be read back")
        results = reader.read(list(kept))
    errors = [squared_error(stored, result) for stored, result in zip(kept.values(), results)]
    return psnr(errors), psnr([max(errors)])


def squared_error(one: np.ndarray, other: np.ndarray) -> float:
    """Mean squared difference of two pictures, uint8 [h, w, 3]."""
    return float(np.mean(np.square(one.astype(np.float32) - other)))


def psnr(squared_errors: Sequence[float]) -> float:
    """PSNR in dB of pictures together, from the mean squared error of each; at most 99."""
    mean = sum(squared_errors) / len(squared_errors)
    return _LOSSLESS_DB if mean == 0 else min(_LOSSLESS_DB, 10 * math.log10(255**2 / mean))

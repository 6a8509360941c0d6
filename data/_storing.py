"""A video as its prepared copy stores it: the reader's frames, upright, scaled, in 8 bit 4:2:0.

Pictures go from the decoder to the encoder without a detour through RGB; those that are 8 bit, 4:2:0, upright
and of the size to store are not touched.
"""

from __future__ import annotations

import os
from fractions import Fraction
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import av
import cv2
import numpy as np
from av.video.reformatter import VideoReformatter

from paddlevideo_fast.decode.colour import RgbConverter
from paddlevideo_fast.decode.container import demux, open_container
from paddlevideo_fast.decode.pyav_reader import PyAVReader
from paddlevideo_fast.decode.source import VideoSource
from paddlevideo_fast.errors import PaddleVideoFastError

_LIMITED, _FULL = 1, 2
BT601_LIMITED = {"color_range": _LIMITED, "colorspace": 6}
# from RGB or grey, which are full range, to the same in PyAV's words
_TO_BT601_LIMITED = {"src_color_range": "JPEG", "dst_color_range": "MPEG", "dst_colorspace": "ITU601"}
_COLOUR_TAGS = ("color_range", "colorspace", "color_primaries", "color_trc")
_MIN_SIDE_PX = 16
_ONE_THREAD: Dict[str, Any] = {"threads": 1} if int(av.__version__.split(".")[0]) >= 17 else {}


class PrepareError(PaddleVideoFastError):
    """A video that cannot be prepared, although it may decode."""


class Times(NamedTuple):
    """When frames are shown.

    Attributes:
        timestamps: of each frame, the first is 0.
        unit_sec: of the timestamps.
        rate: frames a second, on average.
    """

    timestamps: Sequence[int]
    unit_sec: Fraction
    rate: Fraction


class Source:
    """A video as it is to be stored. Use it as a context manager.

    Args:
        path: a video file.
        short_side_px: longer short sides are scaled down to it; even.

    Attributes:
        size: width and height to store, in pixels, even.
        num_frames: how many frames the reader counts.
        times: equal distances, but for what rounding to the unit of the file did, are exactly equal.
        colour: tags that say how the stored pictures are to be read.

    Raises:
        VideoDecodeError: it does not decode.
        PrepareError: it is a folder, or its frames are too small.
    """

    def __init__(self, path: str, short_side_px: int) -> None:
        if os.path.isdir(path):
            raise PrepareError("is a folder, not a video; data/pack_frames.py packs folders of frames")
        self._reader = PyAVReader(path)
        self.num_frames = self._reader.num_frames
        self.size = stored_size(self._reader.width, self._reader.height, short_side_px)
        if min(self.size) < _MIN_SIDE_PX:
            raise PrepareError(f"its frames of {self._reader.width}×{self._reader.height} are too small")
        opened = VideoSource(path)
        container, stream = open_container(opened)
        with container:
            self.times = _times(demux(opened, container, stream), stream, self.num_frames)
            codec = stream.codec_context
            form = codec.format
            self._has_own_colours = form is None or not (form.is_rgb or form.name.startswith("gray"))
            tags = {tag: int(getattr(codec, tag)) for tag in _COLOUR_TAGS}
            self.colour = tags if self._has_own_colours else BT601_LIMITED

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._reader.close()

    def __iter__(self) -> Iterator[av.VideoFrame]:
        """All pictures in order, 4:2:0, of `size`.

        Raises:
            VideoDecodeError: one does not decode.
            PrepareError: they do not have one size.
        """
        decoded_size = None
        for frame in self._reader.pictures():
            if decoded_size not in (None, (frame.width, frame.height)):
                raise PrepareError("the frame size changes within the video")
            decoded_size = frame.width, frame.height
            yield self._store(frame)

    def trial_pictures(self, indices: Sequence[int]) -> List[av.VideoFrame]:
        """About what storing the frames `indices` gives, without decoding all that is before them."""
        pictures = []
        for rgb in self._reader.read(indices):
            frame = av.VideoFrame.from_ndarray(
                cv2.resize(rgb, self.size, interpolation=cv2.INTER_AREA), "rgb24"
            )
            picture = _reformat(frame, format="yuv420p", **_TO_BT601_LIMITED)
            pictures.append(_tag(picture, BT601_LIMITED))
        return pictures

    def _store(self, frame: av.VideoFrame) -> av.VideoFrame:
        """Scales and turns a decoded frame; one that needs neither stays what it is."""
        quarter_turns = round(frame.rotation / 90) % 4
        width, height = self.size[::-1] if quarter_turns % 2 else self.size
        kind = "yuvj420p" if frame.format.name.startswith("yuvj") else "yuv420p"
        picture = frame
        if (frame.width, frame.height, frame.format.name) != (width, height, kind):
            options = self._colour_options(kind)
            picture = _reformat(frame, width, height, kind, interpolation="AREA", **options)
        if quarter_turns or frame.interlaced_frame:  # the copy is progressive, as what is encoded
            picture = _turn(picture, quarter_turns)
        return _tag(picture, self.colour)

    def _colour_options(self, kind: str) -> Dict[str, Any]:
        """That matrix and range stay as they are, where 4:2:0 can have them."""
        if not self._has_own_colours:
            return _TO_BT601_LIMITED
        full = kind == "yuvj420p" or self.colour["color_range"] == _FULL
        return dict.fromkeys(("src_color_range", "dst_color_range"), _FULL if full else _LIMITED)


def stored_size(width: int, height: int, short_side_px: int) -> Tuple[int, int]:
    """The even width and height to store a frame with, in pixels; never larger than the frame."""
    scale = min(1.0, short_side_px / min(width, height))
    if scale == 1:
        return width - width % 2, height - height % 2
    return 2 * round(width * scale / 2), 2 * round(height * scale / 2)


def to_rgb(picture: av.VideoFrame) -> np.ndarray:
    """A picture as the reader returns it from a lossless file, uint8 [h, w, 3]."""
    return RgbConverter()(picture)


def _times(packets: Sequence[Any], stream: Any, num_frames: int) -> Times:
    unit_sec, rate = stream.time_base, stream.average_rate or stream.guessed_rate or Fraction(25)
    pts = sorted({packet.pts for packet in packets if packet.pts is not None and not packet.is_discard})
    step = 1 / (rate * unit_sec)
    known = len(pts) == num_frames
    if not known or all(abs(value - pts[0] - place * step) <= 1 for place, value in enumerate(pts)):
        return Times(range(num_frames), 1 / rate, rate)
    return Times([value - pts[0] for value in pts], unit_sec, rate)


def _reformat(frame: av.VideoFrame, *args: Any, **options: Any) -> av.VideoFrame:
    return VideoReformatter().reformat(frame, *args, **options, **_ONE_THREAD)


def _tag(picture: av.VideoFrame, colour: Dict[str, int]) -> av.VideoFrame:
    picture.colorspace, picture.color_range = colour["colorspace"], colour["color_range"]
    return picture


def _turn(picture: av.VideoFrame, quarter_turns: int) -> av.VideoFrame:
    """A 4:2:0 picture of even sides, turned counter-clockwise."""
    width, height = picture.width, picture.height
    luma, *chroma = np.split(picture.to_ndarray().ravel(), [width * height, width * height * 5 // 4])
    planes = [luma.reshape(height, width), *(plane.reshape(height // 2, width // 2) for plane in chroma)]
    turned = [np.rot90(plane, quarter_turns) for plane in planes]
    data = np.concatenate([plane.ravel() for plane in turned]).reshape(-1, turned[0].shape[1])
    return av.VideoFrame.from_ndarray(data, format=picture.format.name)

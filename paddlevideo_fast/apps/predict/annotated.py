"""Videos with text on their frames."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import av
import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from paddlevideo_fast.apps.data.encoding import write_h264
from paddlevideo_fast.decode import VideoReader
from paddlevideo_fast.decode.container import explain
from paddlevideo_fast.decode.packets import Timing
from paddlevideo_fast.decode.reader import TOLERANCE_SEC
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.extensions.report.output import atomic_write

_LINES_A_SIDE = 14  # of text, in the short side of a frame
_LEAST_HEIGHT_PX = 9
_SHADE = 0.35  # what the box leaves of the picture behind the text


class CaptionPainter:
    """Writes one line into the upper left corner, white on a dark box.

    Args:
        font_file: the font.
        width: width of the frames, in pixels.
        height: height of the frames, in pixels.
    """

    def __init__(self, font_file: Path, width: int, height: int) -> None:
        self._font_file = str(font_file)
        self._width = width
        self._text_px = max(_LEAST_HEIGHT_PX, min(width, height) // _LINES_A_SIDE)
        self._text = ""
        self._opacity = np.zeros((0, 0, 1), np.float32)

    def draw(self, frame: np.ndarray, text: str) -> None:
        """Changes a frame, uint8 [H, W, 3], in place. A long text is made smaller, then cut."""
        if text != self._text:
            self._text, self._opacity = text, self._render(text)
        height, width = self._opacity.shape[:2]
        box = frame[:height, :width]
        opacity = self._opacity[: box.shape[0], : box.shape[1]]
        box[:] = _SHADE * box * (1 - opacity) + 255 * opacity

    def _render(self, text: str) -> np.ndarray:
        """The text in a box that is no wider than a frame: float32 [h, w, 1] from 0 to 1."""
        margin = self._text_px // 2
        room = self._width - 2 * margin
        font = ImageFont.truetype(self._font_file, self._text_px)
        if font.getlength(text) > room:
            smaller_px = max(_LEAST_HEIGHT_PX, int(self._text_px * room / font.getlength(text)))
            font = ImageFont.truetype(self._font_file, smaller_px)
        if font.getlength(text) > room:
            length = len(text)
            while length and font.getlength(text[:length] + "…") > room:
                length -= 1
            text = text[:length] + "…"
        ascent, descent = font.getmetrics()
        size = min(self._width, int(font.getlength(text)) + 2 * margin), ascent + descent + margin
        canvas = Image.new("L", size)
        ImageDraw.Draw(canvas).text((margin, margin // 2), text, fill=255, font=font)
        return np.asarray(canvas, np.float32)[..., None] / 255


Progress = Callable[[Iterable[np.ndarray]], Iterable[np.ndarray]]

_LEAST_SHORT_SIDE_PX = 240  # so that text can be read
_X264 = {"crf": "20", "preset": "veryfast", "x264-params": "log-level=-1:cpu-independent=1"}
_DEFAULT_FPS = 25.0
_TICKS_A_SECOND = 90_000


class Caption(NamedTuple):
    """A text that is shown from a moment on."""

    start_sec: float
    text: str


def annotate(
    video: VideoReader,
    captions: Sequence[Caption],
    font_file: Path,
    path: Path,
    progress: Progress = iter,
    draw: Callable[[np.ndarray, int], None] | None = None,
) -> None:
    """Writes an MP4 with text on its frames, without sound, whole or not at all.

    It has all frames at their times, square pixels, and a short side of 240 pixels or more. Frames of which
    nothing says when they are shown, such as images of a folder, get 25 a second.

    Args:
        video: an open reader.
        captions: captions in order, the first from 0 s on.
        font_file: a font that has the characters of the captions.
        path: the file to write.
        progress: wraps the frames, for a progress bar such as `tqdm`.
        draw: called with each picture, uint8 [H, W, 3], to be changed in place, and the number of its frame.

    Raises:
        VideoDecodeError: a frame does not decode.
        PaddleVideoFastError: the file cannot be written.
    """
    width, height = _size(video)
    painter = CaptionPainter(font_file, width, height)
    starts = [caption.start_sec for caption in captions]
    rate = Fraction(video.avg_fps or _DEFAULT_FPS).limit_denominator(1001)
    seconds = video.times_sec() if video.avg_fps else np.arange(video.num_frames) / _DEFAULT_FPS
    ticks = np.round(seconds * _TICKS_A_SECOND).astype(np.int64).tolist()
    times = Timing(ticks, Fraction(1, _TICKS_A_SECOND), rate)

    def pictures() -> Iterator[av.VideoFrame]:
        for number, frame in enumerate(progress(video)):
            picture = _resized(frame, width, height)
            painter.draw(picture, captions[bisect_right(starts, seconds[number] + TOLERANCE_SEC) - 1].text)
            if draw is not None:
                draw(picture, number)
            yield av.VideoFrame.from_ndarray(picture, "rgb24")

    with atomic_write(path) as partial:
        try:
            write_h264(partial, pictures(), rate, _X264, times=times)
        except av.FFmpegError as error:
            cause = f"MP4 of {width}×{height} pixels: {explain(error)}"
            raise PaddleVideoFastError(f"{path}: cannot be written as {cause}") from error


def _size(video: VideoReader) -> tuple[int, int]:
    """Width and height in pixels, even."""
    width, height = video.square_size
    scale = max(_LEAST_SHORT_SIDE_PX / min(width, height), 1.0)
    return 2 * round(width * scale / 2), 2 * round(height * scale / 2)


def _resized(frame: np.ndarray, width: int, height: int) -> np.ndarray:
    """A copy of a frame in another size."""
    if frame.shape[:2] == (height, width):
        return frame.copy()
    method = cv2.INTER_AREA if height < frame.shape[0] else cv2.INTER_LINEAR
    return cv2.resize(frame, (width, height), interpolation=method)

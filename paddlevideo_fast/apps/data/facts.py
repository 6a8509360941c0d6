"""What can be said of a video from its index and a few of its frames: for `paddlevideo-fast data report`."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np

from paddlevideo_fast.apps.data.clips import ReadClip
from paddlevideo_fast.decode import Span, VideoReader
from paddlevideo_fast.jobs.run import spread

NUM_FRAMES = 8  # that are looked at
_SIDE_PX = 64  # they are compared at this size
_BLACK = 24.0  # mean of the grey levels, from 0 to 255
_FLAT = 8.0  # their standard deviation
_SAME = 0.5  # mean difference of the grey levels of two frames
_SHEET_PX = 96


class Facts(NamedTuple):
    """What was found of a video, or of a span of it. All values are JSON values.

    Attributes:
        num_bytes: size of the file; 0 for a folder of frames.
        num_frames: of the video or the span.
        fps: frames a second, by their times; 0 where nothing says.
        width, height: of a frame as it is shown, in pixels.
        codec: FFmpeg's name of the compression; "" where there is none.
        keyframe_gap: frames from one keyframe to the next, on average; 0 where the reader does not say.
        num_decoded: frames that are decoded to read `NUM_FRAMES` of them from all over it; 0 as before.
        black: share of the frames looked at that are black.
        still: share of neighbouring frames looked at that are equal.
        sheet: these frames side by side, a JPEG in base64; "" where it was not asked for.
        cause: why the video cannot be read; "": it can, and else the other values are 0.
        state: size and time of the file, in ns; what is known is of no use where it has changed.
    """

    num_bytes: int = 0
    num_frames: int = 0
    fps: float = 0.0
    width: int = 0
    height: int = 0
    codec: str = ""
    keyframe_gap: float = 0.0
    num_decoded: int = 0
    black: float = 0.0
    still: float = 0.0
    sheet: str = ""
    cause: str = ""
    state: Sequence[int] = ()

    @property
    def length_sec(self) -> float:
        """Length in seconds; 0 where nothing says."""
        return self.num_frames / self.fps if self.fps else 0.0


@dataclass(frozen=True)
class Video(ReadClip[Facts]):
    """A video of a list to look at.

    Args:
        span: the part of it that the list means; None: all.
        with_sheet: also make a sheet of its frames.
    """

    outcome = Facts

    span: Span | None = None
    with_sheet: bool = False

    def read(self, reader: VideoReader, state: list[int]) -> Facts:
        facts = _facts_of(reader if self.span is None else reader.part(self.span), self.with_sheet)
        num_bytes = state[0] if self.num_frames is None and state else 0
        return facts._replace(num_bytes=num_bytes, state=state)


def _facts_of(video: VideoReader, with_sheet: bool) -> Facts:
    indices = spread(range(video.num_frames), NUM_FRAMES)
    clip = video.read(indices)
    small = [cv2.resize(frame, (_SIDE_PX, _SIDE_PX), interpolation=cv2.INTER_AREA) for frame in clip]
    grey = np.stack([cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in small]).astype(np.float32)
    is_black = (grey.mean(axis=(1, 2)) <= _BLACK) & (grey.std(axis=(1, 2)) <= _FLAT)
    is_still = np.abs(np.diff(grey, axis=0)).mean(axis=(1, 2)) <= _SAME
    width, height = video.square_size
    return Facts(
        num_frames=video.num_frames,
        fps=round(video.num_frames / video.end_sec(), 4) if video.avg_fps else 0.0,
        width=width,
        height=height,
        codec=video.codec,
        keyframe_gap=round(video.keyframe_gap, 2),
        num_decoded=video.num_decoded(indices),
        black=float(is_black.mean()),
        still=float(is_still.mean()) if len(indices) > 1 else 0.0,
        sheet=_sheet(clip, width / height) if with_sheet else "",
    )


def _sheet(clip: np.ndarray, aspect: float) -> str:
    width = max(1, round(_SHEET_PX * aspect))
    frames = [cv2.resize(frame, (width, _SHEET_PX), interpolation=cv2.INTER_AREA) for frame in clip[1::2]]
    sheet = np.concatenate(frames or [clip[0]], axis=1)[..., ::-1]
    _, data = cv2.imencode(".jpg", np.ascontiguousarray(sheet), [cv2.IMWRITE_JPEG_QUALITY, 80])
    return base64.b64encode(data.tobytes()).decode("ascii")

"""Which frames of a video make the clip.

All indices count from 0, for videos and frame folders alike.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np

from paddlevideo_fast.config.types import MAX_SIZE, NumFrames, Range, Size
from paddlevideo_fast.errors import LoaderError
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.log import get_logger, warn_once
from paddlevideo_fast.registry import SAMPLERS

_DENSE_WINDOW = 64
_DENSE_CLIPS = 10

AboveZero = Annotated[float, Range(1e-3)]
ViewPosition = Literal["left", "middle", "ends"]


class FrameSampler(Protocol):
    """Chooses the frames of a clip.

    Attributes:
        num_frames: frames of a clip.
        num_clips: clips that `sample` returns, one after the other.
    """

    num_frames: int
    num_clips: int

    def sample(
        self, num_frames: int, avg_fps: float, request: ClipRequest, rng: np.random.Generator
    ) -> np.ndarray:
        """Frame indices of `num_clips` clips.

        Args:
            num_frames: length of the video, at least 1.
            avg_fps: frames a second of the video; 0 if unknown.
            request: `num_frames` and `sampling_rate` replace the sampler's own if they are set; `view` of
                `num_views` chooses the part of the video where nothing is drawn at random.
            rng: the only source of randomness.

        Returns:
            int64 [num_clips * frames of a clip], each in [0, num_frames).
        """


def view_share(request: ClipRequest, position: ViewPosition) -> float:
    """Where a view begins, as a share of the frames at which it may begin.

    V = 4     0         ¼         ½         ¾         1
    left      0         1         2         3              v / V
    middle         0         1         2         3         (v + ½) / V
    ends      0           1            2            3      v / (V - 1), and ½ for a single view
    """
    view, num_views = request.view, request.num_views
    if position == "ends" and num_views > 1:
        return view / (num_views - 1)
    return (view + 0.5 * (position != "left")) / num_views


@SAMPLERS.register()
@dataclass(eq=False)
class Sampler:
    """Frames by segments, as PaddleVideo's Sampler takes them.

    The video is cut into `num_seg` equal parts; with 4 of them, 2 frames each, and 25 frames:

        frame     0     6     12    18    24
        segment   |--0--|--1--|--2--|--3--|
        training    xx    xx  xx       xx     a random start in each
        valid       xx    xx    xx    xx      the middle of each

    In valid mode, views start at different places of each segment: by default one view in the middle, two at
    a quarter and at three quarters.

    A video shorter than the frames that it should give goes on at its start, or shows its first frame alone,
    as in PaddleVideo. With `by_ratio`, frames rise and spread over the whole of any video:

        8 segments      5 frames             12 frames
        by_ratio        0 0 1 2 2 3 4 4      0 2 3 5 6 8 9 11
        select_left     0 0 0 0 0 0 0 0      0 2 3 5 6 8 9 11
        neither         0 1 2 3 4 0 1 2      0 1 2 3 4 5 6 7

    Args:
        num_seg: segments.
        seg_len: consecutive frames from a segment.
        frame_interval: if set, the frames of a segment lie this far apart, and a segment may run over the
            next one; a clip that runs over the end goes on at the start of the video.
        valid_mode: fixed positions in place of random ones.
        select_left: the variant TSM trains with: one frame a segment, positions spread over the whole length.
        dense_sample: one window of 64 frames, `num_seg` frames equally far apart; valid mode: ten such
            windows.
        linspace_sample: `num_seg` frames from the first to the last, equally far apart.
        by_ratio: segments are equal parts that need not be whole frames, and in a short video the frames of
            a segment or window move closer together; false: as PaddleVideo.
        view_position: where view v of V starts in a segment: "left" at the share v / V, "middle" at
            (v + ½) / V, "ends" at v / (V - 1).

    Of `frame_interval`, `linspace_sample`, `select_left` and `dense_sample` the first that is set counts.

    Attributes:
        num_frames: frames of a clip.
        num_clips: clips that `sample` returns one after the other.
        test_mode: a request's view says which frames.

    Reference: TSN, arXiv:1608.00859, section 3.1 (segments); TSM, arXiv:1811.08383, section 5.1 (dense).
    """

    ignored_arguments: ClassVar[dict[str, str]] = {"use_pil": "frames are arrays here"}

    num_seg: NumFrames
    seg_len: NumFrames
    frame_interval: Size | None = None
    valid_mode: bool = False
    select_left: bool = False
    dense_sample: bool = False
    linspace_sample: bool = False
    by_ratio: bool = False
    view_position: ViewPosition = "middle"

    def __post_init__(self) -> None:
        num_seg, seg_len = self.num_seg, self.seg_len
        if num_seg * seg_len > MAX_SIZE:
            text = f"Sampler: num_seg {num_seg} times seg_len {seg_len} are more than {MAX_SIZE} frames"
            raise LoaderError(text)
        ways = ("frame_interval", "linspace_sample", "select_left", "dense_sample")
        chosen, *others = [way for way in ways if getattr(self, way)] or [""]
        if others:
            warn_once(get_logger(), f"Sampler: {' and '.join(others)} without effect: {chosen} comes first")
        self._dense = chosen == "dense_sample"
        self.num_frames = num_seg * seg_len if chosen in ("", "frame_interval") else num_seg
        self.num_clips = _DENSE_CLIPS if self._dense and self.valid_mode else 1
        self.test_mode = self.valid_mode and not (self._dense or self.linspace_sample)

    def sample(
        self, num_frames: int, avg_fps: float, request: ClipRequest, rng: np.random.Generator
    ) -> np.ndarray:
        """See `FrameSampler`."""
        num_seg, seg_len = self.num_seg, self.seg_len
        share = view_share(request, self.view_position)
        if self.frame_interval is not None:
            if request.num_frames:
                seg_len = max(1, request.num_frames // num_seg)
            interval = max(1, round(request.sampling_rate or self.frame_interval))
            if self.by_ratio:
                return self._spread(num_frames, num_seg, seg_len, interval, share, rng)
            starts = self._interval_starts(num_frames, num_seg, seg_len * interval, share, rng)
            indices = starts[:, None] + np.arange(seg_len) * interval
            return indices.reshape(-1) % num_frames
        if request.num_frames:
            num_seg = max(1, request.num_frames // seg_len)
        if self.linspace_sample:
            return np.linspace(0, num_frames - 1, num_seg).astype(np.int64)
        if self.by_ratio and self._dense:
            windows = (np.arange(_DENSE_CLIPS)[:, None] + 0.5) / _DENSE_CLIPS
            return self._spread(num_frames, 1, num_seg, _DENSE_WINDOW / num_seg, windows, rng)
        if self.by_ratio:
            return self._spread(num_frames, num_seg, 1 if self.select_left else seg_len, 1, share, rng)
        if self.select_left:
            return self._one_a_segment(num_frames, num_seg, share, rng)
        if self._dense:
            return self._windows(num_frames, num_seg, rng)
        starts = self._segment_starts(num_frames, num_seg, seg_len, share, rng)
        return (starts[:, None] + np.arange(seg_len)).reshape(-1) % num_frames

    def _spread(
        self, num_frames: int, num_seg: int, seg_len: int, step: float, share: Any, rng: np.random.Generator
    ) -> np.ndarray:
        """Frames by ratio: `seg_len` of each segment, at most `step` apart."""
        part = num_frames / num_seg
        step = min(step, part / seg_len)
        room = part - (seg_len - 1) * step  # where a segment's frames may begin
        shares = share if self.valid_mode else rng.uniform(0.0, 1.0, num_seg)
        starts = (part * np.arange(num_seg) + room * shares)[..., None]
        frames = (starts + np.arange(seg_len) * step).astype(np.int64)
        return np.minimum(frames, num_frames - 1).reshape(-1)

    def _interval_starts(
        self, num_frames: int, num_seg: int, span: int, share: float, rng: np.random.Generator
    ) -> np.ndarray:
        room = num_frames - span + 1  # starts from which a segment fits
        segments = np.arange(num_seg)
        if self.valid_mode:
            step = max(room, 0) / num_seg
            return (segments * step + step * share).astype(np.int64)
        if room >= num_seg:
            step = room // num_seg
            return segments * step + rng.integers(step, size=num_seg)
        if num_frames > max(num_seg, span):
            return np.sort(rng.integers(room, size=num_seg))
        return np.around(segments * (max(room, 0) / num_seg)).astype(np.int64)

    def _one_a_segment(
        self, num_frames: int, num_seg: int, share: float, rng: np.random.Generator
    ) -> np.ndarray:
        step, segments = num_frames // num_seg, np.arange(num_seg)
        if step == 0 or (self.valid_mode and num_frames == num_seg):
            return np.zeros(num_seg, np.int64)
        if self.valid_mode:
            length = num_frames / num_seg
            return (length * share + length * segments).astype(np.int64)
        return segments * step + rng.integers(step, size=num_seg)

    def _windows(self, num_frames: int, num_seg: int, rng: np.random.Generator) -> np.ndarray:
        last = max(0, num_frames - _DENSE_WINDOW)
        starts = np.linspace(0, last, _DENSE_CLIPS).astype(np.int64)
        if not self.valid_mode:
            starts = np.array([rng.integers(last) if last else 0])
        stride = _DENSE_WINDOW // num_seg
        return (starts[:, None] + np.arange(num_seg) * stride).reshape(-1) % num_frames

    def _segment_starts(
        self, num_frames: int, num_seg: int, seg_len: int, share: float, rng: np.random.Generator
    ) -> np.ndarray:
        step = num_frames // num_seg
        segments = np.arange(num_seg)
        if step == 0:
            return segments
        if step < seg_len:
            return segments * step
        if self.valid_mode:
            return segments * step + int((step - 1) * share)
        return segments * step + rng.integers(step - seg_len + 1, size=num_seg)


@SAMPLERS.register()
@dataclass(eq=False)
class UniformSampler:
    """One frame of each of `num_frames` equal parts of the whole video.

    The parts need not be whole frames, so nothing of the video is left out, and a short one repeats frames.
    3D networks read Something-Something in this way. 4 frames of a video of 10:

        frame     0 1 2 3 4 5 6 7 8 9
        part      |-0--|-1--|-2--|-3--|
        training  x       x x        x    a random place in each
        valid       x   x     x   x       the middle of each

    Args:
        num_frames: frames of the clip.
    """

    num_clips = 1

    num_frames: NumFrames

    def sample(
        self, num_frames: int, avg_fps: float, request: ClipRequest, rng: np.random.Generator
    ) -> np.ndarray:
        """See `FrameSampler`."""
        count = request.num_frames or self.num_frames
        positions = np.arange(count) + rng.uniform(0.0, 1.0, count)
        return np.minimum((positions * num_frames / count).astype(np.int64), num_frames - 1)


@SAMPLERS.register()
@dataclass(eq=False)
class DecodeSampler:
    """Frames of one span of time, as PaddleVideo's and PySlowFast's SlowFast take them.

    A clip lasts `num_frames * sampling_rate / target_fps` seconds, whatever the video's frame rate is, and
    its frames lie equally far apart in it. 4 frames, rate 2 and 30 frames a second, in a video of 15:

        frame     0   1   2   3   4   5   6   7
        training              x   x   x   x       a random start
        valid             x   x   x   x           the middle
        test      x   x   x   x                   view 0 of 2
        test              x   x   x   x           view 1 of 2

    A video shorter than the span repeats its last frame.

    A request for fewer frames may allow a higher rate, at which they last as long. Its clips draw a rate
    between the sampler's and that one, so that they see motion at all speeds in between.

    Args:
        num_frames: frames of the clip.
        sampling_rate: frames from one to the next, in a video of `target_fps`.
        target_fps: frames a second that `sampling_rate` is meant for; videos that do not know their frame
            rate (folders of images) are taken to have this one.
        test_mode: one of the request's equally spaced views, not a random start.
        view_position: where view v of V starts, as a share of the room that the span leaves: "left" at v / V,
            as in the reference; "middle" at (v + ½) / V; "ends" at v / (V - 1), so that the first view begins
            with the video and the last one ends with it.

    Reference: SlowFast, arXiv:1812.03982, section 4 (training and inference).
    """

    ignored_arguments: ClassVar[dict[str, str]] = {
        "default_sampling_rate": "the rate of a phase is part of each request"
    }
    num_clips = 1

    num_frames: NumFrames
    sampling_rate: AboveZero
    target_fps: AboveZero = 30.0
    test_mode: bool = False
    view_position: ViewPosition = "left"

    def sample(
        self, num_frames: int, avg_fps: float, request: ClipRequest, rng: np.random.Generator
    ) -> np.ndarray:
        """See `FrameSampler`."""
        count = request.num_frames or self.num_frames
        rate = self.sampling_rate
        if request.sampling_rate not in (None, rate):
            rate = rng.uniform(rate, request.sampling_rate)
        span = max(1.0, count * rate * (avg_fps or self.target_fps) / self.target_fps)
        room = max(0.0, num_frames - span)
        if self.test_mode:
            start = room * view_share(request, self.view_position)
        else:
            start = rng.uniform(0, room)
        indices = np.linspace(start, start + span - 1, count).astype(np.int64)
        return np.minimum(indices, num_frames - 1)

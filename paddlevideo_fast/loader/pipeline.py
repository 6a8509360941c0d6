"""From an open video to a uint8 clip."""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from paddlevideo_fast.config.sections import Arguments
from paddlevideo_fast.config.types import Role
from paddlevideo_fast.decode import VideoReader
from paddlevideo_fast.errors import TransformError
from paddlevideo_fast.loader.annotations import VideoRecord
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.loader.sampling import FrameSampler
from paddlevideo_fast.loader.transforms.color import Normalization
from paddlevideo_fast.loader.transforms.geometry import (
    IMAGENET,
    ClipGeometry,
    Descriptive,
    Geometric,
    Pixelwise,
)
from paddlevideo_fast.loader.transforms.resample import Resample, ResampleMode

Transform = Geometric | Pixelwise | Descriptive
_MAX_CLIP_BYTES = 2**32


class Clip(NamedTuple):
    """What a pipeline makes for a request.

    Attributes:
        pixels: uint8 [V * T, H, W, 3], RGB; for each crop the sampler's clips one after the other.
        num_replaced: frames of the clip that did not decode and had another in their place.
        labels: classes of the clip; mirroring may change them.
    """

    pixels: np.ndarray
    num_replaced: int
    labels: tuple[int, ...]


class VideoFacts(NamedTuple):
    """What has to be known of a video before it is decoded; an open reader knows it, too.

    Attributes:
        num_frames: its number of frames.
        avg_fps: frames a second.
        width: of a frame as it is read, in pixels.
        height: likewise.
        square_size: width and height of a frame as it is shown, in square pixels.
        first: number in the file of the first frame, where a part of the file is meant.
    """

    num_frames: int
    avg_fps: float
    width: int
    height: int
    square_size: tuple[int, int]
    first: int = 0


class Decoder(Protocol):
    """What `decode` in a pipeline's section becomes: it says how the files of a data set are opened."""

    def open(self, record: VideoRecord) -> VideoReader:
        """A reader of the record's frames; raises VideoDecodeError."""


class ClipPlan(NamedTuple):
    """Which frames to read and how to crop and resize them, chosen before anything is decoded.

    Attributes:
        frames: int64 [T], the frames that are read.
        geometry: the region to show, and its output size.
    """

    frames: np.ndarray
    geometry: ClipGeometry


class Pipeline:
    """Reads the frames that the sampler wants and renders them once.

    Args:
        sample: says which frames.
        transforms: in the order of the config. Changes of pixels come after all geometry, on the small clip.
        resample: how frames are resized; see `Resample`.
        decoder: opens the files; None: as those of the data set usually are.

    Attributes:
        normalization: (mean, std) of the channels for pixel values in 0 to 1; ImageNet's where no transform
            says.
        is_normalized: whether a transform says.
        num_views: clips that one request makes: clips of the sampler times crops of the transforms.
    """

    def __init__(
        self,
        sample: FrameSampler,
        transforms: Sequence[Transform],
        resample: ResampleMode = "antialias",
        decoder: Decoder | None = None,
    ) -> None:
        self.sample = sample
        self.resample = resample
        self.decoder = decoder
        self.geometric = [step for step in transforms if isinstance(step, Geometric)]
        self.pixelwise = [step for step in transforms if isinstance(step, Pixelwise)]
        self.is_normalized = False
        self.normalization = IMAGENET
        for step in transforms:
            if isinstance(step, Normalization):
                self.is_normalized, self.normalization = True, (step.mean, step.std)
        for step in self.pixelwise:
            step.normalization = self.normalization
        self.num_views = sample.num_clips * int(np.prod([step.num_views for step in self.geometric]))

    def __call__(
        self,
        reader: VideoReader,
        record: VideoRecord,
        requests: Sequence[ClipRequest],
        rngs: Sequence[np.random.Generator],
        outs: Sequence[np.ndarray | None] | None = None,
    ) -> list[Clip]:
        """Makes clips of one video in one pass over its frames.

        Each frame is decoded once and resampled into the clips that show it before the next one is decoded,
        so the memory that this takes does not grow with the number of clips.

        Args:
            reader: the record's video.
            record: says its labels.
            requests: which clips of the video, and their shapes.
            rngs: for each request the only source of randomness.
            outs: for each request a contiguous uint8 array to write the clip into; one of another shape is
                left alone.

        Raises:
            VideoDecodeError: a frame does not decode.
            TransformError: a transform does not fit the frames, or a clip is too large.
        """
        plans = [self.plan(reader, record, request, rng) for request, rng in zip(requests, rngs)]
        resamples = [plan.geometry.plan() for plan in plans]
        clips: list[np.ndarray] = []
        slots_by_frame: dict[int, dict[int, list[int]]] = {}  # frame → clip → slots in the clip
        for number, (plan, resample) in enumerate(zip(plans, resamples)):
            clips.append(_slot_for(len(plan.frames), resample, outs[number] if outs else None, record.path))
            for slot, frame in enumerate(plan.frames.tolist()):
                slots_by_frame.setdefault(frame, {}).setdefault(number, []).append(slot)
        num_replaced, before = [0] * len(clips), reader.num_replaced
        for frame, picture in reader.frames(slots_by_frame, (reader.width, reader.height), whole=False):
            for number, slots in slots_by_frame[frame].items():
                resamples[number].draw(picture, clips[number], slots)
                num_replaced[number] += reader.num_replaced > before
            before = reader.num_replaced
        for step in self.pixelwise:
            for pixels, rng in zip(clips, rngs):
                step.apply(pixels, rng)
        return [
            Clip(pixels, number, plan.geometry.labels)
            for pixels, number, plan in zip(clips, num_replaced, plans)
        ]

    def plan(
        self,
        video: VideoReader | VideoFacts,
        record: VideoRecord,
        request: ClipRequest,
        rng: np.random.Generator,
    ) -> ClipPlan:
        """Chooses frames and regions without reading them, for loaders that decode by other means (DALI).

        Args:
            video: size and length of the record's video.
            record: says its labels.
            request: which clip of the video, and its shape.
            rng: the only source of randomness; the pixelwise transforms draw from it afterwards.

        Raises:
            TransformError: a transform does not fit the frames.
            VideoDecodeError: as of `VideoReader.crops`.
        """
        frames = self.sample.sample(video.num_frames, video.avg_fps, request, rng)
        if request.crop_size and not self.crop_size:
            raise TransformError("a request with a crop size needs a transform with a target_size")
        factor = request.crop_size / self.crop_size if request.crop_size else 1.0
        crops = video.crops(frames) if isinstance(video, VideoReader) else None
        source = crops or video
        look = (factor, record.labels, self.resample, source.square_size[0], crops)
        geometry = ClipGeometry(source.width, source.height, *look)
        for step in self.geometric:
            try:
                step.apply(geometry, rng)
            except TransformError as error:
                raise TransformError(f"{record.path}: {type(step).__name__}: {error}") from None
        return ClipPlan(frames, geometry)

    @functools.cached_property
    def crop_size(self) -> int:
        """Side, or width, in pixels of the clips that the transforms make by themselves; 0: none says."""
        for step in reversed(self.geometric):
            for size in Arguments((), type(step), vars(step)).with_role(Role.CROP_SIZE).values():
                return size if isinstance(size, int) else size[0]
        return 0


def _slot_for(num_frames: int, resample: Resample, out: np.ndarray | None, path: str) -> np.ndarray:
    """The array for a clip: `out` where it fits."""
    shape = resample.shape(num_frames)
    if out is not None and out.shape == shape:
        return out
    if math.prod(shape) > _MAX_CLIP_BYTES:
        raise TransformError(
            f"{path}: a clip of {num_frames} frames, resized to {resample.width}×{resample.height}, takes "
            f"{math.prod(shape) / 2**30:.0f} GiB; at most {_MAX_CLIP_BYTES >> 30} are allowed: let the "
            "sampler take fewer frames, or the transforms make smaller ones"
        )
    return np.empty(shape, np.uint8)

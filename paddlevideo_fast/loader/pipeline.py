"""From an open video to a uint8 clip."""

from __future__ import annotations

import math
from typing import NamedTuple, Optional, Protocol, Sequence, Tuple, Union

import numpy as np

from paddlevideo_fast.decode import VideoReader
from paddlevideo_fast.errors import TransformError
from paddlevideo_fast.loader.annotations import VideoRecord
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.loader.sampling import FrameSampler
from paddlevideo_fast.loader.transforms import ClipGeometry, Descriptive, Geometric, Normalization, Pixelwise
from paddlevideo_fast.loader.transforms.resample import Resample, ResampleMode

Transform = Union[Geometric, Pixelwise, Descriptive]
_MAX_CLIP_BYTES = 2**32
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and std of its channels


class Clip(NamedTuple):
    """What a pipeline makes.

    Attributes:
        pixels: uint8 [V * T, H, W, 3], RGB; for each crop the sampler's clips one after the other.
        num_replaced: frames that did not decode and had another in their place.
        labels: classes of the clip; mirroring may change them.
    """

    pixels: np.ndarray
    num_replaced: int
    labels: Tuple[int, ...]


class VideoSize(Protocol):
    """What has to be known of a video before it is decoded; an open reader knows it."""

    @property
    def num_frames(self) -> int:
        """Number of frames."""

    @property
    def avg_fps(self) -> float:
        """Frames a second."""

    @property
    def width(self) -> int:
        """Of a frame as it is shown, in pixels."""

    @property
    def height(self) -> int:
        """Of a frame as it is shown, in pixels."""


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
        transforms: in the order of the config. Colour changes come after all geometry, on the small clip.
        resample: how frames are resized; see `Resample`.

    Attributes:
        normalization: (mean, std) of the channels for pixel values in 0 to 1; ImageNet's where no transform
            says.
        is_normalized: whether a transform says.
        num_views: clips that one call makes: clips of the sampler times crops of the transforms.
    """

    def __init__(
        self, sample: FrameSampler, transforms: Sequence[Transform], resample: ResampleMode = "antialias"
    ) -> None:
        self.sample = sample
        self.resample = resample
        self.geometric = [step for step in transforms if isinstance(step, Geometric)]
        self.pixelwise = [step for step in transforms if isinstance(step, Pixelwise)]
        self.is_normalized = False
        self.normalization: Tuple[Tuple[float, ...], Tuple[float, ...]] = IMAGENET
        for step in transforms:
            if isinstance(step, Normalization):
                self.is_normalized, self.normalization = True, (step.mean, step.std)
        self.num_views = sample.num_clips * int(np.prod([step.num_views for step in self.geometric]))

    def __call__(
        self,
        reader: VideoReader,
        record: VideoRecord,
        request: ClipRequest,
        rng: np.random.Generator,
        out: Optional[np.ndarray] = None,
    ) -> Clip:
        """Makes the clip. Only that part of the frames is read which it shows.

        Args:
            reader: the record's video.
            record: says its labels.
            request: which clip of the video, and its shape.
            rng: the only source of randomness.
            out: contiguous uint8 array to write the clip into; one of another shape is left alone.

        Raises:
            VideoDecodeError: a frame does not decode.
            TransformError: a transform does not fit the frames, or the clip is too large.
        """
        plan = self.plan(reader, record, request, rng)
        resample = plan.geometry.plan()
        _require_room(len(plan.frames), resample, record.path)
        frames = reader.read(plan.frames.tolist(), resample.box)
        if out is not None and out.shape != resample.shape(len(frames)):
            out = None
        pixels = resample.render(frames, out)
        for step in self.pixelwise:
            step.apply(pixels, rng)
        return Clip(pixels, reader.num_replaced, plan.geometry.labels)

    def plan(
        self, video: VideoSize, record: VideoRecord, request: ClipRequest, rng: np.random.Generator
    ) -> ClipPlan:
        """Chooses frames and regions without reading them, for loaders that decode by other means (DALI).

        Args:
            video: size and length of the record's video.
            record: says its labels.
            request: which clip of the video, and its shape.
            rng: the only source of randomness; the pixelwise transforms draw from it afterwards.

        Raises:
            TransformError: a transform does not fit the frames.
        """
        frames = self.sample.sample(video.num_frames, video.avg_fps, request, rng)
        return ClipPlan(frames, self._geometry(video, record, request, rng))

    def _geometry(
        self, video: VideoSize, record: VideoRecord, request: ClipRequest, rng: np.random.Generator
    ) -> ClipGeometry:
        factor = request.crop_size / self.crop_size if request.crop_size else 1.0
        geometry = ClipGeometry(video.width, video.height, factor, record.labels, self.resample)
        for step in self.geometric:
            try:
                step.apply(geometry, rng)
            except TransformError as error:
                raise TransformError(f"{record.path}: {type(step).__name__}: {error}") from None
        return geometry

    @property
    def crop_size(self) -> int:
        """Side, or width, in pixels of the clips that the transforms make by themselves.

        Raises:
            TransformError: no transform says.
        """
        for step in reversed(self.geometric):
            size = getattr(step, "target_size", getattr(step, "crop_size", None))
            if size is not None:
                return size if isinstance(size, int) else size[0]
        raise TransformError("a request with a crop size needs a transform with a target_size")


def _require_room(num_frames: int, resample: Resample, path: str) -> None:
    box = resample.box
    num_bytes = max(num_frames * box.width * box.height * 3, math.prod(resample.shape(num_frames)))
    if num_bytes > _MAX_CLIP_BYTES:
        raise TransformError(
            f"{path}: a clip of {num_frames} frames, cut from {box.width}×{box.height} pixels and resized to "
            f"{resample.width}×{resample.height}, takes {num_bytes / 2**30:.0f} GiB; at most "
            f"{_MAX_CLIP_BYTES >> 30} are allowed: let the sampler take fewer frames, or the transforms make "
            "smaller ones"
        )

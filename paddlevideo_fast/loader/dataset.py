"""Annotation lists whose items are clips."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, ClassVar, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from paddlevideo_fast.config.types import PositiveInt
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.loader.annotations import VideoRecord, read_frame_list, read_video_list
from paddlevideo_fast.loader.errors import LoaderError
from paddlevideo_fast.loader.pipeline import Pipeline
from paddlevideo_fast.loader.randomness import CLIP, SUBSTITUTE, Middle, generator
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.registry import DATASETS

Failure = Tuple[str, str]


@dataclass(frozen=True)
class Sample:
    """What a dataset returns for a request.

    Attributes:
        clip: uint8 [V * T, H, W, 3]; None where nothing decoded.
        label: the class of what was delivered: the record's, or that of its mirror image.
        index: its number; in training it differs from the request's where that did not decode.
        view: the request's.
        failures: (path, cause) of each record that did not decode.
        num_crops: how many clips of the batch `clip` makes, one after the other; each is a view of its own.
        num_replaced: frames of the record that do not decode and were replaced by others of it.
    """

    clip: Optional[np.ndarray]
    label: int
    index: int
    view: int
    failures: Tuple[Failure, ...] = ()
    num_crops: int = 1
    num_replaced: int = 0


class Attempt(NamedTuple):
    """A record that is tried for a request.

    Attributes:
        record: what is opened.
        request: the request, with the number of this record.
        rng: the only source of randomness for its clip.
    """

    record: VideoRecord
    request: ClipRequest
    rng: np.random.Generator


class ClipDataset:
    """Records, and a pipeline that makes clips of them.

    Training draws at random. Evaluation draws the middle wherever a sampler or a transform draws (`Middle`).

    A file that does not decode raises nothing. In training another record takes its place, drawn from the
    same key as the sample's randomness; in evaluation the sample has no clip. Both report the file.

    Args:
        records: what there is.
        file_path: the list they are from, for messages.
        pipeline: makes the clips.
        seed: of all randomness.
        training: whether a substitute is drawn.
        num_retries: records that are tried in training before a sample is given up.
        num_ensemble_views: clips of a video that an evaluation sees; more than one needs a DecodeSampler with
            `test_mode`, or a Sampler in `valid_mode` that takes segments.
        num_spatial_crops: crops of a span, each a view of its own; None: those that the transforms make.
            Where both are None, all clips of a video are one view.

    Raises:
        LoaderError: the sampler or the transforms make other views.

    Attributes:
        num_views: requests that one record is evaluated with.
        num_crops: clips that one request makes, each a view of its own.
        on_record: called with the number of each record before it is opened; a worker tells so where it is.
        groups: for each record, the number of the group that one rank reads; None: any rank reads any record.
    """

    num_views = 1
    num_crops = 1
    groups: Optional[List[int]] = None
    injected: ClassVar[Tuple[str, ...]] = ("pipeline", "seed", "training")
    ignored_arguments: ClassVar[Dict[str, str]] = {
        "test_mode": "the section (train, valid, test) says it",
        "num_samples_precise_bn": "the population statistics have a section of their own",
    }

    def __init__(
        self,
        records: List[VideoRecord],
        file_path: str,
        pipeline: Pipeline,
        seed: int,
        training: bool,
        num_retries: int = 5,
        num_ensemble_views: Optional[int] = None,
        num_spatial_crops: Optional[int] = None,
    ) -> None:
        if num_retries < 1:
            raise LoaderError(f"num_retries is {num_retries}, expected 1 or more")
        self.records = records
        self.file_path = file_path
        self.pipeline = pipeline
        self.seed = seed
        self.training = training
        self.num_attempts = num_retries if training else 1
        self.on_record: Optional[Callable[[int], None]] = None
        if num_ensemble_views or num_spatial_crops:
            self._set_views(num_ensemble_views or 1, num_spatial_crops)

    def _set_views(self, num_ensemble_views: int, num_spatial_crops: Optional[int]) -> None:
        self.num_views = num_ensemble_views
        self.num_crops = self.pipeline.num_views
        if num_spatial_crops not in (None, self.num_crops):
            raise LoaderError(
                f"{type(self).__name__}: num_spatial_crops is {num_spatial_crops}, but the pipeline makes "
                f"{self.num_crops} crops; MultiCrop with test_mode: True makes 3, without it 1"
            )
        if num_ensemble_views > 1 and not getattr(self.pipeline.sample, "test_mode", False):
            raise LoaderError(
                f"{type(self).__name__}: num_ensemble_views is {num_ensemble_views}, but the sampler takes "
                "the same frames for each; use a DecodeSampler with test_mode: true, or a Sampler with "
                "valid_mode: true that takes segments"
            )

    def __len__(self) -> int:
        return len(self.records)

    @property
    def num_classes_seen(self) -> int:
        """One more than the largest label."""
        return 1 + max(record.label for record in self.records)

    def __getitem__(self, request: ClipRequest) -> Sample:
        return self.load(request)

    def load(self, request: ClipRequest, out: Optional[np.ndarray] = None) -> Sample:
        """The sample of a request.

        Args:
            request: which clip of which record.
            out: contiguous uint8 [V * T, H, W, 3], such as a place in a batch. The clip is written into it,
                and is this very array, unless it has another shape.
        """
        failures: List[Failure] = []
        for attempt in self.attempts(request):
            if self.on_record is not None:
                self.on_record(attempt.request.index)
            try:
                clip = self.pipeline(*attempt, out)
            except VideoDecodeError as error:
                failures.append(failure_of(attempt.record, error))
                continue
            return Sample(
                clip.pixels,
                clip.label,
                attempt.request.index,
                request.view,
                tuple(failures),
                self.num_crops,
                clip.num_replaced,
            )
        label = self.records[request.index].label
        return Sample(None, label, request.index, request.view, tuple(failures), self.num_crops)

    def attempts(self, request: ClipRequest) -> Iterator[Attempt]:
        """The record of a request, and in training the substitutes drawn for it should it not decode."""
        key = (self.seed, request.epoch, request.index, request.view)
        index = request.index
        for attempt in range(self.num_attempts):
            if attempt:
                index = int(generator(SUBSTITUTE, *key, attempt).integers(len(self.records)))
            rng = generator(CLIP, *key, attempt) if self.training else Middle()
            yield Attempt(self.records[index], replace(request, index=index), rng)


def failure_of(record: VideoRecord, error: VideoDecodeError) -> Failure:
    """A record that did not decode: a folder of frames is one, whichever of its images is damaged."""
    inside = "" if error.path == record.path else f"{error.path}: "
    return record.path, inside + error.cause


@DATASETS.register()
class VideoDataset(ClipDataset):
    """Video files from a list with lines `path label`.

    Args:
        file_path: the list.
        pipeline: makes the clips.
        seed: of all randomness.
        training: whether a file that does not decode is replaced.
        data_prefix: folder that relative paths start from.
        suffix: ending added to paths that lack it.
        num_retries: records that are tried in training before a sample is given up.
        num_ensemble_views: clips of a video that a test sees; more than one needs a DecodeSampler with
            `test_mode`, or a Sampler in `valid_mode` that takes segments.
        num_spatial_crops: crops of a span, each a view of its own; null: those that the transforms make.
            Where both are null, all clips of a video are one view.

    Raises:
        AnnotationError: the list is missing, empty or malformed.
        LoaderError: the sampler or the transforms make other views.
    """

    def __init__(
        self,
        file_path: str,
        pipeline: Pipeline,
        seed: int,
        training: bool,
        data_prefix: Optional[str] = None,
        suffix: str = "",
        num_retries: PositiveInt = 5,
        num_ensemble_views: Optional[PositiveInt] = None,
        num_spatial_crops: Optional[PositiveInt] = None,
    ) -> None:
        records = read_video_list(file_path, data_prefix, suffix)
        views = num_ensemble_views, num_spatial_crops
        super().__init__(records, file_path, pipeline, seed, training, num_retries, *views)


@DATASETS.register()
class SFVideoDataset(VideoDataset):
    """Video files for 3D networks, tested with several clips of each video.

    A test sees `num_ensemble_views` spans of a video, each as `num_spatial_crops` crops; `MultiCropMetric`
    averages over all of them. The crops of a span are cut from frames that are decoded once, so a batch of B
    spans holds B * `num_spatial_crops` clips.

    Args:
        file_path: the list.
        pipeline: makes the clips.
        seed: of all randomness.
        training: whether a file that does not decode is replaced.
        data_prefix: folder that relative paths start from.
        suffix: ending added to paths that lack it.
        num_retries: records that are tried in training before a sample is given up.
        num_ensemble_views: clips of a video; more than one needs a DecodeSampler with `test_mode`, or a
            Sampler in `valid_mode` that takes segments.
        num_spatial_crops: crops of a span; null: those that the transforms make.

    Raises:
        AnnotationError: the list is missing, empty or malformed.
        LoaderError: the sampler or the transforms make other views.
    """

    def __init__(
        self,
        file_path: str,
        pipeline: Pipeline,
        seed: int,
        training: bool,
        data_prefix: Optional[str] = None,
        suffix: str = "",
        num_retries: PositiveInt = 5,
        num_ensemble_views: PositiveInt = 1,
        num_spatial_crops: Optional[PositiveInt] = None,
    ) -> None:
        views = num_ensemble_views, num_spatial_crops
        super().__init__(file_path, pipeline, seed, training, data_prefix, suffix, num_retries, *views)


@DATASETS.register()
class FrameDataset(ClipDataset):
    """Folders of images from a list with lines `folder num_frames label`.

    Args:
        file_path: the list.
        pipeline: makes the clips.
        seed: of all randomness.
        training: whether a folder that does not decode is replaced.
        data_prefix: folder that relative paths start from.
        suffix: format string from a frame's number, from 1, to its file name.
        num_retries: records that are tried in training before a sample is given up.
        num_ensemble_views: clips of a video that a test sees; more than one needs a DecodeSampler with
            `test_mode`, or a Sampler in `valid_mode` that takes segments.
        num_spatial_crops: crops of a span, each a view of its own; null: those that the transforms make.
            Where both are null, all clips of a video are one view.

    Raises:
        AnnotationError: the list is missing, empty or malformed.
        LoaderError: the sampler or the transforms make other views.
    """

    def __init__(
        self,
        file_path: str,
        pipeline: Pipeline,
        seed: int,
        training: bool,
        data_prefix: Optional[str] = None,
        suffix: str = "img_{:05}.jpg",
        num_retries: PositiveInt = 5,
        num_ensemble_views: Optional[PositiveInt] = None,
        num_spatial_crops: Optional[PositiveInt] = None,
    ) -> None:
        records = read_frame_list(file_path, data_prefix, suffix)
        views = num_ensemble_views, num_spatial_crops
        super().__init__(records, file_path, pipeline, seed, training, num_retries, *views)

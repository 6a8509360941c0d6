"""Annotation lists whose items are clips."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from paddlevideo_fast.config.sections import Group, Section
from paddlevideo_fast.config.types import NumViews, Size
from paddlevideo_fast.decode import FrameStore, IndexStore, Source, VideoReader, open_frames, open_video
from paddlevideo_fast.errors import LoaderError, VideoDecodeError
from paddlevideo_fast.io.urls import bare_url, join, scheme_of
from paddlevideo_fast.loader.annotations import (
    RecordSection,
    VideoRecord,
    read_frame_list,
    read_video_list,
    require_files,
)
from paddlevideo_fast.loader.balance import RecordSampler, RepeatCounts, make_repeat_counts
from paddlevideo_fast.loader.batches import ShuffleWindow
from paddlevideo_fast.loader.collate import Sample, Target
from paddlevideo_fast.loader.incidents import DecodeFailure
from paddlevideo_fast.loader.pipeline import Decoder, Pipeline
from paddlevideo_fast.loader.request import CLIP, PART, SUBSTITUTE, ClipRequest, MidpointGenerator, generator
from paddlevideo_fast.loader.sampling import AboveZero, DecodeSampler, FrameSampler
from paddlevideo_fast.log import get_logger, warn_once
from paddlevideo_fast.registry import DATASETS, DECODERS, RECORD_SECTIONS


@DECODERS.register()
@dataclass(eq=False)
class VideoDecoder:
    """Opens video files.

    Args:
        backend: the reader: "pyav" is exact and the fastest, and reads what PaddleVideo's configs leave to
            "decord"; "nvdec" gives the same frames from the decoder of an NVIDIA GPU; "decord_library" and
            "cv2" are there to compare with.
        on_corrupt: what becomes of a frame that does not decode: "raise" makes its file a bad sample;
            "nearest" shows the nearest frame that does, and counts it. "pyav" offers both.
        mode: with "pyav" and a Sampler with `linspace_sample`, the frames come from a part of the video that
            lasts `num_seg * sampling_rate / target_fps` seconds, as in PaddleVideo's TimeSformer: in "test"
            its beginning, else a random part, in evaluation the middle. null: from the whole video. Without
            effect in all other cases.
        num_seg: frames of a clip, for the length of the part; null: 8.
        sampling_rate: frames of a video of `target_fps` from one frame of the clip to the next; null: 32.
        target_fps: frames a second that `sampling_rate` is meant for; null: 30.

    Attributes:
        reader: what opens the files; see `open_video`.
        cache: of the indexes of long videos; None: each opening reads a video from end to end.
        frames: that several runs share; None: each clip decodes its own.
    """

    ignored_arguments: ClassVar[dict[str, str]] = {"num_clips": "the sampler decides which frames are read"}

    backend: Literal["auto", "pyav", "nvdec", "decord", "decord_library", "cv2"] = "pyav"
    on_corrupt: Literal["raise", "nearest"] = "raise"
    mode: Literal["train", "valid", "test"] | None = None
    num_seg: Size | None = None
    sampling_rate: AboveZero | None = None
    target_fps: AboveZero | None = None
    cache: IndexStore | None = field(default=None, init=False)
    frames: FrameStore | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.reader = {"decord": "pyav", "decord_library": "decord"}.get(self.backend, self.backend)
        if self.backend == "decord":  # so PaddleVideo's configs say
            warn_once(get_logger(), "backend: decord: pyav reads, exactly; decord itself is decord_library")
        if self.on_corrupt != "raise" and self.reader not in ("auto", "pyav"):
            text = f"on_corrupt: {self.on_corrupt} needs backend: pyav, not {self.backend}"
            raise LoaderError(f"VideoDecoder: {text}")

    def sampler(self, sample: FrameSampler) -> FrameSampler:
        """The sampler that takes the frames of `sample` from the part of a video that `mode` says."""
        if self.mode is None or self.backend != "pyav" or not getattr(sample, "linspace_sample", False):
            names = ("mode", "num_seg", "sampling_rate", "target_fps")
            if given := [name for name in names if getattr(self, name) is not None]:
                text = "no effect: the sampler decides which frames are read, and what is random"
                warn_once(get_logger(), f"VideoDecoder: {', '.join(given)}: {text}")
            return sample
        rate = (self.num_seg or 8) * (self.sampling_rate or 32.0) / sample.num_frames
        return DecodeSampler(sample.num_frames, rate, self.target_fps or 30.0, test_mode=self.mode == "test")

    def open(self, record: VideoRecord) -> VideoReader:
        """A reader of the record's frames.

        Raises:
            VideoDecodeError: the file cannot be decoded.
        """
        return self.open_source(record.path)

    def open_source(self, source: Source) -> VideoReader:
        """A reader of the frames of a file, wherever it is; see `open_video`.

        Raises:
            VideoDecodeError: the file cannot be decoded.
        """
        return open_video(source, self.reader, self.on_corrupt, self.cache, self.frames)


@DECODERS.register()
class FrameDecoder:
    """Opens folders of images."""

    def open(self, record: VideoRecord) -> VideoReader:
        """A reader of the record's frames.

        Raises:
            VideoDecodeError: the folder or its first image cannot be read.
        """
        suffix = record.frames_suffix or "img_{:05}.jpg"
        return open_frames(record.path, suffix=suffix, num_frames=record.num_frames)


class ClipDataset:
    """Records, and a pipeline that makes clips of them.

    Training draws at random. Evaluation draws the middle wherever a sampler or a transform draws; see
    `MidpointGenerator`.

    A file that does not decode raises nothing. In training another record takes its place, drawn from the
    same key as the sample's randomness; in evaluation the sample has no clip. Both report the file.

    All data sets share this constructor. A data set says which records there are (`read_records`) and, where
    the pipeline's decoder does not know, how one is opened (`open`). One that has more arguments takes those
    and passes the rest on as `**shared`, which the config check follows.

    Args:
        file_path: the list.
        pipeline: makes the clips.
        seed: of all randomness.
        training: whether another record takes the place of one that does not decode.
        data_prefix: folder that relative paths start from.
        suffix: ending added to paths that lack it.
        num_retries: records that are tried in training before a sample is given up.
        num_ensemble_views: clips of a video that a test sees; more than one needs a DecodeSampler with
            `test_mode`, or a Sampler in `valid_mode` that takes segments.
        num_spatial_crops: crops of a span, each a view of its own; null: those that the transforms make.
            Where both are null, all clips of a video are one view.
        num_classes: a video has any number of so many classes, and a sample the label float32 [num_classes],
            1 for its classes; None: a video has one class, and a sample its number. 0: labels are not read,
            and a sample has the number 0.
        clips_per_video: clips that training makes of a video whenever it reads it, each with frames, crop and
            colours of its own. They are in one batch. An epoch keeps its number of clips, so it reads 1 of so
            many videos, and as many epochs together read each video once. Faster where decoding raw videos
            limits the run; a step sees fewer different videos.
        sampler: how often an epoch of training has each record. `shuffle`: once. `balanced`: every class has
            equally many clips. `square_root`: a class has clips by the square root of its number of records.
            `weighted`: by the `weight` of the record in the list. An epoch keeps its number of clips, and has
            some records several times and others not.
        background: in training of untrimmed videos, clips from between their spans: `{share: 0.2, label: 3}`
            makes 2 of 10 clips such, of this class; label: null, of no class. Their places are drawn anew in
            each epoch.
        windows: in evaluation of untrimmed videos, `{length_sec: 4, stride_sec: 2, label: 3}` evaluates all
            windows of each video. A window has the class whose spans cover half of the window, or of which
            half a span lies in it; without one, the class `label`.
        tracks: `{margin: 0.2, max_gap: 30}`: how clips follow the boxes and tracks of a list.
        records: what there is, where no list says so.
        class_names: file with the names of the classes, for a list that names them.

    Raises:
        AnnotationError: the list is missing, empty or malformed, or none of its files is there.
        LoaderError: the sampler or the transforms make other views; or `clips_per_video` is set for an
            evaluation, or beside several views.

    Attributes:
        num_views: requests that one record is evaluated with.
        num_crops: clips that one request makes, each a view of its own.
        on_record: called with the index of a record before the record is opened. Workers report progress
            through it; it may raise to cancel.
        groups: for each record, the number of the group that one rank reads; None: any rank reads any record.
        repeat_counts: how often an epoch has each record; None: once.
        window: what an epoch of training mixes; None: all records.
    """

    num_views = 1
    num_crops = 1
    groups: list[int] | None = None
    window: ShuffleWindow | None = None
    read_list = staticmethod(read_video_list)
    usual_decoder: ClassVar[Callable[[], Decoder]] = VideoDecoder
    uses_decoder: ClassVar[bool] = True  # its records are opened by the decoder of the pipeline
    injected: ClassVar[tuple[str, ...]] = (
        "pipeline",
        "seed",
        "training",
        "num_classes",
        "records",
        "class_names",
    )
    ignored_arguments: ClassVar[dict[str, str]] = {
        "test_mode": "the section (train, valid, test) says it",
        "num_samples_precise_bn": "the population statistics have a section of their own",
    }

    def __init__(
        self,
        file_path: str,
        *,
        pipeline: Pipeline,
        seed: int,
        training: bool,
        data_prefix: str | None = None,
        suffix: str = "",
        num_retries: Size = 5,
        num_ensemble_views: NumViews | None = None,
        num_spatial_crops: NumViews | None = None,
        num_classes: int | None = None,
        clips_per_video: NumViews = 1,
        sampler: RecordSampler = "shuffle",
        records: Sequence[VideoRecord] | None = None,
        class_names: str | None = None,
        background: RecordSection | None = None,
        windows: RecordSection | None = None,
        tracks: RecordSection | None = None,
    ) -> None:
        self.file_path = file_path
        self.data_prefix = data_prefix
        self.suffix = suffix
        self.class_names = class_names
        self.pipeline = pipeline
        self.decoder = pipeline.decoder or type(self).usual_decoder()
        self.num_classes = num_classes
        self.seed = seed
        self.training = training
        self.num_attempts = num_retries if training else 1
        self.on_record: Callable[[int], None] | None = None
        self.clips_per_video = clips_per_video
        self.records = self.read_records() if records is None else list(records)
        if any(record.more for record in self.records):
            tracks = tracks or RECORD_SECTIONS.get("tracks")()
        for section in (tracks, background, windows):
            if section is not None:
                self.records = section.records(self)
        if num_ensemble_views or num_spatial_crops:
            self._set_views(num_ensemble_views or 1, num_spatial_crops)
        if clips_per_video > 1 and not training:
            raise LoaderError(
                f"{type(self).__name__}: clips_per_video is for training; an evaluation sees several clips "
                "of a video with num_ensemble_views"
            )
        if clips_per_video > 1 and self.num_views * self.num_crops > 1:
            raise LoaderError(
                f"{type(self).__name__}: clips_per_video is {clips_per_video}, and num_ensemble_views and "
                f"num_spatial_crops make {self.num_views * self.num_crops} views; keep one of the two"
            )
        self.sampler = sampler
        self.repeat_counts = self._make_repeat_counts()

    @staticmethod
    def parts() -> dict[str, Section]:
        """The sections among the arguments, looked up when a config is checked or built."""
        return {name: Group(settings=RECORD_SECTIONS.get(name)) for name in RECORD_SECTIONS.in_order()}

    @property
    def is_labelled(self) -> bool:
        """Whether the labels of the list are read."""
        return self.num_classes != 0

    def read_records(self) -> list[VideoRecord]:
        """The records of the list at `file_path`.

        Raises:
            AnnotationError: the list is missing, empty or malformed, or none of its files is there.
        """
        records = type(self).read_list(
            self.file_path, self.data_prefix, self.suffix, self.class_names, self.is_labelled
        )
        return require_files(records, self.file_path, self.data_prefix)

    def open(self, record: VideoRecord) -> VideoReader:
        """A reader of the file of a record, whatever its span.

        Raises:
            VideoDecodeError: it cannot be decoded.
        """
        return self.decoder.open(record)

    def _make_repeat_counts(self) -> RepeatCounts | None:
        if self.sampler == "shuffle":
            return None
        setting = f"sampler: {self.sampler}"
        if not self.training:
            self._say_no_effect(setting, "an evaluation has each record once")
            return None
        repeat_counts = make_repeat_counts(self.records, self.sampler, self.seed, self.file_path)
        if np.allclose(repeat_counts.rates, 1):
            all_equal = f"all classes of {self.file_path} have equally many records"
            if self.sampler == "weighted":
                all_equal = f"all records of {self.file_path} have the same weight"
            self._say_no_effect(setting, all_equal)
        return repeat_counts

    def _say_no_effect(self, setting: str, why: str) -> None:
        warn_once(get_logger(__name__), f"{type(self).__name__}: {setting} has no effect: {why}")

    def _set_views(self, num_ensemble_views: int, num_spatial_crops: int | None) -> None:
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

    def __getitem__(self, request: ClipRequest) -> Sample:
        (sample,) = self.load([request])
        return sample

    def load(
        self, requests: Sequence[ClipRequest], outs: Sequence[np.ndarray | None] | None = None
    ) -> list[Sample]:
        """The samples of requests for one record, from one pass over its file.

        If the file does not decode, training takes all of the clips from the same substitute. Evaluation
        reads the clips one by one, so that it loses only those that do not decode.

        Args:
            requests: which clips of the record.
            outs: for each request contiguous uint8 [V * T, H, W, 3], such as a place in a batch. The clip is
                written into it, and is this very array, unless it has another shape.
        """
        outs = outs or [None] * len(requests)
        incidents: list[DecodeFailure] = []
        clips: Sequence[tuple[np.ndarray | None, int, tuple[int, ...]]]
        for tried, rngs in self.attempts(requests):
            index, record = tried[0].index, self.records[tried[0].index]
            if self.on_record is not None:
                self.on_record(index)
            try:
                with self.open(record) as reader:
                    clips = self.pipeline(self.part(reader, record, requests[0]), record, tried, rngs, outs)
                break
            except VideoDecodeError as error:
                if len(requests) > 1 and not self.training:
                    return [self.load([request], [out])[0] for request, out in zip(requests, outs)]
                incidents.append(DecodeFailure.failed(record.path, error))
        else:
            index = requests[0].index
            clips = [(None, 0, self.records[index].labels)] * len(requests)
        samples = []
        for request, (pixels, num_replaced, labels) in zip(requests, clips):
            if num_replaced:
                incidents.append(DecodeFailure.replaced(record.path, num_replaced))
            target = self.target(labels)
            samples.append(Sample(pixels, target, index, request.view, tuple(incidents), self.num_crops))
            incidents = []
        return samples

    @property
    def files(self) -> list[str]:
        """Paths and URLs of the files and folders of frames that the records are read from, each once."""
        return list(dict.fromkeys(record.path for record in self.records))

    def path_in_set(self, path: str) -> str:
        """A path from the data_prefix on, if it is below: a set that is moved stays the same set."""
        return path.removeprefix(join(self.data_prefix, "")) if self.data_prefix else path

    @property
    def local_files(self) -> dict[str, str]:
        """The files that are not at URLs, by their paths from the data_prefix on."""
        return {self.path_in_set(file): file for file in self.files if not scheme_of(file)}

    @property
    def list_crc32(self) -> int:
        """Checksum of the records. A URL counts without its query, which changes when it is signed anew."""
        lines = []
        for record in self.records:
            line = f"{self.path_in_set(bare_url(record.path))} {','.join(map(str, record.labels))}"
            more = (record.span, record.weight, record.group, record.draw_part or ())
            lines.append(line if more == (None, 1.0, "", ()) else f"{line} {more}")
        return zlib.crc32("\n".join(lines).encode("utf-8", errors="surrogateescape"))

    @property
    def is_remote(self) -> bool:
        """Whether records are read from a store by parts, which can be fetched ahead."""
        return False

    def fetch(self, requests: Sequence[ClipRequest]) -> int:
        """Brings what clips are read from into the cache of remote files; the number of bytes that came.

        Args:
            requests: which clips of one record.

        Raises:
            VideoDecodeError: the record cannot be read.
            StoreAwayError: its store does not answer.
        """
        _, rngs = next(self.attempts(requests))
        record = self.records[requests[0].index]
        with self.open(record) as reader:
            part = self.part(reader, record, requests[0])
            frames = [
                self.pipeline.sample.sample(part.num_frames, part.avg_fps, request, rng)
                for request, rng in zip(requests, rngs)
            ]
            return part.fetch(np.unique(np.concatenate(frames)).tolist())

    def target(self, labels: tuple[int, ...]) -> Target:
        """What the network learns of a clip with these classes: see `num_classes`."""
        if self.num_classes is None:
            (label,) = labels
            return label
        if not self.num_classes:
            return 0
        target = np.zeros(self.num_classes, np.float32)
        target[list(labels)] = 1
        return target

    def part(
        self, reader: VideoReader, record: VideoRecord, request: ClipRequest | None = None
    ) -> VideoReader:
        """The frames of a record's span, of a reader of its file.

        Args:
            reader: of the file.
            record: says the span, or draws a part of it.
            request: the key of what is drawn.

        Raises:
            VideoDecodeError: the span is not inside the video, or there is no part to draw.
        """
        try:
            part = reader if record.span is None else reader.part(record.span)
            if record.draw_part is None:
                return part
            key = request.key if request else ()
            return record.draw_part(part, generator(PART, self.seed, *key))
        except VideoDecodeError as error:
            where = f"{self.file_path}:{record.line}: " if record.line else ""
            raise VideoDecodeError(error.path, f"{where}{error.cause}") from None

    def candidates(self, request: ClipRequest) -> Iterator[int]:
        """The record of a request, and in training the substitutes drawn for it should it not decode."""
        yield request.index
        for attempt in range(1, self.num_attempts):
            rng = generator(SUBSTITUTE, self.seed, *request.key, attempt)
            yield int(rng.integers(len(self.records)))

    def attempts(
        self, requests: Sequence[ClipRequest]
    ) -> Iterator[tuple[list[ClipRequest], list[np.random.Generator]]]:
        """The requests for each record that is tried, see `candidates`, and each one's randomness."""
        for attempt, index in enumerate(self.candidates(requests[0])):
            rngs = [
                generator(CLIP, self.seed, *request.key, attempt) if self.training else MidpointGenerator()
                for request in requests
            ]
            yield [replace(request, index=index) for request in requests], rngs


@DATASETS.register()
class VideoDataset(ClipDataset):
    """Video files from a list: lines `path label`, or a .jsonl or .csv file."""


@DATASETS.register()
class SFVideoDataset(VideoDataset):
    """Video files for 3D networks, tested with several clips of each video.

    A test sees `num_ensemble_views` spans of a video, each as `num_spatial_crops` crops; `MultiCropMetric`
    averages over all of them. The crops of a span are cut from frames that are decoded once, so a batch of B
    spans holds B * `num_spatial_crops` clips.

    Args:
        num_ensemble_views: clips of a video; more than one needs a DecodeSampler with `test_mode`, or a
            Sampler in `valid_mode` that takes segments.
        num_spatial_crops: crops of a span; null: those that the transforms make.
    """

    def __init__(self, file_path: str, *, num_ensemble_views: NumViews = 1, **shared: Any) -> None:
        super().__init__(file_path, num_ensemble_views=num_ensemble_views, **shared)


@DATASETS.register()
class FrameDataset(ClipDataset):
    """Folders of images from a list: lines `folder num_frames label`, or a .jsonl or .csv file.

    Args:
        suffix: format string from a frame's number, from 1, to its file name.
    """

    read_list = staticmethod(read_frame_list)
    usual_decoder = FrameDecoder

    def __init__(self, file_path: str, *, suffix: str = "img_{:05}.jpg", **shared: Any) -> None:
        super().__init__(file_path, suffix=suffix, **shared)

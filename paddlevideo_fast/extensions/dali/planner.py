"""What is decided about a sample before DALI gets it: the same draws as the video loader's."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from paddlevideo_fast.decode import Span
from paddlevideo_fast.decode.reader import VideoPart
from paddlevideo_fast.errors import LoaderError, VideoDecodeError
from paddlevideo_fast.extensions.augmentation.colours import ColorJitter
from paddlevideo_fast.extensions.dali import graph
from paddlevideo_fast.extensions.dali.graph import import_dali, require_codec
from paddlevideo_fast.loader.annotations import VideoRecord
from paddlevideo_fast.loader.dataset import ClipDataset, VideoDecoder
from paddlevideo_fast.loader.incidents import DecodeFailure
from paddlevideo_fast.loader.pipeline import ClipPlan, VideoFacts
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.sources.sharded import ShardedDataset


@dataclass
class DaliSample:
    """Clips of a video under way: the record that is tried now, and the failures before it.

    Attributes:
        attempts: the records that are left, see `ClipDataset.attempts`.
        incidents: the records that did not decode.
        requests: of the clips, with the number of the record that is tried; empty: no record is left.
        plans: for each request frames and geometry of its clip.
        inputs: arrays for `ClipGraph`.
    """

    attempts: Iterator[tuple[list[ClipRequest], list[np.random.Generator]]]
    incidents: list[DecodeFailure] = field(default_factory=list)
    requests: list[ClipRequest] = field(default_factory=list)
    plans: list[ClipPlan] = field(default_factory=list)
    inputs: dict[str, np.ndarray] = field(default_factory=dict)


class DaliPlanner:
    """Plans samples; several threads may use one.

    Args:
        dataset: videos, with a pipeline whose transforms DALI can do.
        device: "cpu" or "gpu".

    Attributes:
        num_changes: changes of colour of each clip.

    Raises:
        LoaderError: the pipeline asks for something that DALI does not do.
        MissingExtraError: DALI is not installed.
    """

    def __init__(self, dataset: ClipDataset, device: str) -> None:
        self.dataset = dataset
        self.device = device
        self._dali = import_dali()
        self._jitters = _jitters_of(dataset)
        self._facts: dict[tuple[str, Span | None], VideoFacts] = {}
        self.num_changes = sum(len(jitter.steps) for jitter in self._jitters)

    def plan(self, requests: Sequence[ClipRequest]) -> DaliSample:
        """The sample of the first record for requests that opens."""
        sample = DaliSample(self.dataset.attempts(requests))
        self.go_on(sample)
        return sample

    def go_on(self, sample: DaliSample) -> None:
        """Moves a sample to the next record that opens, or to the end.

        Raises:
            LoaderError: DALI does not know the codec on this device.
            TransformError: a transform does not fit the frames.
        """
        for requests, rngs in sample.attempts:
            record = self.dataset.records[requests[0].index]
            try:
                facts = self._facts_of(record)
                encoded = _read(record.path)
            except VideoDecodeError as error:
                sample.incidents.append(DecodeFailure.failed(record.path, error))
                continue
            plans = [
                self.dataset.pipeline.plan(facts, record, request, rng)
                for request, rng in zip(requests, rngs)
            ]
            sample.requests = requests
            sample.plans = [plan._replace(frames=plan.frames + facts.first) for plan in plans]
            sample.inputs = {"encoded": encoded, **_plan_inputs(sample.plans)}
            if self.num_changes:
                sample.inputs["changes"] = np.concatenate([self._changes(rng) for rng in rngs])
            return
        sample.requests = []

    def _facts_of(self, record: VideoRecord) -> VideoFacts:
        """Size and length, from our reader's index; a file is opened for them once."""
        key = (record.path, record.span)
        facts = self._facts.get(key)
        if facts is None:
            with self.dataset.open(record) as reader:
                require_codec(self._dali, self.device, reader.codec, record.path)
                part = self.dataset.part(reader, record)
                first = part.first if isinstance(part, VideoPart) else 0
                size = (part.width, part.height, part.square_size)
                facts = VideoFacts(part.num_frames, part.avg_fps, *size, first)
                if reader.orientation:
                    cause = "is shown turned or mirrored, which DALI does not do: re-encode it"
                    raise VideoDecodeError(record.path, cause)
            self._facts[key] = facts
        return facts

    def _changes(self, rng: np.random.Generator) -> np.ndarray:
        """The draws of the colour transforms as rows for `ClipGraph`."""
        rows = np.tile(np.array(graph.NO_CHANGE, np.float32), (self.num_changes, 1))
        drawn = [change for jitter in self._jitters for change in jitter.draw(rng)]
        for row, (name, amount) in zip(rows, drawn):
            if name == "hue":
                row[graph.HUE_DEGREES] = 360 * amount
            else:
                row[getattr(graph, name.upper())] = amount
        return rows


def _jitters_of(dataset: ClipDataset) -> list[ColorJitter]:
    decode = dataset.decoder
    if isinstance(dataset, ShardedDataset) or not isinstance(decode, VideoDecoder):
        opens = dataset if isinstance(dataset, ShardedDataset) else decode
        raise LoaderError(f"DALI reads video files; {type(opens).__name__} opens something else")
    if decode.reader not in ("auto", "pyav"):
        text = f"DALI needs the frame index of the reader 'pyav'; decode.backend is '{decode.backend}'"
        raise LoaderError(text)
    if any(record.draw_part for record in dataset.records):
        raise LoaderError(
            "DALI draws no clips from between spans and along tracks: leave DATASET.train.background, boxes "
            "and tracks out, or train without --train_dali"
        )
    if decode.on_corrupt != "raise":
        raise LoaderError(f"DALI cannot replace single frames; decode.on_corrupt is '{decode.on_corrupt}'")
    if dataset.pipeline.resample != "antialias":
        raise LoaderError(
            f"DALI resizes by its own filter, which averages pixels; PIPELINE's resample is "
            f"'{dataset.pipeline.resample}': set it to antialias, or leave --train_dali out"
        )
    jitters = [step for step in dataset.pipeline.pixelwise if isinstance(step, ColorJitter)]
    for step in dataset.pipeline.pixelwise:
        if step not in jitters:
            raise LoaderError(
                f"{type(step).__name__} cannot be done inside DALI (brightness, contrast, saturation and hue "
                "can): leave it out, or train without --train_dali"
            )
    return jitters


def _read(path: str) -> np.ndarray:
    try:
        return np.fromfile(path, np.uint8)
    except OSError as error:
        raise VideoDecodeError(path, error.strerror or str(error)) from error


def _plan_inputs(plans: Sequence[ClipPlan]) -> dict[str, np.ndarray]:
    frames = np.concatenate([plan.frames for plan in plans]).astype(np.int32)
    geometry = plans[0].geometry
    inputs = {"frames": frames, "size": np.array([geometry.height, geometry.width], np.float32)}
    if len(plans) > 1:  # in one pass from first to last; the graph puts them back
        order = np.argsort(frames, kind="stable")
        inputs["frames"], inputs["slots"] = frames[order], np.argsort(order).astype(np.int32)
    for number, view in enumerate(view for plan in plans for view in plan.geometry.views):
        left, right = view.left, view.left + view.width
        if view.flip:  # DALI mirrors a region that ends before it begins
            left, right = right, left
        inputs[f"first{number}"] = np.array([view.top, left], np.float32)
        inputs[f"last{number}"] = np.array([view.top + view.height, right], np.float32)
    return inputs

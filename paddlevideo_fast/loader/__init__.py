"""From annotation lists to batches of uint8 clips."""

from paddlevideo_fast.loader.annotations import VideoRecord, check_labels
from paddlevideo_fast.loader.bad_samples import BadSamples
from paddlevideo_fast.loader.batches import BatchShape, ClipBatchSampler
from paddlevideo_fast.loader.build import build_dataset, build_loader, build_pipeline
from paddlevideo_fast.loader.clip_loader import ClipLoader
from paddlevideo_fast.loader.collate import Batch
from paddlevideo_fast.loader.dataset import FrameDataset, Sample, SFVideoDataset, VideoDataset
from paddlevideo_fast.loader.errors import LoaderError, TransformError
from paddlevideo_fast.loader.packed_dataset import PackedFrameDataset
from paddlevideo_fast.loader.pipeline import Pipeline
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.loader.sampling import DecodeSampler, Sampler, UniformSampler
from paddlevideo_fast.loader.workers import WorkerOptions

__all__ = [
    "BadSamples",
    "Batch",
    "BatchShape",
    "ClipBatchSampler",
    "ClipLoader",
    "ClipRequest",
    "DecodeSampler",
    "FrameDataset",
    "LoaderError",
    "PackedFrameDataset",
    "Pipeline",
    "SFVideoDataset",
    "Sample",
    "Sampler",
    "TransformError",
    "UniformSampler",
    "VideoDataset",
    "VideoRecord",
    "WorkerOptions",
    "build_dataset",
    "build_loader",
    "build_pipeline",
    "check_labels",
]

"""From annotation lists to batches of uint8 clips."""

from paddlevideo_fast.errors import LoaderError, TransformError
from paddlevideo_fast.loader.annotations import VideoRecord, check_labels
from paddlevideo_fast.loader.batches import BatchShape, ClipBatchSampler
from paddlevideo_fast.loader.build import build_dataset, build_loader, build_pipeline
from paddlevideo_fast.loader.class_names import read_class_names
from paddlevideo_fast.loader.clip_loader import ClipLoader
from paddlevideo_fast.loader.collate import Batch, ClipSource, Sample
from paddlevideo_fast.loader.dataset import FrameDataset, SFVideoDataset, VideoDataset
from paddlevideo_fast.loader.incidents import BadSamples, DecodeFailure
from paddlevideo_fast.loader.pipeline import Pipeline
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.loader.sampling import DecodeSampler, Sampler, UniformSampler
from paddlevideo_fast.loader.workers import WorkerOptions

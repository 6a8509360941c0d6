"""The DALI pipeline: encoded videos and our decisions go in, clips come out; and what each DALI can do."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from paddlevideo_fast.errors import LoaderError, MissingExtraError

DEVICES = {"cpu": "a CPU", "gpu": "a GPU"}


@dataclass(frozen=True)
class Generation:
    """DALI from one version on.

    Args:
        since: (major, minor) of the first version.
        cpu: codecs that it decodes on a CPU, tried with files of each.
        gpu: codecs that it decodes on a GPU, by its documentation. DALI 2.4 was tried with files of each: on
            an NVIDIA H200 it refused AV1, and MJPEG, which its documentation names, on any GPU.
    """

    since: tuple[int, int]
    cpu: frozenset[str]
    gpu: frozenset[str]

    def codecs(self, device: str) -> frozenset[str]:
        """The codecs for "cpu" or "gpu"."""
        return self.cpu if device == "cpu" else self.gpu


_NVDEC = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "mpeg4"})
GENERATIONS = (
    Generation((1, 53), frozenset({"h264", "hevc", "vp8", "vp9", "mjpeg"}), _NVDEC),
    Generation((2, 0), frozenset({"vp8", "vp9", "mjpeg"}), _NVDEC),
)


def import_dali() -> Any:
    """The module `nvidia.dali`.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import nvidia.dali as dali
        import nvidia.dali.fn
        import nvidia.dali.types  # noqa: F401
    except ImportError as error:
        if not (error.name or "").startswith("nvidia"):
            raise
        import paddle  # whose CUDA DALI has to fit

        extra = "dali130" if str(paddle.version.cuda()).startswith("13.") else "dali120"
        package = f"nvidia-dali-cuda{extra[-3:]}"
        raise MissingExtraError(package, extra, "reading videos with DALI") from error
    return dali


def generation_of(dali: Any) -> Generation:
    """What an imported DALI can do.

    Raises:
        LoaderError: it is too old.
    """
    version = tuple(map(int, dali.__version__.split(".")[:2]))
    able = [item for item in GENERATIONS if item.since <= version]
    if not able:
        raise LoaderError(f"DALI {dali.__version__} decodes whole videos only; install 1.53 or newer")
    return able[-1]


def require_codec(dali: Any, device: str, codec: str, path: str) -> None:
    """Checks that this DALI decodes a codec on this device; a file of another can end its process.

    Raises:
        LoaderError: it does not; the message says whether it would on a GPU.
    """
    generation = generation_of(dali)
    able = generation.codecs(device)
    if codec in able:
        return
    more = f", and does on {DEVICES['gpu']}" if codec in generation.codecs("gpu") else ""
    raise LoaderError(
        f"{path}: DALI {dali.__version__} does not decode {codec} on {DEVICES[device]}, only "
        f"{', '.join(sorted(able))}{more}; train without --train_dali"
    )


# A change of colour is a row of four numbers; this one changes nothing.
HUE_DEGREES, SATURATION, BRIGHTNESS, CONTRAST = range(4)
NO_CHANGE = (0.0, 1.0, 1.0, 1.0)


@dataclass(frozen=True)
class GraphShape:
    """What of a pipeline is fixed when it is built.

    Args:
        batch_size: largest number of samples.
        num_threads: of DALI, in host memory.
        device_id: the GPU; None: the CPU.
        num_views: views of each clip.
        num_changes: changes of colour of each clip.
        num_clips: clips of each video.
        num_frames: frames of a clip; needed where a video has several clips.
    """

    batch_size: int
    num_threads: int
    device_id: int | None
    num_views: int
    num_changes: int
    num_clips: int = 1
    num_frames: int = 0


class ClipGraph:
    """One DALI pipeline with one batch under way.

    An error leaves it unusable. The inputs of a sample, each a list with one array for each sample:

        encoded      uint8 [bytes]                  the file
        frames       int32 [K * T]                  frame numbers of K clips, in any order
        slots        int32 [K * T]                  with K > 1: where each frame of the clips is in `frames`
        size         float32 [2]                    height and width of the clips
        first<v>     float32 [2]                    y and x where view v begins in the frame, in pixels
        last<v>      float32 [2]                    where it ends; an x before its beginning mirrors it
        changes      float32 [K * num_changes, 4]   hue in degrees; saturation, brightness, contrast

    The views are counted over all clips: those of the first clip, then those of the second.

    Args:
        shape: what is built.
    """

    def __init__(self, shape: GraphShape) -> None:
        self.shape = shape
        self._dali = import_dali()
        self._pipeline = self._build()

    def start(self, inputs: Mapping[str, list[np.ndarray]]) -> None:
        """Feeds one batch and begins with it.

        Raises:
            RuntimeError: from DALI.
        """
        for name, arrays in inputs.items():
            self._pipeline.feed_input(name, arrays)
        self._pipeline.schedule_run()

    def finish(self) -> tuple[Any, np.ndarray]:
        """Waits for the batch.

        Returns:
            The clips, uint8 [N, K * V, T, H, W, 3], a numpy array, on a GPU a Paddle tensor; and the shapes
            of the decoded frames, int64 [N, 4].

        Raises:
            RuntimeError: from DALI.
        """
        clips, shapes = self._pipeline.share_outputs()
        try:
            sizes = np.array((shapes.as_cpu() if hasattr(shapes, "as_cpu") else shapes).as_array())
            if self.shape.device_id is None:
                return np.array(clips.as_array()), sizes
            return self._to_paddle(clips.as_tensor()), sizes
        finally:
            self._pipeline.release_outputs()

    def close(self) -> None:
        """Ends DALI's threads.

        A pipeline is part of a reference cycle. Left to the garbage collector, it may end in a worker process
        that was forked meanwhile, which then waits for ever for threads that it does not have. DALI has no
        other way to end one than its finalizer, which may run twice.
        """
        self._pipeline.__del__()

    def _to_paddle(self, tensor: Any) -> Any:
        """A copy on the device; which DALI hands a tensor out over DLPack depends on its version."""
        import paddle

        out = paddle.empty(tensor.shape(), dtype="uint8")
        tensor.copy_to_external(ctypes.c_void_p(out.data_ptr()))
        return out

    def _build(self) -> Any:
        shape = self.shape
        pipeline = self._dali.Pipeline(
            batch_size=shape.batch_size,
            num_threads=shape.num_threads,
            device_id=shape.device_id,
            prefetch_queue_depth=1,
        )
        with pipeline:
            frames = self._decode(self._input("encoded", "UINT8"), self._input("frames", "INT32"))
            several = shape.num_clips > 1
            if several:
                frames = self._dali.fn.sequence_rearrange(frames, new_order=self._input("slots", "INT32"))
            size = self._input("size", "FLOAT")
            changes = self._input("changes", "FLOAT", ndim=2) if shape.num_changes else None
            views = []
            for clip in range(shape.num_clips):
                own = frames[clip * shape.num_frames : (clip + 1) * shape.num_frames] if several else frames
                for number in range(clip * shape.num_views, (clip + 1) * shape.num_views):
                    views.append(self._view(own, number, size, changes, clip * shape.num_changes))
            counted = frames.shape() if hasattr(frames, "shape") else self._dali.fn.shapes(frames)
            pipeline.set_outputs(self._dali.fn.stack(*views), counted)
        pipeline.build()
        return pipeline

    def _input(self, name: str, kind: str, ndim: int = 1) -> Any:
        return self._dali.fn.external_source(name=name, dtype=getattr(self._dali.types, kind), ndim=ndim)

    def _decode(self, encoded: Any, numbers: Any) -> Any:
        fn = self._dali.fn
        device = "cpu" if self.shape.device_id is None else "mixed"
        decoder = (fn.decoders if hasattr(fn.decoders, "video") else fn.experimental.decoders).video
        return decoder(encoded, frames=numbers, pad_mode="none", device=device)

    def _view(self, frames: Any, number: int, size: Any, changes: Any, first_change: int) -> Any:
        first, last = self._input(f"first{number}", "FLOAT"), self._input(f"last{number}", "FLOAT")
        clip = self._dali.fn.resize(frames, roi_start=first, roi_end=last, size=size)
        for row in range(first_change, first_change + self.shape.num_changes):
            clip = self._recolor(clip, [changes[row, column] for column in range(len(NO_CHANGE))])
        return clip

    def _recolor(self, clip: Any, change: list[Any]) -> Any:
        fn, types = self._dali.fn, self._dali.types
        clip = fn.hsv(clip, hue=change[HUE_DEGREES], saturation=change[SATURATION], value=change[BRIGHTNESS])
        contrast = change[CONTRAST] if self.shape.device_id is None else change[CONTRAST].gpu()
        grey = fn.color_space_conversion(clip, image_type=types.RGB, output_type=types.GRAY)
        mean = fn.reductions.mean(grey, axis_names="HWC", keep_dims=True)
        return fn.reshape(fn.cast(clip * contrast + mean * (1 - contrast), dtype=types.UINT8), layout="FHWC")


def cause_of(error: BaseException) -> str:
    """What DALI says went wrong, in one line, without its stack."""
    lines = [line.strip() for line in str(error).splitlines()]
    starts = [number for number, line in enumerate(lines) if line.endswith("encountered:")]
    kept = []
    for line in lines[starts[-1] + 1 :] if starts else lines:
        if line.startswith(("C++ context", "Stacktrace", "Current pipeline", "[frame")):
            break
        if line:
            kept.append(line)
    return " ".join(kept) or "DALI gives no cause"

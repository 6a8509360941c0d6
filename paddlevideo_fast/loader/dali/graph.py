"""The DALI pipeline: encoded videos and what we decided about them go in, clips come out."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from paddlevideo_fast.loader.dali.versions import generation_of, import_dali

# A change of colour is a row of four numbers; this one changes nothing.
HUE_DEGREES, SATURATION, BRIGHTNESS, CONTRAST = range(4)
NO_CHANGE = (0.0, 1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Normalized:
    """Clips as the network takes them.

    Args:
        mean, std: of each channel, for pixels scaled to 0 to 1.
        layout: "NTCHW" or "NCTHW".
    """

    mean: Sequence[float]
    std: Sequence[float]
    layout: str


@dataclass(frozen=True)
class GraphShape:
    """What of a pipeline is fixed when it is built.

    Args:
        batch_size: largest number of samples.
        num_threads: of DALI, in host memory.
        device_id: the GPU; None: the CPU.
        num_views: views of each video.
        num_changes: changes of colour of each clip.
        normalized: how the clips are normalised; None: they stay uint8 [T, H, W, 3].
    """

    batch_size: int
    num_threads: int
    device_id: Optional[int]
    num_views: int
    num_changes: int
    normalized: Optional[Normalized]


class ClipGraph:
    """One DALI pipeline with one batch under way.

    An error leaves it unusable. The inputs of a sample, each a list with one array for each sample:

        encoded      uint8 [bytes]                  the file
        frames       int32 [T]                      frame numbers, in any order
        size         float32 [2]                    height and width of the clip
        first<v>     float32 [2]                    y and x where view v begins in the frame, in pixels
        last<v>      float32 [2]                    where it ends; an x before its beginning mirrors it
        changes      float32 [num_changes, 4]       hue in degrees; saturation, brightness, contrast

    Args:
        shape: what is built.
    """

    def __init__(self, shape: GraphShape) -> None:
        self.shape = shape
        self._dali = import_dali()
        self._pipeline = self._build()

    def start(self, inputs: Mapping[str, List[np.ndarray]]) -> None:
        """Feeds one batch and begins with it.

        Raises:
            RuntimeError: from DALI.
        """
        for name, arrays in inputs.items():
            self._pipeline.feed_input(name, arrays)
        self._pipeline.schedule_run()

    def finish(self) -> Tuple[Any, np.ndarray]:
        """Waits for the batch.

        Returns:
            The clips [N, V, ...], a numpy array, on a GPU a Paddle tensor; and the shapes of the decoded
            frames, int64 [N, 4].

        Raises:
            RuntimeError: from DALI.
        """
        clips, shapes = self._pipeline.share_outputs()
        try:
            found = np.array((shapes.as_cpu() if hasattr(shapes, "as_cpu") else shapes).as_array())
            if self.shape.device_id is None:
                return np.array(clips.as_array()), found
            return self._to_paddle(clips.as_tensor()), found
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

        dtype = "uint8" if self.shape.normalized is None else "float32"
        out = paddle.empty(tensor.shape(), dtype=dtype)
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
            size, changes = self._input("size", "FLOAT"), None
            if shape.num_changes:
                changes = self._input("changes", "FLOAT", ndim=2)
            views = [self._view(frames, number, size, changes) for number in range(shape.num_views)]
            counted = frames.shape() if hasattr(frames, "shape") else self._dali.fn.shapes(frames)
            pipeline.set_outputs(self._dali.fn.stack(*views), counted)
        pipeline.build()
        return pipeline

    def _input(self, name: str, kind: str, ndim: int = 1) -> Any:
        dtype = getattr(self._dali.types, kind)
        return self._dali.fn.external_source(name=name, dtype=dtype, ndim=ndim)

    def _decode(self, encoded: Any, numbers: Any) -> Any:
        fn = self._dali.fn
        device = "cpu" if self.shape.device_id is None else "mixed"
        if generation_of(self._dali).selects_frames:
            stable = hasattr(fn.decoders, "video")
            decoder = fn.decoders.video if stable else fn.experimental.decoders.video
            return decoder(encoded, frames=numbers, pad_mode="none", device=device)
        return fn.sequence_rearrange(
            fn.experimental.decoders.video(encoded, device=device), new_order=numbers
        )

    def _view(self, frames: Any, number: int, size: Any, changes: Any) -> Any:
        first, last = self._input(f"first{number}", "FLOAT"), self._input(f"last{number}", "FLOAT")
        clip = self._dali.fn.resize(frames, roi_start=first, roi_end=last, size=size)
        for place in range(self.shape.num_changes):
            clip = self._recolor(clip, [changes[place, column] for column in range(len(NO_CHANGE))])
        return clip if self.shape.normalized is None else self._normalize(clip, self.shape.normalized)

    def _recolor(self, clip: Any, change: List[Any]) -> Any:
        fn, types = self._dali.fn, self._dali.types
        clip = fn.hsv(clip, hue=change[HUE_DEGREES], saturation=change[SATURATION], value=change[BRIGHTNESS])
        contrast = change[CONTRAST] if self.shape.device_id is None else change[CONTRAST].gpu()
        grey = fn.color_space_conversion(clip, image_type=types.RGB, output_type=types.GRAY)
        mean = fn.reductions.mean(grey, axis_names="HWC", keep_dims=True)
        return fn.reshape(fn.cast(clip * contrast + mean * (1 - contrast), dtype=types.UINT8), layout="FHWC")

    def _normalize(self, clip: Any, normalized: Normalized) -> Any:
        return self._dali.fn.crop_mirror_normalize(
            clip,
            mean=[255 * value for value in normalized.mean],
            std=[255 * value for value in normalized.std],
            dtype=self._dali.types.FLOAT,
            output_layout={"NTCHW": "FCHW", "NCTHW": "CFHW"}[normalized.layout],
        )


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

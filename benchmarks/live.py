"""A simulated camera: delay of the predictions, memory, and frames that no window had."""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import Positive, memory_mib, write_video
from paddlevideo_fast.apps.predict.live import LiveSource, predict_live
from paddlevideo_fast.apps.predict.predictor import Windowing

_FPS = 25


class SlowPredictor:
    """Reads 8 frames of a window and then takes as long as a network would."""

    def __init__(self, predict_sec: float) -> None:
        self._predict_sec = predict_sec

    def predict_open(self, video: Any) -> Any:
        """The frames' mean."""
        indices = [number * video.num_frames // 8 for number in range(8)]
        mean = video.read(indices).mean()
        time.sleep(self._predict_sec)
        return mean


def run(minutes: Positive = 10, width: Positive = 320, height: Positive = 240) -> dict[str, Any]:
    """Predicts two streams at their own pace: by a fast network, and by one slower than the strides.

    Args:
        minutes: length of the first stream; the second lasts a tenth of it.
        width: of the frames.
        height: of the frames.

    Returns:
        By network ("fast": 0.05 s a prediction, "slow": 2.5 s; windows of 2 s, a stride of 1 s): "seconds",
        "num_windows", "delay_sec" (median and maximum, from the arrival of a window's last frame until its
        prediction is done), "memory_mb" (of the process after the first tenth and at the end), and
        "num_frames", "num_dropped", "num_skipped".
    """
    seconds = round(60 * minutes)
    slow_sec = max(seconds // 10, 6)
    return {"fast": _trial(seconds, 0.05, width, height), "slow": _trial(slow_sec, 2.5, width, height)}


def _trial(seconds: int, predict_sec: float, width: int, height: int) -> dict[str, Any]:
    predictor: Any = SlowPredictor(predict_sec)
    with tempfile.TemporaryDirectory() as folder:
        pipe = Path(folder, "camera.ts")
        os.mkfifo(pipe)
        camera = get_context("spawn").Process(target=_film, args=(pipe, seconds, width, height))
        camera.start()
        with LiveSource(str(pipe), 3.0, "drop") as source:
            windows = predict_live(predictor, source, Windowing(2.0, 1.0))
            results, memory = zip(*((result, memory_mib("VmRSS")) for result in windows))
            num_frames = source.num_frames
        camera.join()
    delays = [result.delay_sec for result in results]
    return {
        "seconds": seconds,
        "num_windows": len(results),
        "delay_sec": [statistics.median(delays), max(delays)],
        "memory_mb": [memory[len(memory) // 10], memory[-1]],
        "num_frames": num_frames,
        "num_dropped": results[-1].num_dropped,
        "num_skipped": results[-1].num_skipped,
    }


def _film(pipe: Path, seconds: int, width: int, height: int) -> None:
    """Writes frames of noise that moves, as a camera does: each at its time."""
    noise = np.random.default_rng(0).integers(0, 256, (height + 50, width, 3), np.uint8)

    def frames() -> Iterator[np.ndarray]:
        began = time.monotonic()
        for number in range(seconds * _FPS):
            yield noise[number % 50 :][:height]
            time.sleep(max(0.0, number / _FPS - (time.monotonic() - began)))

    write_video(pipe, frames(), "mpeg4", _FPS, {"g": "12"})

"""Videos to measure with where none are given."""

from __future__ import annotations

from pathlib import Path
from typing import List

import av
import numpy as np


def write_clips(folder: Path, num_clips: int = 3, num_frames: int = 120) -> List[Path]:
    """Encodes H.264 clips of 340 x 256 with a moving texture.

    Args:
        folder: where to.
        num_clips: how many.
        num_frames: of each.
    """
    paths = [folder / f"made_{number}.mp4" for number in range(num_clips)]
    for number, path in enumerate(paths):
        rng = np.random.default_rng(number)
        texture = np.repeat(np.repeat(rng.integers(0, 256, (64, 85, 3), np.uint8), 4, 0), 4, 1)
        with av.open(str(path), "w") as container:
            stream = container.add_stream("libx264", rate=30)
            stream.height, stream.width = texture.shape[:2]
            stream.pix_fmt = "yuv420p"
            for at in range(num_frames):
                picture = np.roll(texture, (at, 2 * at), (0, 1))
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode())
    return paths

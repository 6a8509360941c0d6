from __future__ import annotations

import av
import numpy as np
import pytest


@pytest.fixture(scope="session")
def real_frames(real_clips_dir):
    """Eight frames of a real clip, uint8 [8, H, W, 3]."""
    with av.open(str(real_clips_dir / "mma_demo.mp4")) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame, _ in zip(container.decode(video=0), range(8))]
    return np.stack(frames)

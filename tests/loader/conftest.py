from __future__ import annotations

import av
import numpy as np
import pytest

from paddlevideo_fast.decode.packed_format import PackSettings, ShardWriter


@pytest.fixture(scope="session")
def real_frames(real_clips_dir):
    """Eight frames of a real clip, uint8 [8, H, W, 3]."""
    with av.open(str(real_clips_dir / "mma_demo.mp4")) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame, _ in zip(container.decode(video=0), range(8))]
    return np.stack(frames)


@pytest.fixture(scope="session")
def packed_folder(tmp_path_factory, rawframes_dataset):
    """The six videos of `rawframes_dataset`, of 12 frames at 25 frames a second, in three shards."""
    folder = tmp_path_factory.mktemp("packed")
    lines = rawframes_dataset.list_file.read_text().splitlines()
    for shard in range(3):
        with ShardWriter(folder, PackSettings(shard, 3, 0, 90, bytes(16))) as writer:
            for name, _, label in (line.split() for line in lines[2 * shard : 2 * shard + 2]):
                images = sorted((rawframes_dataset.root / name).iterdir())
                writer.add(name, int(label), 25.0, (80, 48), [image.read_bytes() for image in images])
    return folder

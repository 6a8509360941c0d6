import av
import numpy as np
import pytest

from tests.loader.building import pack


@pytest.fixture(scope="session")
def real_frames(real_clips_dir):
    """Eight frames of a real clip, uint8 [8, H, W, 3]."""
    with av.open(str(real_clips_dir / "mma_demo.mp4")) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame, _ in zip(container.decode(video=0), range(8))]
    return np.stack(frames)


@pytest.fixture(scope="session")
def packed_folder(tmp_path_factory, rawframes_dataset):
    """The six videos of `rawframes_dataset` in three shards; one more, `gone`, could not be packed."""
    lines = rawframes_dataset.list_file.read_text().splitlines()
    return pack(tmp_path_factory.mktemp("packed"), rawframes_dataset.root, lines, 2, failed=["gone"])

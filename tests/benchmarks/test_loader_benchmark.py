"""The sides of the loader's benchmark give the same pixels."""

import numpy as np
import pytest

from benchmarks import loader
from benchmarks.measuring import write_clips
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.errors import BadSampleShareError


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    return write_clips(tmp_path_factory.mktemp("clips"), num_clips=2, num_frames=16)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_sides_give_the_same_clips(clips, tmp_path, num_workers):
    dataset = loader._dataset(clips, 4, tmp_path)
    sides = {name: make(dataset, 2, num_workers) for name, make in loader.SIDES.items()}
    pixels = [batch.clips.copy() for batch in sides["uint8"].epoch()]
    assert [batch.shape for batch in pixels] == [(2, 8, 224, 224, 3)] * 2
    for batch, (clip, label) in zip(pixels, sides["uint8 paddle"].epoch()):
        np.testing.assert_array_equal(clip.numpy(), batch)
        assert label.numpy().tolist() == [[0], [0]]
    for ours, (classic, _) in zip(sides["uint8 + norm"].epoch(), sides["float32"].epoch()):
        assert classic.numpy().dtype == ours.dtype == np.float32
        np.testing.assert_allclose(classic.numpy(), ours, atol=1e-5)
    for side in sides.values():
        side.close()


def test_a_clip_that_does_not_decode_is_named(tmp_path):
    (tmp_path / "empty.mp4").write_bytes(b"")
    with pytest.raises(BadSampleShareError, match=r"empty\.mp4: "):
        loader.run([tmp_path / "empty.mp4"], workers=[0], batch_size=1, batches=2, rounds=1)


def test_the_made_clips_decode(clips):
    with open_video(clips[0]) as reader:
        assert (reader.num_frames, *reader.read([0]).shape) == (16, 1, 256, 340, 3)

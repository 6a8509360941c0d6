"""Both paths of the pipeline's benchmark show the same pictures."""

import numpy as np
import pytest

from benchmarks import pipeline as bench
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.loader import ClipRequest, Pipeline, VideoRecord

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


@pytest.fixture(scope="module")
def clips(tmp_path_factory, make_clip):
    root = tmp_path_factory.mktemp("bench")
    return [str(make_clip(root / f"{name}.mp4", 40, size=(144, 128))) for name in ("one", "two")]


@pytest.mark.smoke
@pytest.mark.parametrize("name", bench.RECIPES)
@pytest.mark.parametrize("seed", range(3))
def test_the_classic_path_shows_the_same(clips, name, seed):
    recipe = bench.RECIPES[name]
    classic = bench.classic_clip(clips[0], *recipe, (MEAN, STD), np.random.default_rng(seed))
    record = VideoRecord(clips[0], 0)
    with open_video(clips[0]) as reader:
        rngs = [np.random.default_rng(seed)]
        (clip,) = Pipeline(*recipe)(reader, record, [ClipRequest(0, 0)], rngs)
    ours = clip.pixels
    assert classic.dtype == np.float32
    assert classic.shape == (len(ours), 3, 224, 224)
    pixels = (classic.transpose(0, 2, 3, 1) * np.float32(STD) + np.float32(MEAN)) * 255
    assert np.abs(pixels - ours).mean() < 4  # PIL and OpenCV weigh neighbours differently


def test_what_is_missing_is_named(clips, tmp_path, monkeypatch):
    with pytest.raises(PaddleVideoFastError, match=r"has 0 files named one\.\*"):
        bench.run(clips, prepared=str(tmp_path))
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PaddleVideoFastError, match="needs decord"):
        bench.run(clips)

"""Both ways of normalising give the formula's values."""

import numpy as np
import paddle
import pytest

from paddlevideo_fast.modeling import Preprocess

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
CLIPS = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 7, 3), dtype="uint8")


@pytest.mark.smoke
@pytest.mark.parametrize("layout", ["NTCHW", "NCTHW"])
def test_numpy_and_paddle_give_the_formula(layout):
    axes = (0, 1, 4, 2, 3) if layout == "NTCHW" else (0, 4, 1, 2, 3)
    expected = ((CLIPS.astype("float64") / 255 - MEAN) / STD).transpose(axes)
    preprocess = Preprocess(MEAN, STD, layout)
    assert not preprocess.state_dict()
    for result in (
        preprocess(CLIPS).numpy(),
        preprocess(paddle.to_tensor(CLIPS)).numpy(),
        preprocess.in_numpy(CLIPS),
        preprocess.in_paddle(paddle.to_tensor(CLIPS)).numpy(),
    ):
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6)

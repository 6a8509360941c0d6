"""The fused shift against the composed one and against plain loops."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddlevideo_fast.modeling.layers import temporal_shift, temporal_shift_composed

shapes = st.tuples(
    st.integers(1, 3), st.integers(1, 9), st.integers(1, 19), st.integers(1, 5), st.integers(1, 4)
)


@settings(max_examples=40, deadline=None)
@given(shapes, st.sampled_from([0.125, 0.25, 0.0625]), st.sampled_from(["NCHW", "NHWC"]))
def test_fused_equals_composed_forward_and_backward(shape, ratio, data_format):
    clips, num_seg, channels, height, width = shape
    inner = [channels, height, width] if data_format == "NCHW" else [height, width, channels]
    rng = np.random.default_rng(0)
    value = rng.standard_normal([clips * num_seg, *inner]).astype("float32")
    gradient = paddle.to_tensor(rng.standard_normal(value.shape).astype("float32"))
    results = []
    for shift in (temporal_shift, temporal_shift_composed):
        frames = paddle.to_tensor(value, stop_gradient=False)
        out = shift(frames, num_seg, ratio, data_format)
        paddle.autograd.backward([out], [gradient])
        results.append((out.numpy(), frames.grad.numpy()))
    for fused, composed in zip(*results):
        np.testing.assert_array_equal(fused, composed)


@pytest.mark.smoke
def test_first_fold_comes_from_the_frame_before():
    value = np.arange(2 * 4 * 8, dtype="float32").reshape(8, 8, 1, 1) + 1
    shifted = temporal_shift(paddle.to_tensor(value), 4, 0.25).numpy().reshape(2, 4, 8)
    clips = value.reshape(2, 4, 8)
    for clip in range(2):
        for frame in range(4):
            before = clips[clip, frame - 1, :2] if frame > 0 else np.zeros(2)
            after = clips[clip, frame + 1, 2:4] if frame < 3 else np.zeros(2)
            np.testing.assert_array_equal(shifted[clip, frame, :2], before)
            np.testing.assert_array_equal(shifted[clip, frame, 2:4], after)
            np.testing.assert_array_equal(shifted[clip, frame, 4:], clips[clip, frame, 4:])

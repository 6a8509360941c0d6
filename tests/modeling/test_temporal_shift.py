"""The shift against Paddle's operator and plain loops."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddlevideo_fast.modeling.layers.operators import operators_for, temporal_shift

shapes = st.tuples(
    st.integers(1, 3), st.integers(1, 9), st.integers(1, 19), st.integers(1, 5), st.integers(1, 4)
)


@settings(max_examples=40, deadline=None)
@given(shapes, st.sampled_from([0.125, 0.25, 0.0625]), st.sampled_from(["NCHW", "NHWC"]))
def test_it_is_paddles_operator_forward_and_backward(shape, ratio, data_format):
    clips, num_seg, channels, height, width = shape
    inner = [channels, height, width] if data_format == "NCHW" else [height, width, channels]
    rng = np.random.default_rng(0)
    value = rng.standard_normal([clips * num_seg, *inner]).astype("float32")
    gradient = paddle.to_tensor(rng.standard_normal(value.shape).astype("float32"))
    results = []
    for shift in (temporal_shift, F.temporal_shift):
        frames = paddle.to_tensor(value, stop_gradient=False)
        out = shift(frames, num_seg, ratio, data_format=data_format)
        paddle.autograd.backward([out], [gradient])
        results.append((out.numpy(), frames.grad.numpy()))
    for ours, operator in zip(*results):
        np.testing.assert_array_equal(ours, operator)


@settings(max_examples=25, deadline=None)
@given(shapes, st.sampled_from([0.125, 0.25, 0.5]))
def test_a_portable_program_computes_the_same(shape, ratio):
    clips, num_seg, channels, height, width = shape
    value = np.random.default_rng(1).standard_normal([clips * num_seg, channels, height, width])
    frames = paddle.to_tensor(value.astype("float32"))
    expected = temporal_shift(frames, num_seg, ratio).numpy()
    with operators_for("onnx"):
        np.testing.assert_array_equal(temporal_shift(frames, num_seg, ratio).numpy(), expected)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_types_keep_their_type(dtype):
    frames = paddle.randn([8, 8, 2, 2]).astype(dtype)  # of the 16-bit types Paddle's CPU kernel has none
    out = temporal_shift(frames, 4)
    assert out.dtype == frames.dtype
    expected = temporal_shift(frames.astype("float32"), 4)
    np.testing.assert_array_equal(out.astype("float32").numpy(), expected.numpy())


def test_an_exported_program_holds_paddles_operator():
    class Shift(paddle.nn.Layer):
        def forward(self, frames):
            return temporal_shift(frames, 4)

    spec = [paddle.static.InputSpec([8, 8, 2, 2], "float32")]
    layer = paddle.jit.to_static(Shift(), input_spec=spec, full_graph=True)
    assert "temporal_shift" in str(layer.forward.main_program)


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

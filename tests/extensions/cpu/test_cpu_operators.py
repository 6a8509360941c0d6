"""Operators of the CPU against Paddle's own: values and gradients."""

import gc
import itertools
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from paddlevideo_fast.extensions.cpu import convolutions, onednn
from paddlevideo_fast.extensions.cpu import operators as cpu
from paddlevideo_fast.modeling.layers import Conv3D, LayerNorm, Linear, gelu
from paddlevideo_fast.modeling.layers import cpu as seam
from paddlevideo_fast.modeling.layers.attention import attend
from paddlevideo_fast.modeling.layers.cpu import Conv2D

pytestmark = [
    pytest.mark.smoke,
    pytest.mark.skipif(not paddle.get_device().startswith("cpu"), reason="operators of the CPU"),
]


def tensors(*shapes, wanted=None):
    """Tensors of normal numbers; those that `wanted` does not number want no gradient."""
    rng = np.random.default_rng(0)
    made = [paddle.to_tensor(rng.standard_normal(shape).astype("float32")) for shape in shapes]
    for number, one in enumerate(made):
        one.stop_gradient = wanted is not None and number not in wanted
    return made


def values_and_gradients(function, inputs):
    outputs = function(*inputs)
    weights = paddle.to_tensor(np.random.default_rng(1).standard_normal(outputs.shape).astype("float32"))
    wanting = [one for one in inputs if not one.stop_gradient]
    return [outputs, *paddle.grad([(outputs * weights).sum()], wanting)]


def assert_same(ours, plain, inputs):
    """Paddle computes all gradients: its layer norm with a frozen weight forgets the weight in the others."""
    wanted = [not one.stop_gradient for one in inputs]
    found_ones = values_and_gradients(ours, inputs)
    for one in inputs:
        one.stop_gradient = False
    value, *gradients = values_and_gradients(plain, inputs)
    for found, expected in zip(found_ones, [value, *itertools.compress(gradients, wanted)]):
        assert found.shape == expected.shape
        assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max()) + 1e-7


def with_parameters(layer):
    """The layer as a function of its input, weight and bias."""

    def function(x, *parameters):
        layer._parameters.update(zip(("weight", "bias"), parameters))
        return layer(x)

    return function


def test_gelu():
    (x,) = tensors((3, 17, 29))
    with paddle.no_grad():
        x[0] *= 8
        x[1, 0] = 0.0
        x[1, 1] = -40.0
        x[1, 2] = 1e-42
    assert_same(gelu, F.gelu, [x])
    assert_same(lambda x: gelu(x.transpose([2, 0, 1])), lambda x: F.gelu(x.transpose([2, 0, 1])), [x])


@pytest.mark.parametrize("wanted", [(0, 1, 2), (1, 2), (0,), (2,)])
def test_linear_and_layer_norm(wanted):
    linear, norm = Linear(12, 7), LayerNorm(12, epsilon=1e-3)
    inputs = tensors((3, 11, 12), (12, 7), (7,), wanted=wanted)
    assert_same(with_parameters(linear), F.linear, inputs)
    inputs = tensors((3, 11, 12), (12,), (12,), wanted=wanted)
    assert_same(with_parameters(norm), lambda x, w, b: F.layer_norm(x, [12], w, b, 1e-3), inputs)


@pytest.mark.parametrize("block", [2**19, 2**13, 1000])
@pytest.mark.parametrize("wanted", [(0, 1, 2, 3), (0, 3), (1, 2)])
@pytest.mark.parametrize("masked", [False, True])
def test_attention(block, wanted, masked, monkeypatch):
    """A masked key has no weight at all here; Paddle's softmax leaves it a denormal number."""
    monkeypatch.setattr(cpu, "_BLOCK_OF_SCORES", block)
    inputs = tensors((4, 6, 90, 8), (4, 6, 100, 8), (4, 6, 100, 5), (6, 90, 100), wanted=wanted)
    mask = paddle.to_tensor(np.where(np.random.default_rng(2).random((2, 90, 100)) < 0.3, -100, 0), "float32")

    def plain(query, key, value, bias):
        biases = bias + paddle.tile(mask, [2, 1, 1]).unsqueeze(1) if masked else bias
        return F.softmax(paddle.matmul(query * 0.3, key, transpose_y=True) + biases) @ value

    calls = []
    real = cpu.attend
    monkeypatch.setattr(seam, "attend", lambda *arguments: calls.append(1) or real(*arguments))
    added = mask if masked else None
    assert_same(lambda q, k, v, b: attend(q, k, v, b, 0.0, 0.3, added, True), plain, inputs)
    assert calls == [1]


@pytest.mark.parametrize("size", [1.0, 10.0, 100.0])
def test_attention_without_a_bias(size, monkeypatch):
    """Of small scores the highest is not subtracted; large ones would leave the range of float32."""
    monkeypatch.setattr(cpu, "_BLOCK_OF_SCORES", 2**13)
    inputs = tensors((2, 3, 90, 8), (2, 3, 100, 8), (2, 3, 100, 5))
    with paddle.no_grad():
        inputs[0] *= size
    assert_same(
        lambda q, k, v: attend(q, k, v, None, 0.0, 0.3, None, True),
        lambda q, k, v: F.softmax(paddle.matmul(q * 0.3, k, transpose_y=True)) @ v,
        inputs,
    )


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [((3, 1, 1), 1, (1, 0, 0)), ((5, 1, 1), 1, (1, 0, 0)), ((2, 1, 1), (1, 2, 2), (1, 1, 0))],
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_convolutions_of_pixels_of_several_frames(kernel, stride, padding, has_bias, monkeypatch):
    inputs = tensors((2, 6, 4, 5, 3), (3, 6, *kernel), (3,))[: 2 + has_bias]
    layer = Conv3D(6, 3, kernel, stride, padding, bias_attr=None if has_bias else False)
    monkeypatch.delattr(nn.Conv3D, "forward")  # it took this way
    assert_same(with_parameters(layer), lambda x, w, b=None: F.conv3d(x, w, b, stride, padding), inputs)


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ((4, 4, 1), (1, 4, 2, 16, 16)),
        ((4, 4, (3, 1, 1)), (1, 4, 3, 16, 16)),
        ((8, 4, (3, 1, 1)), (1, 8, 3, 1, 2)),  # few pixels
        ((8, 4, (3, 1, 1), (2, 1, 1)), (1, 8, 3, 16, 16)),
        ((16, 4, (3, 1, 1), 1, 0, 1, 2), (1, 16, 3, 16, 16)),
        ((8, 4, (3, 1, 1), 1, "SAME"), (1, 8, 3, 16, 16)),
        ((4, 4, 3, 1, 1, 2), (1, 4, 5, 16, 16)),
    ],
)
def test_other_convolutions_stay_paddles(arguments, shape, monkeypatch):
    ours, plain = Conv3D(*arguments), nn.Conv3D(*arguments)
    plain.set_state_dict(ours.state_dict())
    monkeypatch.delattr(convolutions, "_SumOverTime")
    (x,) = tensors(shape)
    assert bool((ours(x) == plain(x)).all())


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [
        ((5, 7, 7), (1, 2, 2), (2, 3, 3)),
        ((3, 3, 3), 1, 1),
        ((1, 3, 3), (1, 2, 2), (0, 1, 1)),
        ((2, 3, 1), (2, 1, 3), (0, 2, 0)),
        ((3, 5, 5), 2, "SAME"),
        ((3, 3, 3), 1, "VALID"),
    ],
)
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("layer_of", "plain", "rank"), [(Conv3D, F.conv3d, 3), (Conv2D, F.conv2d, 2)])
def test_convolutions_by_onednn(
    kernel, stride, padding, groups, has_bias, layer_of, plain, rank, monkeypatch
):
    options = [one[-rank:] if isinstance(one, tuple) else one for one in (kernel, stride, padding)]
    layer = layer_of(6, 12, *options, groups=groups, bias_attr=None if has_bias else False)
    inputs = tensors((2, 6, *(4, 9, 8)[-rank:]), layer.weight.shape, (12,))[: 2 + has_bias]
    monkeypatch.setattr(layer_of.__base__, "forward", None)  # it took this way
    assert_same(with_parameters(layer), lambda x, w, b=None: plain(x, w, b, *options[1:], 1, groups), inputs)


def test_onednn_pads_one_side_alone(monkeypatch):
    layer = Conv2D(6, 6, (4, 5), 2, [0, 1, 0, 2], groups=6, bias_attr=False)
    inputs = tensors((2, 6, 8, 9), layer.weight.shape)
    monkeypatch.setattr(nn.Conv2D, "forward", None)
    assert_same(with_parameters(layer), lambda x, w: F.conv2d(x, w, None, 2, [0, 1, 0, 2], 1, 6), inputs)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("wanted", [[0], [1]])
def test_onednn_gives_the_gradients_that_are_wanted(wanted, groups):
    layer = Conv2D(3, 3, 3, padding=1, groups=groups, bias_attr=False)
    inputs = tensors((2, 3, 4, 4), layer.weight.shape, wanted=wanted)
    assert_same(with_parameters(layer), lambda x, w: F.conv2d(x, w, padding=1, groups=groups), inputs)


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [((4, 4, 1), (4, 4, 6, 6)), ((4, 4, 3, 1, 1, 2), (4, 4, 6, 6)), ((4, 4, 3), (4, 4, 2, 6))],
)
def test_convolutions_that_onednn_does_not_take_stay_paddles(arguments, shape, monkeypatch):
    layer = Conv2D(*arguments)
    monkeypatch.setattr(nn.Conv2D, "forward", lambda layer, x: "Paddle's")
    assert layer(*tensors(shape)) == "Paddle's"


def test_without_onednn_all_stays_paddles(monkeypatch):
    x, frames = tensors((3, 11, 12), (4, 4, 6, 6))
    monkeypatch.setattr(onednn, "library", lambda: None)
    monkeypatch.setattr(onednn, "description", None)  # nothing is asked of it
    for wanted in ((0, 1, 2), (0,)):  # Paddle's layer norm forgets a frozen weight in other gradients
        inputs = tensors((3, 11, 12), (12,), (12,), wanted=wanted)
        assert_same(with_parameters(LayerNorm(12)), lambda x, w, b: F.layer_norm(x, [12], w, b), inputs)
    assert bool((gelu(x) == F.gelu(x)).all())
    layer = Conv2D(4, 4, 3)
    assert bool((layer(frames) == F.conv2d(frames, layer.weight, layer.bias)).all())


def test_a_library_that_is_missing_is_no_error(monkeypatch):
    monkeypatch.setattr(onednn, "Path", lambda file: Path("no_such_folder/paddle"))
    onednn.library.cache_clear()
    assert onednn.library() is None
    onednn.library.cache_clear()


def test_an_empty_batch():
    assert gelu(paddle.zeros([0, 4])).shape == [0, 4]
    assert LayerNorm(4)(paddle.zeros([0, 4])).shape == [0, 4]
    assert Conv2D(4, 4, 3, bias_attr=False)(paddle.zeros([0, 4, 6, 6])).shape == [0, 4, 4, 4]


def test_what_onednn_refuses_is_named():
    with pytest.raises(RuntimeError, match="dnnl_softmax_forward_primitive_desc_create failed"):
        onednn.description("softmax_forward", onednn.TRAINING, 0, None, None, 0)


def test_threads_share_what_onednn_has_prepared():
    convolution, norm, (x,) = Conv2D(8, 8, 3, padding=1), LayerNorm(16), tensors((2, 8, 16, 16))

    def computed(_=None):
        return gelu(norm(convolution(x)))

    expected = computed()
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(computed, range(32)))
    assert all(bool((one == expected).all()) for one in results)


def test_what_paddle_accepts_stays_accepted():
    x = paddle.randn([2, 3, 4])
    for shape, options in (([3, 4], {}), (4, {"weight_attr": False}), (4, {"bias_attr": False})):
        expected = nn.LayerNorm(shape, **options)(x)
        assert bool((LayerNorm(shape, **options)(x) == expected).all())
    ours = Conv3D(4, 4, 3, padding=[[0, 0], [0, 0], [1, 0], [1, 1], [0, 1]])
    assert ours(paddle.randn([1, 4, 3, 16, 16])).shape == [1, 4, 2, 16, 15]


def test_a_default_type_of_the_user_changes_nothing():
    (x,) = tensors((2, 3, 4))
    expected = gelu(x)
    paddle.set_default_dtype("float64")
    try:
        assert_same(gelu, F.gelu, [x])
        assert cpu.transpose(x, [2, 0, 1]).dtype == paddle.float32
        assert bool((cpu.transpose(x, [2, 0, 1]) == x.transpose([2, 0, 1])).all())
    finally:
        paddle.set_default_dtype("float32")
    assert bool((gelu(x) == expected).all())


def test_a_forward_pass_alone_leaves_nothing_behind(monkeypatch):
    """The output must not keep the graph that keeps the output."""
    alive = []

    class Watched(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, x):
            ctx.watched = Watch()
            alive.append(weakref.ref(ctx.watched))
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    class Watch:
        pass

    monkeypatch.setattr(cpu, "_MIN_SCORES", 1)
    (x,) = tensors((1, 2, 6, 4))
    y = gelu(Watched.apply(x))
    z = attend(*[Watched.apply(x)] * 3)
    del y, z
    gc.collect()
    assert [one() for one in alive] == [None, None]


def test_other_types_stay_paddles():
    with pytest.raises(TypeError, match="expected float32"):
        cpu.as_array(paddle.zeros([1], "float64"))
    x = paddle.randn([2, 3]).astype("float64")
    assert not cpu.is_on_cpu(x)
    assert bool((gelu(x) == F.gelu(x)).all())


def test_arrays_are_the_memory_of_tensors():
    x = paddle.arange(24, dtype="float32").reshape([2, 3, 4])
    for order in itertools.permutations(range(3)):
        np.testing.assert_array_equal(cpu.as_array(x.transpose(order)), x.numpy().transpose(order))
        np.testing.assert_array_equal(cpu.transpose(x, order).numpy(), x.numpy().transpose(order))
    part = cpu.as_array(x[1:, :2])
    part[...] = -1
    assert float(x.sum()) == 276 - (12 + 13 + 14 + 15 + 16 + 17 + 18 + 19) - 8
    assert cpu.as_array(paddle.zeros([0, 3])).shape == (0, 3)

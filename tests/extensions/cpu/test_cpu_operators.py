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


def test_gelu(monkeypatch):
    monkeypatch.setattr(cpu, "_BLOCK", 100)
    (x,) = tensors((3, 17, 29))
    with paddle.no_grad():
        x[0] *= 8
        x[1, 0] = 0.0
        x[1, 1] = -40.0
        x[1, 2] = 1e-42
    assert_same(gelu, F.gelu, [x])
    assert_same(lambda x: gelu(x.transpose([2, 0, 1])), lambda x: F.gelu(x.transpose([2, 0, 1])), [x])


@pytest.mark.parametrize("wanted", [(0, 1, 2), (1, 2), (0,), (2,)])
def test_linear_and_layer_norm(wanted, monkeypatch):
    monkeypatch.setattr(cpu, "_BLOCK", 100)
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
        ((4, 4, 3, 1, "SAME"), (1, 4, 3, 16, 16)),
        ((4, 4, 3, 1, 1, 1, 4), (1, 4, 3, 16, 16)),
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
    ("kernel", "stride", "padding", "size"),
    [
        (3, 1, 1, (14, 14)),  # four tiles
        (5, 2, "SAME", (27, 20)),  # tiles that hold more than is written; one row of zeros more below
        (4, 2, [0, 1, 0, 1], (8, 9)),
        (5, 1, 2, (4, 4)),  # the kernel is larger than the frame
        ((4, 5), (2, 1), (1, 2), (17, 10)),  # no tile reads the last row
        (3, 1, "VALID", (9, 5)),
    ],
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_depthwise_convolutions_of_small_frames(kernel, stride, padding, size, has_bias, monkeypatch):
    layer = Conv2D(6, 6, kernel, stride, padding, groups=6, bias_attr=None if has_bias else False)
    inputs = tensors((5, 6, *size), layer.weight.shape, (6,))[: 2 + has_bias]
    monkeypatch.delattr(nn.Conv2D, "forward")
    assert_same(with_parameters(layer), lambda x, w, b=None: F.conv2d(x, w, b, stride, padding, 1, 6), inputs)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [((3, 3, 3), 1, 1), ((5, 4, 5), (1, 2, 1), (2, 1, 0)), ((1, 3, 3), 1, 1)]
)
def test_depthwise_convolutions_of_small_clips(kernel, stride, padding, monkeypatch):
    layer = Conv3D(6, 6, kernel, stride, padding, groups=6)
    inputs = tensors((2, 6, 4, 9, 12), layer.weight.shape, (6,))
    monkeypatch.delattr(nn.Conv3D, "forward")
    assert_same(with_parameters(layer), lambda x, w, b: F.conv3d(x, w, b, stride, padding, 1, 6), inputs)


def test_a_depthwise_convolution_gives_the_gradients_that_are_wanted():
    shapes = (4, 3, 9, 9), (3, 1, 3, 3)
    for wanted in ([0], [1]):
        layer = Conv2D(3, 3, 3, padding=1, groups=3, bias_attr=False)
        assert_same(
            with_parameters(layer),
            lambda x, w: F.conv2d(x, w, padding=1, groups=3),
            tensors(*shapes, wanted=wanted),
        )


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ((4, 4, 3, 1, 1, 1, 2), (4, 4, 7, 7)),  # two channels in each group
        ((4, 8, 3, 1, 1, 1, 4), (4, 4, 7, 7)),  # two kernels for each channel
        ((4, 4, 3, 1, 1, 2, 4), (4, 4, 7, 7)),
        ((4, 4, 3, 1, 1, 1, 4), (4, 4, 15, 14)),  # large frames
        ((4, 4, 3, 1, 1, 1, 4), (3, 4, 7, 7)),  # few frames
        ((4, 4, 3, 2, 1, 1, 4), (4, 4, 9, 9)),  # few pixels that two places read
    ],
)
def test_other_depthwise_convolutions_stay_paddles(arguments, shape, monkeypatch):
    ours, plain = Conv2D(*arguments), nn.Conv2D(*arguments)
    plain.set_state_dict(ours.state_dict())
    monkeypatch.delattr(convolutions, "_Depthwise")
    (x,) = tensors(shape)
    assert bool((ours(x) == plain(x)).all())


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [
        ((5, 7, 7), (1, 2, 2), (2, 3, 3)),
        ((3, 3, 3), 1, 1),
        ((1, 3, 3), (1, 2, 2), (0, 1, 1)),
        ((2, 3, 1), (2, 1, 3), (0, 2, 0)),
    ],
)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("layer_of", "plain", "rank"), [(Conv3D, F.conv3d, 3), (Conv2D, F.conv2d, 2)])
def test_convolutions_by_onednn(kernel, stride, padding, has_bias, layer_of, plain, rank, monkeypatch):
    options = [one if isinstance(one, int) else one[-rank:] for one in (kernel, stride, padding)]
    layer = layer_of(3, 6, *options, bias_attr=None if has_bias else False)
    inputs = tensors((2, 3, *(4, 9, 8)[-rank:]), layer.weight.shape, (6,))[: 2 + has_bias]
    monkeypatch.setattr(layer_of.__base__, "forward", None)  # it took this way
    assert_same(with_parameters(layer), lambda x, w, b=None: plain(x, w, b, *options[1:]), inputs)


@pytest.mark.parametrize("wanted", [[0], [1]])
def test_onednn_gives_the_gradients_that_are_wanted(wanted):
    layer = Conv2D(3, 3, 3, padding=1, bias_attr=False)
    inputs = tensors((2, 3, 4, 4), (3, 3, 3, 3), wanted=wanted)
    assert_same(with_parameters(layer), lambda x, w: F.conv2d(x, w, padding=1), inputs)


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ((4, 4, 1), (4, 4, 6, 6)),
        ((4, 4, 3, 1, 1, 2), (4, 4, 6, 6)),
        ((4, 4, 3, 1, 1, 1, 2), (4, 4, 6, 6)),  # two groups
        ((4, 4, 3, 1, "SAME"), (4, 4, 6, 6)),
        ((4, 4, 3, 1, (0, 1, 1, 0)), (4, 4, 6, 6)),
    ],
)
def test_convolutions_that_onednn_does_not_take_stay_paddles(arguments, shape, monkeypatch):
    ours, plain = Conv2D(*arguments), nn.Conv2D(*arguments)
    plain.set_state_dict(ours.state_dict())
    monkeypatch.setattr(onednn, "convolve", None)
    (x,) = tensors(shape)
    assert bool((ours(x) == plain(x)).all())


def test_onednn_computes_no_batch_without_clips():
    assert not onednn.pays(Conv2D(4, 4, 3), tensors((0, 4, 6, 6))[0])


def test_without_onednn_convolutions_stay_paddles(monkeypatch):
    layer, (x,) = Conv2D(4, 4, 3), tensors((4, 4, 6, 6))
    assert onednn.pays(layer, x)
    onednn._library.cache_clear()
    monkeypatch.setattr(onednn, "Path", lambda file: Path("no_such_folder/paddle"))
    assert not onednn.pays(layer, x)
    onednn._library.cache_clear()


def test_what_onednn_refuses_is_named():
    with pytest.raises(RuntimeError, match="dnnl_convolution_forward_primitive_desc_create failed"):
        onednn.convolve(*tensors((2, 3, 4, 4), (3, 4, 3, 3)), [1, 1], [1, 1])


def test_threads_share_what_onednn_has_prepared():
    layer, (x,) = Conv2D(8, 8, 3, padding=1), tensors((2, 8, 16, 16))
    expected = layer(x)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: layer(x), range(32)))
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
    expected = F.gelu(x)
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

"""Attention against sums in NumPy, and what it costs."""

from functools import partial

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle.jit.dy2static import program_translator

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling import MacCounter
from paddlevideo_fast.modeling.attentive_head import CrossAttention
from paddlevideo_fast.modeling.backbones.swin import WindowAttention
from paddlevideo_fast.modeling.backbones.vjepa2 import RotaryAttention
from paddlevideo_fast.modeling.layers import attention
from paddlevideo_fast.modeling.layers.attention import EncoderBlock, SelfAttention, attend, flash_attend
from paddlevideo_fast.modeling.layers.positions import rotation


def attended(query, key, value, bias, scale):
    """For each query the mean of the values, weighted by the softmax of the scores; in float64."""
    result = np.zeros((*query.shape[:-1], value.shape[-1]))
    for place in np.ndindex(*query.shape[:-1]):
        scores = key[place[:2]].astype("float64") @ query[place] * scale + bias[place]
        weights = np.exp(scores - scores.max())
        result[place] = weights @ value[place[:2]] / weights.sum()
    return result


@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("added", [(), ("bias",), ("bias", "mask")])
def test_attention_is_a_weighted_mean(scale, added):
    rng = np.random.default_rng(0)
    query, key, value, bias, mask = (
        rng.standard_normal(shape).astype("float32")
        for shape in ((4, 3, 5, 4), (4, 3, 7, 4), (4, 3, 7, 6), (3, 5, 7), (2, 5, 7))
    )
    bias, mask = bias * ("bias" in added), mask * ("mask" in added)
    expected = attended(query, key, value, np.tile(bias + mask[:, None], (2, 1, 1, 1)), scale or 0.5)
    given = {name: paddle.to_tensor({"bias": bias, "mask": mask}[name]) for name in added}
    tensors = list(map(paddle.to_tensor, (query, key, value)))
    found = attend(*tensors, scale=scale, heads_first=True, **given)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
    found = attend(*(each.transpose([0, 2, 1, 3]) for each in tensors), scale=scale, **given)
    np.testing.assert_allclose(found.transpose([0, 2, 1, 3]).numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("length", "value_length", "scale"), [(8, 8, None), (8, 8, 0.3), (13, 6, 1.0), (12, 12, None)]
)
def test_fused_attention_is_the_same_for_vectors_of_any_length(length, value_length, scale):
    paddle.seed(0)
    query, key = paddle.randn([2, 5, 3, length]), paddle.randn([2, 7, 3, length])
    value = paddle.randn([2, 7, 3, value_length])
    expected = attend(query, key, value, scale=scale)
    found = flash_attend([query, key, value], scale=scale)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-4, atol=1e-6)


@pytest.fixture
def fused(monkeypatch):
    """Lets float32 on a CPU pass for 16 bits on a GPU. Returns the shapes that the operators were given."""
    monkeypatch.setattr(attention, "_LOW_DTYPES", [paddle.float32])
    monkeypatch.setattr(attention, "compute_capability", lambda: 80)
    shapes = []

    def scores(query, key, scale):
        return paddle.einsum("nlhd,nmhd->nhlm", query, key) * (scale or query.shape[-1] ** -0.5)

    def flash(query, key, value, dropout_p):
        shapes.append([list(each.shape) for each in (query, key, value)])
        return paddle.einsum("nhlm,nmhd->nlhd", F.softmax(scores(query, key, None)), value)

    def efficient(query, key, value, bias, p, scale):
        assert bias.dtype == query.dtype
        shapes.append([list(each.shape) for each in (query, key, value, bias)])
        weights = F.softmax(scores(query, key, scale) + bias)
        return paddle.einsum("nhlm,nmhd->nlhd", weights, value)

    monkeypatch.setattr(F, "scaled_dot_product_attention", flash)
    monkeypatch.setattr(attention, "memory_efficient_attention", efficient)
    return shapes


def results(layer, *inputs):
    """The output and all gradients of a layer."""
    out = layer(*inputs)
    (out * paddle.linspace(-1, 1, out.size).reshape(out.shape)).sum().backward()
    gradients = [each.grad.numpy() for each in layer.parameters()]
    layer.clear_gradients()
    return [out.numpy(), *gradients]


@pytest.mark.parametrize("is_masked", [False, True])
def test_fused_attention_of_windows_has_the_gradients_of_the_bias(is_masked, request):
    """Windows of 2×4×4 tokens, two windows in each of three clips."""
    paddle.seed(0)
    layer = WindowAttention((2, 4, 4), 16, 2)
    tokens = paddle.randn([6, 32, 16])
    mask = -100.0 * paddle.randint(0, 2, [2, 32, 32]).astype("float32") if is_masked else None
    call = lambda: results(layer, tokens, layer.bias(32), mask)  # noqa: E731
    expected = call()
    shapes = request.getfixturevalue("fused")
    for one, other in zip(call(), expected):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert shapes == [[[6, 32, 2, 8]] * 3 + [[6, 2, 32, 32]]]


@pytest.mark.parametrize("kind", [SelfAttention, RotaryAttention, CrossAttention])
def test_queries_keys_and_values_go_to_the_fused_operator_as_they_are(kind, request, monkeypatch):
    paddle.seed(0)
    layer, tokens = kind(16, 2), paddle.randn([2, 12, 16])
    more = {RotaryAttention: [rotation((3, 2, 2), 8, 2)], CrossAttention: [tokens]}.get(kind, [])
    expected = results(layer, tokens, *more)
    shapes = request.getfixturevalue("fused")
    monkeypatch.delattr(paddle.Tensor, "transpose")  # nothing is transposed
    for one, other in zip(results(layer, tokens, *more), expected):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert shapes == [[[2, 12, 2, 8]] * 3]


@pytest.mark.parametrize(
    ("capability", "dtype", "channels", "num_keys", "expected"),
    [
        (80, "bfloat16", 64, 0, True),
        (90, "float16", 118, 0, True),
        (75, "float16", 64, 0, False),  # Turing has no flash attention
        (80, "float32", 64, 0, False),
        (0, "bfloat16", 64, 0, False),  # a CPU
        (80, "bfloat16", 200, 0, False),
        (80, "bfloat16", 32, 392, True),
        (80, "bfloat16", 32, 98, False),  # windows of 2×7×7
        (80, "bfloat16", 12, 392, False),
    ],
)
def test_which_tensors_go_to_fused_operators(capability, dtype, channels, num_keys, expected, monkeypatch):
    monkeypatch.setattr(attention, "compute_capability", lambda: capability)
    query = paddle.zeros([1, 2, 3, channels], dtype)
    assert attention._is_fused(query, query, num_keys) is expected


def test_a_traced_program_has_the_same_operators_as_the_network(fused, monkeypatch):
    # what Paddle has traced before keeps the functions of that time
    monkeypatch.setattr(program_translator, "_FUNCTION_CACHE", program_translator.FunctionCache())
    layer = paddle.jit.to_static(SelfAttention(16, 2), full_graph=True)
    layer(paddle.randn([2, 12, 16]))
    assert fused == [[[2, 12, 2, 8]] * 3]


def test_self_attention_has_queries_keys_and_values_in_this_order():
    paddle.seed(0)
    layer = SelfAttention(6, num_heads=2)
    layer.qkv.bias.set_value(paddle.randn([18]))
    tokens = paddle.randn([2, 5, 6])
    qkv = layer.qkv(tokens).numpy()
    parts = [qkv[..., 6 * n : 6 * n + 6].reshape(2, 5, 2, 3).transpose(0, 2, 1, 3) for n in range(3)]
    joined = attended(*parts, np.zeros((2, 2, 5, 5)), 3**-0.5).transpose(0, 2, 1, 3).reshape(2, 5, 6)
    expected = joined @ layer.proj.weight.numpy() + layer.proj.bias.numpy()
    np.testing.assert_allclose(layer(tokens).numpy(), expected, rtol=1e-4, atol=1e-6)


def test_dropped_weights_keep_the_mean_and_evaluation_drops_none():
    paddle.seed(0)
    layer = SelfAttention(4, num_heads=1, attention_dropout=0.5)
    tokens = paddle.randn([1, 6, 4])
    draws = paddle.stack([layer(tokens) for _ in range(2000)])
    layer.eval()
    expected = layer(tokens)
    assert (layer(tokens) == expected).all()
    assert float(draws.std(axis=0).max()) > 0
    spread = draws.std(axis=0) / 2000**0.5
    assert float(((draws.mean(axis=0) - expected).abs() / spread).max()) < 5


def test_heads_must_divide_the_channels():
    with pytest.raises(ConfigError, match=r"num_heads=3: does not divide 8 channels"):
        SelfAttention(8, num_heads=3)


def test_the_products_of_attention_count():
    block = EncoderBlock(8, partial(SelfAttention, 8, 2), hidden_channels=16)
    tokens = paddle.zeros([3, 5, 8])
    with MacCounter(block) as counter:
        block(tokens)
    linear_layers = 3 * 5 * (8 * 24 + 8 * 8 + 2 * 8 * 16)
    products = 3 * 2 * (5 * 5 * 4 + 5 * 5 * 4)  # scores, and weights times values
    assert counter.macs == linear_layers + products
    block(tokens)
    assert counter.macs == linear_layers + products

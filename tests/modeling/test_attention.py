"""Attention against sums in NumPy, and what it costs."""

from __future__ import annotations

from functools import partial

import numpy as np
import paddle
import pytest

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling import MacCounter
from paddlevideo_fast.modeling.layers.attention import EncoderBlock, SelfAttention, attend, fused_attend


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
    found = attend(*map(paddle.to_tensor, (query, key, value)), scale=scale, **given)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("length", "value_length", "scale"), [(8, 8, None), (8, 8, 0.3), (13, 6, 1.0), (12, 12, None)]
)
def test_fused_attention_is_the_same_for_vectors_of_any_length(length, value_length, scale):
    paddle.seed(0)
    query, key = paddle.randn([2, 3, 5, length]), paddle.randn([2, 3, 7, length])
    value = paddle.randn([2, 3, 7, value_length])
    expected = attend(query, key, value, scale=scale)
    found = fused_attend(query, key, value, scale=scale)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-4, atol=1e-6)


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

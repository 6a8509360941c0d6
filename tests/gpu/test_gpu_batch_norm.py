"""Batch norms by given statistics: frozen, or those of several processes. They have kernels of their own."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from paddlevideo_fast.apps.export.export import computing_on
from paddlevideo_fast.modeling.layers.batch_norm import SubBatchNorm2D, SubBatchNorm3D

CHANNELS = 6


class Alone:
    """A group of this process alone, which takes the way of several."""

    def all_sum(self, values):
        return values


def computed(where, space, dtype, is_synchronised):
    """Output, gradient of the input, and gradients of weight and bias."""
    rng = np.random.default_rng(0)
    with computing_on(where):
        layer = (SubBatchNorm2D if len(space) == 2 else SubBatchNorm3D)(CHANNELS)
        for tensor in (layer.weight, layer.bias, layer._mean, layer._variance):
            tensor.set_value(rng.uniform(0.5, 2, CHANNELS).astype("float32"))
        x, given = (rng.normal(0.5, 2, (3, CHANNELS, *space)).astype("float32") for _ in range(2))
        x = paddle.to_tensor(x, stop_gradient=False)
        layer.train() if is_synchronised else layer.eval()
        layer.set_group(Alone() if is_synchronised else None)
        out = layer(x.astype(dtype))
        (out.astype("float32") * paddle.to_tensor(given)).sum().backward()
        return [each.numpy() for each in (out.astype("float32"), x.grad, layer.weight.grad, layer.bias.grad)]


@pytest.mark.parametrize("is_synchronised", [False, True], ids=["given", "synchronised"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("space", [(7, 5), (4, 7, 5)], ids=["2d", "3d"])
def test_they_have_a_cpus_gradients(device, figure, space, dtype, is_synchronised):
    if device == "cpu" and dtype == "float16":
        pytest.skip("a CPU has no batch norm for float16")
    found = computed(device, space, dtype, is_synchronised)
    expected = computed("cpu", space, "float32", is_synchronised)
    pairs = zip(found, expected)
    largest = max(float(np.abs(one - other).max() / np.abs(other).max()) for one, other in pairs)
    figure("results deviate by", largest)
    assert largest <= (1e-4 if dtype == "float32" else 1e-2)

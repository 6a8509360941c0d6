"""Batch norms by given statistics, and batch norms that share them: Paddle has other kernels for these."""

import os

import numpy as np
import paddle
import pytest

from paddlevideo_fast.apps.export.export import computing_on
from paddlevideo_fast.modeling.layers.batch_norm import SubBatchNorm2D, SubBatchNorm3D
from tests.distributed import batch_norm_ranks
from tests.gpu.conftest import REHEARSAL
from tests.support.forking import Fresh
from tests.support.fused_norm import Alone, operator_over
from tests.support.launching import ROOT

CHANNELS = 6


def computed(where, space, dtype, way):
    """Output, gradient of the input, and gradients of weight and bias."""
    rng = np.random.default_rng(0)
    with computing_on(where):
        layer = (SubBatchNorm2D if len(space) == 2 else SubBatchNorm3D)(CHANNELS)
        for tensor in (layer.weight, layer.bias, layer._mean, layer._variance):
            tensor.set_value(rng.uniform(0.5, 2, CHANNELS).astype("float32"))
        x, given = (rng.normal(0.5, 2, (3, CHANNELS, *space)).astype("float32") for _ in range(2))
        x = paddle.to_tensor(x, stop_gradient=False)
        layer.eval() if way == "given" else layer.train()
        layer.set_group(None if way == "given" else Alone(), way == "fused")
        out = layer(x.astype(dtype))
        (out.astype("float32") * paddle.to_tensor(given)).sum().backward()
        results = out.astype("float32"), x.grad, layer.weight.grad, layer.bias.grad
        return [each.numpy() for each in (*results, layer._mean, layer._variance)]


@pytest.mark.parametrize("way", ["given", "synchronised", "fused"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("space", [(7, 5), (4, 7, 5)], ids=["2d", "3d"])
def test_they_compute_what_a_cpu_computes(device, figure, monkeypatch, space, dtype, way):
    if device == "cpu" and dtype != "float32" and way == "given":
        pytest.skip("a CPU has no batch norm for 16 bits")
    if REHEARSAL:
        monkeypatch.setattr(paddle._C_ops, "sync_batch_norm_", operator_over(Alone().all_sum))
    found = computed(device, space, dtype, way)
    expected = computed("cpu", space, "float32", "given" if way == "given" else "synchronised")
    pairs = zip(found, expected)
    largest = max(float(np.abs(one - other).max() / np.abs(other).max()) for one, other in pairs)
    figure("results deviate by", largest)
    assert largest <= {"float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2}[dtype]


def test_two_ranks_get_by_paddles_operator_what_they_get_by_ours(device, figure, tmp_path):
    """Where a trial shows that the operator shares nothing, ours is used in its place."""
    if REHEARSAL:
        pytest.skip("over gloo tests/distributed does it")
    if paddle.device.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", 2, "--log_dir", tmp_path / "log"]
    command = [*launch, batch_norm_ranks.__file__, tmp_path]
    done = Fresh({**os.environ, "PYTHONPATH": str(ROOT)}).run(command, ROOT, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for rank in range(2):
        found = dict(np.load(tmp_path / f"2_{rank}.npz"))
        figure("Paddle's operator shares:", str(found["shares"]))
        figure("results deviate by", largest := batch_norm_ranks.deviation(found, "float32"))
        assert largest <= 1e-4
        assert batch_norm_ranks.deviation(found, "bfloat16") <= 2e-2

"""Attention as one operator, against the products and the softmax that it replaces."""

import numpy as np
import pytest

from tests.apps.export.test_planar import is_equal, program_of, run, weight
from tests.support.onnx_packages import needs_onnx

pytestmark = needs_onnx
onnx = pytest.importorskip("onnx")
HEADS, SIZE, LENGTH = 3, 4, 10


def program(*, keys=LENGTH, between=(), output="joined"):
    """Attention of clips [N, S, H * D] to `keys` of their own tokens, as the networks write it."""
    weights = {
        "apart": np.array([0, 0, HEADS, SIZE]),
        "together": np.array([0, 0, HEADS * SIZE]),
        "scale": np.array(SIZE**-0.5, "float32"),
        "bias": weight(LENGTH, keys),
        "first": np.array([0]),
        "last": np.array([keys]),
        "tokens": np.array([1]),
        **{name: weight(HEADS * SIZE, HEADS * SIZE) for name in "QKV"},
    }
    nodes = [("Slice", ["clips", "first", "last", "tokens"], "read", {})]
    for name, source, perm in (
        ("Q", "clips", (0, 2, 1, 3)),
        ("K", "read", (0, 2, 3, 1)),
        ("V", "read", (0, 2, 1, 3)),
    ):
        nodes += [
            ("MatMul", [source, name], f"{name}1", {}),
            ("Reshape", [f"{name}1", "apart"], f"{name}2", {}),
            ("Transpose", [f"{name}2"], f"{name}3", {"perm": perm}),
        ]
    nodes += [
        ("Mul", ["Q3", "scale"], "Q4", {}),
        ("MatMul", ["Q4", "K3"], "scores", {}),
        *between,
        ("Softmax", [between[-1][2] if between else "scores"], "shares", {"axis": -1}),
        ("MatMul", ["shares", "V3"], "mixed", {}),
        ("Transpose", ["mixed"], "back", {"perm": (0, 2, 1, 3)}),
        ("Reshape", ["back", "together"], "joined", {}),
        ("ReduceMean", [output], "logits", {"axes": [1, 2], "keepdims": 0}),
    ]
    return program_of(nodes, weights, ["N", LENGTH, HEADS * SIZE])


def fused(given):
    from paddlevideo_fast.apps.export.fused_attention import fuse_attention

    copy = onnx.ModelProto()
    copy.CopyFrom(given)
    return copy, fuse_attention(copy)


@pytest.mark.parametrize("keys", [LENGTH, 4])
def test_the_result_is_that_of_the_products(keys):
    given = program(keys=keys)
    found, number = fused(given)
    operators = [node.op_type for node in found.graph.node]
    assert (number, operators.count("MultiHeadAttention"), operators.count("Softmax")) == (1, 1, 0)
    assert operators.count("MatMul") == 3  # those with weights
    clips = weight(2, LENGTH, HEADS * SIZE)
    assert is_equal(run(found, clips), run(given, clips))


@pytest.mark.parametrize(
    ("between", "output"),
    [([("Add", ["scores", "bias"], "biased", {})], "joined"), ([], "scores"), ([], "shares")],
    ids=["a bias", "scores that are read elsewhere", "shares that are read elsewhere"],
)
def test_other_attention_stays_as_it_is(between, output):
    assert_stays(program(between=between, output=output))


def assert_stays(given):
    found, number = fused(given)
    assert number == 0
    assert found == given


def test_scores_that_are_an_output_stay():
    given = program()
    given.graph.output.append(onnx.helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, None))
    assert_stays(given)


def test_a_softmax_over_the_queries_stays():
    given = program()
    (softmax,) = (node for node in given.graph.node if node.op_type == "Softmax")
    softmax.attribute[0].i = 2
    assert_stays(given)


def test_attention_without_heads_stays():
    nodes = [
        ("Transpose", ["clips"], "keys", {"perm": (0, 2, 1)}),
        ("MatMul", ["clips", "keys"], "scores", {}),
        ("Softmax", ["scores"], "shares", {"axis": -1}),
        ("MatMul", ["shares", "clips"], "logits", {}),
    ]
    assert_stays(program_of(nodes, {}, ["N", LENGTH, SIZE]))

"""Writes attention in an ONNX program as the one operator that onnxruntime has for it."""

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference

_DOMAIN = "com.microsoft"
# From what the two products read to [N, S, H, D]: Q and V lie as [N, H, S, D], keys as [N, H, D, S].
_ORDERS = ((0, 2, 1, 3), (0, 3, 1, 2), (0, 2, 1, 3))


def fuse_attention(program: ModelProto) -> int:
    """Replaces softmax(Q Kᵀ) V by `MultiHeadAttention`, which never has all of Q Kᵀ in memory.

    onnxruntime takes the transposes out that then cancel. Attention with something between the product and
    the softmax, such as a bias, stays as it is. The logits change by rounding only. No other runtime has this
    operator.

    Args:
        program: of opset 13 or later; it is changed.

    Returns:
        How many were replaced.

    Reference: Dao et al., "FlashAttention", arXiv 2205.14135, algorithm 1.
    """
    graph = program.graph
    inferred = shape_inference.infer_shapes(program).graph
    shapes = {
        value.name: [size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in inferred.value_info
    }
    made = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    replaced: dict[str, list[NodeProto]] = {}  # by the output of a node, what comes in its place
    num_fused = 0
    for node in graph.node:
        products = _products_around(node, made, readers)
        if products is None:
            continue
        scores, product = products
        _, num_heads, _, head_size = shapes.get(scores.input[0]) or (0, 0, 0, 0)
        if num_heads and head_size and shapes.get(product.input[1], [])[-1:] == [head_size]:
            nodes, constants = _attention(scores, product, num_heads, head_size)
            replaced |= {scores.output[0]: [], node.output[0]: [], product.output[0]: nodes}
            graph.initializer.extend(constants)
            num_fused += 1
            # ONNX does not know what the operator gives
            graph.value_info.append(
                helper.make_tensor_value_info(nodes[-2].input[0], TensorProto.FLOAT, None)
            )
    if not num_fused:
        return 0
    nodes = [each for node in graph.node for each in replaced.get(node.output[0], [node])]
    del graph.node[:]
    graph.node.extend(nodes)
    if _DOMAIN not in {each.domain for each in program.opset_import}:
        program.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return num_fused


def _products_around(
    softmax: NodeProto, made: Mapping[str, NodeProto], readers: Mapping[str, Sequence[NodeProto]]
) -> tuple[NodeProto, NodeProto] | None:
    """The matrix products before and after a softmax, where nothing else reads what is between them."""
    if softmax.op_type != "Softmax":
        return None
    scores, after = made.get(softmax.input[0]), readers.get(softmax.output[0], ())
    if scores is None or len(readers[softmax.input[0]]) != 1 or len(after) != 1:
        return None
    (product,) = after
    is_attention = scores.op_type == product.op_type == "MatMul" and product.input[0] == softmax.output[0]
    return (scores, product) if is_attention else None


def _attention(
    scores: NodeProto, product: NodeProto, num_heads: int, head_size: int
) -> tuple[list[NodeProto], list[TensorProto]]:
    """The nodes in place of two products, and the constants that they need."""
    name = product.output[0]
    joined = numpy_helper.from_array(np.array([0, 0, num_heads * head_size], np.int64), f"{name}.joined")
    apart = numpy_helper.from_array(np.array([0, 0, num_heads, head_size], np.int64), f"{name}.apart")
    nodes: list[NodeProto] = []
    inputs: list[str] = []
    for given, order in zip((*scores.input, product.input[1]), _ORDERS):
        heads_last, flat = f"{name}.{len(inputs)}.heads_last", f"{name}.{len(inputs)}.flat"
        nodes.append(helper.make_node("Transpose", [given], [heads_last], heads_last, perm=order))
        nodes.append(helper.make_node("Reshape", [heads_last, joined.name], [flat], flat))
        inputs.append(flat)
    flat, heads_last = f"{name}.flat", f"{name}.heads_last"
    fused = helper.make_node("MultiHeadAttention", inputs, [flat], f"{name}.attention", domain=_DOMAIN)
    fused.attribute.extend(
        helper.make_attribute(*each) for each in (("num_heads", num_heads), ("scale", 1.0))
    )
    nodes += [
        fused,
        helper.make_node("Reshape", [flat, apart.name], [heads_last], heads_last),
        helper.make_node("Transpose", [heads_last], [name], product.name, perm=_ORDERS[0]),
    ]
    return nodes, [joined, apart]

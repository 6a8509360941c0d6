"""Writes attention in an ONNX program as the one operator that onnxruntime has for it."""

from onnx import ModelProto, NodeProto, TensorProto, helper, shape_inference

from paddlevideo_fast.apps.export.onnx_rewriter import Rewriter, attributes_of

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
    rewriter = _Attention(shape_inference.infer_shapes(program), "attention")
    products = {}  # by the output of the second one
    dropped = set()
    for node in program.graph.node:
        around = rewriter.products_around(node)
        if around is not None:
            scores, product = around
            products[product.output[0]] = scores
            dropped |= {scores.output[0], node.output[0]}
    if not products:
        return 0
    fused = []
    for node in program.graph.node:
        if node.output[0] in products:
            fused.append(rewriter.add_attention(products[node.output[0]], node))
        elif node.output[0] not in dropped:
            rewriter.nodes.append(node)
    rewriter.write(program)
    # ONNX does not know what the operator gives
    kinds = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in fused]
    program.graph.value_info.extend(kinds)
    if _DOMAIN not in {each.domain for each in program.opset_import}:
        program.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return len(fused)


class _Attention(Rewriter):
    def products_around(self, softmax: NodeProto) -> tuple[NodeProto, NodeProto] | None:
        """The products before and after a softmax, if they are attention that nothing else reads from."""
        if softmax.op_type != "Softmax" or attributes_of(softmax).get("axis", -1) not in (-1, 3):
            return None
        scores, product = self.made.get(softmax.input[0]), self.only_reader(softmax.output[0])
        if scores is None or product is None or self.only_reader(scores.output[0]) is None:
            return None
        if {scores.op_type, product.op_type} != {"MatMul"} or product.input[0] != softmax.output[0]:
            return None
        queries, values = self.shapes.get(scores.input[0], []), self.shapes.get(product.input[1], [])
        is_fixed = len(queries) == len(values) == 4 and queries[1] > 0 and queries[3] == values[3] > 0
        return (scores, product) if is_fixed else None

    def add_attention(self, scores: NodeProto, product: NodeProto) -> str:
        """Adds the operator in place of two products; gives the name of its own output."""
        _, num_heads, _, head_size = self.shapes[scores.input[0]]
        inputs = []
        for name, order in zip((*scores.input, product.input[1]), _ORDERS):
            heads_last = self.add("Transpose", [name], perm=order)
            inputs.append(self.add("Reshape", [heads_last, self.constant([0, 0, num_heads * head_size])]))
        joined = self.add("MultiHeadAttention", inputs, domain=_DOMAIN, num_heads=num_heads, scale=1.0)
        heads_last = self.add("Reshape", [joined, self.constant([0, 0, num_heads, head_size])])
        self.add("Transpose", [heads_last], product.output[0], product.name, perm=_ORDERS[0])
        return joined

"""Rewrites 3D networks in ONNX as onnxruntime computes them fast in int8."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

# With few channels, onnxruntime 1.32 takes up to ten times as long for a 3D convolution in int8 as for the 2D
# convolution that replaces it; with 32 channels, little longer. See decision 53.
_FEW_CHANNELS = 16


def make_planar(program: ModelProto) -> bool:
    """Replaces 3D convolutions with few input channels by 2D ones, and means by global average pools.

    The input channels of the 2D convolution are the channels of all frames under the 3D kernel:

        [N, C, T, H, W] → frames 0 1 2, 1 2 3, 2 3 4, … → [N * T', 3 * C, H, W]

    onnxruntime has global average pools in int8, and no means. The logits change by rounding only.

    Args:
        program: of opset 13 or later, with the shapes of its tensors; it is changed.

    Returns:
        False if T, H or W is free: 3D convolutions then remain.
    """
    graph = program.graph
    rewriter = _Rewriter(program)
    slow = [node for node in graph.node if rewriter.is_slow(node)]
    planar = {node.output[0] for node in slow if rewriter.has_fixed_shape(node)}
    for node in graph.node:
        if node.output[0] in planar:
            rewriter.add_planar(node)
        elif rewriter.is_mean_of_clips(node):
            rewriter.add("GlobalAveragePool", node.input[:1], node.output[0], node.name)
        elif node.output[0] not in rewriter.written:
            rewriter.nodes.append(node)
    del graph.node[:], graph.value_info[:]
    graph.node.extend(rewriter.nodes)
    used = {name for node in graph.node for name in node.input}
    weights = [value for value in (*graph.initializer, *rewriter.constants) if value.name in used]
    del graph.initializer[:]
    graph.initializer.extend(weights)
    return len(planar) == len(slow)


class _Rewriter:
    """Collects the nodes of the new program.

    Attributes:
        nodes: so far, in their order.
        constants: that the nodes need.
        written: names of tensors that `add` has written.
    """

    def __init__(self, program: ModelProto) -> None:
        graph = program.graph
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.written: set[str] = set()
        self._weights = {value.name: value for value in graph.initializer}
        self._shapes = {
            value.name: [size.dim_value for size in value.type.tensor_type.shape.dim]
            for value in (*graph.value_info, *graph.input, *graph.output)
        }
        self._readers: dict[str, list[NodeProto | None]] = {value.name: [None] for value in graph.output}
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)

    def is_slow(self, node: NodeProto) -> bool:
        """Whether onnxruntime is slow in int8 with a node: a 3D convolution with few input channels."""
        if node.op_type != "Conv" or node.input[1] not in self._weights:
            return False
        _, num_channels, *kernel = self._weights[node.input[1]].dims
        attributes = _attributes(node)
        is_plain = attributes.get("group", 1) == 1 and attributes.get("auto_pad", b"NOTSET") == b"NOTSET"
        return is_plain and len(kernel) == 3 and max(kernel) > 1 and num_channels <= _FEW_CHANNELS

    def has_fixed_shape(self, node: NodeProto) -> bool:
        """Whether input and output of a node have one size, but for the number of clips."""
        shapes = [self._shapes.get(name, []) for name in (node.input[0], node.output[0])]
        return all(shape and all(shape[1:]) for shape in shapes)

    def is_mean_of_clips(self, node: NodeProto) -> bool:
        """Whether a node is a mean over T, H and W that keeps these axes."""
        if node.op_type != "ReduceMean" or len(self._shapes.get(node.input[0], [])) != 5:
            return False
        attributes = _attributes(node)
        axes = attributes.get("axes", [])
        if len(node.input) > 1 and node.input[1] in self._weights:  # from opset 18 on
            axes = numpy_helper.to_array(self._weights[node.input[1]]).tolist()
        return attributes.get("keepdims", 1) == 1 and sorted(axis % 5 for axis in axes) == [2, 3, 4]

    def add_planar(self, node: NodeProto) -> None:
        """Adds a 3D convolution as a 2D one, and a Relu that follows: without it, int8 may skip the Relu."""
        weight = numpy_helper.to_array(self._weights[node.input[1]])
        num_filters, num_channels, *kernel = weight.shape
        attributes = _attributes(node)
        strides, dilations = (attributes.get(name, [1, 1, 1]) for name in ("strides", "dilations"))
        pads = attributes.get("pads", [0] * 6)
        num_frames, *size = self._shapes[node.output[0]][2:]
        under = [t * strides[0] + k * dilations[0] for t in range(num_frames) for k in range(kernel[0])]

        frames = self.add("Transpose", node.input[:1], perm=[0, 2, 1, 3, 4])
        if pads[0] or pads[3]:
            frames = self.add("Pad", [frames, self._constant([0, pads[0], 0, 0, 0, 0, pads[3], 0, 0, 0])])
        if kernel[0] > 1 or strides[0] > 1:
            frames = self.add("Gather", [frames, self._constant(under)], axis=1)
        stacked = [-1, kernel[0] * num_channels, *self._shapes[node.input[0]][3:]]
        frames = self.add("Reshape", [frames, self._constant(stacked)])
        filters = weight.transpose(0, 2, 1, 3, 4).reshape(num_filters, -1, *kernel[1:])
        sizes = {"kernel_shape": kernel[1:], "strides": strides[1:], "dilations": dilations[1:]}
        inputs = [frames, self._constant(filters), *node.input[2:]]
        frames = self.add("Conv", inputs, name=node.name, pads=[*pads[1:3], *pads[4:]], **sizes)
        output, readers = node.output[0], self._readers[node.output[0]]
        if len(readers) == 1 and readers[0] is not None and readers[0].op_type == "Relu":
            frames, output = self.add("Relu", [frames], name=readers[0].name), readers[0].output[0]
        # onnxruntime's int8 has the channels last: the two transpositions then cost nothing
        frames = self.add("Transpose", [frames], perm=[0, 2, 3, 1])
        frames = self.add("Reshape", [frames, self._constant([-1, num_frames, *size, num_filters])])
        self.add("Transpose", [frames], output, perm=[0, 4, 1, 2, 3])

    def add(self, op: str, inputs: Sequence[str], output: str = "", name: str = "", **attributes: Any) -> str:
        """Adds a node and gives the name of its output."""
        number = f"planar.{len(self.nodes)}"
        output = output or number
        self.nodes.append(helper.make_node(op, list(inputs), [output], name or number, **attributes))
        self.written.add(output)
        return output

    def _constant(self, value: Any) -> str:
        name = f"planar.constant.{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}

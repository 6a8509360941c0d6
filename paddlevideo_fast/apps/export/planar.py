"""Rewrites 3D networks in ONNX as onnxruntime computes them fast in int8."""

from onnx import ModelProto, NodeProto, numpy_helper

from paddlevideo_fast.apps.export.onnx_rewriter import Rewriter, attributes_of

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
    rewriter = _Planar(program, "planar")
    slow = [node for node in program.graph.node if rewriter.is_slow(node)]
    planar = {node.output[0] for node in slow if rewriter.has_fixed_shape(node)}
    for node in program.graph.node:
        if node.output[0] in planar:
            rewriter.add_planar(node)
        elif rewriter.is_mean_of_clips(node):
            rewriter.add("GlobalAveragePool", node.input[:1], node.output[0], node.name)
        elif node.output[0] not in rewriter.written:
            rewriter.nodes.append(node)
    rewriter.write(program)
    return len(planar) == len(slow)


class _Planar(Rewriter):
    def is_slow(self, node: NodeProto) -> bool:
        """Whether onnxruntime is slow in int8 with a node: a 3D convolution with few input channels."""
        if node.op_type != "Conv" or node.input[1] not in self.weights:
            return False
        _, num_channels, *kernel = self.weights[node.input[1]].dims
        attributes = attributes_of(node)
        is_plain = attributes.get("group", 1) == 1 and attributes.get("auto_pad", b"NOTSET") == b"NOTSET"
        return is_plain and len(kernel) == 3 and max(kernel) > 1 and num_channels <= _FEW_CHANNELS

    def has_fixed_shape(self, node: NodeProto) -> bool:
        """Whether input and output of a node have one size, but for the number of clips."""
        shapes = [self.shapes.get(name, []) for name in (node.input[0], node.output[0])]
        return all(shape and all(shape[1:]) for shape in shapes)

    def is_mean_of_clips(self, node: NodeProto) -> bool:
        """Whether a node is a mean over T, H and W that keeps these axes."""
        if node.op_type != "ReduceMean" or len(self.shapes.get(node.input[0], [])) != 5:
            return False
        attributes = attributes_of(node)
        axes = attributes.get("axes", [])
        if len(node.input) > 1 and node.input[1] in self.weights:  # from opset 18 on
            axes = numpy_helper.to_array(self.weights[node.input[1]]).tolist()
        return attributes.get("keepdims", 1) == 1 and sorted(axis % 5 for axis in axes) == [2, 3, 4]

    def add_planar(self, node: NodeProto) -> None:
        """Adds a 3D convolution as a 2D one, and a Relu that follows: without it, int8 may skip the Relu."""
        weight = numpy_helper.to_array(self.weights[node.input[1]])
        num_filters, num_channels, *kernel = weight.shape
        attributes = attributes_of(node)
        strides, dilations = (attributes.get(name, [1, 1, 1]) for name in ("strides", "dilations"))
        pads = attributes.get("pads", [0] * 6)
        num_frames, *size = self.shapes[node.output[0]][2:]
        under = [t * strides[0] + k * dilations[0] for t in range(num_frames) for k in range(kernel[0])]

        frames = self.add("Transpose", node.input[:1], perm=[0, 2, 1, 3, 4])
        if pads[0] or pads[3]:
            frames = self.add("Pad", [frames, self.constant([0, pads[0], 0, 0, 0, 0, pads[3], 0, 0, 0])])
        if kernel[0] > 1 or strides[0] > 1:
            frames = self.add("Gather", [frames, self.constant(under)], axis=1)
        stacked = [-1, kernel[0] * num_channels, *self.shapes[node.input[0]][3:]]
        frames = self.add("Reshape", [frames, self.constant(stacked)])
        filters = weight.transpose(0, 2, 1, 3, 4).reshape(num_filters, -1, *kernel[1:])
        sizes = {"kernel_shape": kernel[1:], "strides": strides[1:], "dilations": dilations[1:]}
        inputs = [frames, self.constant(filters), *node.input[2:]]
        frames = self.add("Conv", inputs, name=node.name, pads=[*pads[1:3], *pads[4:]], **sizes)
        output, reader = node.output[0], self.only_reader(node.output[0])
        if reader is not None and reader.op_type == "Relu":
            frames, output = self.add("Relu", [frames], name=reader.name), reader.output[0]
        # onnxruntime's int8 has the channels last: the two transpositions then cost nothing
        frames = self.add("Transpose", [frames], perm=[0, 2, 3, 1])
        frames = self.add("Reshape", [frames, self.constant([-1, num_frames, *size, num_filters])])
        self.add("Transpose", [frames], output, perm=[0, 4, 1, 2, 3])

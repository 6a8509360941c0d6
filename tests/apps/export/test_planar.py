"""3D convolutions as 2D ones, against onnxruntime's 3D convolutions."""

import numpy as np
import pytest

from tests.support.onnx_packages import OPSET_VERSION, needs_onnx

pytestmark = needs_onnx
onnx = pytest.importorskip("onnx")
RNG = np.random.default_rng(5)


def program_of(nodes, weights, shape, opset=13):
    """A program from "clips", of this shape, to "logits", with the shapes of its tensors."""
    inputs = [onnx.helper.make_tensor_value_info("clips", onnx.TensorProto.FLOAT, shape)]
    outputs = [onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, None)]
    kept = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    nodes = [onnx.helper.make_node(op, i, [o], name=f"{op}.{o}", **more) for op, i, o, more in nodes]
    graph = onnx.helper.make_graph(nodes, "graph", inputs, outputs, kept)
    opsets = [onnx.helper.make_opsetid("", opset)]
    return onnx.shape_inference.infer_shapes(
        onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    )


def run(program, clips):
    onnxruntime = pytest.importorskip("onnxruntime")
    onnx.checker.check_model(program)
    session = onnxruntime.InferenceSession(program.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"clips": clips})[0]


def rewritten(program):
    """A copy that is rewritten, and whether no slow convolution is left in it."""
    from paddlevideo_fast.apps.export.planar import make_planar

    copy = onnx.ModelProto()
    copy.CopyFrom(program)
    return copy, make_planar(copy)


def kernels(program):
    """[T, H, W] or [H, W] of each convolution."""
    sizes = {value.name: list(value.dims[2:]) for value in program.graph.initializer}
    return [sizes[node.input[1]] for node in program.graph.node if node.op_type == "Conv"]


def is_equal(found, expected):
    return found.shape == expected.shape and np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def weight(*shape):
    return RNG.standard_normal(shape).astype("float32")


@pytest.mark.parametrize("behind", ["Relu", "Neg", "Relu of two", "Relu and output"])
@pytest.mark.parametrize(
    ("kernel", "strides", "pads", "dilations", "size"),
    [
        ([1, 3, 3], [1, 1, 1], [0, 1, 1, 0, 1, 1], [1, 1, 1], [4, 7, 9]),
        ([1, 7, 7], [1, 2, 2], [0, 3, 3, 0, 3, 3], [1, 1, 1], [3, 13, 14]),
        ([3, 1, 1], [1, 1, 1], [1, 0, 0, 1, 0, 0], [1, 1, 1], [5, 3, 4]),
        ([5, 1, 1], [8, 1, 1], [2, 0, 0, 2, 0, 0], [1, 1, 1], [16, 3, 4]),
        ([3, 1, 1], [1, 2, 2], [2, 0, 0, 2, 0, 0], [2, 1, 1], [6, 5, 4]),
        ([5, 7, 7], [1, 2, 2], [2, 3, 3, 2, 3, 3], [1, 1, 1], [6, 15, 16]),
        ([3, 3, 3], [2, 2, 1], [0, 1, 2, 1, 0, 1], [1, 2, 1], [7, 9, 8]),
        ([2, 1, 3], [3, 1, 2], [0, 0, 0, 0, 0, 0], [3, 1, 2], [8, 4, 9]),
    ],
)
def test_convolutions_with_few_channels_are_planar_and_equal(kernel, strides, pads, dilations, size, behind):
    sizes = {"kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": dilations}
    weights = {"weight": weight(5, 4, *kernel), "bias": weight(5), "one": weight(1)}
    nodes = [
        ("Conv", ["clips", "weight", "bias"], "y", sizes),
        (behind.split()[0], ["y"], "z", {}),
        ("Add", ["z", "y" if behind == "Relu of two" else "one"], "logits", {}),
    ]
    program = program_of(nodes, weights, ["N", 4, *size])
    if behind == "Relu and output":
        program.graph.output.add().CopyFrom(next(v for v in program.graph.value_info if v.name == "y"))
    found, is_done = rewritten(program)
    assert is_done
    assert kernels(found) == [kernel[1:]]
    clips = weight(2, 4, *size)
    assert is_equal(run(found, clips), run(program, clips))


@pytest.mark.parametrize(
    ("shape", "more"),
    [((6, 16, 1, 1, 1), {}), ((6, 17, 1, 3, 3), {}), ((6, 1, 3, 3, 3), {"group": 6})],
    ids=["1x1x1", "many channels", "depthwise"],
)
def test_convolutions_that_are_fast_in_3d_stay(shape, more):
    channels = shape[1] * more.get("group", 1)
    nodes = [("Conv", ["clips", "weight"], "logits", {"kernel_shape": shape[2:], **more})]
    program = program_of(nodes, {"weight": weight(*shape)}, ["N", channels, 4, 8, 8])
    found, is_done = rewritten(program)
    assert is_done
    assert kernels(found) == [list(shape[2:])]
    clips = weight(2, channels, 4, 8, 8)
    np.testing.assert_array_equal(run(found, clips), run(program, clips))


@pytest.mark.parametrize(("opset", "axes"), [(13, [2, 3, 4]), (13, [-1, 2, -2]), (18, [2, 3, 4])])
def test_means_of_clips_are_global_pools(opset, axes):
    weights = {"axes": np.array(axes, np.int64)} if opset >= 18 else {}
    more = {} if opset >= 18 else {"axes": axes}
    nodes = [("ReduceMean", ["clips", *weights], "logits", {"keepdims": 1, **more})]
    program = program_of(nodes, weights, ["N", 4, 3, 5, 6], opset)
    found, _ = rewritten(program)
    assert [node.op_type for node in found.graph.node] == ["GlobalAveragePool"]
    assert not found.graph.initializer
    clips = weight(2, 4, 3, 5, 6)
    assert is_equal(run(found, clips), run(program, clips))


@pytest.mark.parametrize("more", [{"axes": [3, 4]}, {"axes": [2, 3, 4], "keepdims": 0}])
def test_other_means_stay(more):
    program = program_of([("ReduceMean", ["clips"], "logits", more)], {}, ["N", 4, 3, 5, 6])
    assert rewritten(program)[0].graph.node == program.graph.node


def test_clips_of_any_size_keep_their_3d_convolutions():
    more = {"kernel_shape": [1, 3, 3]}
    program = program_of(
        [("Conv", ["clips", "w"], "logits", more)], {"w": weight(2, 3, 1, 3, 3)}, ["N", 3, 4, "H", "W"]
    )
    found, is_done = rewritten(program)
    assert not is_done
    assert found.graph.node == program.graph.node


@pytest.mark.slow
def test_slowfast_is_equal(exported, tmp_path):
    from onnxruntime.quantization.shape_inference import quant_pre_process

    from paddlevideo_fast.apps.export.export import ExportOptions

    files = exported("slowfast", ExportOptions(onnx_opset=OPSET_VERSION))
    quant_pre_process(str(files.onnx), str(tmp_path / "prepared.onnx"), skip_symbolic_shape=True)
    program = onnx.load(str(tmp_path / "prepared.onnx"))
    shape = [size.dim_value for size in program.graph.input[0].type.tensor_type.shape.dim]
    found, is_done = rewritten(program)
    assert is_done
    assert sum(len(kernel) == 2 for kernel in kernels(found)) > 5
    clips = RNG.standard_normal((2, *shape[1:])).astype("float32")
    assert is_equal(run(found, clips), run(onnx.load(str(files.onnx)), clips))

"""Changes ONNX programs: what two rewritings of them share."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper


class Rewriter:
    """Collects the nodes of the new program.

    Args:
        program: with the shapes of its tensors.
        prefix: of the names of what is added.

    Attributes:
        nodes: so far, in their order.
        written: names of tensors that `add` has written.
        weights: of the old program, by name.
        shapes: sizes of each tensor whose rank is known; 0 where a size is free.
        readers: of each tensor; None stands for the output of the program.
        made: the node that each tensor comes from.
    """

    def __init__(self, program: ModelProto, prefix: str) -> None:
        graph = program.graph
        self.nodes: list[NodeProto] = []
        self.written: set[str] = set()
        self.weights = {value.name: value for value in graph.initializer}
        self.shapes = {
            value.name: [size.dim_value for size in value.type.tensor_type.shape.dim]
            for value in (*graph.value_info, *graph.input, *graph.output)
        }
        self.readers: dict[str, list[NodeProto | None]] = {value.name: [None] for value in graph.output}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.made = {name: node for node in graph.node for name in node.output}
        self._prefix = prefix
        self._constants: list[TensorProto] = []

    def only_reader(self, name: str) -> NodeProto | None:
        """The node that alone reads a tensor; None where several do, or where it is an output."""
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 else None

    def add(self, op: str, inputs: Sequence[str], output: str = "", name: str = "", **attributes: Any) -> str:
        """Adds a node and gives the name of its output."""
        number = f"{self._prefix}.{len(self.nodes)}"
        output = output or number
        self.nodes.append(helper.make_node(op, list(inputs), [output], name or number, **attributes))
        self.written.add(output)
        return output

    def constant(self, value: Any) -> str:
        """Adds a constant and gives its name."""
        name = f"{self._prefix}.constant.{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def write(self, program: ModelProto) -> None:
        """Gives the program the new nodes and the weights that they read, and takes the shapes out."""
        graph = program.graph
        del graph.node[:], graph.value_info[:], graph.initializer[:]
        graph.node.extend(self.nodes)
        used = {name for node in self.nodes for name in node.input}
        weights = (*self.weights.values(), *self._constants)
        graph.initializer.extend(value for value in weights if value.name in used)


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """The attributes of a node, by name."""
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}

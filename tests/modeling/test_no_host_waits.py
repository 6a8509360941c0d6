"""No forward pass, loss or step makes the host wait for a device, as the source tells it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import paddlevideo_fast

pytestmark = pytest.mark.annex

ROOT = Path(paddlevideo_fast.__file__).parent
FILES = [
    *sorted((ROOT / "modeling/backbones").glob("*.py")),
    *sorted((ROOT / "modeling/layers").glob("*.py")),
    *(
        ROOT / f"modeling/{name}.py"
        for name in ("attentive_head", "heads", "losses", "preprocess", "recognizers")
    ),
    *(
        ROOT / f"extensions/{name}.py"
        for name in (
            *("distillation/soft_labels", "pretraining/model", "pretraining/hiera", "hiera/network"),
            "efficientnet/network",
            *("run_length/rule", "run_length/packing", "token_merging/merging", "cpu/operators"),
            *("cpu/convolutions", "cpu/onednn"),
        )
    ),
    *(ROOT / f"engine/{name}.py" for name in ("prefetch", "trainer")),
]
# calls that copy from the host, or to it: each waits for the device
WAITS = ("to_tensor", "numpy", "item", "cpu")
NUMBERS = ("float", "int", "bool")
HOST_FACTS = ("shape", "ndim", "size", "dtype")  # of a tensor; they are known without its values
ALLOWED = {  # functions by their names
    "adapt_table": "only when weights are loaded",
    "_chosen_channels": "only where a program for ONNX is traced",
    "computed": "only on a CPU",
    "Preprocess.forward": "only on a CPU: arrays go to a GPU by `upload`",
    "_tensor": "only when a loss is told how many clips each class has",
    "_operator_shares": "only when a phase of training begins",
    "maps": "only for an explanation",
    "filled": "only for an explanation",
    "_masks": "only where nobody has called `key_clips`; the trainer does",
}


def cached(trees: dict[str, ast.Module]) -> set[str]:
    """The functions that `constant` is given, whose tensors are made once for a device."""
    return {
        name.id
        for tree in trees.values()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "constant"
        for name in ast.walk(call.args[0])
        if isinstance(name, ast.Name)
    }


def waits_in(function: ast.FunctionDef) -> Iterator[ast.Call]:
    """Calls in a function for which the host waits."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    tensors = {each.arg for each in arguments if each.annotation and "Tensor" in ast.unparse(each.annotation)}
    for call in ast.walk(function):
        if not isinstance(call, ast.Call):
            continue
        if isinstance(call.func, ast.Attribute) and call.func.attr in WAITS:
            yield call
        elif isinstance(call.func, ast.Name) and call.func.id in NUMBERS and call.args:
            facts = [each for each in ast.walk(call.args[0]) if isinstance(each, ast.Attribute)]
            is_known = any(each.attr in HOST_FACTS for each in facts)
            if not is_known and any(getattr(each, "id", "") in tensors for each in ast.walk(call.args[0])):
                yield call


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions of a file, without converters of weights; `forward` has the name of its class, too."""
    for owner in ast.walk(tree):
        is_converter = isinstance(owner, ast.ClassDef) and owner.name.endswith("Converter")
        if not isinstance(owner, (ast.Module, ast.ClassDef)) or is_converter:
            continue
        for function in owner.body:
            if isinstance(function, ast.FunctionDef):
                is_forward = function.name == "forward" and isinstance(owner, ast.ClassDef)
                yield f"{owner.name}.forward" if is_forward else function.name, function


def found_in(trees: dict[str, ast.Module]) -> list[tuple[str, str]]:
    """Functions and the calls in them for which the host waits."""
    kept = cached(trees)
    return [
        (name, f"{file}: {ast.unparse(call)}")
        for file, tree in trees.items()
        for name, function in functions(tree)
        if name not in kept
        for call in waits_in(function)
    ]


def sources() -> dict[str, ast.Module]:
    return {f"{path.parent.name}/{path.name}": ast.parse(path.read_text()) for path in FILES}


def test_the_host_waits_nowhere():
    found = found_in(sources())
    assert [each for each in found if each[0] not in ALLOWED] == []
    assert {name for name, _ in found} == set(ALLOWED)


@pytest.mark.parametrize(
    "call",
    [
        "paddle.to_tensor([0, 2])",
        "clips.numpy()",
        "clips.mean().item()",
        "float(clips.mean())",
        "int(clips[0])",
        "bool((clips > 0).any())",
    ],
)
def test_a_new_one_is_found(call):
    trees = sources()
    before = found_in(trees)
    split = dict(functions(trees["backbones/resnet3d.py"]))["_split"]
    split.body.insert(0, ast.parse(f"chosen = {call}").body[0])
    assert [each for each in found_in(trees) if each not in before] == [
        ("_split", f"backbones/resnet3d.py: {call}")
    ]

"""Converts weight files of other toolkits, and reports what became of every tensor."""

import collections
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.apps.convert.source_files import read_source
from paddlevideo_fast.errors import WeightError
from paddlevideo_fast.extensions.efficientnet.network import EfficientNetLiteConverter
from paddlevideo_fast.extensions.hiera.network import HieraConverter
from paddlevideo_fast.io.files import as_path, atomic_write
from paddlevideo_fast.modeling.backbones.resnet import (
    MitConverter,
    MMAction2FrameConverter,
    TorchvisionConverter,
)
from paddlevideo_fast.modeling.backbones.resnet3d import (
    MMAction2ClipConverter,
    PySlowFastConverter,
    PyTorchVideoConverter,
)
from paddlevideo_fast.modeling.backbones.swin import SwinConverter
from paddlevideo_fast.modeling.backbones.timesformer import TimeSformerConverter, TokShiftConverter
from paddlevideo_fast.modeling.backbones.videomae import HuggingFaceVideoMAEConverter, VideoMAEConverter
from paddlevideo_fast.modeling.backbones.vjepa2 import VJEPA2Converter
from paddlevideo_fast.modeling.converters import Converter, Network, Target, Weights
from paddlevideo_fast.modeling.weights import adapt_tensor, candidate_names
from paddlevideo_fast.registry import did_you_mean

_IGNORED = re.compile(r"(.+\.)?num_batches_tracked|lr|model_iter|.+_momentum")  # the last three: of Caffe2


def _mmaction2(state: Weights, network: Network) -> Converter:
    has_clips = any(value.ndim == 5 for value in state.values())
    return (MMAction2ClipConverter if has_clips else MMAction2FrameConverter)(state, network)


class PaddleVideoConverter(Converter):
    """PaddleVideo's names are ours."""

    def target(self, name: str) -> Target:
        return Target(name)


# Toolkit to its usual converter; a backbone may have another one, see `Backbone.converters`.
CONVERTERS: dict[str, Callable[[Weights, Network], Converter]] = {
    "mit-tsm": MitConverter,
    "mmaction2": _mmaction2,
    "pyslowfast": PySlowFastConverter,
    "pytorchvideo": PyTorchVideoConverter,
    "torchvision": TorchvisionConverter,
    "efficientnet_lite": EfficientNetLiteConverter,
    "huggingface": HuggingFaceVideoMAEConverter,
    "videomae": VideoMAEConverter,
    "vjepa2": VJEPA2Converter,
    "hiera": HieraConverter,
    "timesformer": TimeSformerConverter,
    "tokshift": TokShiftConverter,
    "swin": SwinConverter,
    "paddlevideo": PaddleVideoConverter,
}


@dataclass(frozen=True)
class Row:
    """What became of one tensor.

    Attributes:
        source: its name in the file; "" where the file has none.
        target: our name; "" where there is none.
        shape: shape in the file, or in our network where the file lacks the tensor.
        outcome: a key of `OUTCOMES`.
        detail: how the tensor was changed, or why it was not taken.
    """

    source: str
    target: str
    shape: tuple[int, ...]
    outcome: str
    detail: str = ""

    def __str__(self) -> str:
        names = " -> ".join(filter(None, (self.source, self.target)))
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.outcome:<11} {names} {list(self.shape)}{detail}"


# Outcome to whether a conversion with such a row is complete.
OUTCOMES = {
    "converted": True,
    "added": True,  # the network here computes with it, the other without
    "ignored": True,
    "other shape": False,
    "left over": False,
    "missing": False,
}


@dataclass
class Conversion:
    """The weights of a file under our names, and a report of every tensor.

    Attributes:
        weights: our names to float32 arrays (integers stay what they are).
        rows: every tensor of the file and every tensor that the file lacks, in their order.
        differences: what names and shapes do not show, a line each; see `Converter.differences`.
        notes: what to set so that the config also tests as the other toolkit does, a line each.
    """

    weights: dict[str, np.ndarray] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether every tensor found its place and every place its tensor."""
        return not self.differences and all(OUTCOMES[row.outcome] for row in self.rows)

    def table(self) -> str:
        """The report, a line for each tensor."""
        return "\n".join(map(str, self.rows))

    def summary(self) -> str:
        """How many tensors had which outcome, in one line."""
        counts = collections.Counter(row.outcome for row in self.rows)
        return ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])

    def report(self) -> dict[str, Any]:
        """The same as JSON values: how many tensors had which outcome, and what became of each."""
        counts = collections.Counter(row.outcome for row in self.rows)
        lines = {"differences": self.differences, "notes": self.notes}
        return {"outcomes": dict(counts), **lines, "tensors": [asdict(row) for row in self.rows]}

    def problems(self, limit: int = 8) -> str:
        """What does not fit: the differences, and the first rows of each outcome."""
        lines = [f"  {line}" for line in self.differences]
        for outcome, is_whole in OUTCOMES.items():
            rows = [row for row in self.rows if row.outcome == outcome and not is_whole]
            lines += [f"  {row}" for row in rows[:limit]]
            if len(rows) > limit:
                lines.append(f"  {outcome:<11} ... {len(rows) - limit} more")
        return "\n".join(lines)


def convert(converter: Converter) -> Conversion:
    """Renames and changes the tensors of a file so that they fit the network.

    A file for a 2D network gives weights for a 3D one: a kernel over T frames becomes T copies of the 2D one,
    each divided by T.
    """
    network, result = converter.network, Conversion()
    unused = _unused(converter)
    for source, value in converter.state.items():
        if any(source in names for names in unused.values()):
            continue
        target = None if _why_ignored(source, network) else converter.target(source)
        result.rows.append(_row_of(source, target, value, converter, result.weights))
    for name, value in converter.added().items():
        if name in network.shapes and name not in result.weights:
            result.weights[name] = value
            result.rows.append(Row("", name, value.shape, "added", "the other network computes without"))
    for what, names in unused.items():
        result.rows.append(_row_of_unused(what, {name: converter.state[name] for name in names}))
    taken = {row.target for row in result.rows}
    for name, shape in network.shapes.items():
        if name not in taken and (name.startswith("backbone.") or not converter.backbone_only):
            result.rows.append(Row("", name, shape, "missing"))
    result.differences = list(converter.differences())
    result.notes = list(converter.notes())
    return result


def _unused(converter: Converter) -> dict[str, list[str]]:
    """What tensors of a file belong to that the network does without, and their names."""
    names_of = {
        what: [name for name in converter.state if re.fullmatch(pattern, name)]
        for pattern, what in converter.unused.items()
    }
    return {what: names for what, names in names_of.items() if names}


def _row_of_unused(what: str, tensors: Weights) -> Row:
    """One row for some tensors: how many numbers they have together is its shape."""
    if len(tensors) == 1:
        return next(Row(name, "", value.shape, "ignored", what) for name, value in tensors.items())
    num_values = sum(value.size for value in tensors.values())
    text = f"{len(tensors)} tensors of {what}"
    return Row(f"{os.path.commonprefix(list(tensors))}*", "", (num_values,), "ignored", text)


def _why_ignored(source: str, network: Network) -> str:
    if source.rpartition(".")[2] in network.backbone.computed:
        return "computed of the shapes"
    return "of training only" if _IGNORED.fullmatch(source) else ""


def _row_of(
    source: str,
    target: Target | None,
    value: np.ndarray,
    converter: Converter,
    weights: dict[str, np.ndarray],
) -> Row:
    """The row of one tensor of the file; what fits goes into `weights`."""
    network = converter.network
    if _why_ignored(source, network):
        return Row(source, "", value.shape, "ignored", _why_ignored(source, network))
    if target is None:
        return Row(source, "", value.shape, "left over", "this converter knows no such name")
    if converter.backbone_only and not target.name.startswith("backbone."):
        return Row(source, "", value.shape, "ignored", converter.left_out)
    candidates = candidate_names(target.name, network.backbone)
    name = next((name for name in candidates if name in network.shapes), None)
    if name is None or name in weights:
        reason = "has it already" if name else "has no such tensor"
        return Row(source, "", value.shape, "left over", f"'{name or target.name}': the network {reason}")
    labels, wanted, array = [], network.shapes[name], value
    for step in target.steps:
        if step.takes(value, wanted):
            array = step.apply(array)
            labels.append(step.label)
    array, change = adapt_tensor(network.model, name, array, wanted)
    labels += [change] if change else []
    if array.shape != wanted:
        hint = "; see MODEL.head.num_classes" if name.startswith(f"{network.classifier}.") else ""
        return Row(source, name, value.shape, "other shape", f"the network has {list(wanted)}{hint}")
    weights[name] = np.ascontiguousarray(array, "float32")
    return Row(source, name, value.shape, "converted", ", ".join(labels))


def convert_state(kind: str, state: Mapping[str, np.ndarray], model: nn.Layer) -> Conversion:
    """Weights of another toolkit for `model`; see `convert_file`.

    Args:
        kind: a key of `CONVERTERS`.
        state: names of the other toolkit to arrays.
        model: a recognizer.

    Raises:
        WeightError: there is no such converter, or no tensor fits.
    """
    if kind not in CONVERTERS:
        raise WeightError(f"no converter '{kind}'{did_you_mean(kind, CONVERTERS)}")
    if not hasattr(model, "backbone"):
        text = "the config has several networks; give the config of the one that the weights are of"
        raise WeightError(text)
    make = model.backbone.converters.get(kind, CONVERTERS[kind])
    result = convert(make(state, Network(model)))
    if not result.weights:
        raise WeightError(
            f"nothing in it has the names of '{kind}' and fits the config's network; choose another --from "
            f"({', '.join(CONVERTERS)}) or config\n{result.problems()}"
        )
    return result


def convert_file(
    kind: str,
    source: str | Path | Sequence[str | Path],
    model: nn.Layer,
    target: str | Path,
    partial: bool = False,
) -> Conversion:
    """Converts a file of weights for `model` and writes it as .pdparams.

    Args:
        kind: a key of `CONVERTERS`.
        source: a file of PyTorch (.pth, .pt, .pyth), safetensors, Caffe2 or Paddle; or several that make one
            network, such as an encoder and a probe.
        model: the recognizer that the new file is for; its own weights do not change.
        target: path of the new file.
        partial: write what fits even where something is left over, missing or of another shape.

    Returns:
        The written weights, and the report.

    Raises:
        WeightError: the file cannot be read, or not everything fits and `partial` is off. Then nothing is
            written.
    """
    sources = [source] if isinstance(source, (str, Path)) else source
    shown = ", ".join(map(str, sources))
    try:
        state = {name: value for each in sources for name, value in read_source(each).items()}
        result = convert_state(kind, state, model)
        if not (result.is_whole or partial):
            raise WeightError(
                f"does not fit the config's network ({result.summary()}); nothing was written. Change the "
                f"config, or write what fits with --partial\n{result.problems()}"
            )
    except WeightError as exc:
        message = str(exc)
        is_named = message.startswith(tuple(map(str, sources)))
        raise WeightError(message if is_named else f"{shown}: {message}") from exc
    _write(result.weights, as_path(target))
    return result


def _write(weights: Mapping[str, np.ndarray], target: Path) -> None:
    try:
        with atomic_write(target) as partial:
            paddle.save(dict(weights), str(partial))
    except OSError as exc:
        raise WeightError(f"{target}: cannot be written: {exc.strerror or exc}") from exc

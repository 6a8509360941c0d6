"""Weights of another toolkit for one network: what went where, and whether all of it fits."""

from __future__ import annotations

import collections
import re
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

import numpy as np

from paddlevideo_fast.deploy import architecture
from paddlevideo_fast.deploy.converters import Converter, Place
from paddlevideo_fast.modeling.weight_names import candidate_names
from paddlevideo_fast.modeling.weights import inflated

_IGNORED = re.compile(r"(.+\.)?num_batches_tracked|lr|model_iter|.+_momentum")  # the last three: of Caffe2


@dataclass(frozen=True)
class Row:
    """What became of one tensor.

    Attributes:
        source: its name in the file; "" where the file has none.
        target: our name; "" where there is none.
        shape: in the file, or here where the file has none.
        outcome: a key of `OUTCOMES`.
        detail: how it was changed, or why it was not taken.
    """

    source: str
    target: str
    shape: Tuple[int, ...]
    outcome: str
    detail: str = ""

    def __str__(self) -> str:
        names = " -> ".join(filter(None, (self.source, self.target)))
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.outcome:<11} {names} {list(self.shape)}{detail}"


# Outcome to whether a map with such a row is whole.
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
    """The weights of a file under our names, and the report.

    Attributes:
        weights: our names to float32 arrays (integers stay what they are).
        rows: every tensor of the file and every one that the network lacks, in their order.
        differences: how the file's network is another one than the config's, a line each.
    """

    weights: Dict[str, np.ndarray] = field(default_factory=dict)
    rows: List[Row] = field(default_factory=list)
    differences: List[str] = field(default_factory=list)

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

    def problems(self, limit: int = 8) -> str:
        """What keeps the map from being whole: the differences, and the first rows of each kind."""
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
    placed: Dict[str, Tuple[int, ...]] = {}  # names and shapes of ours that the file is meant for
    for source, value in converter.state.items():
        place = None if _IGNORED.fullmatch(source) else converter.place(source)
        if place is not None and (place.name.startswith("backbone.") or not converter.backbone_only):
            placed[place.name] = value.shape
        result.rows.append(_settled(source, place, value, converter, result.weights))
    for name, value in converter.added().items():
        if name in network.shapes and name not in result.weights:
            result.weights[name] = value
            result.rows.append(Row("", name, value.shape, "added", "the other network computes without"))
    taken = {row.target for row in result.rows}
    for name, shape in network.shapes.items():
        if name not in taken and (name.startswith("backbone.") or not converter.backbone_only):
            result.rows.append(Row("", name, shape, "missing"))
    result.differences = [*converter.differences(), *architecture.differences(placed, network)]
    return result


def _settled(
    source: str,
    place: Optional[Place],
    value: np.ndarray,
    converter: Converter,
    weights: Dict[str, np.ndarray],
) -> Row:
    """The row of one tensor of the file; what fits goes into `weights`."""
    network = converter.network
    if _IGNORED.fullmatch(source):
        return Row(source, "", value.shape, "ignored", "of training only")
    if place is None:
        return Row(source, "", value.shape, "left over", "this converter knows no such name")
    if converter.backbone_only and not place.name.startswith("backbone."):
        return Row(source, "", value.shape, "ignored", "the classifier of another task")
    name = next(
        (name for name in candidate_names(place.name, network.blocks) if name in network.shapes), None
    )
    if name is None or name in weights:
        reason = "has it already" if name else "has no such tensor"
        return Row(source, "", value.shape, "left over", f"'{name or place.name}': the network {reason}")
    labels, wanted, array = [], network.shapes[name], value
    if value.ndim in (len(wanted), len(wanted) - 1):  # else the steps may ask for an axis that is not there
        for step in place.steps:
            array = step.apply(array)
            labels.append(step.label)
    three_dimensional = inflated(array, wanted)
    if three_dimensional is not array:
        labels.append(f"inflated to {wanted[2]} frames")
    if three_dimensional.shape != wanted:
        return Row(source, name, value.shape, "other shape", f"the network has {list(wanted)}")
    weights[name] = np.ascontiguousarray(three_dimensional, "float32")
    return Row(source, name, value.shape, "converted", ", ".join(labels))

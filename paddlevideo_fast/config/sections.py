"""Which section of a config holds what: the tree that the check, the builder and the reference walk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple, Union

from paddlevideo_fast import registry
from paddlevideo_fast.config.dali import DaliData
from paddlevideo_fast.config.distributed import DistributedSettings
from paddlevideo_fast.config.multigrid import MultigridSettings
from paddlevideo_fast.config.run import (
    DatasetSettings,
    EmaSettings,
    GradientAccumulation,
    PreciseBNSettings,
    RunSettings,
)
from paddlevideo_fast.config.runtime import RuntimeSettings
from paddlevideo_fast.registry import Registry

_TAGS = {"recognizer": "framework", "dataset": "format"}


def tag_of(kind: Registry) -> str:
    """The key that names the class: PaddleVideo says `framework` and `format` in two places, else `name`."""
    return _TAGS.get(kind.kind, "name")


def parts_of(cls: type) -> Mapping[str, Union[Registry, Section]]:
    """The constructor arguments of a class that are, or hold, components themselves.

    A registered class says so in its attribute `parts`. With a registry, such an argument is a mapping in
    YAML with a name of its own; with a section, what that section is. The constructor receives the
    components built.
    """
    return getattr(cls, "parts", {})


@dataclass(frozen=True)
class Component:
    """A mapping that names a registered class and has its arguments beside the name.

    Args:
        registry: where the name is looked up.
        injected: constructor arguments that code passes, which a config cannot set.
        purpose: one sentence for the reference.
    """

    registry: Registry
    injected: Tuple[str, ...] = ()
    purpose: str = ""


@dataclass(frozen=True)
class ComponentList:
    """A list of one-key mappings from a registered name to its arguments, null for none.

    Args:
        registry: where the names are looked up.
        purpose: one sentence for the reference.
    """

    registry: Registry
    purpose: str = ""


@dataclass(frozen=True)
class ListOf:
    """A list, each of whose items is the same section.

    Args:
        item: the section.
    """

    item: Section


@dataclass(frozen=True)
class NamedListOf:
    """A list of one-key mappings from a name of the user's choice to a section.

    Args:
        item: the section.
    """

    item: Section


@dataclass(frozen=True)
class Group:
    """A mapping of settings and further sections.

    Args:
        members: the sections in it.
        settings: dataclass whose fields are the plain keys, or None.
        required: members that must be there.
        replaced_by: required member -> member that takes its place; the two exclude each other.
        purpose: one sentence for the reference.
    """

    members: Mapping[str, Section] = field(default_factory=dict)
    settings: Optional[type] = None
    required: Tuple[str, ...] = ()
    replaced_by: Mapping[str, str] = field(default_factory=dict)
    purpose: str = ""


@dataclass(frozen=True)
class Unsupported:
    """A section that is accepted and left out with a warning.

    Args:
        reason: why, in one line.
    """

    reason: str


Section = Union[Component, ComponentList, ListOf, NamedListOf, Group, Unsupported]

_DATASET = Component(
    registry.DATASETS,
    injected=("pipeline", "seed", "training"),
    purpose="An annotation list and where its files lie.",
)
_PIPELINE = Group(
    {
        "decode": Component(registry.DECODERS, purpose="How a file is opened."),
        "sample": Component(registry.SAMPLERS, purpose="Which frames of it are read."),
        "decode_sampler": Component(
            registry.SAMPLERS, purpose="Stands for `sample`, and for `decode` with a VideoDecoder."
        ),
        "transform": ComponentList(registry.TRANSFORMS, purpose="What happens to the frames, in this order."),
    },
    required=("decode", "sample", "transform"),
    replaced_by={"decode": "decode_sampler", "sample": "decode_sampler"},
    purpose="From a file to a clip.",
)


def _splits(section: Section) -> Dict[str, Section]:
    return dict.fromkeys(("train", "valid", "test"), section)


ROOT = Group(
    {
        "MODEL": Component(registry.RECOGNIZERS, purpose="The network."),
        "DATASET": Group(_splits(_DATASET), DatasetSettings, purpose="The data, and how it becomes batches."),
        "PIPELINE": Group(_splits(_PIPELINE), purpose="What is done to a sample, for each part of the data."),
        "OPTIMIZER": Component(registry.OPTIMIZERS, purpose="How the weights are updated."),
        "METRIC": Component(registry.METRICS, purpose="What an evaluation measures."),
        "MIX": Component(registry.MIXES, purpose="Mixing of the samples of a training batch."),
        "EMA": Group(settings=EmaSettings, purpose="A moving average of the weights."),
        "GRADIENT_ACCUMULATION": Group(
            settings=GradientAccumulation, purpose="Several steps for one update of the weights."
        ),
        "DALI_LOADER": Group(
            settings=DaliData, purpose="Training data in PaddleVideo's short form; used with `train_dali`."
        ),
        "PRECISEBN": Group(
            settings=PreciseBNSettings, purpose="Batch-norm statistics of the training data as a whole."
        ),
        "MULTIGRID": Group(
            settings=MultigridSettings,
            purpose="Small clips in large batches first; used with `multigrid` or the flag `--multigrid`.",
        ),
        "DISTRIBUTED": Group(
            settings=DistributedSettings, purpose="How the processes of a run work together."
        ),
        "RUNTIME": Group(settings=RuntimeSettings, purpose="How Paddle uses the machine."),
        "INFERENCE": Unsupported("prediction reads videos as PIPELINE.valid says"),
    },
    RunSettings,
    required=("MODEL", "DATASET", "PIPELINE"),
    purpose="Settings of the run, at the top level of the file.",
)

# A section on the left is of no use without the one on the right.
NEEDS = [
    (("DATASET", "train"), ("PIPELINE", "train")),
    (("DATASET", "valid"), ("PIPELINE", "valid")),
    (("DATASET", "test"), ("PIPELINE", "test")),
    (("DATASET", "train"), ("OPTIMIZER",)),
    (("DATASET", "valid"), ("METRIC",)),
    (("DATASET", "test"), ("METRIC",)),
]

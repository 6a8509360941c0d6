"""A small schema of throw-away components, and configs written to a temporary folder."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import pytest

from paddlevideo_fast.config import load_config
from paddlevideo_fast.config.sections import Component, ComponentList, Group, Unsupported
from paddlevideo_fast.config.settings import DatasetSettings, RunSettings
from paddlevideo_fast.config.types import Range
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.registry import Registry

HOME = "paddlevideo_fast.registry"  # always importable; the entries are registered right here
MODELS = Registry("recognizer", HOME)
BACKBONES = Registry("backbone", HOME)
DATASETS = Registry("dataset", HOME)
TRANSFORMS = Registry("transform", HOME)
OPTIMIZERS = Registry("optimizer", HOME)
RATES = Registry("learning rate", HOME)


@BACKBONES.register()
class ResNet:
    """A backbone.

    Args:
        depth: number of layers.
        pretrained: weight file;
            null for none.
    """

    def __init__(self, depth: int, pretrained: str | None = None) -> None:
        self.depth = depth
        self.pretrained = pretrained


@BACKBONES.register()
class Wide:
    def __init__(self, depth: str = "deep") -> None:
        self.depth = depth


@BACKBONES.register()
class Swin:
    def __init__(self, window: tuple[int, int, int] = (8, 7, 7)) -> None:
        self.window = window


@MODELS.register()
class Recognizer2D:
    parts: ClassVar[dict[str, Registry]] = {"backbone": BACKBONES}

    def __init__(self, backbone: ResNet, aux: bool = False) -> None:
        self.backbone = backbone


@MODELS.register()
class Recognizer3D:
    parts: ClassVar[dict[str, Registry]] = {"backbone": BACKBONES}

    def __init__(self, backbone: Any | None = None, speed: float = 1.0) -> None:
        self.backbone = backbone


@DATASETS.register()
class VideoDataset:
    injected: ClassVar[tuple[str, ...]] = ("pipeline", "seed")

    def __init__(self, file_path: str, pipeline: Any, seed: int, data_prefix: str = "") -> None:
        self.file_path = file_path


@TRANSFORMS.register()
class Scale:
    ignored_arguments: ClassVar[dict[str, str]] = {"backend": "one resample does it all"}

    def __init__(self, short_size: int, ratio: float | Sequence[float] = 1.0) -> None:
        self.short_size = short_size


@TRANSFORMS.register()
class RandomFlip:
    def __init__(self, prob: Annotated[float, Range(0, 1)] = 0.5) -> None:
        self.prob = prob


@RATES.register()
class PiecewiseDecay:
    def __init__(self, boundaries: list[int], values: Sequence[float]) -> None:
        self.values = values


@OPTIMIZERS.register()
class Momentum:
    parts: ClassVar[dict[str, Registry]] = {"learning_rate": RATES}
    injected: ClassVar[tuple[str, ...]] = ("parameters",)

    def __init__(
        self,
        learning_rate: float | PiecewiseDecay,
        parameters: Any = None,
        momentum: float = 0.9,
        weight_decay: Mapping[str, Any] | None = None,
        order: Literal["first", "second"] = "first",
    ) -> None:
        self.learning_rate = learning_rate
        self.parameters = parameters


@OPTIMIZERS.register()
class Adam:
    parts: ClassVar[dict[str, Registry]] = {"learning_rate": RATES}

    def __init__(self, learning_rate: PiecewiseDecay, beta: float = 0.9, weight_decay: Any = None) -> None:
        self.learning_rate = learning_rate


ROOT = Group(
    {
        "MODEL": Component(MODELS),
        "DATASET": Group({"train": Component(DATASETS)}, DatasetSettings),
        "PIPELINE": Group({"train": Group({"transform": ComponentList(TRANSFORMS)})}),
        "OPTIMIZER": Component(OPTIMIZERS),
        "PRECISEBN": Unsupported("not supported yet, training runs without it"),
    },
    RunSettings,
    required=("MODEL", "DATASET", "PIPELINE"),
    needs={"DATASET.train": ("PIPELINE.train", "OPTIMIZER")},
)

GOOD = """\
MODEL:
    framework: "Recognizer2D"
    backbone:
        name: "ResNet"
        depth: 50
DATASET:
    batch_size: 16
    train:
        format: VideoDataset
        file_path: train.list
PIPELINE:
    train:
        transform:
            - Scale:
                short_size: 256
            - RandomFlip:
OPTIMIZER:
    name: Momentum
    momentum: 0.9
    learning_rate:
        name: PiecewiseDecay
        boundaries: [20, 40]
        values: [0.02, 2e-3, 0.0002]
    weight_decay:
        name: L2
        value: 1e-4
model_name: "TSM"
epochs: 50
"""


@pytest.fixture
def root():
    return ROOT


@pytest.fixture
def good():
    return GOOD


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file into an empty current folder and returns its relative name, as a user would type it."""
    monkeypatch.chdir(tmp_path)

    def write_file(name: str, text: str = GOOD) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return name

    return write_file


def problems_of(path, *overrides, **options) -> list[str]:
    """The problems that a config is refused with."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides, **options)
    return caught.value.problems


@pytest.fixture
def texts(monkeypatch):
    """By level, and all under 0, what the config check logs, as if the process had just started."""
    seen: dict[int, list[str]] = {0: [], logging.INFO: [], logging.WARNING: []}
    for module in ("document", "load", "yaml_source", "spec"):
        logger = f"paddlevideo_fast.config.{module}._LOGGER"
        monkeypatch.setattr(f"{logger}.log", lambda level, text: [seen[at].append(text) for at in (0, level)])
    return seen


@pytest.fixture
def logged(texts):
    """All that the config check logs."""
    return texts[0]


@pytest.fixture
def warnings(texts):
    """The warnings of the config check."""
    return texts[logging.WARNING]


@pytest.fixture
def told(texts):
    """What the config check says of arguments that it left out."""
    return texts[logging.INFO]

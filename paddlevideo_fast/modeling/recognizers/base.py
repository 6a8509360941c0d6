"""What all recognizers share."""

from __future__ import annotations

from typing import Any, ClassVar, Dict, List, Literal, Mapping, Optional, Tuple, Union

import paddle
from paddle import nn

from paddlevideo_fast.config.types import arguments_of
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.mix import MixedLabels
from paddlevideo_fast.modeling.weights import WeightReport, load_weights
from paddlevideo_fast.registry import BACKBONES, HEADS, Registry


class Recognizer(nn.Layer):
    """A backbone and a head.

    Args:
        backbone: clips or frames to features.
        head: features to logits.

    Attributes:
        layout: of the clips that `forward` takes, as `Preprocess` makes them.
        data_formats: layouts of feature maps that it works with.
        load_report: what the last `load_pretrained` took from its file.

    Raises:
        ConfigError: the head does not fit the backbone.
    """

    layout: ClassVar[Literal["NTCHW", "NCTHW"]]
    data_formats: ClassVar[Tuple[str, ...]]
    parts: ClassVar[Dict[str, Registry]] = {"backbone": BACKBONES, "head": HEADS}
    ignored_arguments: ClassVar[Dict[str, str]] = {
        "runtime_cfg": "it steers graph-mode details of another trainer",
    }

    def __init__(self, backbone: nn.Layer, head: nn.Layer) -> None:
        super().__init__()
        problems = self._misfits(backbone, head)
        if problems:
            raise ConfigError(problems)
        self.backbone = backbone
        self.head = head
        self.load_report: Optional[WeightReport] = None

    def _misfits(self, backbone: nn.Layer, head: nn.Layer) -> List[str]:
        if backbone.data_format not in self.data_formats:
            name = type(backbone).__name__
            other = "Recognizer3D" if backbone.data_format == "NCDHW" else "Recognizer2D"
            return [f"MODEL.framework={type(self).__name__}: {name} is no network for it; use {other}"]
        problems = []
        classifies = getattr(backbone, "num_classes", None) is not None
        if classifies != (head.num_classes is None):
            problems.append(_wrong_head(type(backbone).__name__, type(head).__name__, classifies))
        elif not classifies and head.in_channels != backbone.out_channels:
            problems.append(
                f"MODEL.head.in_channels={head.in_channels}: set it to {backbone.out_channels}, "
                "the channels that the backbone gives"
            )
        if head.data_format != backbone.data_format:
            problems.append(
                f"MODEL.head.data_format={head.data_format}: the backbone has {backbone.data_format}; "
                "give both the same"
            )
        return problems

    @property
    def num_classes(self) -> int:
        """Length of the logits."""
        return self.backbone.num_classes if self.head.num_classes is None else self.head.num_classes

    @classmethod
    def classes_of(cls, section: Mapping[str, Any]) -> int:
        """`num_classes` of the network that a checked MODEL section describes, without building it.

        Raises:
            ConfigError: neither the backbone nor the head has classes.
        """
        backbone, head = section["backbone"], section["head"]
        if "num_classes" in arguments_of(HEADS.get(head["name"])):
            return head["num_classes"]
        classes = arguments_of(BACKBONES.get(backbone["name"])).get("class_num")
        if classes is None:
            raise ConfigError([_wrong_head(backbone["name"], head["name"], classifies=False)])
        return backbone.get("class_num", classes.default)

    @property
    def lr_multipliers(self) -> Dict[str, float]:
        """Structured parameter name to the factor on the learning rate that its part asks for."""
        return {
            f"{part}.{name}": factor
            for part in ("backbone", "head")
            for name, factor in getattr(getattr(self, part), "lr_multipliers", {}).items()
        }

    def loss(self, logits: paddle.Tensor, labels: Union[paddle.Tensor, MixedLabels]) -> paddle.Tensor:
        """Scalar loss of logits [N, num_classes] and labels (int64 [N] or `MixedLabels`)."""
        return self.head.loss(logits, labels)

    def load_pretrained(self) -> List[WeightReport]:
        """Loads the file that the backbone's `pretrained` names, if any, and tells what became of it.

        Raises:
            WeightError: the file cannot be had or read, or nothing in it fits.
        """
        if not self.backbone.pretrained:
            return []
        self.load_report = load_weights(self.backbone, self.backbone.pretrained)
        return [self.load_report]


def _wrong_head(backbone_name: str, head_name: str, classifies: bool) -> str:
    made, other = ("logits", "MoViNetHead") if classifies else ("features", "a head with num_classes")
    return f"MODEL.head.name={head_name}: {backbone_name} gives {made}; take {other} for it"

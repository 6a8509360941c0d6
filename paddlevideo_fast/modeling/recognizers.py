"""Whole networks: a backbone and a head, or several of these that learn from each other."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import paddle
from paddle import nn

from paddlevideo_fast.config import build
from paddlevideo_fast.config.sections import Group
from paddlevideo_fast.config.types import Activation, Role, Size, arguments_of
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.machine import gpu_number
from paddlevideo_fast.modeling.backbones.base import Backbone
from paddlevideo_fast.modeling.freezing import Freezable
from paddlevideo_fast.modeling.heads import STRIDE, BaseHead, mean_logits
from paddlevideo_fast.modeling.layers.operators import frames_of
from paddlevideo_fast.modeling.preprocess import Layout, MixedLabels
from paddlevideo_fast.modeling.stages import Stage, stages_of
from paddlevideo_fast.modeling.weights import ClassNames, WeightRecord, WeightReport, load_weights
from paddlevideo_fast.registry import BACKBONES, HEADS, RECOGNIZERS, Registry


class Recognizer(Freezable):
    """A backbone and a head.

    Args:
        backbone: makes features of clips or frames.
        head: makes logits of features.

    Attributes:
        layout: layout of the clips that `forward` takes, as `Preprocess` makes them.
        data_formats: layouts of feature maps that the recognizer works with.
        has_classes: it gives logits, and learns from labels.
        load_report: the report of the last `load_pretrained`.
        weight_record: what weight files of the network say beside its tensors; None: nothing.
        stages: by name, from the clip to the logits; see `modeling.stages`.

    Raises:
        ConfigError: the head does not fit the backbone.
    """

    layout: Layout
    data_formats: ClassVar[tuple[str, ...]]
    has_classes: ClassVar[bool] = True
    parts: ClassVar[dict[str, Registry]] = {"backbone": BACKBONES, "head": HEADS}
    ignored_arguments: ClassVar[dict[str, str]] = {
        "runtime_cfg": "it steers graph-mode details of another trainer"
    }

    backbone: Any
    head: Any

    def __init__(self, backbone: Backbone, head: BaseHead) -> None:
        super().__init__()
        problems = self._misfits(backbone, head)
        if problems:
            raise ConfigError(problems)
        self.backbone = backbone
        self.head = head
        self.stages: dict[str, Stage] = stages_of(backbone)
        self.load_report: WeightReport | None = None
        self.weight_record: WeightRecord | None = None

    def _misfits(self, backbone: Backbone, head: BaseHead) -> list[str]:
        for part, own, base in (("backbone", backbone, Backbone), ("head", head, BaseHead)):
            if not isinstance(own, base):
                text = f"is no subclass of paddlevideo_fast.modeling.{base.__name__}"
                return [f"MODEL.{part}.name={type(own).__name__}: {text}"]
        if backbone.has_tokens and head.data_format == "NLC":
            backbone.data_format = "NLC"  # it can give what the head takes
        if backbone.data_format not in self.data_formats:
            name = type(backbone).__name__
            other = "Recognizer3D" if backbone.data_format in Recognizer3D.data_formats else "Recognizer2D"
            return [f"MODEL.framework={type(self).__name__}: {name} is no network for it; use {other}"]
        problems = []
        classifies = backbone.num_classes is not None
        if head.num_classes == 0 and self.has_classes:
            name = type(head).__name__
            problems.append(f"MODEL.head.name={name}: gives no logits; set MODEL.framework to Pretrain")
        elif classifies != (head.num_classes is None):
            problems.append(_wrong_head(type(backbone).__name__, type(head).__name__, classifies))
        elif not classifies and head.in_channels != backbone.out_channels:
            problems.append(
                f"MODEL.head.in_channels={head.in_channels}: set it to {backbone.out_channels}, "
                "the channels that the backbone gives"
            )
        if head.pooling not in (None, "global") and backbone.spatial_stride != STRIDE:
            problems.append(
                f"MODEL.head.crop_size: windows need feature maps of stride {STRIDE}, and spatial_strides of "
                f"the backbone give {backbone.spatial_stride}; leave crop_size out"
            )
        if not classifies and head.data_format not in (None, backbone.data_format):
            problems.append(_other_format(backbone, head))
        return problems

    @property
    def num_classes(self) -> int:
        """Length of the logits."""
        return self.head.num_classes if self.backbone.num_classes is None else self.backbone.num_classes

    @property
    def activation(self) -> Activation:
        """What makes probabilities of the logits."""
        return self.head.activation

    @classmethod
    def classes_of(cls, section: Mapping[str, Any]) -> int:
        """`num_classes` of the network that a checked MODEL section describes, without building it.

        Raises:
            ConfigError: neither the backbone nor the head has classes.
        """
        backbone, head = section["backbone"], section["head"]
        if "num_classes" in arguments_of(HEADS.get(head["name"])):
            return head["num_classes"]
        arguments = arguments_of(BACKBONES.get(backbone["name"]))
        for name in ("class_num", "num_classes"):
            if name in arguments:
                return backbone.get(name, arguments[name].default)
        raise ConfigError(_wrong_head(backbone["name"], head["name"], classifies=False))

    @property
    def lr_multipliers(self) -> dict[str, float]:
        """Structured parameter name to the factor on its learning rate that its part asks for."""
        return {
            f"{part}.{name}": factor
            for part in ("backbone", "head")
            for name, factor in getattr(self, part).lr_multipliers.items()
        }

    def loss(self, logits: paddle.Tensor, labels: paddle.Tensor | MixedLabels) -> paddle.Tensor:
        """Scalar loss of logits [N, num_classes] and labels; see `Head.loss`."""
        return self.head.loss(logits, labels)

    def loss_of_each(self, logits: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
        """The loss of each clip alone, float32 [N]."""
        return self.head.loss_of_each(logits, labels)

    @property
    def classifiers(self) -> list[str]:
        """Names of the linear layers that give the logits, as far as they are known."""
        return [f"{part}.{name}" for part in ("backbone", "head") for name in getattr(self, part).classifiers]

    def load_pretrained(self, classes: ClassNames | None = None) -> list[WeightReport]:
        """Loads the file that the backbone's `pretrained` names, if any; returns reports of what was loaded.

        Args:
            classes: see `load_weights`; of use for backbones that classify.

        Raises:
            WeightError: the file cannot be downloaded or read, or nothing in it fits.
        """
        if not self.backbone.pretrained:
            return []
        self.load_report = load_weights(self.backbone, self.backbone.pretrained, classes=classes)
        return [self.load_report]


def _other_format(backbone: Backbone, head: BaseHead) -> str:
    if head.data_format == "NLC":
        text = f"takes tokens, and {type(backbone).__name__} gives none; take a transformer"
        return f"MODEL.head.name={type(head).__name__}: {text}"
    text = f"the backbone has {backbone.data_format}; give both the same"
    return f"MODEL.head.data_format={head.data_format}: {text}"


def _wrong_head(backbone_name: str, head_name: str, classifies: bool) -> str:
    output, other = ("logits", "MoViNetHead") if classifies else ("features", "a head with num_classes")
    return f"MODEL.head.name={head_name}: {backbone_name} gives {output}; take {other} for it"


@RECOGNIZERS.register()
class Recognizer2D(Recognizer):
    """A 2D backbone over all frames, and a head that takes the mean over the frames (TSN, TSM).

    Args:
        backbone: makes features of frames [N*T, 3, H, W].
        head: makes logits of features and T.

    Raises:
        ConfigError: the head expects other channels or another layout than the backbone gives.
    """

    layout: Layout = "NTCHW"
    data_formats = ("NCHW", "NHWC")

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor:
        """Clips to logits.

        Args:
            clips: normalised float [N, T, 3, H, W]. T may be several views of `num_seg` frames in a row;
                their logits are averaged.

        Returns:
            [N, num_classes].

        Raises:
            ConfigError: T is not a multiple of the backbone's `num_seg`.
        """
        return self.head(*self.features(clips))

    def features(self, clips: paddle.Tensor) -> tuple[paddle.Tensor, int]:
        """What the head takes: the backbone's features of all frames, and T; see `forward`."""
        num_frames = clips.shape[1]
        num_seg = self.backbone.num_seg
        if num_seg is not None and isinstance(num_frames, int) and num_frames > 0 and num_frames % num_seg:
            raise ConfigError(
                f"MODEL.backbone.num_seg={num_seg}: clips have {num_frames} frames; "
                "give it the num_seg of PIPELINE's sample"
            )
        return self.backbone(frames_of(clips)), num_frames


@RECOGNIZERS.register()
class Recognizer3D(Recognizer):
    """A backbone over clips and a head over the whole clip (SlowFast, Slow-only, I3D, transformers).

    Args:
        backbone: makes of clips [N, 3, T, H, W] a list of feature maps, or tokens or one feature of each.
        head: makes logits of the feature maps, the tokens or the feature.

    Raises:
        ConfigError: the head expects other channels than the backbone gives, or the backbone is a 2D one.
    """

    layout = "NCTHW"
    data_formats: ClassVar[tuple[str, ...]] = ("NCDHW", "NLC", "NC")

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor:
        """Clips, normalised float [N, 3, T, H, W], to logits [N, num_classes]."""
        return self.head(*self.features(clips))

    def features(self, clips: paddle.Tensor) -> tuple[Sequence[paddle.Tensor] | paddle.Tensor]:
        """What the head takes: the backbone's feature maps, tokens [N, L, C] or feature [N, C]."""
        return (self.backbone(clips),)


@dataclass(frozen=True)
class Views:
    """How a test sees several views of a video that lie one after the other along time.

    Args:
        num_seg: frames of a view; null: the backbone's `num_seg`, or the whole clip where it has none.
        avg_type: what is averaged over the views: "score", the logits, or "prob", the probabilities.
    """

    num_seg: Annotated[Size, Role.VIEW_FRAMES] | None = None
    avg_type: Literal["score", "prob"] = "score"


@RECOGNIZERS.register()
class RecognizerTransformer(Recognizer3D):
    """A transformer over clips and a head; outside training a clip may be several views in a row.

    Each view goes through the network by itself, and the results are averaged. A transform such as
    UniformCrop makes such views, if the data set has no `num_spatial_crops`. With it, each crop is a clip of
    its own, and the metric averages.

    Args:
        backbone: makes a feature, or a list of feature maps, of clips [N, 3, T, H, W].
        head: makes logits of these.
        runtime_cfg: how views in a row are told apart and averaged.
        first_weights: what linear layers and convolutions of the backbone start with. "published": as the
            networks were published, mostly a standard deviation of 0.02 at any width. "xavier": a variance of
            2 / (inputs + outputs), with which narrow networks learn from nothing; with 0.02 they hardly do.

    Raises:
        ConfigError: the head expects other channels than the backbone gives, or the backbone is a 2D one.
    """

    parts: ClassVar[dict[str, Any]] = {
        **Recognizer3D.parts,
        "runtime_cfg": Group({"test": Group(settings=Views)}),
    }
    ignored_arguments: ClassVar[dict[str, str]] = {}

    def __init__(
        self,
        backbone: Backbone,
        head: BaseHead,
        runtime_cfg: Mapping[str, Views] | None = None,
        first_weights: Literal["published", "xavier"] = "published",
    ) -> None:
        super().__init__(backbone, head)
        if first_weights == "xavier":
            start_by_xavier(backbone)
        views = (runtime_cfg or {}).get("test") or Views()
        self._frames_of_view: int | None = views.num_seg or backbone.num_seg
        self._average: Literal["logits", "probabilities"] = (
            "probabilities" if views.avg_type == "prob" else "logits"
        )

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor:
        """Clips to logits.

        Args:
            clips: normalised float [N, 3, T, H, W]; outside training T may be several views in a row.

        Returns:
            [N, num_classes].

        Raises:
            ConfigError: outside training T is more than one view and no multiple of it.
        """
        num_views = self._num_views(clips)
        if num_views == 1:
            return Recognizer3D.forward(self, clips)  # Paddle 2 traces no super()
        channels, num_frames, height, width = clips.shape[1:]
        each = clips.reshape([-1, channels, num_views, num_frames // num_views, height, width])
        each = each.transpose([0, 2, 1, 3, 4, 5]).flatten(0, 1)
        logits = Recognizer3D.forward(self, each)
        return mean_logits(logits.reshape([-1, num_views, logits.shape[-1]]), self._average, self.activation)

    def features(self, clips: paddle.Tensor) -> tuple[Sequence[paddle.Tensor] | paddle.Tensor]:
        """What the head takes of clips that are one view each; see `Recognizer3D.features`.

        Raises:
            ConfigError: the clips are several views in a row.
        """
        num_views = self._num_views(clips)
        if num_views > 1:
            text = (
                f"clips are {num_views} views in a row, and features are of one view; set num_spatial_crops"
            )
            raise ConfigError(f"MODEL.runtime_cfg: {text} of the data set, so that each is a clip of its own")
        return Recognizer3D.features(self, clips)

    def _num_views(self, clips: paddle.Tensor) -> int:
        num_frames, of_view = clips.shape[2], self._frames_of_view
        if self.training or of_view is None or num_frames <= of_view:
            return 1
        if num_frames % of_view:
            text = f"clips have {num_frames} frames, no multiple of the {of_view} of a view"
            raise ConfigError(f"MODEL.runtime_cfg.test.num_seg: {text}; see num_seg of PIPELINE's sample")
        return num_frames // of_view


@RECOGNIZERS.register()
class MoViNetRecognizerFrame(Recognizer3D):
    """PaddleVideo's name for `Recognizer3D` with `MoViNet` as backbone."""


def start_by_xavier(network: nn.Layer) -> None:
    """Draws weights of linear layers and convolutions anew, uniform, of a variance of 2 / (inputs + outputs).

    Reference: Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks",
    2010, equation 16.
    """
    for layer in network.sublayers():
        if isinstance(layer, (nn.Linear, nn.Conv3D)):
            shape = layer.weight.shape
            is_linear = isinstance(layer, nn.Linear)
            num_ends = sum(shape) if is_linear else math.prod(shape[1:]) + shape[0]
            limit = math.sqrt(6 / num_ends)
            layer.weight.set_value(paddle.uniform(shape, min=-limit, max=limit))


logger = get_logger(__name__)


def classes_of(section: Mapping[str, Any]) -> int:
    """Classes of the network that a checked MODEL section describes, without building it; 0: it has none.

    Raises:
        ConfigError: neither the backbone nor the head has classes.
    """
    recognizer: Any = RECOGNIZERS.get(section["framework"])
    return recognizer.classes_of(section)


def activation_of(section: Mapping[str, Any]) -> Activation:
    """What makes probabilities of the logits of the network that a checked MODEL section describes."""
    head = section.get("head")  # a distillation has none, and knows softmax only
    argument = arguments_of(HEADS.get(head["name"])).get("activation") if head else None
    return head.get("activation", argument.default) if head and argument else "softmax"


def build_model(
    section: Mapping[str, Any], load_pretrained: bool = True, classes: ClassNames | None = None
) -> nn.Layer:
    """Builds the recognizer that MODEL describes.

    Args:
        section: `framework` (the recognizer's name) and its arguments, `backbone` and `head` for most, each
            a mapping with `name`.
        load_pretrained: load the files that backbones name in `pretrained`. Turn it off where all weights are
            loaded later.
        classes: see `load_weights`.

    Returns:
        A layer with `forward(clips) -> logits` and `loss(logits, labels)`.

    Raises:
        ConfigError: the parts do not fit.
        WeightError: see `load_weights`.
    """
    model = build(RECOGNIZERS, section)
    for report in model.load_pretrained(classes) if load_pretrained else ():
        logger.log(logging.WARNING if report.is_partial else logging.INFO, report.summary())
    return model


def build_for_clips(
    section: Mapping[str, Any],
    in_16_bits: bool = False,
    load_pretrained: bool = True,
    classes: ClassNames | None = None,
) -> Any:
    """A model that takes clips as it computes: [N, T, H, W, 3] where the backbone's `data_format` is "NHWC".

    Clips leave the loader in this order, so no step brings them into another and back. The program that is
    exported takes [N, T, 3, H, W] for any `data_format`.

    Args:
        section: see `build_model`.
        in_16_bits: the model computes in 16 bits. On a GPU, a 2D network whose section names no `data_format`
            has "NHWC" then, as tensor cores take it; weights are the same in both.
        load_pretrained: see `build_model`.
        classes: see `load_weights`.
    """
    if in_16_bits and gpu_number(paddle.get_device()) is not None:
        section = _channels_last(section)
    model = build_model(section, load_pretrained, classes)
    if isinstance(model, Recognizer2D) and model.backbone.data_format == "NHWC":
        model.layout, model.backbone.input_format = "NTHWC", "NHWC"
    return model


def _channels_last(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section with `data_format` "NHWC" in backbone and head, if both may have it and none names one."""
    parts = {}
    for name, registry in (("backbone", BACKBONES), ("head", HEADS)):
        part = section.get(name) or {}
        arguments = arguments_of(registry.get(part["name"])) if "name" in part else {}
        if "data_format" in part or "data_format" not in arguments:
            return section
        parts[name] = {**part, "data_format": "NHWC"}
    return {**section, **parts}

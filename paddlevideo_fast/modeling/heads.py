"""Heads: from the features of frames or clips to logits and the loss."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.config.types import Activation, CropSize, NonNegative, Share, Size
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.layers.cpu import LayerNorm
from paddlevideo_fast.modeling.losses import BinaryCrossEntropyLoss, CrossEntropyLoss, loss_of_each
from paddlevideo_fast.modeling.preprocess import MixedLabels
from paddlevideo_fast.registry import HEADS, LOSSES, Registry

_FC_LR_MULTIPLIERS = {"fc.weight": 5.0, "fc.bias": 10.0}
_SLOW_CHANNELS = 32  # of the last stage, for one channel of the stem
STRIDE = 32  # pixels of the clip for one of the last feature map

_USUAL_LOSS: dict[Activation, type[nn.Layer]] = {
    "softmax": CrossEntropyLoss,
    "sigmoid": BinaryCrossEntropyLoss,
}


class BaseHead(nn.Layer):
    """What the toolkit asks of a head, with defaults.

    Attributes:
        data_format: layout of the features that the head takes; None: it takes logits.
        num_classes: length of the logits; None: the backbone decides; 0: the head gives none.
        in_channels: channels of the features that the head takes; None: it takes logits.
        lr_multipliers: structured parameter name in the head to factor on the learning rate.
        classifiers: names of the linear layers that give the logits, where the head has one.
        no_weight_decay: words in the names of parameters without weight decay.
        activation: makes probabilities of the logits.
        pooling: how clips larger than the training crops are pooled: "global", or what is averaged over
            windows of that size, "probabilities" or "logits"; None: the head pools no clips.
    """

    data_format: str | None = None
    num_classes: int | None = None
    in_channels: int | None = None
    lr_multipliers: Mapping[str, float] = {}
    classifiers: Sequence[str] = ()
    no_weight_decay: ClassVar[Sequence[str]] = ()
    activation: Activation = "softmax"
    pooling: str | None = None


class Head(BaseHead):
    """The loss on logits.

    A head with a layer of its own works in two steps, so that training can start from stored features:
    `pool` makes one feature for each clip, or for each frame of it, and `classify` makes logits of these.

    Args:
        loss_cfg: the loss; null: cross entropy, with `activation: sigmoid` binary cross entropy.
        ls_eps: label smoothing; in training only.
        activation: makes probabilities of logits, in evaluation, export and prediction. "softmax": a video
            has one class. "sigmoid": it has any number of classes, each with a probability of its own.

    Raises:
        ConfigError: the loss is for the other activation.
    """

    parts: ClassVar[dict[str, Registry]] = {"loss_cfg": LOSSES}

    def __init__(
        self, loss_cfg: nn.Layer | None = None, ls_eps: Share = 0.0, activation: Activation = "softmax"
    ) -> None:
        super().__init__()
        self.ls_eps = ls_eps
        self.activation = activation
        self.loss_func = loss_cfg if loss_cfg is not None else _USUAL_LOSS[activation]()
        meant = getattr(self.loss_func, "activation", activation)  # a user's own loss need not say
        if meant != activation:
            loss = type(self.loss_func).__name__
            text = f"{loss} is a loss of {meant}; set activation to {meant}, or take another loss"
            raise ConfigError(f"MODEL.head.activation={activation}: {text}")

    def loss(self, logits: paddle.Tensor, labels: paddle.Tensor | MixedLabels) -> paddle.Tensor:
        """Scalar loss of logits [N, num_classes] and labels.

        Args:
            logits: float [N, num_classes].
            labels: int64 [N]; with `activation` "sigmoid" float32 [N, num_classes]; or mixed ones of these.
        """
        return self.loss_func(logits, labels, ls_eps=self._ls_eps_now)

    def loss_of_each(self, logits: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
        """The loss of each clip alone, float32 [N]; a loss without `each` is called once a clip."""
        each = getattr(self.loss_func, "each", None)
        return loss_of_each(self.loss_func, each, logits, labels, ls_eps=self._ls_eps_now)

    @property
    def _ls_eps_now(self) -> float:
        return self.ls_eps if self.training else 0.0


class LinearHead(Head):
    """Dropout, one linear layer, and the loss.

    Args:
        num_classes: classes; any number from 1.
        in_channels: channels of the backbone's features.
        drop_ratio: dropout before the linear layer.
        std: standard deviation of the linear layer's first weights, which are normal; its bias starts at 0.

    Raises:
        ConfigError: fewer than one class.
    """

    linear_name: ClassVar[str] = "fc"

    def __init__(
        self,
        num_classes: Size,
        in_channels: Size,
        drop_ratio: Share = 0.5,
        std: NonNegative = 0.01,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        if num_classes < 1:
            raise ConfigError(f"MODEL.head.num_classes={num_classes}: must be at least 1")
        self.num_classes = num_classes
        self.in_channels = in_channels
        self.dropout = nn.Dropout(drop_ratio)
        linear = nn.Linear(
            in_channels,
            num_classes,
            weight_attr=paddle.ParamAttr(initializer=nn.initializer.Normal(0.0, std)),
            bias_attr=paddle.ParamAttr(initializer=nn.initializer.Constant(0.0)),
        )
        self.add_sublayer(self.linear_name, linear)
        self.classifiers = (self.linear_name,)

    def forward(self, features: Any, *num_frames: int) -> paddle.Tensor:
        """Features, and T of frames, as `pool` takes them, to logits [N, num_classes]."""
        return self.classify(self.pool(features, *num_frames))

    def pool(self, features: Any, *num_frames: int) -> paddle.Tensor:
        """What the dropout and the linear layer take; here the features [N, in_channels] themselves."""
        return features

    def classify(self, pooled: paddle.Tensor) -> paddle.Tensor:
        """What `pool` gave to logits [N, num_classes]."""
        return self.linear(self.dropout(pooled))

    def linear(self, features: paddle.Tensor) -> paddle.Tensor:
        """Features [..., in_channels] to logits [..., num_classes]."""
        return getattr(self, self.linear_name)(features)


class FrameHead(LinearHead):
    """Global pooling, dropout, the linear layer, and the mean over the frames of a clip.

    Args:
        data_format: layout of the feature map.
        fclr5: train the linear layer's weight at 5 times the learning rate and its bias at 10 times.
    """

    ignored_arguments: ClassVar[dict[str, str]] = {
        "num_seg": "the head takes the number of frames from the clip"
    }
    drop_before_mean: ClassVar[bool] = False

    def __init__(
        self, data_format: Literal["NCHW", "NHWC"] = "NCHW", fclr5: bool = True, **shared: Any
    ) -> None:
        super().__init__(**shared)
        self.data_format = data_format
        if fclr5:
            self.lr_multipliers = dict(_FC_LR_MULTIPLIERS)

    def pool(self, features: paddle.Tensor, num_frames: int) -> paddle.Tensor:  # type: ignore[override]
        """Features of frames to the feature of each clip.

        Args:
            features: float [N*T, C, H, W], or [N*T, H, W, C] where `data_format` is "NHWC".
            num_frames: T, over all views; the mean over them is the mean of the frames' logits.

        Returns:
            The mean [N, C]; [N, T, C] if dropout comes before it.
        """
        pooled = features.mean(axis=[2, 3] if self.data_format == "NCHW" else [1, 2])
        pooled = pooled.reshape([-1, num_frames, self.in_channels])
        return pooled if self.drop_before_mean else pooled.mean(axis=1)

    def classify(self, pooled: paddle.Tensor) -> paddle.Tensor:
        """What `pool` gave to logits [N, num_classes]."""
        dropped = self.dropout(pooled)
        # The linear layer comes after the mean: it commutes with it, and runs once a clip.
        return self.linear(dropped.mean(axis=1) if self.drop_before_mean else dropped)


@HEADS.register()
class TSNHead(FrameHead):
    """TSN: dropout on the mean feature of the clip.

    Reference: Wang et al., "Temporal Segment Networks", arXiv 1608.00859.
    """

    def __init__(self, drop_ratio: Share = 0.4, fclr5: bool = False, **shared: Any) -> None:
        super().__init__(drop_ratio=drop_ratio, fclr5=fclr5, **shared)


@HEADS.register()
class ppTSNHead(FrameHead):
    """TSN's head with a faster linear layer."""

    def __init__(self, drop_ratio: Share = 0.4, **shared: Any) -> None:
        super().__init__(drop_ratio=drop_ratio, **shared)


@HEADS.register()
class TSMHead(FrameHead):
    """TSM: dropout on each frame's feature, then the mean of the frames' logits.

    Reference: Lin, Gan, Han, "TSM: Temporal Shift Module for Efficient Video Understanding", arXiv
    1811.08383.
    """

    drop_before_mean = True

    def __init__(self, std: NonNegative = 0.001, **shared: Any) -> None:
        super().__init__(std=std, **shared)


@HEADS.register()
class ppTSMHead(FrameHead):
    """TSM's head with the dropout and first weights of ppTSM."""

    drop_before_mean = True

    def __init__(self, drop_ratio: Share = 0.8, **shared: Any) -> None:
        super().__init__(drop_ratio=drop_ratio, **shared)


@HEADS.register()
class MoViNetHead(Head):
    """For backbones that classify frames, the mean over them, or whole clips; it has no parameters."""

    def forward(self, logits: paddle.Tensor, num_frames: int = 1) -> paddle.Tensor:
        """Logits of frames [N*T, num_classes] to logits of clips [N, num_classes]; T is `num_frames`."""
        return logits.reshape([-1, num_frames, logits.shape[-1]]).mean(axis=1)


class TokenHead(LinearHead):
    """Dropout and the linear layer, for backbones that give one feature for each clip.

    Args:
        init_scale: factor on the linear layer's first weights; small ones begin a fine-tuning gently.
    """

    data_format = "NC"

    def __init__(
        self, drop_ratio: Share = 0.0, std: NonNegative = 0.02, init_scale: NonNegative = 1.0, **shared: Any
    ) -> None:
        super().__init__(drop_ratio=drop_ratio, std=std * init_scale, **shared)


@HEADS.register()
class TransformerHead(TokenHead):
    """The head of ViT and MViT."""


@HEADS.register()
class TimeSformerHead(TokenHead):
    """The head of TimeSformer.

    Reference: Bertasius et al., "Is Space-Time Attention All You Need for Video Understanding?", arXiv
    2102.05095.
    """


@HEADS.register()
class VideoMAEHead(TokenHead):
    """The mean of the tokens, a layer norm, dropout and the linear layer, as VideoMAE fine-tunes its ViT.

    Args:
        norm_eps: of the layer norm.

    Reference: Tong et al., "VideoMAE", arXiv 2203.12602, section 4.
    """

    data_format = "NLC"

    def __init__(self, norm_eps: NonNegative = 1e-6, **shared: Any) -> None:
        super().__init__(**shared)
        self.fc_norm = LayerNorm(self.in_channels, epsilon=norm_eps)

    def pool(self, features: paddle.Tensor) -> paddle.Tensor:  # type: ignore[override]
        """Tokens [N, L, in_channels] to their mean [N, in_channels]."""
        return features.mean(axis=1)

    def classify(self, pooled: paddle.Tensor) -> paddle.Tensor:
        """What `pool` gave to logits [N, num_classes]."""
        return LinearHead.classify(self, self.fc_norm(pooled))


@HEADS.register()
class ppTimeSformerHead(TokenHead):
    """The head of PP-TimeSformer, whose bias has no weight decay."""

    no_weight_decay = ("bias",)


@HEADS.register()
class TokenShiftHead(TokenHead):
    """The head of TokShift.

    Reference: Zhang et al., "Token Shift Transformer for Video Classification", arXiv 2108.02432.
    """

    ignored_arguments: ClassVar[dict[str, str]] = {
        "num_seg": "the backbone takes the mean over the frames of the clip"
    }

    def __init__(self, ls_eps: Share = 0.01, **shared: Any) -> None:
        super().__init__(ls_eps=ls_eps, **shared)


class ClipHead(LinearHead):
    """The mean of each pathway over time and space, dropout, the linear layer.

    Args:
        crop_size: side of the training crops in pixels. Larger clips are classified once for each window of
            this size, 32 pixels apart, and the results are averaged, as PySlowFast, PyTorchVideo and
            PaddleVideo do in their tests at 256². null: one global mean, as MMAction2 does.
        window_average: what is averaged over the windows in evaluation: "probabilities" (PySlowFast,
            PaddleVideo) or "logits" (PyTorchVideo). In training always logits.
    """

    data_format = "NCDHW"

    def __init__(
        self,
        crop_size: CropSize | None = None,
        window_average: Literal["probabilities", "logits"] = "probabilities",
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.window = None if crop_size is None else max(crop_size // STRIDE, 1)
        self.window_average = window_average

    @property
    def pooling(self) -> str:  # type: ignore[override]
        """See `BaseHead`."""
        return "global" if self.window is None else self.window_average

    def pool(self, features: Sequence[paddle.Tensor]) -> paddle.Tensor:  # type: ignore[override]
        """Features [N, C, T, H, W] of each pathway to their mean [N, C], or means of windows [N, W, C]."""
        if self.window is None or max(features[0].shape[3:]) in range(1, self.window + 1):
            return paddle.concat([x.mean(axis=[2, 3, 4]) for x in features], axis=1)
        pooled = paddle.concat([_window_means(x, self.window) for x in features], axis=1)
        return pooled.flatten(2).transpose([0, 2, 1])

    def classify(self, pooled: paddle.Tensor) -> paddle.Tensor:
        """What `pool` gave to logits [N, num_classes]."""
        logits = self.linear(self.dropout(pooled))
        if pooled.ndim == 2:
            return logits
        average = "logits" if self.training else self.window_average
        return mean_logits(logits, average, self.activation)


def mean_logits(
    logits: paddle.Tensor, average: Literal["logits", "probabilities"], activation: Activation
) -> paddle.Tensor:
    """The logits of clips from those of their parts.

    Args:
        logits: [N, P, num_classes], of P parts of each clip.
        average: what is averaged over the parts; for "probabilities" the result is the logits of their means.
        activation: makes probabilities of logits.

    Returns:
        [N, num_classes].
    """
    if average == "logits" or logits.shape[1] == 1:
        return logits.mean(axis=1)
    logits = logits.astype("float32")
    if activation == "sigmoid":
        tail = (1 + (-logits.abs()).exp()).log()  # paddle2onnx's log_sigmoid is -inf near -115
        return (-F.relu(-logits) - tail).logsumexp(axis=1) - (-F.relu(logits) - tail).logsumexp(axis=1)
    shares = logits - logits.logsumexp(axis=2, keepdim=True)  # Paddle's log_softmax ends at -64 on the CPU
    return shares.logsumexp(axis=1) - math.log(logits.shape[1])


def _window_means(features: paddle.Tensor, window: int) -> paddle.Tensor:
    """Features [N, C, T, H, W] to their means [N, C, h, w] over all frames of each window, stride 1.

    A side that is shorter than a window is one window. A side of a traced program that is free counts as
    longer.
    """
    sides = [min(side, window) if side > 0 else window for side in features.shape[3:]]
    return F.avg_pool2d(features.mean(axis=2), sides, stride=1)


@HEADS.register()
class SlowFastHead(ClipHead):
    """SlowFast's head. Its outputs are logits, in training and in evaluation.

    Args:
        width_per_group: channels of the slow stem, as the backbone's.
        beta: slow channels for one fast channel, as the backbone's.
        dropout_rate: dropout before the linear layer.
        multigrid_short: one global mean, whatever `crop_size` is, as networks have it that were trained with
            the short cycle of multigrid.

    Reference: Feichtenhofer et al., "SlowFast Networks for Video Recognition", arXiv 1812.03982, section 3.
    """

    linear_name = "projection"
    injected = ("in_channels", "drop_ratio")
    ignored_arguments: ClassVar[dict[str, str]] = {
        "alpha": "the head takes clips of any number of frames",
        "num_frames": "the head takes clips of any number of frames",
        "pool_size_ratio": "windows are as large as crop_size says",
    }

    def __init__(
        self,
        width_per_group: Size = 64,
        beta: Size = 8,
        dropout_rate: Share = 0.5,
        multigrid_short: bool = False,
        **shared: Any,
    ) -> None:
        in_channels = width_per_group * _SLOW_CHANNELS + width_per_group // beta * _SLOW_CHANNELS
        super().__init__(in_channels=in_channels, drop_ratio=dropout_rate, **shared)
        if multigrid_short:
            self.window = None


@HEADS.register()
class I3DHead(ClipHead):
    """The head of I3D and Slow-only."""

    ignored_arguments: ClassVar[dict[str, str]] = {
        "spatial_type": "crop_size says whether the mean is global"
    }

    def __init__(self, in_channels: Size = 2048, **shared: Any) -> None:
        super().__init__(in_channels=in_channels, **shared)


@HEADS.register()
class X3DHead(ClipHead):
    """The head of X3D: the mean, a linear layer with ReLU, dropout, the last linear layer.

    Args:
        dim_c5: outputs of the first linear layer.
        crop_size: side of the training crops in pixels; see `I3DHead`. A window has one pixel of the feature
            map for each 32 begun.

    Reference: Feichtenhofer, "X3D: Expanding Architectures for Efficient Video Recognition", arXiv
    2004.04730, table 1.
    """

    linear_name = "projection"

    def __init__(
        self, in_channels: Size = 432, dim_c5: Size = 2048, crop_size: CropSize | None = None, **shared: Any
    ) -> None:
        super().__init__(in_channels=dim_c5, crop_size=crop_size, **shared)
        self.in_channels = in_channels
        if crop_size is not None:
            self.window = math.ceil(crop_size / STRIDE)
        init = paddle.ParamAttr(initializer=nn.initializer.KaimingNormal())
        self.lin_5 = nn.Linear(in_channels, dim_c5, weight_attr=init, bias_attr=False)

    def classify(self, pooled: paddle.Tensor) -> paddle.Tensor:
        """What `pool` gave to logits [N, num_classes]."""
        return ClipHead.classify(self, F.relu(self.lin_5(pooled)))

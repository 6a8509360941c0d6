"""What happens to a batch of clips before the network: normalisation, mixup and cutmix."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.config.types import Share
from paddlevideo_fast.device import upload
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.layers.operators import constant
from paddlevideo_fast.registry import MIXES

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Layout = Literal["NTCHW", "NTHWC", "NCTHW"]


class Preprocess(nn.Layer):
    """Normalises uint8 clips and brings the axes into the network's order.

    Training, validation, export and prediction share it. On a CPU, batches in host memory go through numpy,
    which is many times faster there than broadcasting tensors. Everything else goes through Paddle on the
    device. Both give the same values to 1e-6.

    Args:
        mean, std: mean and standard deviation of each channel, for pixels scaled to [0, 1].
        layout: "NTCHW" for 2D networks, "NTHWC" for 2D networks that compute with channels last, "NCTHW" for
            3D ones.
    """

    def __init__(
        self,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        layout: Layout = "NTCHW",
    ) -> None:
        super().__init__()
        self.layout = layout
        self._order = tuple("NTHWC".index(axis) for axis in layout)
        self._scale = tuple(1 / (255 * s) for s in std)
        self._shift = tuple(-m / s for m, s in zip(mean, std))
        # All 256 values that a channel can take: normalising is a look-up.
        values = np.arange(256, dtype="float64")[:, None]
        self._table = (values * self._scale + self._shift).astype("float32").T.copy()

    def forward(self, clips: np.ndarray | paddle.Tensor) -> paddle.Tensor:
        """Normalises a batch.

        Args:
            clips: uint8 [N, T, H, W, 3].

        Returns:
            float32 [N, T, 3, H, W], or in the order of the layout.
        """
        on_host = isinstance(clips, np.ndarray) or (paddle.in_dynamic_mode() and clips.place.is_cpu_place())
        if on_host and paddle.get_device() == "cpu":
            return paddle.to_tensor(self.in_numpy(np.asarray(clips)))
        return self.in_paddle(upload(clips))

    def in_numpy(self, clips: np.ndarray) -> np.ndarray:
        """Like `forward`, in host memory."""
        out = np.empty([clips.shape[axis] for axis in self._order], dtype="float32")
        channel_first = np.moveaxis(out, self.layout.index("C"), 1)
        for channel, table in enumerate(self._table):
            np.take(table, clips[..., channel], out=channel_first[:, channel], mode="clip")
        return out

    def in_paddle(self, clips: paddle.Tensor) -> paddle.Tensor:
        """Like `forward`, on the tensor's device; export traces this function."""
        scale, shift = constant(_tensors, self._scale, self._shift)  # each copy makes the host wait
        clips = clips.astype("float32") * scale + shift
        return clips if self.layout == "NTHWC" else clips.transpose(list(self._order))


def _tensors(*rows: tuple[float, ...]) -> tuple[paddle.Tensor, ...]:
    return tuple(paddle.to_tensor(row, dtype="float32") for row in rows)


@dataclass(frozen=True)
class MixedLabels:
    """Two labels for each clip: `a` with weight `lam`, `b` with weight 1 - `lam`.

    Attributes:
        a, b: int64 tensors [N], or float32 [N, num_classes] where a clip has any number of classes.
        lam: one number in [0, 1] for the batch.
        order: int64 [N], the clip of the batch that each `b` belongs to; None where the mix does not say.
    """

    a: paddle.Tensor
    b: paddle.Tensor
    lam: float
    order: paddle.Tensor | None = None

    def blended(self) -> paddle.Tensor:
        """The targets `lam` · a + (1 - `lam`) · b of clips with any number of classes."""
        return self.a * self.lam + self.b * (1 - self.lam)


Mixed = tuple[paddle.Tensor, paddle.Tensor | MixedLabels]


@MIXES.register()
class Mixup:
    """Blends each clip with another one of its batch.

    Args:
        alpha: parameter of the Beta(alpha, alpha) distribution that draws the share; > 0.

    Raises:
        ConfigError: alpha is not positive.

    Reference: Zhang et al., "mixup: Beyond Empirical Risk Minimization", arXiv 1710.09412.
    """

    def __init__(self, alpha: float = 0.2) -> None:
        self.alpha = _positive("alpha", alpha)

    def __call__(
        self, clips: paddle.Tensor, labels: paddle.Tensor, rng: np.random.Generator
    ) -> tuple[paddle.Tensor, MixedLabels]:
        """Mixes a batch.

        Args:
            clips: float [N, ...].
            labels: int64 [N], or float32 [N, num_classes].
            rng: the only source of randomness.

        Returns:
            lam * clips + (1 - lam) * clips in another order, and the labels of both orders.
        """
        lam = float(rng.beta(self.alpha, self.alpha))
        order = upload(rng.permutation(clips.shape[0]).astype("int64"))
        others = paddle.index_select(clips, order)
        return clips * lam + others * (1 - lam), _mixed(labels, lam, order)


@MIXES.register()
class Cutmix:
    """Puts a box of another clip of the batch into each clip, at the same place in all frames.

    The labels are shared by the area that each clip has in the result.

    Args:
        alpha: parameter of the Beta(alpha, alpha) distribution that draws the share that a clip keeps; > 0.
            A box that reaches over the edge is cut off there, so a clip may keep more.
        layout: axes of the clips; see `Preprocess`.

    Raises:
        ConfigError: alpha is not positive.

    References:
        Yun et al., "CutMix", arXiv 1905.04899.
        Yun et al., "VideoMix: Rethinking Data Augmentation for Video Classification", arXiv 2012.03457.
    """

    injected: ClassVar[tuple[str, ...]] = ("layout",)

    def __init__(self, alpha: float = 0.2, layout: Layout = "NTCHW") -> None:
        self.alpha = _positive("alpha", alpha)
        self._axes = layout.index("H"), layout.index("W")

    def __call__(
        self, clips: paddle.Tensor, labels: paddle.Tensor, rng: np.random.Generator
    ) -> tuple[paddle.Tensor, MixedLabels]:
        """Mixes a batch.

        Args:
            clips: float, with the axes of the layout.
            labels: int64 [N], or float32 [N, num_classes].
            rng: the only source of randomness.

        Returns:
            The clips with the boxes, and the labels of both orders.
        """
        height, width = (clips.shape[axis] for axis in self._axes)
        side = math.sqrt(1 - rng.beta(self.alpha, self.alpha))
        top, bottom = _span(height, int(height * side), rng)
        left, right = _span(width, int(width * side), rng)
        shape = [1] * clips.ndim
        for axis in self._axes:
            shape[axis] = clips.shape[axis]
        box = np.zeros((height, width), bool)
        box[top:bottom, left:right] = True
        order = upload(rng.permutation(clips.shape[0]).astype("int64"))
        mixed = paddle.where(upload(box.reshape(shape)), paddle.index_select(clips, order), clips)
        lam = 1 - (bottom - top) * (right - left) / (height * width)
        return mixed, _mixed(labels, lam, order)


@MIXES.register()
class VideoMix:
    """Cutmix or mixup, drawn for each batch.

    Label smoothing is `ls_eps` of the head; it smooths mixed labels, too.

    Args:
        cutmix_prob: how often it is cutmix where it is one of the two; timm calls it `switch_prob`.
        mixup_alpha: see `Mixup`.
        cutmix_alpha: see `Cutmix`.
        prob: how often a batch is mixed at all.
        layout: axes of the clips; see `Preprocess`.

    Raises:
        ConfigError: an alpha is not positive.
    """

    injected: ClassVar[tuple[str, ...]] = ("layout",)

    def __init__(
        self,
        cutmix_prob: Share = 0.5,
        mixup_alpha: float = 0.2,
        cutmix_alpha: float = 1.0,
        prob: Share = 1.0,
        layout: Layout = "NTCHW",
    ) -> None:
        self.cutmix_prob = cutmix_prob
        self.prob = prob
        self.mixup = Mixup(_positive("mixup_alpha", mixup_alpha))
        self.cutmix = Cutmix(_positive("cutmix_alpha", cutmix_alpha), layout)

    def __call__(self, clips: paddle.Tensor, labels: paddle.Tensor, rng: np.random.Generator) -> Mixed:
        """Mixes a batch, or gives it back as it is; see `Cutmix`."""
        if rng.random() >= self.prob:
            return clips, labels
        mix = self.cutmix if rng.random() < self.cutmix_prob else self.mixup
        return mix(clips, labels, rng)


def _mixed(labels: paddle.Tensor, lam: float, order: paddle.Tensor) -> MixedLabels:
    return MixedLabels(labels, paddle.index_select(labels, order), lam, order)


def _positive(key: str, value: float) -> float:
    if value <= 0:
        raise ConfigError(f"MIX.{key}={value}: must be > 0")
    return value


def _span(length: int, size: int, rng: np.random.Generator) -> tuple[int, int]:
    """First and last pixel + 1 of a span of `size` around a random middle, cut off at 0 and `length`."""
    first = int(rng.integers(length)) - size // 2
    return max(first, 0), min(first + size, length)

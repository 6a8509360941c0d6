"""What happens to a batch of clips before the network: normalisation and mixup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Literal, Sequence, Tuple, Union

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.registry import MIXES
from paddlevideo_fast.transfer import upload

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
        self._on_device: Dict[str, Tuple[paddle.Tensor, paddle.Tensor]] = {}
        self._scale = [1 / (255 * s) for s in std]
        self._shift = [-m / s for m, s in zip(mean, std)]
        # All 256 values that a channel can take: normalising is a look-up.
        values = np.arange(256, dtype="float64")[:, None]
        self._table = (values * self._scale + self._shift).astype("float32").T.copy()

    def forward(self, clips: Union[np.ndarray, paddle.Tensor]) -> paddle.Tensor:
        """Normalises a batch.

        Args:
            clips: uint8 [N, T, H, W, 3].

        Returns:
            float32 [N, T, 3, H, W], or in the order of the layout.
        """
        on_host = isinstance(clips, np.ndarray) or (paddle.in_dynamic_mode() and clips.place.is_cpu_place())
        if on_host and paddle.get_device() == "cpu":
            return paddle.to_tensor(self.in_numpy(np.asarray(clips)))
        return self.in_paddle(paddle.to_tensor(clips) if isinstance(clips, np.ndarray) else clips)

    def in_numpy(self, clips: np.ndarray) -> np.ndarray:
        """Like `forward`, in host memory."""
        out = np.empty([clips.shape[axis] for axis in self._order], dtype="float32")
        channel_first = np.moveaxis(out, self.layout.index("C"), 1)
        for channel, table in enumerate(self._table):
            np.take(table, clips[..., channel], out=channel_first[:, channel], mode="clip")
        return out

    def in_paddle(self, clips: paddle.Tensor) -> paddle.Tensor:
        """Like `forward`, on the tensor's device; export traces this function."""
        scale, shift = self._constants()
        clips = clips.astype("float32") * scale + shift
        return clips if self.layout == "NTHWC" else clips.transpose(list(self._order))

    def _constants(self) -> Tuple[paddle.Tensor, paddle.Tensor]:
        """Scale and shift of each channel, copied to a device once: each copy makes the host wait for it."""
        if not paddle.in_dynamic_mode():
            return tuple(paddle.to_tensor(each, dtype="float32") for each in (self._scale, self._shift))
        device = paddle.get_device()
        if device not in self._on_device:
            self._on_device[device] = tuple(
                paddle.to_tensor(each, dtype="float32") for each in (self._scale, self._shift)
            )
        return self._on_device[device]


@dataclass(frozen=True)
class MixedLabels:
    """Two labels for each clip: `a` with weight `lam`, `b` with weight 1 - `lam`.

    Attributes:
        a, b: int64 tensors [N], or float32 [N, num_classes] where a clip has any number of classes.
        lam: one number in [0, 1] for the batch.
    """

    a: paddle.Tensor
    b: paddle.Tensor
    lam: float

    def blended(self) -> paddle.Tensor:
        """The targets `lam` · a + (1 - `lam`) · b of clips with any number of classes."""
        return self.a * self.lam + self.b * (1 - self.lam)


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
        if alpha <= 0:
            raise ConfigError([f"MIX.alpha={alpha}: must be > 0"])
        self.alpha = alpha

    def __call__(
        self, clips: paddle.Tensor, labels: paddle.Tensor, rng: np.random.Generator
    ) -> Tuple[paddle.Tensor, MixedLabels]:
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
        return clips * lam + others * (1 - lam), MixedLabels(labels, paddle.index_select(labels, order), lam)

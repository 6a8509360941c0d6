"""Augmentation that blends the clips of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

import numpy as np
import paddle

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.registry import MIXES


@dataclass(frozen=True)
class MixedLabels:
    """Two labels a clip: `a` with weight `lam`, `b` with the rest.

    Attributes:
        a, b: int64 tensors [N].
        lam: in [0, 1], one for the batch.
    """

    a: paddle.Tensor
    b: paddle.Tensor
    lam: float


@MIXES.register()
class Mixup:
    """Blends each clip with another one of its batch.

    Args:
        alpha: of the Beta(alpha, alpha) that draws the share; > 0.

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
            labels: int64 [N].
            rng: the only source of randomness.

        Returns:
            lam * clips + (1 - lam) * clips in another order, and the labels of both.
        """
        lam = float(rng.beta(self.alpha, self.alpha))
        order = paddle.to_tensor(rng.permutation(clips.shape[0]).astype("int64"), place=clips.place)
        others = paddle.index_select(clips, order)
        return clips * lam + others * (1 - lam), MixedLabels(labels, paddle.index_select(labels, order), lam)

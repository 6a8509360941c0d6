"""Learning rates as functions of the epoch, which may be a fraction (2.5: the middle of the third)."""

from __future__ import annotations

import bisect
import math
from typing import Sequence


def piecewise(epoch: float, boundaries: Sequence[float], values: Sequence[float]) -> float:
    """Steps.

        values[0]       values[1]       values[2]
        |---------------|---------------|----------->
        0               boundaries[0]   boundaries[1]

    A boundary belongs to the value at its right.
    """
    return values[bisect.bisect_right(boundaries, epoch)]


def cosine(epoch: float, base: float, num_epochs: float, end: float = 0.0) -> float:
    """Half a cosine from `base` at epoch 0 to `end` at `num_epochs`.

    Reference: Loshchilov and Hutter, "SGDR", arXiv 1608.03983, equation 5.
    """
    return end + (base - end) * (1 + math.cos(math.pi * epoch / num_epochs)) / 2


def linear_warmup(epoch: float, start: float, end: float, num_epochs: float) -> float:
    """A straight line from `start` at epoch 0 to `end` at `num_epochs`.

    Reference: Goyal et al., "Accurate, Large Minibatch SGD", arXiv 1706.02677, section 2.2.
    """
    return start + (end - start) * epoch / num_epochs


def relative_steps(epoch: float, base: float, factors: Sequence[float], steps: Sequence[float]) -> float:
    """`base * factors[i]` from epoch `steps[i]` on; `steps[0]` is 0."""
    return base * factors[max(bisect.bisect_right(steps, epoch) - 1, 0)]

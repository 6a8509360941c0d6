"""Learning rates as functions of the epoch, which may be a fraction: 2.5 is the middle of the third epoch."""

import bisect
import math
from collections.abc import Sequence


def piecewise(epoch: float, boundaries: Sequence[float], values: Sequence[float]) -> float:
    """Steps.

        values[0]       values[1]       values[2]
        |---------------|---------------|----------->
        0               boundaries[0]   boundaries[1]

    The value after a boundary holds at the boundary, too.
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

"""Random generators that depend on what is drawn for, and on nothing else."""

from __future__ import annotations

import numpy as np

CLIP, ORDER, SUBSTITUTE = 1, 2, 3


def generator(purpose: int, *key: int) -> np.random.Generator:
    """A generator that is a pure function of its key.

    Args:
        purpose: one of `CLIP` (what happens to a sample), `ORDER` (the shuffle of an epoch) and `SUBSTITUTE`
            (which record replaces one that does not decode).
        key: integers ≥ 0, such as (seed, epoch, index, view).
    """
    # numpy pads short keys with zeros, so (1, 2) and (1, 2, 0) would be one stream: the length goes in, too
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((purpose, len(key), *key))))

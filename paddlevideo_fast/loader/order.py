"""In which order an epoch takes samples that lie in shards, where it does not mix all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ShuffleWindow:
    """An order that goes through the shards one after the other, and mixes the samples on the way.

    The shards lie in a row, in a random order. Each sample moves to the right by a random distance below
    `size`; then the samples are taken from the left. Two shards of 4, and a window of 4:

        row      c0   c1   c2   c3 | a0   a1   a2   a3
        place    0    1    2    3    4    5    6    7
        moved    2.9  1.4  5.1  3.0  5.2  8.7  6.4  7.8
        order    c1   c0   c3   c2   a0   a2   a3   a1

    So a sample is taken at most about half a window before or after its place in the row, on average a
    quarter. Samples that lie next to each other are taken within `size` steps, so a cache that holds `size`
    samples reads each byte once an epoch.

    Args:
        places: for each record, the number of its shard and its place in the shard.
        size: of the window, in samples, ≥ 1.
    """

    places: Sequence[tuple[int, int]]
    size: int

    def order(self, records: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """int64 [len(records)]: the places in `records`, in the order in which an epoch takes them.

        Args:
            records: the number of the record of each sample; a record may come more than once.
            rng: decides the order.
        """
        shards, places = np.asarray(self.places)[records].T
        numbers, which = np.unique(shards, return_inverse=True)
        row = np.lexsort((places, rng.permutation(len(numbers))[which]))
        moved = np.arange(len(row)) + rng.uniform(0, self.size, len(row))
        return row[np.argsort(moved, kind="stable")]

"""How often an epoch draws each record, where classes have different numbers of records."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from paddlevideo_fast.errors import LoaderError
from paddlevideo_fast.loader.annotations import VideoRecord
from paddlevideo_fast.loader.request import DRAW, generator

RecordSampler = Literal["shuffle", "balanced", "square_root", "weighted"]

_GOLDEN = (5**0.5 - 1) / 2
_DIGITS = 9  # ends of stretches are rounded to so many decimals, so that whole rates stay whole


class RepeatCounts:
    """How often each record comes in an epoch: a function of (seed, epoch).

    The records lie in a row, those of one class next to each other, in an order drawn from the seed. Each has
    a stretch as long as its rate, and there is a mark at every whole number plus an offset:

        |--- 0 ---|--- 1 ---|--- 2 ---|--------- 3 ---------|--------- 4 ---------|    rates 5/8 and 11/8
          ^               ^               ^               ^               ^

    A record comes as often as there are marks in its stretch. So an epoch has as many clips as there are
    records; a record of rate r comes floor(r) or ceil(r) times; and the clips of a class are as many as its
    rates say, within one. From epoch to epoch the offset moves on by the golden ratio, so that the marks fill
    a stretch evenly: a record of rate 1/4 comes in about every fourth epoch. Drawing with replacement would
    leave one record of twenty out of twelve epochs in a row, and give a class more clips in one epoch than in
    the next.

    Args:
        rates: for each record, ≥ 0, how often an epoch has it on average; their sum is the number of records.
        classes: for each record, the class that it counts for.
        seed: of the run.

    References:
        Madow, "On the Theory of Systematic Sampling, II", Annals of Mathematical Statistics 20, 1949.
        Gupta et al., "LVIS: A Dataset for Large Vocabulary Instance Segmentation", arXiv 1908.03195, repeats
        images by such rates, rounded at random.
    """

    def __init__(self, rates: np.ndarray, classes: np.ndarray, seed: int) -> None:
        rng = generator(DRAW, seed)
        order = rng.permutation(len(rates))
        self._order = order[np.argsort(classes[order], kind="stable")]
        self._ends = np.round(np.cumsum(rates[self._order]), _DIGITS)
        self._ends[-1] = len(rates)
        self._offset = rng.random()
        self.rates = rates

    def counts(self, epoch: int) -> np.ndarray:
        """int64 [num_records]: how often each record comes in an epoch."""
        offset = (self._offset + epoch * _GOLDEN) % 1
        marks_before = np.ceil(self._ends - offset).astype(np.int64)
        counts = np.empty(len(marks_before), np.int64)
        counts[self._order] = np.diff(marks_before, prepend=0)
        return counts


def make_repeat_counts(
    records: Sequence[VideoRecord], sampler: RecordSampler, seed: int, file_path: str = ""
) -> RepeatCounts:
    """The draws of a sampler.

    A record of several classes counts for its rarest one. Records without a class count as one more class.

    Args:
        records: of the training list.
        sampler: not "shuffle".
        seed: of the run.
        file_path: the list, for messages.

    Raises:
        LoaderError: all weights of the list are 0.
    """
    num_classes = 1 + max((label for record in records for label in record.labels), default=0)
    sizes = np.append(class_counts(records, num_classes), sum(not record.labels for record in records))
    classes = np.array(
        [min(record.labels, key=lambda label: sizes[label], default=num_classes) for record in records]
    )
    if sampler == "weighted":
        rates = np.array([record.weight for record in records])
        if not rates.any():
            raise LoaderError(f"{file_path}: every weight is 0; sampler: weighted has nothing to draw")
    else:
        rates = sizes[classes] ** (-1.0 if sampler == "balanced" else -0.5)
    return RepeatCounts(rates * (len(rates) / rates.sum()), classes, seed)


def class_counts(
    records: Sequence[VideoRecord], num_classes: int, rates: np.ndarray | None = None
) -> np.ndarray:
    """float64 [num_classes]: how many clips of each class an epoch has.

    Args:
        records: with labels below `num_classes`.
        num_classes: number of classes.
        rates: for each record, how often an epoch has it; None: once.
    """
    pairs: list[int] = [label for record in records for label in record.labels]
    times = None if rates is None else np.repeat(rates, [len(record.labels) for record in records])
    return np.bincount(pairs, times, num_classes).astype(np.float64)

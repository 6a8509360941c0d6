"""The classes of a run: how they are called, and how many clips each has.

A run leaves the names of its classes beside its weights. A later run on other classes takes over what the
weights know of the classes that both have.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from paddlevideo_fast.config import RunSpec
from paddlevideo_fast.loader.balance import class_counts
from paddlevideo_fast.loader.class_names import checked_class_names, classes_of_weights
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.loader.transforms.crop import RandomFlip
from paddlevideo_fast.modeling import ClassNames
from paddlevideo_fast.modeling.losses import tell_class_counts


def class_names(spec: RunSpec) -> ClassNames:
    """The names of the network's classes, by the config, and of a file's, by what is beside the file."""

    def of_file(weights: str, num_classes: int) -> list[str] | None:
        classes = classes_of_weights(weights, num_classes)
        return classes and classes.names

    return ClassNames(partial(checked_class_names, spec.config), of_file)


def balance(model: Any, dataset: ClipDataset) -> str:
    """Tells the losses of a network how many clips of each class an epoch of training has.

    Args:
        model: to be trained.
        dataset: what it is trained on, with labels below the network's number of classes.

    Returns:
        A line for the user; see `summary`. A network without classes needs no labels.

    Raises:
        ConfigError: a loss cannot be trained with them, as for weights of another number of classes.
    """
    if not model.num_classes:
        return "the training needs no labels, and reads none"
    methods = tell_class_counts(model, clips_of_classes(dataset, model.num_classes).tolist())
    if dataset.repeat_counts is not None:
        methods = [f"sampler {dataset.sampler}", *methods]
    return summary(class_counts(dataset.records, model.num_classes), methods)


def clips_of_classes(dataset: ClipDataset, num_classes: int) -> np.ndarray:
    """float64 [num_classes]: clips in an epoch, as the sampler draws them and flips change their labels."""
    rates = None if dataset.repeat_counts is None else dataset.repeat_counts.rates
    counts = class_counts(dataset.records, num_classes, rates)
    for step in dataset.pipeline.geometric:
        if isinstance(step, RandomFlip):
            mirrored = [step.swapped_labels.get(label, label) for label in range(num_classes)]
            counts = (1 - step.p) * counts + step.p * counts[mirrored]
    return counts


def summary(counts: np.ndarray, methods: Sequence[str]) -> str:
    """One line on the records of each class and on what is done about their numbers."""
    present = np.flatnonzero(counts)
    if not len(present):
        return "no record of the training list has a class"
    most, fewest = int(np.argmax(counts)), int(present[np.argmin(counts[present])])
    each = f"{counts[fewest]:.0f} (class {fewest}) to {counts[most]:.0f} records (class {most})"
    each += f", median {np.median(counts[present]):g}"
    if counts[fewest] == counts[most]:
        each = f"{counts[most]:.0f} records each"
    text = f"training list: {len(counts)} classes with {each}"
    if len(present) < len(counts):
        text += f"; {len(counts) - len(present)} without a record"
    return f"{text}; balanced by {', '.join(methods)}" if methods else f"{text}; no balancing"

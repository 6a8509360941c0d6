"""How the classes of a run are called, and of the runs whose weights it starts from.

A run leaves the names of its classes beside its weights. A later run on other classes takes over what the
weights know of the classes that both have.
"""

from paddlevideo_fast.config import RunSpec
from paddlevideo_fast.loader import Classes, classes_of_config, classes_of_weights, compared
from paddlevideo_fast.modeling import ClassNames, classes_of


def class_names(spec: RunSpec) -> ClassNames:
    """The names of the network's classes, by the config, and of a file's, by what is beside the file."""

    def of_network(num_classes: int) -> list[str] | None:
        return _names(classes_of_config(spec.config, num_classes))

    def of_file(weights: str, num_classes: int) -> list[str] | None:
        return _names(classes_of_weights(weights, num_classes))

    return ClassNames(of_network, of_file)


def checked_class_names(spec: RunSpec, *weights: str) -> list[str] | None:
    """The names of the network's classes, by the config, else by weights; None: not known.

    Args:
        spec: of the run.
        weights: files that were trained with the same classes.

    Raises:
        AnnotationError: in weights, a number means another class; see `compared`.
        PaddleVideoFastError: a store does not answer.
    """
    num_classes = classes_of(spec.model)
    if not num_classes:
        return None
    classes = classes_of_config(spec.config, num_classes)
    for file in weights:
        classes = compared(classes, file)
    return _names(classes)


def _names(classes: Classes | None) -> list[str] | None:
    return classes and classes.names

"""Weight files: read without running anything that is in them, fitted by name, reported."""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Tuple, Union

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.errors import WeightError
from paddlevideo_fast.modeling.array_pickles import array_table
from paddlevideo_fast.modeling.pickles import PickleError, read_pickle, settle
from paddlevideo_fast.modeling.weight_names import candidate_names

_NAME_TABLE = "StructuredToParameterName@@"


def read_weights(path: Union[str, Path]) -> Dict[str, Any]:
    """Reads what `paddle.save` wrote (.pdparams, .pdopt) and runs nothing that is in the file.

    Args:
        path: the file.

    Returns:
        Name to numpy array, not writable; the state of an optimizer also has numbers and nested dicts of the
        same.

    Raises:
        WeightError: missing, not such a file, or one that asks for code to be run.
    """
    try:
        with map_file(path) as file:
            content = read_arrays(file)
    except PickleError as exc:
        raise WeightError(
            f"{path}: is not a Paddle weight file, or a damaged one: it {exc}; nothing of it was run. Save "
            "weights with paddle.save(model.state_dict(), path)"
        ) from exc
    if not isinstance(content, dict):
        raise WeightError(f"{path}: holds a {type(content).__name__}, not a dict of names to arrays")
    return {str(name): value for name, value in content.items() if name != _NAME_TABLE}


@contextlib.contextmanager
def map_file(path: Union[str, Path]) -> Iterator[mmap.mmap]:
    """The bytes of a file, not copied; what is read from the map never reaches past the file's end.

    Raises:
        WeightError: missing, empty or unreadable.
    """
    try:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as exc:
        raise WeightError(f"{path}: there is no such file; check the path") from exc
    except (OSError, ValueError) as exc:
        raise WeightError(f"{path}: cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc
    with mapped:
        yield mapped


def read_arrays(file: mmap.mmap) -> Any:
    """The content of a pickle of arrays, as Paddle and Caffe2 write.

    Raises:
        PickleError: it is damaged, no pickle, or refers to anything but arrays.
    """
    return settle(read_pickle(file, array_table()))


@dataclass
class WeightReport:
    """What became of each name when a file was loaded into a network.

    Attributes:
        path: the file.
        loaded: names of the network that got their value.
        missing: names of the network that the file lacks; they keep their first values.
        unexpected: names of the file that the network lacks.
        mismatched: (name in the network, shape in the file, shape in the network); not loaded.
    """

    path: str
    loaded: List[str] = field(default_factory=list)
    missing: List[str] = field(default_factory=list)
    unexpected: List[str] = field(default_factory=list)
    mismatched: List[Tuple[str, Tuple[int, ...], Tuple[int, ...]]] = field(default_factory=list)

    def summary(self) -> str:
        """A table for the log: one line a kind, the names of what did not fit."""
        shapes = [f"{name} (file {list(a)}, network {list(b)})" for name, a, b in self.mismatched]
        rows = [
            ("loaded", len(self.loaded), ""),
            ("missing", len(self.missing), _shortened(self.missing)),
            ("unexpected", len(self.unexpected), _shortened(self.unexpected)),
            ("other shape", len(shapes), _shortened(shapes)),
        ]
        lines = [f"  {kind:<12}{count:>5}  {names}".rstrip() for kind, count, names in rows]
        return "\n".join([f"weights from {self.path}", *lines])


def load_weights(
    model: nn.Layer, source: Union[str, Path], prefix: str = "", strict: bool = False
) -> WeightReport:
    """Loads weights of our, PaddleVideo's or PaddleClas' naming into a network.

    Names fit with or without "backbone.", so a backbone takes a whole model's file and the other way round.
    A 3D network takes those of a 2D ResNet: a kernel over T frames becomes T copies of the 2D one, each
    divided by T.

    Args:
        model: a recognizer or a backbone.
        source: path or http(s) URL of a .pdparams file.
        prefix: put before the file's names.
        strict: every parameter of the network must be in the file, in its shape.

    Raises:
        WeightError: the file cannot be had or read, or nothing in it fits, or (strict) not all of it does.
            Nothing is loaded then.
    """
    path = fetch_weights(source)
    target = model.state_dict()
    block_names = _block_names(model)
    report = WeightReport(path)
    values: Dict[str, np.ndarray] = {}
    for key, value in read_weights(path).items():
        names = [name for name in candidate_names(prefix + key, block_names) if name in target]
        if not isinstance(value, np.ndarray) or not names:
            report.unexpected.append(key)
            continue
        value = inflated(value, target[names[0]].shape)
        if list(value.shape) != list(target[names[0]].shape):
            report.mismatched.append((names[0], tuple(value.shape), tuple(target[names[0]].shape)))
        else:
            values[names[0]] = value
    report.loaded = [name for name in target if name in values]
    other_shape = {name for name, _, _ in report.mismatched}
    report.missing = [name for name in target if name not in values and name not in other_shape]
    _check_fit(report, strict)
    for name, value in values.items():
        target[name].set_value(value.astype(_numpy_dtype(target[name])))
    return report


def inflated(value: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """A 2D kernel [out, in, H, W] for a 3D convolution; anything else as it is.

    On a clip of equal frames the 3D network then gives what the 2D one gives on one of them.

    Reference: Carreira, Zisserman, "Quo Vadis, Action Recognition?", arXiv 1705.07750, section 2.4.
    """
    if value.ndim != 4 or len(shape) != 5:
        return value
    return np.repeat(value[:, :, None] / shape[2], shape[2], axis=2)


def fetch_weights(source: Union[str, Path]) -> str:
    """Path of a weight file; a URL is downloaded once, into Paddle's cache.

    Raises:
        WeightError: the download failed.
    """
    text = str(source)
    if not text.startswith(("http://", "https://")):
        return text
    try:
        return paddle.utils.download.get_weights_path_from_url(text)
    except Exception as exc:  # whatever the network or the disk has to say
        raise WeightError(
            f"{text}: cannot be downloaded ({exc}); download it by hand and give its path"
        ) from exc


def _check_fit(report: WeightReport, strict: bool) -> None:
    if not report.loaded:
        raise WeightError(
            f"{report.path}: nothing in it fits this network; check its architecture\n{report.summary()}"
        )
    if strict and (report.missing or report.mismatched):
        advice = "check MODEL.backbone (name, depth) and MODEL.head.num_classes against the file"
        if report.mismatched and all(".fc." in f".{name}" for name, _, _ in report.mismatched):
            advice = (
                "the file has another number of classes: set MODEL.head.num_classes to the file's, or, to "
                "train on new classes, give the file as MODEL.backbone.pretrained instead"
            )
        raise WeightError(f"{report.path}: does not fit this network; {advice}\n{report.summary()}")


def _block_names(model: nn.Layer) -> List[str]:
    backbone = getattr(model, "backbone", model)
    return list(getattr(backbone, "block_names", []))


def _numpy_dtype(tensor: paddle.Tensor) -> Any:
    return str(tensor.dtype).replace("paddle.", "").replace("bfloat16", "float32")


def _shortened(names: List[str], limit: int = 6) -> str:
    shown = ", ".join(names[:limit])
    return f"{shown}, ... ({len(names) - limit} more)" if len(names) > limit else shown

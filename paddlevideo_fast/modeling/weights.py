"""Weight files: read without running anything that is in them, matched by name, reported."""

import contextlib
import math
import mmap
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast import annexes
from paddlevideo_fast.errors import ObjectMissingError, StoreAwayError, WeightError, cause_of
from paddlevideo_fast.io.files import fingerprint, hint_at_working_folder, local_copy
from paddlevideo_fast.io.urls import without_checksum
from paddlevideo_fast.modeling.backbones.base import Backbone
from paddlevideo_fast.modeling.pickles import PickleError, array_table, read_pickle, resolved
from paddlevideo_fast.registry import WEIGHT_RECORDS

_MIN_SHARE = 0.9
_NAME_TABLE = "StructuredToParameterName@@"
_RECORD = "@@"


def read_weights(path: str | Path) -> dict[str, Any]:
    """Reads a file that `paddle.save` wrote (.pdparams, .pdopt), without running anything in it.

    Args:
        path: the file.

    Returns:
        Name to read-only numpy array; the state of an optimizer also has numbers and nested dicts.

    Raises:
        WeightError: the file is missing, of another kind, or asks for code to be run.
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
def map_file(path: str | Path) -> Iterator[mmap.mmap]:
    """Maps the bytes of a file into memory without a copy; reads never reach past the file's end.

    Raises:
        WeightError: the file is missing, empty or unreadable.
    """
    try:
        with open(fetch_weights(path), "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as exc:
        zoo = annexes.load("weights", "by name")
        advice = (zoo and zoo.source_of_weights(str(path))) or "check the path"
        raise WeightError(f"{path}: there is no such file; {advice}{hint_at_working_folder(path)}") from exc
    except (OSError, ValueError) as exc:
        raise WeightError(f"{path}: cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc
    with mapped:
        yield mapped


def read_arrays(file: mmap.mmap) -> Any:
    """Reads a pickle of arrays, as Paddle and Caffe2 write it.

    Raises:
        PickleError: the file is damaged, no pickle, or refers to anything but arrays.
    """
    return resolved(read_pickle(file, array_table()))


class ClassNames(NamedTuple):
    """Where names of classes come from, by which a last layer takes over classes of another one.

    Attributes:
        of_network: from the number of a network's classes to their names in order; None: they are not known.
        of_file: from a weight file and the number of its classes to their names; None: they are not known.
    """

    of_network: Callable[[int], Sequence[str] | None]
    of_file: Callable[[str, int], Sequence[str] | None]


@dataclass
class WeightReport:
    """What became of each name when a file was loaded into a network.

    Attributes:
        path: the file.
        loaded: names in the network that got their value from the file.
        missing: names in the network that the file lacks; they keep their first values.
        unexpected: names in the file that the network lacks.
        mismatched: (name in the network, shape in the file, shape in the network) of what was not loaded.
        resized: names of position tables that were interpolated to the network's clips.
        copied: names in the network that the file lacks, and that got the value of another tensor of it.
        notes: further lines of the summary, each under its heading.
        record: of the file.
        advice: what to do where the file does not fit; "": what is usual.
        share: of the network that has values of the file, from 0 to 1: of its tensors or of its parameters,
            whichever is less. Tensors that start at zero do not count: layers that a file cannot have, such
            as TimeSformer's `temporal_fc`, start so.
    """

    path: str
    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    mismatched: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    resized: list[str] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    record: "WeightRecord | None" = None
    advice: str = ""
    share: float = 1.0

    @property
    def is_partial(self) -> bool:
        """Whether so much keeps its first values that the network is hardly the file's."""
        return self.share < _MIN_SHARE

    def summary(self) -> str:
        """A table for the log: one line for each outcome, with the names of what did not fit."""
        limit = 20 if self.is_partial else 6
        shapes = [f"{name} (file {list(a)}, network {list(b)})" for name, a, b in self.mismatched]
        rows = [
            ("loaded", len(self.loaded), ""),
            ("missing", len(self.missing), _shortened(self.missing, limit)),
            ("unexpected", len(self.unexpected), _shortened(self.unexpected, limit)),
            ("other shape", len(shapes), _shortened(shapes, limit)),
        ]
        rows += [("interpolated", len(self.resized), _shortened(self.resized))] if self.resized else []
        rows += [("copied", len(self.copied), _shortened(self.copied))] if self.copied else []
        lines = [f"  {kind:<12}{count:>5}  {names}".rstrip() for kind, count, names in rows]
        lines += [f"  {kind:<12}       {text}" for kind, text in self.notes.items()]
        warning = f": only {self.share:.1%} of the network; check MODEL.backbone against the file"
        return "\n".join([f"weights from {self.path}{warning if self.is_partial else ''}", *lines])


def load_weights(
    model: nn.Layer, source: str | Path, strict: bool = False, classes: ClassNames | None = None
) -> WeightReport:
    """Loads weights with our, PaddleVideo's or PaddleClas' names into a network.

    Names match with or without "backbone.", so a backbone takes the file of a whole model and the other way
    round. The record of a file completes its weights; see `WeightRecord`. A 3D network takes the weights of a
    2D ResNet: a kernel over T frames becomes T copies of the 2D kernel, each divided by T. Tables of
    positions are interpolated; TimeSformer takes the weights of a ViT.

    Args:
        model: a recognizer or a backbone.
        source: path or URL of a .pdparams file.
        strict: every parameter of the network must be in the file with the right shape.
        classes: lets the file have other classes than the network, and says how both are called. The last
            layer takes over each class that both have by name; the network's other classes keep their first
            values. None: the classes are the same.

    Raises:
        WeightError: the file cannot be downloaded or read, nothing in it fits, or (strict) something is
            missing or has another shape. Then nothing is loaded.
    """
    report = WeightReport(fetch_weights(source))
    loading = WeightLoading(model, model.state_dict(), report, classes, str(source))
    values = loading.values(read_weights(report.path))
    target, own = loading.target, record_of(model)
    if own is not None and report.record is None:
        target = {name: tensor for name, tensor in target.items() if name in values or not own.adds(name)}
    report.loaded = [name for name in target if name in values]
    if not strict:
        report.copied = loading.copy_missing(values)
    other_shape = {name for name, _, _ in report.mismatched}
    report.missing = [name for name in target if name not in values and name not in other_shape]
    _check_fit(report, strict)
    report.share = _share(target, values)
    for name, value in values.items():
        target[name].set_value(value.astype(numpy_dtype(target[name])))
    return report


@dataclass
class WeightLoading:
    """A weight file on its way into a network.

    Attributes:
        model: a recognizer or a backbone.
        target: those of its tensors that get values, by name.
        report: names the file; what becomes of each name is noted in it.
        classes: see `load_weights`.
        source: path or URL of the file, for `classes`.
        is_exact: the network goes on from the file, whose names and shapes are taken as they are.
    """

    model: nn.Layer
    target: Mapping[str, Any]
    report: WeightReport
    classes: ClassNames | None = None
    source: str = ""
    is_exact: bool = False

    def values(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """What the file, with this content, has for the network, in the network's names and shapes.

        Raises:
            WeightError: its record is not known or damaged, or does not fit the network.
        """
        content = dict(content)
        self.report.record = record = _take_record(content, self.report.path)
        return self.matched(content) if record is None else record.completed(content, self)

    def matched(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors that the network has, in its names and shapes; notes the others in the report."""
        if self.is_exact:
            return dict(content)
        model, target, report = self.model, self.target, self.report
        backbone, _ = backbone_of(model)
        values: dict[str, np.ndarray] = {}
        last_layers = tuple(f"{name}." for name in model.classifiers)
        for key, value in content.items():
            if key.rpartition(".")[2] in backbone.computed:
                continue
            names = [name for name in candidate_names(key, backbone) if name in target]
            if not isinstance(value, np.ndarray) or not names:
                report.unexpected.append(key)
                continue
            value, change = adapt_tensor(model, names[0], value, target[names[0]].shape)
            if change == RESIZED:
                report.resized.append(names[0])
            if self.classes is not None and names[0].startswith(last_layers):
                value = _with_classes_of_network(value, target[names[0]], self.classes, self.source, report)
            if list(value.shape) != list(target[names[0]].shape):
                report.mismatched.append((names[0], tuple(value.shape), tuple(target[names[0]].shape)))
            else:
                values[names[0]] = value
        return values

    def copy_missing(self, values: dict[str, np.ndarray]) -> list[str]:
        """Fills missing parameters from those that the backbone's `fallback_parameter` names."""
        backbone, prefix = backbone_of(self.model)
        copied: list[str] = []
        for name in self.target:
            other = backbone.fallback_parameter(name[len(prefix) :]) if name.startswith(prefix) else None
            if other is not None and name not in values and prefix + other in values:
                values[name] = values[prefix + other]
                copied.append(name)
        return copied


class WeightRecord(Protocol):
    """What a weight file says of its tensors, where these alone are not the weights of a network.

    It is the entry of the file whose name ends in `@@`, and a class is registered in WEIGHT_RECORDS under
    this name. A network whose own files have a record has it as its attribute `weight_record`.
    """

    @classmethod
    def read(cls, entry: Any, path: str) -> "WeightRecord":
        """The record that a file holds as `entry`.

        Raises:
            WeightError: it is damaged; the message names the file, `path`.
        """

    def completed(self, content: dict[str, Any], loading: WeightLoading) -> dict[str, Any]:
        """What the file has for the network, in the network's names and shapes.

        Args:
            content: the tensors of the file by their names in it; `loading.matched` finds the network's.
            loading: of the file. Notes and advice go into its report.

        Raises:
            WeightError: a part is missing, or is for another network.
        """

    def stored(self, state: dict[str, Any]) -> dict[str, Any]:
        """What weight files of a network with this record hold: tensors of its state dict, and the entry."""

    def adds(self, name: str) -> bool:
        """Whether a tensor of such a network is one that files without a record lack; it starts as it is."""


def record_of(model: nn.Layer) -> WeightRecord | None:
    """The record of a network's own weight files."""
    return getattr(model, "weight_record", None)


def stored_state(model: nn.Layer) -> dict[str, Any]:
    """What weight files of a model hold: its state dict, or what its `weight_record` makes of it."""
    record, state = record_of(model), model.state_dict()
    return state if record is None else record.stored(state)


def restored_state(model: nn.Layer, content: Mapping[str, Any], path: str) -> dict[str, Any]:
    """All tensors of a checkpoint, for the model that goes on from it and takes over its record.

    Args:
        model: of the run.
        content: of the weight file.
        path: of the file, for messages.

    Raises:
        WeightError: the record does not fit the model, or a part is missing.
    """
    loading = WeightLoading(model, model.state_dict(), WeightReport(path), is_exact=True)
    values = loading.values(content)
    if loading.report.record is not None:
        model.weight_record = loading.report.record
    return values


def has_record(names: Iterable[str]) -> bool:
    """Whether a weight file with entries of these names has a record."""
    return any(name.endswith(_RECORD) for name in names)


def _take_record(content: dict[str, Any], path: str) -> WeightRecord | None:
    """Takes the record, if there is one, out of the content of a file."""
    name = next(filter(lambda name: name.endswith(_RECORD), content), None)
    if name is None:
        return None
    try:
        kind: type[WeightRecord] = WEIGHT_RECORDS.get(name)
    except KeyError as error:
        raise WeightError(f"{path}: {error.args[0]}") from None
    return kind.read(content.pop(name), path)


def _share(target: Mapping[str, Any], values: Mapping[str, np.ndarray]) -> float:
    """See `WeightReport.share`."""
    sizes = {name: tensor.size for name, tensor in target.items() if np.any(tensor.numpy())}
    loaded = [size for name, size in sizes.items() if name in values]
    return min(len(loaded) / len(sizes), sum(loaded) / sum(sizes.values())) if sizes else 1.0


RESIZED = "interpolated to the network's clips"


def backbone_of(model: nn.Layer) -> tuple[Backbone, str]:
    """The backbone of a recognizer, or a backbone itself, and what its names begin with in the model.

    A distillation has several; what a `Backbone` is by default stands for them.
    """
    if isinstance(model, Backbone):
        return model, ""
    return getattr(model, "backbone", None) or Backbone(), _BACKBONE


def adapt_tensor(
    model: nn.Layer, name: str, value: np.ndarray, shape: Sequence[int]
) -> tuple[np.ndarray, str]:
    """A tensor of a file in the shape that a network has for it, if it can be had, and what was done for it.

    Kernels are inflated; kernels of one place become weights of linear layers; the backbone's `adapt_table`
    fits its tables of positions.

    Args:
        model: a recognizer or a backbone.
        name: the tensor's name in the model.
        value: as in the file.
        shape: in the model.
    """
    if value.ndim > 2 and len(shape) == 2 and value.size == value.shape[0] * value.shape[1]:
        return np.ascontiguousarray(np.reshape(value, value.shape[:2]).T), "of a pointwise convolution"
    three_dimensional = inflated(value, shape)
    if three_dimensional is not value:
        return three_dimensional, f"inflated to {shape[2]} frames"
    if list(value.shape) != list(shape):
        table = backbone_of(model)[0].adapt_table(name.removeprefix(_BACKBONE), value, shape)
        if table is not None:
            return table, RESIZED
    return value, ""


def inflated(value: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """A 2D kernel [out, in, H, W] as the kernel of a 3D convolution; anything else unchanged.

    A kernel of as many numbers only gets an axis. On a clip of equal frames, the 3D network then gives what
    the 2D network gives on one frame.

    Reference: Carreira, Zisserman, "Quo Vadis, Action Recognition?", arXiv 1705.07750, section 2.4.
    """
    if value.ndim != 4 or len(shape) != 5:
        return value
    if value.size == math.prod(shape):
        return np.reshape(value, shape)
    return np.repeat(value[:, :, None] / shape[2], shape[2], axis=2)


def _with_classes_of_network(
    value: np.ndarray, target: paddle.Tensor, classes: ClassNames, source: str, report: WeightReport
) -> np.ndarray:
    """A weight [in, classes] or bias [classes] of a file, with the classes of the network in its order.

    The values of a class that the file lacks are those of `target`.
    """
    num_own, num_stored = target.shape[-1], value.shape[-1]
    if list(value.shape[:-1]) != list(target.shape[:-1]):
        return value
    own, stored = classes.of_network(num_own), classes.of_file(source, num_stored)
    if own is None or stored is None:
        if num_own == num_stored:
            return value
        whose = "the file's" if stored is None else "the network's"
        text = f"all {num_own} start anew: the file has {num_stored}, and {whose} names are not known"
        report.notes["classes"] = text
        return target.numpy()
    if list(own) == list(stored):
        return value
    stored_numbers = {name: number for number, name in enumerate(stored)}
    pairs = [(number, stored_numbers[name]) for number, name in enumerate(own) if name in stored_numbers]
    mixed = target.numpy().copy()
    for number, stored_number in pairs:
        mixed[..., number] = value[..., stored_number]
    text = f"kept {len(pairs)} of {num_own} classes by name; {num_own - len(pairs)} start anew"
    report.notes["classes"] = text
    return mixed


def is_weights_name(source: str) -> bool:
    """Whether weights are given by a name of the zoo: no URL, and no path with a folder or an ending."""
    return not set("./") & set(source)


def fetch_weights(source: str | Path) -> str:
    """The path of a weight file, given by a path, a URL, or a name of the zoo.

    A URL is downloaded once for each version. It may end in `#sha256=` and the digest of the file, which is
    then checked.

    Raises:
        WeightError: the download failed, or the file has another digest.
        StoreAccessError: the store refuses.
    """
    url, digest = without_checksum(str(source))
    named = annexes.load("weights", "by name") if is_weights_name(url) else None
    try:
        path = named.weights_file(url) if named else local_copy(url)
    except ObjectMissingError as error:
        raise WeightError(f"{url}: there is no such file; check the path") from error
    except (OSError, StoreAwayError) as error:
        advice = "; or download it by hand and give its path"
        raise WeightError(f"{url}: cannot be fetched: {cause_of(error)}{advice}") from error
    actual = fingerprint(Path(path))["sha256"] if digest else ""
    if actual != digest.lower():
        Path(path).unlink(missing_ok=True)  # the next attempt asks the store again
        raise WeightError(f"{url}: its SHA-256 is {actual}, and not {digest} as the URL says")
    return path


def _check_fit(report: WeightReport, strict: bool) -> None:
    if not report.loaded:
        advice = "check the file against MODEL.backbone (name, pretrained)"
        raise WeightError(f"{report.path}: nothing in it fits this network; {advice}\n{report.summary()}")
    if strict and (report.missing or report.mismatched):
        advice = "check MODEL.backbone (name, depth) and MODEL.head.num_classes against the file"
        if report.mismatched and all(".fc." in f".{name}" for name, _, _ in report.mismatched):
            advice = (
                "the file has another number of classes: set MODEL.head.num_classes to the file's, or, to "
                "begin a training on new classes, give the file to train with -w"
            )
        text = f"does not fit this network; {report.advice or advice}"
        raise WeightError(f"{report.path}: {text}\n{report.summary()}")


def numpy_dtype(tensor: paddle.Tensor) -> Any:
    """The type in which numpy holds the values of a tensor."""
    return str(tensor.dtype).replace("paddle.", "").replace("bfloat16", "float32")


def _shortened(names: list[str], limit: int = 6) -> str:
    listed = ", ".join(names[:limit])
    return f"{listed}, ... ({len(names) - limit} more)" if len(names) > limit else listed


_BACKBONE = "backbone."
_STUDENT = "Student."


def candidate_names(key: str, backbone: Backbone) -> list[str]:
    """The names that our network may have for the weight that a file calls `key`, the likeliest first.

    Args:
        key: name in the file.
        backbone: of the network; it translates names of its family.

    Returns:
        `key` itself, without a wrapper's "_layers.", and the backbone's name for it; each with and without
        "backbone.". For the student of a distillation also the names in the student alone.
    """
    key = _from_sequential(key.removeprefix("_layers."))
    bare = key.removeprefix(_BACKBONE)
    own = backbone.translate(bare)
    names = [key, bare, _BACKBONE + bare, own, _BACKBONE + own]
    if key.startswith(_STUDENT):
        names += candidate_names(key[len(_STUDENT) :], backbone)
    return list(dict.fromkeys(names))


def _from_sequential(key: str) -> str:
    """PaddleVideo's distillation numbers the parts of a network: `Student.0.` is `Student.backbone.` here."""
    match = re.fullmatch(r"(Teacher\.|Student\.|)([01])\.(.*)", key)
    return f"{match[1]}{('backbone', 'head')[int(match[2])]}.{match[3]}" if match else key

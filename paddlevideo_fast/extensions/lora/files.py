"""Weight files with LoRA: the part that trains, and the name of the file that holds the rest.

They hold the matrices A and B, what trains beside them, and what the base does not have. Their record names
the base, a weight file. For a network without matrices, W + scale / rank · A·B is the weight of a layer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from paddle import nn

from paddlevideo_fast.errors import WeightError
from paddlevideo_fast.io.files import fingerprint
from paddlevideo_fast.io.urls import absolute
from paddlevideo_fast.modeling import weights
from paddlevideo_fast.modeling.stages import learned_parameters
from paddlevideo_fast.registry import WEIGHT_RECORDS

RECORD = "LoRA@@"
A, B = "lora_a", "lora_b"


@dataclass(frozen=True)
class LoraBase:
    """The weight file that a network with LoRA started from.

    Attributes:
        path: absolute, or a URL.
        sha256: of the file.
        size: of the file in bytes.
        part: what it was loaded into, the backbone or the whole network.
    """

    path: str
    sha256: str
    size: int
    part: Literal["backbone", "network"]


def base_of(source: str | Path, part: Literal["backbone", "network"]) -> LoraBase:
    """What a file with LoRA says of the weights that the training started from.

    Args:
        source: path or URL of these weights.
        part: what they were loaded into.
    """
    path = absolute(str(source))
    return LoraBase(path, **fingerprint(Path(weights.fetch_weights(source))), part=part)  # type: ignore[arg-type]


@WEIGHT_RECORDS.register(RECORD)
@dataclass
class LoraRecord:
    """What weight files say of the LoRA of a network, and the network of itself; see `WeightRecord`.

    Attributes:
        scale: the product of A and B counts scale / rank times.
        base: where the frozen weights come from; None: the files of the network hold them, too.
        from_base: names of the tensors that stay as the base has them.
        layers: names of the layers that have matrices; empty for the record of a file.
    """

    scale: float
    base: LoraBase | None = None
    from_base: frozenset[str] = frozenset()
    layers: Sequence[str] = ()

    @classmethod
    def read(cls, entry: Any, path: str) -> LoraRecord:
        try:
            base = entry["base"] and LoraBase(**entry["base"])
            if base and not (isinstance(base.path, str) and isinstance(base.sha256, str)):
                raise TypeError("path and sha256 are texts")
            return cls(float(entry["scale"]), base)
        except (KeyError, TypeError, ValueError) as error:
            raise WeightError(f"{path}: its entry {RECORD} is damaged; take another checkpoint") from error

    def stored(self, state: dict[str, Any]) -> dict[str, Any]:
        return {
            **{name: value for name, value in state.items() if name not in self.from_base},
            RECORD: {"scale": self.scale, "base": self.base and asdict(self.base)},
        }

    def adds(self, name: str) -> bool:
        return is_lora(name)

    def completed(self, content: dict[str, Any], loading: weights.WeightLoading) -> dict[str, Any]:
        """The weights that the file makes of its base; the matrices, where the network has some."""
        target, report = loading.target, loading.report
        backbone, _ = weights.backbone_of(loading.model)
        pairs: dict[str, list[np.ndarray]] = {}
        for owner in [owner_of(name) for name in content if name.endswith(f".{A}")]:
            names = [name for name in weights.candidate_names(f"{owner}.weight", backbone) if name in target]
            if not names or f"{names[0].removesuffix('weight')}{A}" not in target:
                if loading.is_exact:
                    text = f"holds LoRA matrices that this run does not have, first {owner}.{A}; resume with"
                    raise WeightError(f"{report.path}: {text} the run's config (config.yaml beside it)")
                matrices = [content.pop(f"{owner}.{each}", None) for each in (A, B)]
                pairs[names[0] if names else owner] = matrices
        values = {} if self.base is None else self._values_of_base(self.base, loading.model, report.path)
        own = loading.matched(content)
        values.update(own)
        for name, (a, b) in pairs.items():
            shapes = [list(np.shape(each)) for each in (a, b)]
            own_shape = list(target[name].shape) if name in target else []
            ranks = {*shapes[0][1:], *shapes[1][:1]}
            fits = len(ranks) == 1 and shapes == [[*own_shape[:1], *ranks], [*ranks, *own_shape[1:]]]
            if name not in values or not fits:
                layer = f"its layer has {own_shape}" if own_shape else "it has no such layer"
                raise WeightError(
                    f"{report.path}: holds LoRA of another network: matrices {shapes[0]} and {shapes[1]} for "
                    f"{name}, and here {layer}; check MODEL.backbone against the file"
                )
            values[name] = merged(values[name], a, b, self.scale)
        lora = weights.record_of(loading.model)
        if isinstance(lora, LoraRecord) and lora.scale != self.scale and any(is_lora(name) for name in own):
            text = f"was trained with LORA.scale={self.scale:g}; set it, in place of {lora.scale:g}"
            raise WeightError(f"{report.path}: {text}")
        self.from_base = frozenset(values.keys() - own.keys() - pairs.keys())
        if self.base is not None:
            report.notes["LoRA on"] = self.base.path
        if any(is_lora(name) for name, _, _ in report.mismatched):
            report.advice = "the file has LoRA of another rank: set LORA.rank to the file's"
        return values

    def keep_base(self, model: nn.Layer, base: LoraBase, names: Iterable[str]) -> None:
        """Leaves out of the network's files what a base holds and the training does not change.

        Args:
            model: the network, frozen as it will train.
            base: the file.
            names: of the network's tensors that have the values of the file.
        """
        learned = learned_parameters(model)
        trained = {name for name, each in learned.items() if not each.stop_gradient}
        owners = {owner_of(name) for name in learned} - {owner_of(name) for name in trained}
        classifiers = tuple(f"{name}." for name in getattr(model, "classifiers", ()))  # of other classes
        self.base = base
        self.from_base = frozenset(
            name
            for name in names
            # a running statistic stays where its norm is frozen
            if (name not in trained if name in learned else owner_of(name) in owners)
            and not name.startswith(classifiers or ("\n",))
        )

    def _values_of_base(self, base: LoraBase, model: nn.Layer, path: str) -> dict[str, np.ndarray]:
        """What the base of a file, at `path`, has for a model, in the model's names and types."""
        backbone, prefix = weights.backbone_of(model)
        network, prefix = (backbone, prefix) if base.part == "backbone" else (model, "")
        target = {name: each for name, each in network.state_dict().items() if not is_lora(name)}
        file = _base_file(base, backbone.pretrained, path)
        loading = weights.WeightLoading(network, target, weights.WeightReport(file))
        values = loading.values(weights.read_weights(file))
        loading.copy_missing(values)
        types = {name: weights.numpy_dtype(each) for name, each in target.items()}
        return {f"{prefix}{name}": value.astype(types[name]) for name, value in values.items()}


def _base_file(base: LoraBase, pretrained: str | None, path: str) -> str:
    """Where the base of a file with LoRA is: where it was, as the network's `pretrained`, or beside the file.

    Raises:
        WeightError: none of these is the file that the training started from.
    """
    others = []
    for source in (base.path, pretrained, str(Path(path).with_name(Path(base.path).name))):
        with contextlib.suppress(WeightError):
            file = Path(weights.fetch_weights(source)) if source else None
            if file is None or not file.is_file():
                continue
            if file.stat().st_size == base.size and fingerprint(file)["sha256"] == base.sha256:
                return str(file)
            others.append(str(source))
    reason = f"'{others[0]}' is another file than it was" if others else f"'{base.path}' is missing"
    raise WeightError(
        f"{path}: holds only what LoRA trained, and {reason} (SHA-256 {base.sha256[:12]}…): put that file "
        "back, or name it in MODEL.backbone.pretrained"
    )


def merged(weight: np.ndarray, a: np.ndarray, b: np.ndarray, scale: float) -> np.ndarray:
    """The weight [in, out] of a plain layer that computes the same as one with A and B."""
    product = a.astype(np.float64) @ b.astype(np.float64)
    return (weight + scale / a.shape[1] * product).astype(np.float32)


def is_lora(name: str) -> bool:
    """Whether a parameter is an A or a B."""
    return name.rpartition(".")[2] in (A, B)


def owner_of(name: str) -> str:
    """The layer that has a parameter."""
    return name.rpartition(".")[0]

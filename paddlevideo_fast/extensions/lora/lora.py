"""The section LORA: a network keeps its weights and learns through two small matrices beside some layers.

A linear layer with the weight W [in, out] gives

    x·W + bias + scale / rank · (x·A)·B        A [in, rank], B [rank, out]

B starts at zero, so before its first step the network gives what it gave without A and B. The matrices are
parameters `lora_a` and `lora_b` of the layer; all other names stay.

Reference: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv 2106.09685, section 4.1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import paddle
from paddle import nn

from paddlevideo_fast.config.types import PositiveInt, Range
from paddlevideo_fast.engine.extension import Extension, Problem, Problems
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.extensions.lora.files import A, B, LoraRecord, base_of
from paddlevideo_fast.modeling import WeightReport, count_parameters
from paddlevideo_fast.modeling.freezing import frozen_parameters, set_frozen
from paddlevideo_fast.modeling.stages import learned_parameters, names_in, parameters_in
from paddlevideo_fast.registry import EXTENSIONS, OPTIMIZERS

if TYPE_CHECKING:
    from paddlevideo_fast.assembly.build import TrainingSetup
    from paddlevideo_fast.assembly.plan import RunPlan

# of TimeSformer, temporal_fc too: it starts at zero, and without it temporal attention would learn nothing
_ATTENTION = ("*attn.qkv", "*attn.proj", "*temporal_fc")
_NUM_SHOWN = 6


@EXTENSIONS.register("LORA")
@dataclass(frozen=True)
class Lora(Extension):
    """LoRA: the network keeps its weights, and two small matrices beside each of some linear layers train.

    Args:
        rank: columns of the first matrix and rows of the second.
        scale: the product counts `scale / rank` times. The paper calls it alpha.
        layers: linear layers that get the matrices: names of stages (an unknown name makes an error that
            lists linear layers), names of layers or their starts up to a dot, or patterns such as `*.mlp.*`.
            null: `qkv` and `proj` of each attention, and TimeSformer's `temporal_fc`, which starts at zero.
        train: what else trains, in full: names of stages, parameters or patterns, as in FINETUNE.
    """

    rank: PositiveInt = 8
    scale: Annotated[float, Range(0.001)] = 16.0
    layers: Sequence[str] | None = None
    train: Sequence[str] = ("head",)

    excludes = {
        "FINETUNE": "LORA freezes all but its matrices and LORA.train; leave one of the two sections out"
    }
    needs_weights = {
        "LORA": "trains beside weights that stay as they are; name these in MODEL.backbone.pretrained or "
        "by -w"
    }

    def problems(self, plan: RunPlan) -> Problems:
        """Runs without a backbone that trains, or with several."""
        if plan.spec.holds("features"):
            text = "the backbone does not run in a training on features; leave LORA or features out"
            yield Problem("LORA", text)
        if "backbone" not in plan.spec.model:
            yield Problem("LORA", f"{plan.spec.model['framework']} has several networks, and LORA is for one")

    def on_model(self, setup: TrainingSetup) -> None:
        """Gives the model its matrices, and the base that it has loaded; notes what trains."""
        model, section, all_sizes = setup.model, setup.spec.optimizer or {}, _num_trained(setup.model)
        record = self.add_to(model)
        if model.load_report is not None:
            names = [f"backbone.{name}" for name in (*model.load_report.loaded, *model.load_report.copied)]
            record.keep_base(model, base_of(model.backbone.pretrained, "backbone"), names)
            if text := _lacking(model, record):
                setup.spec.warn("LORA.train", text)
        of_optimizer = getattr(OPTIMIZERS.get(section["name"]), "states_per_parameter", None)
        kept = "gradients" if of_optimizer is None else "gradients and optimizer state"
        trained, total = _num_trained(model), count_parameters(model)
        small, large = (4 * (1 + (of_optimizer or 0)) * size / 2**20 for size in (trained, all_sizes))
        setup.notes.append(
            f"LoRA of rank {self.rank}, scale {self.scale:g}, on {len(record.layers)} linear layers: "
            f"{trained / 1e6:.3g} M of {total / 1e6:.4g} M parameters train ({trained / total:.2%}); {kept} "
            f"take {small:.2f} MiB, and {large:.2f} MiB where all train"
        )

    def on_weights(self, setup: TrainingSetup, report: WeightReport) -> None:
        """Makes the loaded file the base, or its base where it is a file with LoRA itself."""
        of_file, own, weights = report.record, setup.model.weight_record, setup.spec.run.weights
        if isinstance(of_file, LoraRecord) and of_file.base:
            base, names = of_file.base, of_file.from_base
        else:
            base, names = base_of(str(weights), "network"), frozenset(report.loaded)
        own.keep_base(setup.model, base, names)

    def add_to(self, model: nn.Layer) -> LoraRecord:
        """Gives linear layers of a recognizer their matrices and freezes all else but `train`.

        Returns:
            What files of the model will say of it: its attribute `weight_record`.

        Raises:
            ConfigError: a part fits nothing, or the rank is larger than a side of a layer's weight.
        """
        in_full = {
            name
            for number, part in enumerate(self.train)
            for name in parameters_in(model, part, f"LORA.train.{number}")
        }
        linear = {
            name: layer
            for name, layer in model.named_sublayers()
            if isinstance(layer, nn.Linear) and f"{name}.weight" not in in_full
        }
        chosen = self._chosen(model, linear)
        for name in chosen:
            _attach(linear[name], self.rank, self.scale / self.rank)
        model.weight_record = LoraRecord(self.scale, layers=chosen)
        small = {f"{name}.{each}" for name in chosen for each in (A, B)}
        others = learned_parameters(model).keys() - small - in_full
        set_frozen(model, frozen_parameters(model) | others)
        return model.weight_record

    def _chosen(self, model: nn.Layer, linear: dict[str, nn.Linear]) -> list[str]:
        """Names of the layers that get matrices, out of `linear`."""
        parts = _ATTENTION if self.layers is None else self.layers
        matches = [names_in(model, part, linear) for part in parts]
        if self.layers and [] in matches:
            number, text = matches.index([]), f"fits no linear layer; there are {_some(linear)}"
            raise ConfigError(f"LORA.layers.{number}={parts[number]}: {text}")
        if self.layers is None and not any(matches):
            text = f"the network has no attention; name some of its linear layers: {_some(linear)}"
            raise ConfigError(f"LORA.layers: {text}")
        chosen = [*dict.fromkeys(itertools.chain(*matches))]
        for name in chosen:
            inputs, outputs = linear[name].weight.shape
            if self.rank > min(inputs, outputs):
                text = (
                    f"larger than a side of the weight [{inputs}, {outputs}] of {name}; take a smaller rank"
                )
                raise ConfigError(f"LORA.rank={self.rank}: {text}")
        return chosen


def _lacking(model: Any, record: LoraRecord) -> str:
    """What the base of a backbone lacks and nothing trains, in words; "" where there is nothing."""
    frozen, owners = frozen_parameters(model), tuple(f"{name}." for name in record.layers)
    first = [name for each in model.load_report.missing if (name := f"backbone.{each}") in frozen]
    first = [name for name in first if not name.startswith(owners)]
    more = f" and {len(first) - 1} more" if len(first) > 1 else ""
    text = "kept at first values, unless this key names them"
    return f"the base lacks {first[0]}{more}: {text}" if first else ""


def _num_trained(model: nn.Layer) -> int:
    return sum(each.size for each in learned_parameters(model).values() if not each.stop_gradient)


def _attach(layer: nn.Linear, rank: int, factor: float) -> None:
    """Gives a layer its matrices, whose product counts `factor` times."""
    inputs, outputs = layer.weight.shape
    bound = inputs**-0.5  # as the authors' code: Kaiming's uniform with a slope of sqrt(5)
    first = nn.initializer.Uniform(-bound, bound)
    layer.add_parameter(A, layer.create_parameter([inputs, rank], default_initializer=first))
    zeros = nn.initializer.Constant(0.0)
    layer.add_parameter(B, layer.create_parameter([rank, outputs], default_initializer=zeros))
    layer.lora_factor = factor
    # a hook leaves class, names and forward of the layer as they are, for any subclass of Linear
    layer.register_forward_post_hook(_with_product)


def _with_product(layer: Any, inputs: tuple[paddle.Tensor, ...], output: paddle.Tensor) -> paddle.Tensor:
    product = paddle.matmul(paddle.matmul(inputs[0], layer.lora_a), layer.lora_b)
    return output + product * layer.lora_factor


def _some(names: Iterable[str]) -> str:
    shown = list(names)
    more = f", … ({len(shown) - _NUM_SHOWN} more)" if len(shown) > _NUM_SHOWN else ""
    return ", ".join(shown[:_NUM_SHOWN]) + more if shown else "none"

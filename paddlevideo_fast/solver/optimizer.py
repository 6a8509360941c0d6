"""The optimizers that configs name, and the rule of each parameter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, NamedTuple

import paddle
from paddle import nn
from paddle.regularizer import L1Decay, L2Decay

from paddlevideo_fast.config import build
from paddlevideo_fast.config.types import NonNegative, PositiveInt, Range, Share
from paddlevideo_fast.errors import SettingError
from paddlevideo_fast.machine import gpu_number
from paddlevideo_fast.registry import LEARNING_RATES, OPTIMIZERS, Registry
from paddlevideo_fast.solver.learning_rate import Constant, LearningRate

Decay = Annotated[float, Range(0.0, below=1.0)]

_KINDS_OF_CLIPPING = (nn.ClipGradByGlobalNorm, nn.ClipGradByNorm, nn.ClipGradByValue)
_CLIPS = {kind.__name__.lower(): kind for kind in _KINDS_OF_CLIPPING}


class Rule(NamedTuple):
    """How the optimizer treats a parameter.

    Attributes:
        decay: weight decay applies.
        lr_multiplier: factor on the learning rate.
    """

    decay: bool
    lr_multiplier: float


def _factor_of(name: str, factors: Mapping[str, float]) -> float:
    """The value of the longest entry that fits a name; 1 where none does."""
    fitting = [key for key in factors if _covers(key, name)]
    return float(factors[max(fitting, key=len)]) if fitting else 1.0


def _covers(key: str, name: str) -> bool:
    return name == key or name.startswith(f"{key}.")


@dataclass
class OptimizerRecipe:
    """An optimizer before it has met a model; the base of the registered ones.

    Args:
        learning_rate: a number or a curve.
        weight_decay: factor of the L2 penalty, or {name: L1 or L2, value: factor}; None: no decay.
        grad_clip: {name: ClipGradByGlobalNorm, ClipGradByNorm or ClipGradByValue, value: limit}; None: no
            clipping. The global norm is taken over all parameters together.
        decay_bn_bias: weight decay on batch norms and biases as well.
        no_weight_decay_name: words separated by spaces; no weight decay on parameters with one in their name.
            None: on those that the network declares, such as tables of positions and class tokens.
        lr_multipliers: parameter name (or start of names, up to a dot) to factor on the learning rate.
            None: what the model's head asks for (TSM: weight of the last layer 5, its bias 10).
        layer_decay: factor on the learning rate from each stage of the network to the stage before it: the
            head has the rate, the last stage of the backbone `layer_decay` times the rate, the stage before
            that one `layer_decay`² times, and so on (arXiv 2106.08254). `lr_multipliers` come on top. None:
            all stages have one rate.
        multi_precision: keep float32 copies of 16-bit parameters; with `amp` they are float32 already.
        base_batch_size: clips of one update that the learning rate is meant for; an update over k times as
            many, of all processes and accumulated batches, takes k times the rate. None: the rate as it is.
    """

    learning_rate: NonNegative | LearningRate
    weight_decay: NonNegative | dict[str, Any] | None = None
    grad_clip: dict[str, Any] | None = None
    decay_bn_bias: bool = False
    no_weight_decay_name: str | None = None
    lr_multipliers: dict[str, NonNegative] | None = None
    layer_decay: Annotated[float, Range(0.01, 1.0)] | None = None
    multi_precision: bool = False
    base_batch_size: PositiveInt | None = None

    paddle_class: ClassVar[type[paddle.optimizer.Optimizer]]
    states_per_parameter: ClassVar[int]  # numbers that the optimizer keeps for each that it trains
    parts: ClassVar[dict[str, Registry]] = {"learning_rate": LEARNING_RATES}
    ignored_arguments: ClassVar[dict[str, str]] = {}

    def rules(self, model: nn.Layer) -> dict[str, Rule]:
        """The rule of each of the model's parameters, by its structured name.

        Of the entries of `lr_multipliers` that fit a name the longest counts.

        Raises:
            SettingError: an entry of `lr_multipliers` fits no parameter, or a parameter belongs to no stage
                and there is `layer_decay`.
        """
        given = self.lr_multipliers
        multipliers = getattr(model, "lr_multipliers", {}) if given is None else given
        stages = {} if self.layer_decay is None else _stage_factors(model, self.layer_decay)
        parameters, has_no_decay = _trained(model), self._no_decay(model)
        for key in multipliers:
            if not any(_covers(key, name) for name in parameters):
                text = f"no parameter is called '{key}' or starts with it and a dot"
                raise SettingError("OPTIMIZER.lr_multipliers", text)
        return {
            name: Rule(
                (parameter.ndim > 1 or self.decay_bn_bias) and not has_no_decay(name),
                _factor_of(name, multipliers) * _factor_of(name, stages),
            )
            for name, parameter in parameters.items()
        }

    def _no_decay(self, model: nn.Layer) -> Callable[[str], bool]:
        """Whether a parameter has no weight decay by its name: as configured, else as the layers declare.

        A layer that has an attribute `no_weight_decay`, a sequence of words, means the parameters at or below
        it with one of these words in their name.
        """
        if self.no_weight_decay_name is not None:
            declared = [("", self.no_weight_decay_name.split())]
        else:
            declared = [
                (f"{name}." if name else "", list(getattr(layer, "no_weight_decay", [])))
                for name, layer in model.named_sublayers(include_self=True)
            ]
        return lambda name: any(
            name.startswith(prefix) and any(word in name[len(prefix) :] for word in words)
            for prefix, words in declared
        )

    def make(self, model: nn.Layer) -> tuple[paddle.optimizer.Optimizer, LearningRate]:
        """The optimizer of the model's parameters, and the curve of its learning rate, not yet scaled.

        Each parameter carries its own rule: Paddle's parameter groups would clip each group by the norm of
        that group instead of the global norm.
        """
        rate = self.learning_rate
        curve = rate if isinstance(rate, LearningRate) else Constant(rate)
        parameters = _trained(model)
        regularizer = self._regularizer()
        for name, rule in self.rules(model).items():
            parameters[name].regularizer = regularizer if rule.decay else None
            parameters[name].optimize_attr["learning_rate"] = rule.lr_multiplier
        optimizer = self.paddle_class(
            **self._own_arguments(model),
            learning_rate=curve.at(0),
            parameters=list(parameters.values()),
            grad_clip=_grad_clip(self.grad_clip),
        )
        return optimizer, curve

    def _regularizer(self) -> Any:
        kind, value = _decay(self.weight_decay)
        if not value:
            return None
        return L1Decay(value) if kind == "L1" else L2Decay(value)

    def _own_arguments(self, model: nn.Layer) -> dict[str, Any]:
        """What Paddle's optimizer takes beside the arguments that all optimizers have."""
        shared = {field.name for field in fields(OptimizerRecipe)} - {"multi_precision"}
        hidden = shared.union(self.ignored_arguments)
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in hidden}
        if own.get("use_multi_tensor", False) is None:  # on a CPU it would only change the last bits
            is_frozen = any(parameter.stop_gradient for parameter in _trained(model).values())
            own["use_multi_tensor"] = gpu_number(paddle.get_device()) is not None and not is_frozen
        return own


@OPTIMIZERS.register()
@dataclass
class Momentum(OptimizerRecipe):
    """SGD with momentum; see `OptimizerRecipe` for the other arguments.

    Args:
        momentum: share of the velocity that stays at a step.
        use_nesterov: look ahead along the velocity.
        use_multi_tensor: update all parameters by one operator; null: on a GPU, unless parts are frozen when
            training begins. The operator keeps the parameters of the first step.
    """

    momentum: Share = 0.9
    use_nesterov: bool = False
    use_multi_tensor: bool | None = None

    paddle_class = paddle.optimizer.Momentum
    states_per_parameter = 1


@OPTIMIZERS.register()
@dataclass
class SGD(OptimizerRecipe):
    """Plain gradient descent; see `OptimizerRecipe` for the arguments."""

    paddle_class = paddle.optimizer.SGD
    states_per_parameter = 0


@OPTIMIZERS.register()
@dataclass
class Adam(OptimizerRecipe):
    """Adam; weight decay is part of the gradient. See `OptimizerRecipe` for the other arguments.

    Args:
        beta1: decay of the gradient's mean.
        beta2: decay of the squared gradient's mean.
        epsilon: keeps the division finite.
        use_multi_tensor: update all parameters by one operator; null: on a GPU, unless parts are frozen when
            training begins. The operator keeps the parameters of the first step.

    Reference: Kingma and Ba, "Adam: A Method for Stochastic Optimization", arXiv 1412.6980.
    """

    beta1: Decay = 0.9
    beta2: Decay = 0.999
    epsilon: NonNegative = 1e-8
    use_multi_tensor: bool | None = None

    paddle_class = paddle.optimizer.Adam
    states_per_parameter = 2


@OPTIMIZERS.register()
@dataclass
class AdamW(OptimizerRecipe):
    """Adam with weight decay apart from the gradient; see `OptimizerRecipe` for the other arguments.

    Args:
        beta1: decay of the gradient's mean.
        beta2: decay of the squared gradient's mean.
        epsilon: keeps the division finite.

    Reference: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", arXiv 1711.05101.
    """

    beta1: Decay = 0.9
    beta2: Decay = 0.999
    epsilon: NonNegative = 1e-8

    paddle_class = paddle.optimizer.AdamW
    states_per_parameter = 2

    def _regularizer(self) -> Any:
        return None

    def _own_arguments(self, model: nn.Layer) -> dict[str, Any]:
        kind, value = _decay(self.weight_decay)
        if kind == "L1":
            text = "AdamW decays weights directly; use L2 or a number"
            raise SettingError("OPTIMIZER.weight_decay.name=L1", text)
        parameters = _trained(model)
        names = {parameters[name].name for name, rule in self.rules(model).items() if rule.decay}
        decay = {"weight_decay": value, "apply_decay_param_fun": names.__contains__}
        return {**super()._own_arguments(model), **decay}


@OPTIMIZERS.register()
@dataclass
class RMSProp(OptimizerRecipe):
    """Gradients over the root of their mean square; see `OptimizerRecipe` for the other arguments.

    Args:
        rho: decay of the squared gradient's mean.
        epsilon: is added to this mean before the root.
        momentum: share of the velocity that stays at a step.
        centered: subtract the square of the gradient's mean from the mean of its square.

    Reference: Hinton, "Neural Networks for Machine Learning", lecture 6e.
    """

    rho: Decay = 0.95
    epsilon: NonNegative = 1e-6
    momentum: Share = 0.0
    centered: bool = False

    paddle_class = paddle.optimizer.RMSProp
    states_per_parameter = 3
    ignored_arguments: ClassVar[dict[str, str]] = {"multi_precision": "Paddle's RMSProp has no such copies"}


def build_optimizer(
    section: Mapping[str, Any], model: nn.Layer
) -> tuple[paddle.optimizer.Optimizer, LearningRate]:
    """Builds what OPTIMIZER describes.

    Args:
        section: `name`, `learning_rate` and the optimizer's other arguments.
        model: whose parameters it updates.

    Returns:
        The optimizer, whose learning rate is a plain number, and the curve that the number follows: call
        `optimizer.set_lr(curve.at(epoch))` before each step.

    Raises:
        SettingError: an argument makes no sense; names it.
    """
    return build(OPTIMIZERS, section).make(model)


def _trained(model: nn.Layer) -> dict[str, Any]:
    """Structured name to parameter, without the running statistics that Paddle counts among the parameters.

    Frozen parameters are included: the optimizer skips them as long as they are frozen.
    """
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if name.rpartition(".")[2] not in ("_mean", "_variance")
    }


def _stage_factors(model: nn.Layer, layer_decay: float) -> dict[str, float]:
    """Name of a layer to the factor of its stage. The model's `stages` are as `modeling.stages` describes.

    Reference: Bao et al., "BEiT: BERT Pre-Training of Image Transformers", arXiv 2106.08254, appendix.
    """
    stages = getattr(model, "stages", {})
    factors = {layer: layer_decay**stage.num_later for stage in stages.values() for layer in stage.layers}
    lost = [name for name in _trained(model) if not any(_covers(layer, name) for layer in factors)]
    if lost:
        text = f"{lost[0]} belongs to no stage of the network; name it in the backbone's stage_layers"
        raise SettingError(f"OPTIMIZER.layer_decay={layer_decay:g}", text)
    return factors


def _decay(weight_decay: float | Mapping[str, Any] | None) -> tuple[str, float]:
    """(L1 or L2, factor)."""
    if weight_decay is None:
        return "L2", 0.0
    if isinstance(weight_decay, (int, float)):
        return "L2", float(weight_decay)
    kind = str(weight_decay.get("name", "L2")).upper().replace("DECAY", "")
    if kind not in ("L1", "L2") or set(weight_decay) - {"name", "value"} or "value" not in weight_decay:
        text = "expected a number or name (L1, L2) and value"
        raise SettingError(f"OPTIMIZER.weight_decay={dict(weight_decay)}", text)
    return kind, _number("weight_decay", weight_decay["value"], "from 0")


def _grad_clip(grad_clip: Mapping[str, Any] | None) -> Any:
    if grad_clip is None:
        return None
    kind = _CLIPS.get(str(grad_clip.get("name", "")).lower())
    if kind is None or set(grad_clip) != {"name", "value"}:
        text = "expected value and name (ClipGradByGlobalNorm, ClipGradByNorm or ClipGradByValue)"
        raise SettingError(f"OPTIMIZER.grad_clip={dict(grad_clip)}", text)
    return kind(_number("grad_clip", grad_clip["value"], "above 0"))


def _number(key: str, value: Any, limit: str) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not (value > 0 or (value == 0 and limit != "above 0")):
        raise SettingError(f"OPTIMIZER.{key}.value={value!r}", f"expected a number {limit}")
    return float(value)
